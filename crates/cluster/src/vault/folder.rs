//! A vault of files in a folder that hosts share: NFS 4.1 and later, CephFS, GlusterFS, or a local one.
//!
//! ```text
//!      VAULT/6f1c….record.8       superseded: stays for ten minutes
//!            6f1c….record.9       the newest record of volume 6f1c…
//!            6f1c….latest         a copy of it, for people and for who polls; it decides nothing
//!            a.beat               the last beat of host a
//! ```
//!
//! A record is a file that is made under its name only if there is none: `link(2)` is the comparison. So a host that
//! was paused between its look and its change cannot overwrite what others have appended meanwhile. A record that is
//! removed leaves its name free for such a host; therefore it looks again after it has made a file, and names stay for
//! longer than file systems believe an old list of a folder.

use super::{Beat, Outcome, RECORD_MAX, Record, Vault};
use lamina_block::{Env, Error, Folder, Pending, Result, Time};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// How long a superseded record stays. Network file systems believe what they know of a folder for a minute at most.
const STAYS: Duration = Duration::from_secs(600);
/// The longest beat, in bytes.
const BEAT_MAX: usize = 1024;

/// A vault of files.
pub struct FolderVault {
    shared: Rc<Shared>,
}

struct Shared {
    env: Rc<dyn Env>,
    folder: Rc<dyn Folder>,
    /// Records that were seen superseded, and since when.
    superseded: RefCell<BTreeMap<(Uuid, u64), Time>>,
}

fn beat_name(host: &str) -> String {
    format!("{host}.beat")
}

fn name(volume: Uuid, version: u64) -> String {
    format!("{volume}.record.{version}")
}

impl FolderVault {
    /// The vault in a folder.
    pub fn new(env: Rc<dyn Env>, folder: Rc<dyn Folder>) -> FolderVault {
        FolderVault { shared: Rc::new(Shared { env, folder, superseded: RefCell::default() }) }
    }
}

impl Shared {
    /// The versions that there are of a volume's record, in rising order.
    async fn versions(&self, volume: Uuid) -> Result<Vec<u64>> {
        let prefix = format!("{volume}.record.");
        let names = self.folder.list().await?;
        let version = |name: &String| name.strip_prefix(&prefix)?.parse().ok();
        let mut versions: Vec<u64> = names.iter().filter_map(version).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    async fn read(&self, volume: Uuid) -> Result<Option<Record>> {
        loop {
            let Some(version) = self.versions(volume).await?.last().copied() else { return Ok(None) };
            if let Some(record) = self.read_version(volume, version).await? {
                return Ok(Some(record));
            }
            // Superseded and removed since the list was read.
        }
    }

    async fn read_version(&self, volume: Uuid, version: u64) -> Result<Option<Record>> {
        let file = name(volume, version);
        let told = |e: Error| {
            let message = format!(
                "vault: {file}: {}. Which host has the volume is unknown: if a newer Lamina or a copy has the file \
                 whole, use that; never remove it while a host serves the volume",
                e.message()
            );
            Error::new(e.kind(), message)
        };
        let Some(bytes) = self.folder.read(&file, RECORD_MAX).await? else { return Ok(None) };
        let record = Record::decode(&bytes).map_err(told)?;
        match (record.volume, record.version) == (volume, version) {
            true => Ok(Some(record)),
            false => {
                Err(told(Error::new(lamina_block::ErrorKind::Corrupt, "it is the record of another name")))
            }
        }
    }

    async fn append(&self, record: Record) -> Result<Outcome> {
        record.check()?;
        let newest = self.read(record.volume).await?;
        match newest {
            // What an earlier attempt made may not be durable: it is made again, which changes nothing.
            Some(newest) if newest != record && newest.version + 1 != record.version => {
                return Ok(Outcome::Lost(Box::new(newest)));
            }
            None if record.version != 1 => {
                let message = format!("vault: the records of volume {} are gone", record.volume);
                return Err(Error::offline(message));
            }
            Some(_) | None => {}
        }
        // Whether it was made or was there, the newest one says how it has ended.
        let bytes = record.encode();
        self.folder.create(&name(record.volume, record.version), bytes.clone()).await?;
        match self.read(record.volume).await? {
            Some(newest) if newest == record => {
                // For people: what goes wrong with it changes nothing.
                let _ = self.folder.replace(&format!("{}.latest", record.volume), bytes).await;
                self.prune(&record).await;
                Ok(Outcome::Done)
            }
            Some(newest) => Ok(Outcome::Lost(Box::new(newest))),
            None => Err(Error::offline(format!("vault: the records of volume {} are gone", record.volume))),
        }
    }

    /// Removes records that were superseded long ago, as far as that goes.
    async fn prune(&self, newest: &Record) {
        let Ok(versions) = self.versions(newest.volume).await else { return };
        for version in versions.into_iter().filter(|version| *version < newest.version) {
            let now = self.env.now();
            let since = *self.superseded.borrow_mut().entry((newest.volume, version)).or_insert(now);
            if now.since(since) >= STAYS && self.folder.remove(&name(newest.volume, version)).await.is_ok() {
                self.superseded.borrow_mut().remove(&(newest.volume, version));
            }
        }
    }
}

impl Vault for FolderVault {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        let list = self.shared.folder.list();
        Box::pin(async move {
            let volume = |name: String| Uuid::parse_str(name.split_once(".record.")?.0).ok();
            let volumes: BTreeSet<Uuid> = list.await?.into_iter().filter_map(volume).collect();
            Ok(volumes.into_iter().collect())
        })
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        let shared = Rc::clone(&self.shared);
        Box::pin(async move { shared.read(volume).await })
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        let (shared, record) = (Rc::clone(&self.shared), record.clone());
        Box::pin(async move { shared.append(record).await })
    }

    fn heard(&self, host: &str) -> Pending<Option<Beat>> {
        let read = self.shared.folder.read(&beat_name(host), BEAT_MAX);
        // One that is damaged is followed by another one, or by silence.
        Box::pin(async move { Ok(read.await?.and_then(|bytes| serde_json::from_slice(&bytes).ok())) })
    }

    fn beat(&self, host: &str, beat: Beat) -> Pending {
        let json = serde_json::to_vec(&beat).expect("it has no map with other keys than strings");
        self.shared.folder.replace(&beat_name(host), json)
    }

    fn beating(&self) -> Pending<Vec<String>> {
        let list = self.shared.folder.list();
        Box::pin(async move {
            let host = |name: String| name.strip_suffix(".beat").map(str::to_owned);
            Ok(list.await?.into_iter().filter_map(host).collect())
        })
    }
}
