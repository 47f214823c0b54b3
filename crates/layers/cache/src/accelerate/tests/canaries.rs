//! Errors of a device with peers, of which each breaks an invariant, and is caught by it: in the storm, or in a
//! schedule.

use super::cluster::Group;
use super::schedules::{flushed, left, loss, lost_links, overwritten, past, play, stopped};
use super::storm::storm;
use super::*;
use crate::testing::history::Checked;

/// The storm's seeds until one has to show an error.
const STORMS: u64 = 400;

/// Fails unless one of these seeds shows the error, and the first that does names one of the invariants.
fn is_caught(flaw: &'static str, invariants: &[&str], seeds: u64, run: impl Fn(u64) -> Checked) {
    FLAW.set(Some(flaw));
    let found = (0..seeds).find_map(|seed| run(seed).err());
    FLAW.set(None);
    let e = found.unwrap_or_else(|| panic!("nobody noticed {flaw:?}"));
    println!("{flaw}: {e}");
    assert!(
        invariants.iter().any(|invariant| e.contains(invariant)),
        "{flaw:?} is to break {invariants:?}: {e}"
    );
}

fn in_storm(flaw: &'static str, invariants: &[&str]) {
    is_caught(flaw, invariants, STORMS, storm);
}

#[test]
fn a_write_that_peers_do_not_get() {
    in_storm("a write that peers do not get", &["I1", "I7:", "I8"]);
}

#[test]
fn acknowledged_before_the_vault_knows() {
    // A peer that is lost, and that the vault still names, lacks what the store gets.
    in_storm("acknowledged before the vault knows", &["I1", "I2:", "I3:", "I7:", "I8"]);
}

#[test]
fn on_the_store_before_all_flashes_have_it() {
    in_storm("on the store before all flashes have it", &["I1", "I3:", "I7:", "I8"]);
}

#[test]
fn dropped_before_the_store_has_it() {
    in_storm("checkpoint before the store", &["I1", "I4:", "I7:", "I8"]);
}

#[test]
fn a_quarantine_that_is_forgotten() {
    let run = |seed| play(seed, (2, 1), |on: Group| stopped(on, false));
    is_caught("quarantine is forgotten", &["I5:", "I7:", "I8"], 40, run);
}

#[test]
fn late_writes_that_are_taken_for_nothing() {
    let run = |seed| play(seed, (2, 1), overwritten);
    is_caught("late writes are over nothing", &["I1", "I5:", "I7", "I8"], 40, run);
}

#[test]
fn a_past_that_is_forgotten() {
    is_caught("the past of a host is forgotten", &["I1", "I5:", "I7:", "I8"], 20, |seed| {
        play(seed, (2, 1), past)
    });
}

#[test]
fn a_flush_that_does_not_wait_for_the_volume() {
    is_caught("a flush does not wait for the volume", &["I1", "I7:", "I8"], 20, |seed| {
        play(seed, (2, 1), flushed)
    });
}

#[test]
fn a_flash_that_is_behind_the_store_and_counts() {
    let run = |seed| play(seed, (2, 1), |on: Group| left(on, false));
    is_caught("a flash that is behind the store counts", &["I3:"], 20, run);
}

#[test]
fn a_flash_whose_record_is_old_and_that_counts() {
    let run = |seed| play(seed, (2, 1), |on: Group| left(on, true));
    is_caught("a flash whose record is old counts", &["I1", "I3:", "I7:", "I8"], 20, run);
}

#[test]
fn a_generation_that_falls() {
    in_storm("a generation falls", &["I6:"]);
}

#[test]
fn a_generation_that_has_ended_answers() {
    let run = |seed| play(seed, (2, 1), |on: Group| stopped(on, false));
    is_caught("a generation that has ended answers", &["I2:", "I7:"], 40, run);
}

#[test]
fn given_back_before_the_store_has_everything() {
    in_storm("given back before the store has everything", &["I1", "I7:", "I8"]);
}

#[test]
fn a_loss_without_its_place() {
    is_caught("a loss without its place", &["I9:"], 2, |seed| play(seed, (2, 1), loss));
}

#[test]
fn a_lost_peer_that_is_named_for_ever() {
    let run = |seed| play(seed, (2, 1), |on: Group| lost_links(on, &[(0, 1), (1, 0)]));
    is_caught("a lost peer is named for ever", &["I10:"], 2, run);
}
