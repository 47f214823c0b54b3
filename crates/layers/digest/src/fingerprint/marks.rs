//! Moments with a name, and the blocks that have changed since.
//!
//! A mark is a bitmap in the metadata store, in which the table sets bits. Its name is put into a list in the
//! same store, in one change; a bitmap that is in no list is a mark that was not finished, and is removed
//! when the table is opened.

use crate::sums::{PAGE, Sums};
use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::{Change, Id, Object};
use serde_json::{Value, json};
use std::cell::RefCell;

/// The most marks.
pub const MARKS_MAX: usize = 8;
/// The longest name in bytes.
const NAME_MAX: usize = 62;
/// Bytes of an entry of the list: the length of its name, 0 if it is free; the name; a zero.
const ENTRY: usize = 64;
/// The tag of the list; the bitmap of entry n has the tag `FIRST` + n.
const LIST: u64 = 3;
const FIRST: u64 = 16;

/// A mark: its entry in the list, its name, its bitmap.
type Mark = (usize, String, Object);

/// The marks of a table.
pub struct Marks(RefCell<Vec<Mark>>);

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn entry(name: &str) -> Vec<u8> {
    let mut entry = vec![name.len() as u8];
    entry.extend(name.as_bytes());
    entry.resize(ENTRY, 0);
    entry
}

/// The name in an entry.
fn name_in(entry: &[u8]) -> Result<Option<String>> {
    let len = usize::from(entry[0]);
    let name = entry[1..].get(..len).and_then(|name| std::str::from_utf8(name).ok());
    match name.filter(|name| is_name(name)) {
        Some(name) => Ok(Some(name.to_owned())),
        None if len == 0 => Ok(None),
        None => Err(Error::new(ErrorKind::Corrupt, "the list of marks is damaged")),
    }
}

impl Marks {
    /// The marks in the store.
    pub async fn open(sums: &Sums) -> Result<Marks> {
        let marks = Marks(RefCell::default());
        if let Some(list) = sums.store.find(LIST) {
            let mut bytes = [0; ENTRY * MARKS_MAX];
            sums.store.load(list)?.read(0, &mut bytes).await?;
            for (i, entry) in bytes.chunks_exact(ENTRY).enumerate() {
                let Some(name) = name_in(entry)? else { continue };
                let missing = || Error::new(ErrorKind::Corrupt, format!("the mark {name:?} has no bits"));
                let bitmap = sums.store.load(sums.store.find(FIRST + i as u64).ok_or_else(missing)?)?;
                if bitmap.len() != len(sums) {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        format!("the mark {name:?} is of another size"),
                    ));
                }
                marks.0.borrow_mut().push((i, name, bitmap));
            }
        }
        if !sums.is_read_only() {
            marks.sweep(sums).await?;
        }
        marks.announce(sums);
        Ok(marks)
    }

    /// Removes bitmaps without a name.
    async fn sweep(&self, sums: &Sums) -> Result<()> {
        let known = |id: Id| self.0.borrow().iter().any(|(_, _, bitmap)| bitmap.id() == id);
        for (id, _, tag) in sums.store.objects() {
            if tag >= FIRST && !known(id) {
                sums.store.free(id).await?;
            }
        }
        Ok(())
    }

    /// The table sets bits in these bitmaps from now on.
    fn announce(&self, sums: &Sums) {
        let bitmaps = self.0.borrow().iter().map(|(_, _, bitmap)| bitmap.clone()).collect();
        *sums.table.marks.borrow_mut() = bitmaps;
    }

    /// The names, the oldest entry first.
    pub fn names(&self) -> Vec<String> {
        self.0.borrow().iter().map(|(_, name, _)| name.clone()).collect()
    }

    /// The bitmap of a mark.
    pub fn bitmap(&self, name: &str) -> Result<Object> {
        let marks = self.0.borrow();
        let found = marks.iter().find(|(_, known, _)| known == name);
        found.map(|(_, _, bitmap)| bitmap.clone()).ok_or_else(|| {
            let names: Vec<&str> = marks.iter().map(|(_, name, _)| &name[..]).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::invalid(format!("there is no mark {name:?}; there are: {there}"))
        })
    }

    async fn list(&self, sums: &Sums) -> Result<Id> {
        match sums.store.find(LIST) {
            Some(list) => Ok(list),
            None => Ok(sums.store.alloc(PAGE, LIST).await?.id()),
        }
    }

    /// Adds a mark with a name. It is durable when this returns.
    pub async fn add(&self, sums: &Sums, name: String) -> Result<Value> {
        if !is_name(&name) {
            return Err(Error::invalid(format!("a mark's name has 1 to {NAME_MAX} bytes: {name:?}")));
        }
        let list = self.list(sums).await?;
        let free = {
            let marks = self.0.borrow();
            if marks.iter().any(|(_, known, _)| *known == name) {
                return Err(Error::invalid(format!("there is a mark {name:?} already")));
            }
            (0..MARKS_MAX).find(|i| !marks.iter().any(|(taken, ..)| taken == i))
        };
        let full = || Error::new(ErrorKind::NoSpace, format!("{MARKS_MAX} marks are the most: remove one"));
        let free = free.ok_or_else(full)?;
        let bitmap = sums.store.alloc(len(sums), FIRST + free as u64).await?;
        // The entry is taken before the next wait.
        self.0.borrow_mut().push((free, name.clone(), bitmap.clone()));
        let named = Change::new().write(list, (free * ENTRY) as u64, entry(&name));
        let kept = match sums.store.change(named).await {
            Ok(()) => {
                self.announce(sums);
                sums.store.commit().await
            }
            failed => failed,
        };
        if kept.is_err() {
            self.0.borrow_mut().retain(|(i, ..)| *i != free);
            self.announce(sums);
            let clear = Change::new().write(list, (free * ENTRY) as u64, [0; ENTRY]).free(bitmap.id());
            sums.store.change(clear).await?;
        }
        kept.map(|()| json!({ "name": name }))
    }

    /// Removes a mark.
    pub async fn remove(&self, sums: &Sums, name: &str) -> Result<Value> {
        let bitmap = self.bitmap(name)?;
        let list = self.list(sums).await?;
        let entry = self.0.borrow().iter().find(|(_, known, _)| known == name).map(|(i, ..)| *i);
        let Some(entry) = entry else { return Err(Error::invalid("the mark is gone already")) };
        // No bits are set any more in a bitmap that is about to be removed.
        self.0.borrow_mut().retain(|(i, ..)| *i != entry);
        self.announce(sums);
        let gone = Change::new().write(list, (entry * ENTRY) as u64, [0; ENTRY]).free(bitmap.id());
        sums.store.change(gone).await?;
        sums.store.commit().await?;
        Ok(json!({ "name": name }))
    }
}

/// Bytes of a bitmap.
fn len(sums: &Sums) -> u64 {
    sums.blocks().div_ceil(8)
}
