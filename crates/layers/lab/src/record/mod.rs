//! `record`: writes every change into a log, from which any moment can be replayed.
//!
//! The log has the format of Linux' `dm-log-writes`, so that `replay-log` of xfstests replays any prefix of
//! it: the result is a possible state of the device after a crash at that entry. Every prefix that ends at a
//! flush has all that the flush made durable; the whole log gives the device as it is, but for writes that
//! overlapped in flight.
//!
//! ```text
//!      write ──▶ below ──done──▶ kept in memory ───┐
//!      flush ──▶ below ──done──▶ covered writes ───┼──▶ log: entries, then their number, then the answer
//!      forced write ──▶ below ──done───────────────┘
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `log`: the file or block device of the log; relative to the hierarchy file. An existing log is
//!   continued; a file with anything else in it is refused.
//! * `log-size` ("64GiB"): the size of the file if it is created, sparse.
//! * `buffer` ("64MiB"): memory for writes that are not in the log yet. When the buffer is full, they are
//!   logged before the flush that they wait for.
//!
//! Commands: `mark` with a `name` puts the name into the log and answers with its entry's number.
//!
//! The rules of logging are dm-log-writes': an unforced write or discard is logged when a flush that began
//! after its end has ended, in the order of completion, and the flush after it; a forced write when it
//! completes. Unlike there, a forced write takes older writes of the same sectors with it, so that the end of
//! the log is the device as it is. If the log cannot be written, requests that need it fail, and say so; the
//! next one tries again. Entries are durable before the number of entries counts them, so the log can be read
//! at any time.
//!
//! The layer deliberately copies every write once (the log must have the bytes that were written), and does
//! not log reads or writes that failed.

mod format;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use format::{Head, flag};
use lamina_block::{
    Arg, ArgType, Buf, Build, Bytes, Command, Config, Consent, Durability, Effect, Env, Error, ErrorKind,
    Geometry, Io, Layer, Made, Manage, Node, Op, OpenDisk, Outside, Passthrough, Pending, Result, Signal,
    Step, Traits, Verb, Zero, all,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use lamina_kit::size::device_size;
use serde::Deserialize;
use serde_json::{Value, json};
use state::{Content, Entry, Journal};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

/// Entries written together.
const BATCH: usize = 64;
/// The longest entry of zeroes in bytes: replay-log takes an entry into memory whole.
const ZEROES_MAX: u64 = 16 << 20;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    log: PathBuf,
    #[serde(default = "log_size_default")]
    log_size: Bytes,
    #[serde(default = "buffer_default")]
    buffer: Bytes,
}

fn log_size_default() -> Bytes {
    Bytes(64 << 30)
}

fn buffer_default() -> Bytes {
    Bytes(64 << 20)
}

impl Config for Keys {
    const KIND: &'static str = "record";
    const SUMMARY: &'static str = "logs all writes, for replay-log";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        outside: &[Outside::file("log")],
        verbs: &[Verb::new("mark", "puts a name into the log").with(&[Arg::required(
            "name",
            ArgType::Text,
            "the name",
        )])],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(open(self, with))
    }
}

async fn open(keys: Keys, with: Build) -> Result<Made> {
    let child = with.child();
    let sector = child.geometry().block;
    let size =
        device_size(keys.log_size, sector).map_err(|e| Error::invalid(format!("log-{}", e.message())))?;
    let path = with.path(&keys.log);
    let open = OpenDisk { path, read_only: false, direct: false, create: Some(size), block: Some(sector) };
    let disk = with.env.open_disk(open).await?;
    let log = Node::new(&format!("{}.log", with.name), "file", Rc::clone(&with.env), disk);
    let End { entries, cursor } = find_end(&log, sector).await?;
    Ok(Rc::new(Record {
        child,
        env: with.env,
        log,
        sector,
        buffer: keys.buffer.0,
        journal: RefCell::default(),
        buffered: Cell::new(0),
        before: entries,
        cursor: Cell::new(cursor),
        writing: Cell::new(false),
        attempts: Cell::new(0),
        failure: RefCell::default(),
        moved: Signal::new(),
    }))
}

/// The position where a log is continued.
struct End {
    entries: u64,
    cursor: u64,
}

