//! Which reads get copies: the daily write budget of a tier, and the models of `heat`.

use super::*;
use lamina_block::Op;
use std::cell::Cell;

/// The least budget: 6 KiB a second, and 21 MiB at once.
const BUDGET: u64 = 512 << 20;
const LARGE: u64 = 64 << 20;
const HOUR: u64 = 3600;

/// Runs `test` over a tier whose slow device is much larger than its flash, with the bytes of batches that were written
/// there. Of states and summaries, which are all other writes, the former come first, and the latter have one slot.
fn over_large<F: Future<Output = ()> + 'static>(
    keys: Value,
    test: impl FnOnce(Rc<SimEnv>, Rc<Node>, Rc<Cell<u64>>) -> F + 'static,
) {
    let world = Simulation::measuring(1);
    put_disks(&world.env(), &[("store", LARGE), ("flash", 4 << 20)]);
    let env = world.env();
    world
        .run(async move {
            let top = new_tier(&env, keys).await;
            let written = Rc::new(Cell::new(0));
            let counted = Rc::clone(&written);
            env.set_fault(Some(Box::new(move |_, disk, io| {
                if let (Op::Write(from, _), "flash") = (&io.op, disk)
                    && io.at.start >= 8 * 4096
                    && from.len() > 4096
                {
                    counted.set(counted.get() + from.len() as u64);
                }
                None
            })));
            test(env, top, written).await;
        })
        .expect("it ends");
}

/// Reads 64 KiB somewhere, so many times, over so many seconds.
async fn scan(env: &Rc<SimEnv>, top: &Rc<Node>, reads: u64, seconds: u64) {
    for _ in 0..reads {
        read(top, (env.random() % (LARGE >> 16)) << 16, 64 << 10).await;
        env.sleep(Duration::from_secs(seconds) / reads as u32).await;
    }
}

fn budget(node: &Rc<Node>, name: &str) -> u64 {
    node.info()["write_budget"][name].as_u64().expect(name)
}

#[test]
fn copies_write_no_more_than_the_budget_and_an_hours_worth() {
    over_large(json!({ "write-budget": BUDGET, "placement": "lru" }), |env, top, written| async move {
        let mut hours = vec![0];
        for _ in 0..30 {
            scan(&env, &top, 600, HOUR).await;
            hours.push(written.get());
        }
        for window in [1, 2, 24] {
            let most = hours.iter().zip(&hours[window..]).map(|(before, after)| after - before).max();
            // Beside the tokens of that time and a full bucket a batch that was just taken may be on its way.
            let allowed = (window as u64 + 1) * (BUDGET / 24) + (128 << 10);
            assert!(most <= Some(allowed), "{window} h: {most:?} of {allowed}");
        }
        assert!(hours[24] > BUDGET / 10 * 9, "the budget is used: {}", hours[24]);
        // Of 37.5 MiB an hour that are read there is space for 21.
        assert!(budget(&top, "refused_bytes") > budget(&top, "copied_bytes") / 2);
        assert!(budget(&top, "today_bytes") < budget(&top, "copied_bytes"), "a day has ended");
    });
    over_large(json!({ "placement": "lru" }), |env, top, written| async move {
        scan(&env, &top, 3 * 600, 3 * HOUR).await;
        assert!(written.get() > 5 * BUDGET / 24, "{} without a budget", written.get());
        assert_eq!((budget(&top, "refused_bytes"), &top.info()["write_budget"]["bytes"]), (0, &Value::Null));
    });
}

#[test]
fn what_is_hot_gets_in_while_the_budget_is_short() {
    over_large(json!({ "write-budget": BUDGET }), |env, top, _| async move {
        scan(&env, &top, 2000, HOUR).await;
        assert!(budget(&top, "left_bytes") < BUDGET / 24 / 2, "it is short");
        let missed = |top: &Rc<Node>| figure(top, "missed_bytes");
        let mut rounds = Vec::new();
        // A few blocks are read again and again, among sixteen times as many that are not.
        for _ in 0..20 {
            let mut misses = 0;
            for block in 0..32 {
                let before = missed(&top);
                read(&top, block * 4096, 4096).await;
                misses += missed(&top) - before;
                scan(&env, &top, 1, 4).await;
            }
            rounds.push(misses / 4096);
        }
        let late: u64 = rounds[10..].iter().sum();
        assert!(rounds[0] > 25 && late < 10, "{rounds:?}");
    });
}

#[test]
fn writes_of_clients_land_without_a_budget() {
    over_large(json!({ "write-budget": BUDGET }), |env, top, written| async move {
        scan(&env, &top, 3000, HOUR).await;
        let (before, copied) = (written.get(), budget(&top, "copied_bytes"));
        for block in 0..4000 {
            write(&top, block * 8192, 4096, block as u8).await;
        }
        assert!(written.get() - before >= 4000 * 4096);
        assert!(budget(&top, "copied_bytes") - copied < 2 << 20, "what is not counted is not taken");
        for block in 0..4000 {
            assert_eq!(read(&top, block * 8192, 4096).await, [block as u8; 4096], "block {block}");
        }
    });
}

#[test]
fn a_budget_changes_live() {
    over_large(json!({ "write-budget": BUDGET, "placement": "lru" }), |env, top, _| async move {
        scan(&env, &top, 2000, HOUR).await;
        let before = budget(&top, "copied_bytes");
        let told = ctl(&top, "set-write-budget", json!({ "budget": "96GiB" })).await;
        assert_eq!(told["write_budget"]["bytes"], json!(96u64 << 30));
        scan(&env, &top, 600, HOUR).await;
        let refused = budget(&top, "refused_bytes");
        assert!(budget(&top, "copied_bytes") - before > 500 << 16, "nearly all reads are copied");
        ctl(&top, "set-write-budget", json!({})).await;
        scan(&env, &top, 100, HOUR).await;
        assert_eq!(budget(&top, "refused_bytes"), refused, "no limit");
    });
}

#[test]
fn heat_copies_less_of_what_is_not_asked_for_again() {
    let copied = |keys: Value| {
        let copied = Rc::new(Cell::new(0));
        let told = Rc::clone(&copied);
        over_large(keys, |env, top, _| async move {
            scan(&env, &top, 4000, HOUR).await;
            told.set(budget(&top, "copied_bytes"));
            assert_eq!(budget(&top, "refused_bytes"), 0, "there is no budget");
            let part = &top.info()["copied_part"];
            let is_lru = top.info()["placement"] == "lru";
            assert!(if is_lru { *part == 1.0 } else { *part == 0.5 || *part == 0.25 }, "{part}");
        });
        copied.get()
    };
    let [heat, lru] = ["heat", "lru"].map(|placement| copied(json!({ "placement": placement })));
    assert!(lru > 200 << 20 && heat < lru * 2 / 3, "{heat} of {lru}");
}

#[test]
fn a_budget_has_bounds() {
    over_large(json!({}), |_, top, _| async move {
        for budget in [0, BUDGET - 1, (1 << 50) + 1] {
            let set = Command { name: "set-write-budget".into(), args: json!({ "budget": budget }) };
            let refused = top.control(set).await.expect_err("too little or too much").to_string();
            assert!(refused.contains("512MiB to 1024TiB"), "{refused}");
        }
        for budget in [BUDGET, 1 << 50] {
            ctl(&top, "set-write-budget", json!({ "budget": budget })).await;
        }
    });
}
