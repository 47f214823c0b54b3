//! Members found among devices that are known by their paths only.

#[path = "common/members.rs"]
mod common;

use common::{SIZE, superblock};
use lamina_metadata::member::{Candidate, Gathered, Refusal, gather};
use lamina_metadata::superblock::{Damage, Found, Superblock};

fn with(path: &str, superblock: Superblock) -> Candidate {
    Candidate::new(path, Found { size: SIZE, copies: [Ok(superblock.clone()), Ok(superblock)] })
}

fn blank(path: &str) -> Candidate {
    let found = Found { size: SIZE, copies: [Err(Damage::Absent), Err(Damage::Absent)] };
    Candidate::new(path, found)
}

fn member(path: &str, index: u32) -> Candidate {
    with(path, superblock(1, index, 3, "d"))
}

fn places(found: &Gathered) -> Vec<(&str, usize)> {
    found.members.iter().map(|(name, n)| (name.as_str(), *n)).collect()
}

fn refused(candidates: &[Candidate]) -> String {
    let words = |r: Refusal| format!("{}: {}", r.device.unwrap_or_default(), r.message);
    gather(candidates).expect_err("refused").into_iter().map(words).collect::<Vec<_>>().join("\n")
}

#[test]
fn any_order_and_any_names_are_the_same_hierarchy() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut all = vec![blank("/x/none")];
        all.extend(order.iter().enumerate().map(|(n, index)| member(&format!("/x/{n}"), *index)));
        let found = gather(&all).expect("a hierarchy");
        assert!(found.missing.is_empty());
        for (name, n) in places(&found) {
            assert_eq!(all[n].found.newest().expect("a member").name, name);
        }
        assert_eq!(found.others.len(), 1, "{:?}", found.others);
    }
}

#[test]
fn what_is_missing_is_known_by_its_number() {
    let found = gather(&[member("/x", 2)]).expect("a hierarchy");
    assert_eq!((found.missing, found.members.len()), (vec![0, 1], 1));
}

#[test]
fn a_copy_is_refused_and_both_are_named() {
    let said = refused(&[member("/x", 0), member("/y", 1), member("/z", 0)]);
    assert!(said.contains("/z: is member \"a\", and so is /x"), "{said}");
}

#[test]
fn two_hierarchies_are_refused() {
    let said = refused(&[member("/x", 0), with("/y", superblock(2, 0, 9, "other"))]);
    assert!(said.contains("carry 2 hierarchies"), "{said}");
}

#[test]
fn a_stale_member_is_passed_over() {
    let all = [member("/x", 0), member("/y", 1), with("/z", superblock(1, 2, 2, "older"))];
    let found = gather(&all).expect("a hierarchy");
    assert_eq!(found.missing, [2]);
    assert!(found.others[0].message.contains("is stale: as member \"c\" it has generation 2"));
}

#[test]
fn an_interrupted_change_is_found_where_it_is_whole() {
    let torn = |path: &str, index, first, second| {
        let copies = [Ok(superblock(1, index, first, "d")), Ok(superblock(1, index, second, "d"))];
        Candidate::new(path, Found { size: SIZE, copies })
    };
    let back = [torn("/x", 0, 4, 3), torn("/y", 1, 3, 3), torn("/z", 2, 3, 3)];
    assert_eq!(gather(&back).expect("a hierarchy").superblock.generation, 3);
    let on = [torn("/x", 0, 4, 3), torn("/y", 1, 4, 3), torn("/z", 2, 4, 4)];
    assert_eq!(gather(&on).expect("a hierarchy").superblock.generation, 4);
}

#[test]
fn nothing_is_said_to_be_nothing() {
    let said = refused(&[blank("/x")]);
    assert!(said.contains("/x: carries no superblock") && said.contains("none of these devices"), "{said}");
    assert!(refused(&[]).contains("none of these devices"));
}