/// Reads the heads of a log. A file of zeroes is an empty log.
async fn find_end(log: &Rc<Node>, sector: u32) -> Result<End> {
    let (size, step) = (log.geometry().size, sector as u64);
    let head = Buf::zeroed(sector as usize);
    log.submit(Io::read(0, head.clone())).await?;
    let Some(entries) = format::decode_super(&head.to_vec(), sector)? else {
        return Ok(End { entries: 0, cursor: step });
    };
    let mut cursor = step;
    for number in 0..entries {
        let cut = || Error::new(ErrorKind::Corrupt, format!("entry {number} of the log is not all there"));
        if cursor > size - step {
            return Err(cut());
        }
        log.submit(Io::read(cursor, head.clone())).await?;
        let data = Head::decode(&head.to_vec(), number)?.data_sectors();
        let end = data.checked_mul(step).and_then(|len| len.checked_add(cursor + step));
        cursor = end.filter(|end| *end <= size).ok_or_else(cut)?;
    }
    Ok(End { entries, cursor })
}

struct Record {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    log: Rc<Node>,
    /// The unit of the log in bytes: the block of the device.
    sector: u32,
    /// The most bytes that `buffered` may become, unless a single write is larger.
    buffer: u64,
    journal: RefCell<Journal>,
    /// Bytes of writes in flight and in the journal.
    buffered: Cell<u64>,
    /// Entries that were in the log when it was opened.
    before: u64,
    /// The position of the next entry.
    cursor: Cell<u64>,
    /// True while the writer runs.
    writing: Cell<bool>,
    /// How often the writer began a batch, and which of these attempts failed last and how, if none has
    /// succeeded since.
    attempts: Cell<u64>,
    failure: RefCell<Option<(u64, Error)>>,
    /// Notified when one of these changes.
    moved: Signal,
}

impl Record {
    /// A private copy of the bytes of a write, once there is room for it.
    async fn copy(self: &Rc<Self>, bytes: &Buf) -> Result<Buf> {
        let len = bytes.len() as u64;
        while self.buffered.get() > 0 && self.buffered.get() + len > self.buffer {
            let moved = self.moved.wait();
            let everything = self.journal.borrow_mut().release_all();
            if self.journal.borrow().logged() < everything {
                self.logged(everything).await?;
            } else {
                moved.await;
            }
        }
        self.buffered.set(self.buffered.get() + len);
        let copy = self.env.pool().take(bytes.len());
        copy.copy_from(bytes);
        Ok(copy)
    }

    fn release(&self, bytes: u64) {
        self.buffered.set(self.buffered.get() - bytes);
        self.moved.notify();
    }

    async fn write(self: Rc<Self>, at: Range<u64>, bytes: Buf, durability: Durability) -> Result<()> {
        let copy = self.copy(&bytes).await?;
        let written = self.child.submit(Io::write(at.start, copy.clone(), durability)).await;
        written.inspect_err(|_| self.release(copy.len() as u64))?;
        self.completed(vec![Entry { at, flags: 0, content: Content::Data(copy) }], durability).await
    }

    async fn zero(self: Rc<Self>, at: Range<u64>, how: Zero) -> Result<()> {
        self.child.submit(Io::zero(at.clone(), how)).await?;
        let cut = |start: u64| Entry {
            at: start..at.end.min(start + ZEROES_MAX),
            flags: 0,
            content: Content::Zeroes,
        };
        self.completed(at.clone().step_by(ZEROES_MAX as usize).map(cut).collect(), how.durability).await
    }

    async fn discard(self: Rc<Self>, at: Range<u64>) -> Result<()> {
        self.child.submit(Io::discard(at.clone())).await?;
        let entry = Entry { at, flags: flag::DISCARD, content: Content::None };
        self.completed(vec![entry], Durability::Cached).await
    }

    async fn flush(self: Rc<Self>, covers: u64) -> Result<()> {
        self.child.submit(Io::flush()).await?;
        let number = self.journal.borrow_mut().flushed(covers);
        self.logged(number).await
    }

    /// The parts of a change have completed.
    async fn completed(self: Rc<Self>, entries: Vec<Entry>, durability: Durability) -> Result<()> {
        let mut number = 0;
        for entry in entries {
            let mut journal = self.journal.borrow_mut();
            match durability {
                Durability::Cached => journal.completed(entry),
                Durability::Fua => {
                    number = journal.durable(Entry { flags: entry.flags | flag::FUA, ..entry })
                }
            }
        }
        self.moved.notify();
        self.logged(number).await
    }

