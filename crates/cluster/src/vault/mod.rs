//! The vault: one record for each volume, changed by comparing and setting.
//!
//! ```text
//!      version 7 ──▶ version 8 ──▶ version 9          a record is never changed, only followed
//!                        ▲
//!                   two hosts append 8: one is told `Done`, the other one `Lost`
//! ```
//!
//! Invariants:
//! * Of all records of a version one at most was ever the newest.
//! * A change that was answered with `Done` is durable, and was the newest record at that moment.
//! * A change without an answer is done, or not, or will be done later. [`settle`] asks again until it is known; nobody
//!   may act on either meanwhile.

mod etcd;
mod folder;
mod place;
mod record;
mod store;

pub use etcd::{EtcdVault, Member};
pub use folder::FolderVault;
pub use place::{Certificates, ETCD, Place};
pub use record::{Holder, Mode, NAME_MAX, RECORD_MAX, Record, is_name};
pub use store::{StoreRecords, StoreVault};

use lamina_block::{Env, Pending, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

/// How long [`settle`] waits before it asks again.
const AGAIN: Duration = Duration::from_millis(200);

/// How a change of a record has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is the newest record.
    Done,
    /// Another record took its place, or has followed it: this is the newest one.
    Lost(Box<Record>),
}

/// A sign of life of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Drawn by the process when it began.
    pub process: Uuid,
    /// Rises with each beat.
    pub counter: u64,
    /// For so many milliseconds it may be silent, as it says itself.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lease: u64,
    /// Where it takes the writes of other hosts, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The fault domain in which it is, if it says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Bytes of its flash that hold nothing which a store lacks, if it takes writes of other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
}

fn is_none(lease: &u64) -> bool {
    *lease == 0
}

/// What keeps the records of volumes, and the beats of hosts.
pub trait Vault {
    /// The volumes that have records, in no order.
    fn volumes(&self) -> Pending<Vec<Uuid>>;
    /// The newest record of a volume; `None` if it has none. `Corrupt` if it is damaged: an older one is no answer.
    fn read(&self, volume: Uuid) -> Pending<Option<Record>>;
    /// Makes a record the newest one of its volume, if it follows the one that is. After an error it may become so at
    /// any time, until another record of its version is there.
    fn append(&self, record: &Record) -> Pending<Outcome>;
    /// The last beat of a host; `None` if there is none that can be read.
    fn heard(&self, host: &str) -> Pending<Option<Beat>>;
    /// A beat of a host.
    fn beat(&self, host: &str, beat: Beat) -> Pending;
    /// The names under which there are beats, in no order.
    fn beating(&self) -> Pending<Vec<String>>;
    /// True if nothing of an older generation reaches the store any more when a record was appended.
    fn fences(&self) -> bool {
        false
    }
}

/// Appends a record, and asks again until the outcome is known, however long the vault does not answer: that is logged.
/// Ends with the error if `gives_up` says so of it: then the outcome is not known.
pub async fn settle(
    vault: &dyn Vault,
    env: &dyn Env,
    record: &Record,
    gives_up: impl Fn(&lamina_block::Error) -> bool,
) -> Result<Outcome> {
    let (volume, version) = (record.volume, record.version);
    let mut is_told = false;
    loop {
        match vault.append(record).await {
            Err(e) if !gives_up(&e) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%volume, version, error = %e, "waits for the vault, which is asked again and again");
                }
                env.sleep(AGAIN).await;
            }
            known => {
                if is_told && known.is_ok() {
                    tracing::info!(%volume, version, "the vault has answered");
                }
                return known;
            }
        }
    }
}
