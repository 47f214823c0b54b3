//! Hosts that change a record at the same time, whatever keeps it.
#![allow(dead_code, reason = "each test binary uses a part of this")]

pub mod etcd;

use lamina_block::{Env, Error};
use lamina_cluster::vault::{Holder, Mode, Outcome, Record, Vault, settle};
use lamina_sim::{SimEnv, Simulation};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

pub const VOLUME: Uuid = Uuid::from_u128(0x11);

pub fn first(env: &SimEnv, host: &str) -> Record {
    Record {
        volume: VOLUME,
        name: "vm1".into(),
        version: 1,
        nonce: Uuid::from_u128(env.random().into()),
        holder: Some(Holder { host: host.into(), flash: None }),
        generation: 1,
        since: 1,
        mode: Mode::Through,
        checkpoint: 0,
        previous: None,
        unfenced: None,
    }
}

/// What a host appends when it has seen `newest`.
pub fn next(env: &SimEnv, host: &str, newest: Option<Record>) -> Record {
    let first = first(env, host);
    match newest {
        None => first,
        Some(newest) => Record { version: newest.version + 1, generation: newest.generation + 1, ..first },
    }
}

pub fn simulate<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::new(seed);
    world.run(test(world.env())).expect("it ends");
}

pub fn never(_: &Error) -> bool {
    false
}

/// What the records were that somebody was told to have made the newest ones.
pub type Done = Rc<RefCell<BTreeMap<u64, Record>>>;

/// A host that changes the record again and again: an error if somebody else was told of the same version.
pub async fn changes(
    env: Rc<SimEnv>,
    vault: Rc<dyn Vault>,
    host: String,
    done: Done,
) -> std::result::Result<(), String> {
    for _ in 0..20 {
        env.sleep(Duration::from_nanos(env.random() % 20_000_000)).await;
        let Ok(newest) = vault.read(VOLUME).await else { continue };
        // It may be paused between its look and its change.
        env.sleep(Duration::from_nanos(env.random() % 20_000_000)).await;
        let record = next(&env, &host, newest);
        match settle(&*vault, &*env, &record, never).await.map_err(|e| e.to_string())? {
            Outcome::Done => {
                if let Some(other) = done.borrow_mut().insert(record.version, record.clone()) {
                    return Err(format!(
                        "{} and {} both made version {}",
                        other.nonce, record.nonce, record.version
                    ));
                }
            }
            Outcome::Lost(newest) if newest.version < record.version => {
                return Err(format!("version {} was lost against {}", record.version, newest.version));
            }
            Outcome::Lost(_) => {}
        }
    }
    Ok(())
}