    /// Waits until `number` entries are in the log, or an attempt to write them that began after this has
    /// failed.
    async fn logged(self: &Rc<Self>, number: u64) -> Result<()> {
        let before = self.attempts.get();
        while self.journal.borrow().logged() < number {
            let moved = self.moved.wait();
            if let Some((_, e)) = self.failure.borrow().as_ref().filter(|(attempt, _)| *attempt > before) {
                return Err(e.clone());
            }
            if !self.writing.replace(true) {
                self.env.spawn(Box::pin(Rc::clone(self).write_log()));
            }
            moved.await;
        }
        Ok(())
    }

    /// Writes the queue, as long as there is one. Entries that could not be written stay in it.
    async fn write_log(self: Rc<Self>) {
        loop {
            let batch = self.journal.borrow().batch(BATCH);
            if batch.is_empty() {
                break;
            }
            self.attempts.set(self.attempts.get() + 1);
            match self.write_batch(&batch).await {
                Ok(cursor) => {
                    self.cursor.set(cursor);
                    self.failure.take();
                    let bytes = self.journal.borrow_mut().written(batch.len());
                    self.release(bytes);
                }
                Err(e) => {
                    let before = self.failure.replace(Some((self.attempts.get(), e.clone())));
                    if before.is_none() {
                        tracing::error!(device = self.log.name(), "the log cannot be written: {e}");
                    }
                    break;
                }
            }
        }
        self.writing.set(false);
        self.moved.notify();
    }

    /// Writes entries at the cursor, makes them durable, and then counts them in the super. Returns their
    /// end.
    async fn write_batch(&self, batch: &[Entry]) -> Result<u64> {
        let mut cursor = self.cursor.get();
        let mut writes = Vec::new();
        for entry in batch {
            let head = entry.head(self.sector);
            let data = cursor + self.sector as u64;
            let end = data + head.data_sectors() * self.sector as u64;
            if end > self.log.geometry().size {
                let size = Bytes(self.log.geometry().size);
                return Err(Error::new(ErrorKind::NoSpace, format!("the log is full ({size})")));
            }
            let name = if let Content::Name(name) = &entry.content { name } else { "" };
            let mut bytes = Buf::from_vec(head.encode(name, self.sector));
            match &entry.content {
                Content::Data(data) => bytes.append(data.clone()),
                Content::Zeroes => writes.push(Io::zero(data..end, Zero { unmap: true, ..Zero::default() })),
                Content::None | Content::Name(_) => {}
            }
            writes.push(Io::write(cursor, bytes, Durability::Cached));
            cursor = end;
        }
        all(writes.into_iter().map(|io| self.log.submit(io))).await?;
        self.log.submit(Io::flush()).await?;
        let entries = self.before + self.journal.borrow().logged() + batch.len() as u64;
        let head = Buf::from_vec(format::encode_super(entries, self.sector));
        self.log.submit(Io::write(0, head, Durability::Cached)).await?;
        Ok(cursor)
    }

    async fn mark(self: Rc<Self>, name: String) -> Result<Value> {
        let max = format::name_max(self.sector);
        if name.is_empty() || name.len() > max || name.contains('\0') {
            return Err(Error::invalid(format!("mark: the name must have 1 to {max} bytes, none of them 0")));
        }
        let number = self.journal.borrow_mut().append(Entry::mark(name));
        self.logged(number).await?;
        Ok(json!({ "entry": self.before + number - 1 }))
    }
}

/// The arguments of `mark`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Mark {
    name: String,
}

impl Layer for Record {
    /// As below; forced writes come here as they are, since the log tells them from others.
    fn geometry(&self) -> Geometry {
        Geometry { fua: true, ..self.child.geometry() }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let at = io.at.clone();
        match &io.op {
            Op::Read(_) => Step::Forward(Rc::clone(&self.child)),
            Op::Write(bytes, durability) => Step::control(self.write(at, bytes.clone(), *durability)),
            Op::Zero(how) => Step::control(self.zero(at, *how)),
            Op::Discard => Step::control(self.discard(at)),
            Op::Flush => {
                let covers = self.journal.borrow().flush_begins();
                Step::control(self.flush(covers))
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }

    /// Logs the unflushed writes, too, and closes the log.
    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            let number = self.journal.borrow_mut().release_all();
            let logged = self.logged(number).await;
            logged.and(self.log.close().await)
        })
    }
}

impl Manage for Record {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || {
            format!("its log has every change of {}, and this change would not be in it", child.name())
        })
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "mark" => {
                    let Mark { name } = args(command)?;
                    self.mark(name).await
                }
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn info(&self) -> Value {
        json!({
            "entries": self.before + self.journal.borrow().logged(),
            "log_used": self.cursor.get(),
            "held": self.buffered.get(),
        })
    }
}
