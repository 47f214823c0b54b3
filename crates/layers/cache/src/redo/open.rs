//! A log is made, and opened: what counts, or else what was written since, gets to the store before anybody
//! asks for it.

use super::format::{self, Committed, Entry, Head, LOG_MIN, PAGE, RECORDS, Record, Super, checksum};
use super::{Epoch, PIECE, Phase, Redo};
use lamina_block::{Durability, Env, Error, ErrorKind, Io, Node, Result, Signal};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Makes a log on `log`, whatever is there.
pub async fn format_log(env: &Rc<dyn Env>, log: &Rc<Node>) -> Result<()> {
    let size = log.geometry().size / PAGE * PAGE;
    if size < LOG_MIN {
        let message = format!("{size} bytes are too few for a redo log: it takes {LOG_MIN} at least");
        return Err(Error::invalid(message).on(log.name()));
    }
    let of = Super { size, key: env.random() };
    let record = Record { sequence: 1, ..Record::default() };
    write_page(env, log, RECORDS[0], &record.encode(of.key)).await?;
    // The superblock comes last: without it there is no log.
    write_page(env, log, 0, &of.encode()).await
}

pub async fn write_page(env: &Rc<dyn Env>, log: &Rc<Node>, at: u64, bytes: &[u8]) -> Result<()> {
    let buf = env.pool().take(bytes.len());
    buf.write(0, bytes);
    log.submit(Io::write(at, buf, Durability::Fua)).await
}

async fn read_bytes(env: &Rc<dyn Env>, node: &Rc<Node>, at: Range<u64>) -> Result<Vec<u8>> {
    let buf = env.pool().take((at.end - at.start) as usize);
    node.submit(Io::read(at.start, buf.clone())).await?;
    Ok(buf.to_vec())
}

impl Redo {
    pub async fn open(name: &str, env: &Rc<dyn Env>, store: Rc<Node>, log: Rc<Node>) -> Result<Rc<Redo>> {
        let size = log.geometry().size;
        let damaged = |e: Error| Error::new(e.kind(), e.message()).on(log.name());
        if size < LOG_MIN {
            return Err(damaged(Error::new(ErrorKind::Corrupt, "there is no redo log on it")));
        }
        let of = Super::decode(&read_bytes(env, &log, 0..PAGE).await?, size).map_err(damaged)?;
        let mut records = Vec::new();
        for (slot, at) in RECORDS.into_iter().enumerate() {
            let bytes = read_bytes(env, &log, at..at + PAGE).await?;
            records.extend(Record::decode(&bytes, &of).map(|record| (record, slot)));
        }
        let Some((record, slot)) = records.into_iter().max_by_key(|(record, _)| record.sequence) else {
            let message = "neither record of the redo log can be read";
            return Err(damaged(Error::new(ErrorKind::Corrupt, message)));
        };
        let me = Rc::new(Redo {
            name: name.into(),
            env: Rc::clone(env),
            store,
            log,
            of,
            epoch: RefCell::new(Epoch::new(env)),
            record: Cell::new(record),
            slot: Cell::new(slot),
            reading: Cell::new(0),
            ending: Cell::new(false),
            ends: Default::default(),
            moved: Signal::new(),
            scratch: RefCell::default(),
            written: Cell::new(0),
        });
        match record.committed {
            Some(committed) => me.load(&committed).await?,
            None => me.follow().await?,
        }
        if !me.geometry().read_only
            && let Err(e) = me.end().await
        {
            // What is on the log is read from there; the next write or flush tries again.
            tracing::warn!(device = %me.name, error = %e, "the store cannot be brought to the last epoch yet");
        }
        Ok(me)
    }

    /// Takes in the writes that have joined an epoch which does not count yet, as far as all before them are whole.
    async fn follow(&self) -> Result<()> {
        let (of_epoch, store) = (self.record.get().epoch + 1, self.store.geometry());
        let mut epoch = Epoch::new(&self.env);
        while epoch.end + PAGE < self.of.size {
            let place = epoch.end;
            let bytes = read_bytes(&self.env, &self.log, place..place + PAGE).await?;
            let is_first = epoch.table.is_empty();
            let Some(head) = Head::decode(&bytes, place, &self.of)
                .filter(|head| head.epoch == of_epoch && (is_first || head.life == epoch.life))
            else {
                break;
            };
            let (place, len) = (place + PAGE, head.at.end - head.at.start);
            if len > PIECE
                || checksum(&read_bytes(&self.env, &self.log, place..place + len).await?) != head.sum
            {
                break;
            }
            let entry = Entry { at: head.at, data: Some((place, head.sum)) };
            if !entry.is_possible(&self.of, store.size, store.block.into()) {
                return Err(self.damaged(format::not_there()));
            }
            (epoch.life, epoch.time, epoch.end) = (head.life, head.time, place + len);
            epoch.add(entry);
        }
        self.epoch.replace(epoch);
        Ok(())
    }

    fn damaged(&self, e: Error) -> Error {
        Error::new(e.kind(), e.message()).on(self.log.name())
    }

    /// Takes in an epoch that counts. All of it is looked at before the store is changed.
    async fn load(&self, committed: &Committed) -> Result<()> {
        let bytes =
            read_bytes(&self.env, &self.log, committed.table..committed.table + committed.table_len())
                .await?;
        let store = self.store.geometry();
        let table = format::decode_table(&bytes, committed, &self.of, store.size, u64::from(store.block));
        let mut epoch = Epoch { phase: Phase::Counts, time: self.record.get().time, ..Epoch::new(&self.env) };
        for entry in table.map_err(|e| self.damaged(e))? {
            if let Some((place, sum)) = entry.data {
                let len = entry.at.end - entry.at.start;
                if len > PIECE
                    || checksum(&read_bytes(&self.env, &self.log, place..place + len).await?) != sum
                {
                    let message = "the redo log is damaged: the store may be between two epochs, and the log cannot \
                                   finish the second one";
                    return Err(self.damaged(Error::new(ErrorKind::Corrupt, message)).at(entry.at));
                }
                epoch.end = epoch.end.max(place + len);
            }
            epoch.add(entry);
        }
        self.epoch.replace(epoch);
        Ok(())
    }
}
