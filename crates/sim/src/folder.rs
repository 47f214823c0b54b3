//! Folders of a simulation: every call takes its time, and where it is asked for, some fail before they are done, some
//! after, and some fail first and are done later. Each host has a view of its own, with faults of its own.

use crate::executor::Executor;
use fastrand::Rng;
use lamina_block::{Error, ErrorKind, Folder, Pending, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The longest that one way of a call takes, and that a call is late which has failed before.
const WAY: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_secs(2);

type Files = BTreeMap<String, Vec<u8>>;
type Watcher = Rc<dyn Fn(&str, &[u8])>;

/// A folder of a simulation, as one host sees it.
pub struct SimFolder {
    executor: Rc<Executor>,
    rng: Rc<RefCell<Rng>>,
    files: Rc<RefCell<Files>>,
    watcher: Rc<RefCell<Option<Watcher>>>,
    /// One call of so many fails; 0: none.
    fails: Cell<u32>,
    /// What becomes of all calls, and of those that change something.
    fate: Cell<Fate>,
    changes: Cell<Fate>,
    space: Rc<Cell<usize>>,
}

/// What becomes of a call of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It is done.
    #[default]
    Done,
    /// Its answer is lost.
    Unanswered,
    /// It is lost.
    Lost,
    /// It is answered with an error, and done later.
    Late,
}

impl SimFolder {
    pub(crate) fn new(executor: Rc<Executor>, seed: u64) -> Rc<SimFolder> {
        Rc::new(SimFolder {
            executor,
            rng: Rc::new(RefCell::new(Rng::with_seed(seed))),
            files: Rc::default(),
            watcher: Rc::default(),
            fails: Cell::new(0),
            fate: Cell::default(),
            changes: Cell::default(),
            space: Rc::new(Cell::new(usize::MAX)),
        })
    }

    /// The same folder as another host sees it, without faults.
    pub fn view(&self) -> Rc<SimFolder> {
        let (executor, rng, files) =
            (Rc::clone(&self.executor), Rc::clone(&self.rng), Rc::clone(&self.files));
        let (watcher, space) = (Rc::clone(&self.watcher), Rc::clone(&self.space));
        let (fails, fate, changes) = (Cell::new(0), Cell::default(), Cell::default());
        Rc::new(SimFolder { executor, rng, files, watcher, fails, fate, changes, space })
    }

    /// From now on all calls end so.
    pub fn set_fate(&self, fate: Fate) {
        self.fate.set(fate);
    }

    /// From now on all calls that change something end so.
    pub fn set_fate_of_changes(&self, fate: Fate) {
        self.changes.set(fate);
    }

    /// Calls `watcher` after every change of a file, whoever made it, with its name and its bytes.
    pub fn watch(&self, watcher: Option<Watcher>) {
        self.watcher.replace(watcher);
    }

    /// From now on one call of `one_in` fails at random; 0: none.
    pub fn set_faults(&self, one_in: u32) {
        self.fails.set(one_in);
    }

    /// From now on its files have so many bytes at most.
    pub fn set_space(&self, bytes: usize) {
        self.space.set(bytes);
    }

    /// The bytes of a file now.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.files.borrow().get(name).cloned()
    }

    /// Gives a file these bytes now, whatever becomes of other calls.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.files.borrow_mut().insert(name.into(), bytes.into());
    }

    /// The names of its files now.
    pub fn names(&self) -> Vec<String> {
        self.files.borrow().keys().cloned().collect()
    }

    fn fate(&self, is_change: bool) -> Fate {
        let mut rng = self.rng.borrow_mut();
        match self.fails.get() {
            one_in if one_in > 0 && rng.u32(0..one_in) == 0 => {
                *rng.choice(&[Fate::Unanswered, Fate::Lost, Fate::Late]).expect("three")
            }
            _ if is_change && self.changes.get() != Fate::Done => self.changes.get(),
            _ => self.fate.get(),
        }
    }

    /// Does `work` on the files, some time from now.
    fn call<T: 'static>(
        &self,
        is_change: bool,
        work: impl FnOnce(&mut Files) -> Result<T> + 'static,
    ) -> Pending<T> {
        let (executor, rng, files) =
            (Rc::clone(&self.executor), Rc::clone(&self.rng), Rc::clone(&self.files));
        let fate = self.fate(is_change);
        Box::pin(async move {
            let way = |most: Duration| Duration::from_nanos(rng.borrow_mut().u64(0..most.as_nanos() as u64));
            executor.sleep(way(WAY)).await;
            let failed = || Err(Error::offline("the server of the folder does not answer"));
            match fate {
                Fate::Lost => return failed(),
                Fate::Late => {
                    let (late, way) = (Rc::clone(&executor), way(LATE));
                    executor.spawn(Box::pin(async move {
                        late.sleep(way).await;
                        // Nobody is told.
                        let _ = work(&mut files.borrow_mut());
                    }));
                    return failed();
                }
                Fate::Done | Fate::Unanswered => {}
            }
            let result = work(&mut files.borrow_mut());
            executor.sleep(way(WAY)).await;
            if fate == Fate::Done { result } else { failed() }
        })
    }

    fn put_call<T: 'static>(
        &self,
        name: &str,
        bytes: Vec<u8>,
        work: impl FnOnce(&mut Files, String, Vec<u8>) -> T + 'static,
    ) -> Pending<T> {
        let (name, space, watcher) = (name.to_owned(), Rc::clone(&self.space), Rc::clone(&self.watcher));
        self.call(true, move |files| {
            let used: usize = files.iter().filter(|(of, _)| **of != name).map(|(_, bytes)| bytes.len()).sum();
            if used + bytes.len() > space.get() {
                return Err(Error::new(ErrorKind::NoSpace, "the folder's file system is full"));
            }
            let of = name.clone();
            let done = work(files, name, bytes);
            let watcher = watcher.borrow().clone();
            watcher.iter().for_each(|watcher| watcher(&of, &files[&of]));
            Ok(done)
        })
    }
}

impl Folder for SimFolder {
    fn list(&self) -> Pending<Vec<String>> {
        self.call(false, |files| Ok(files.keys().cloned().collect()))
    }

    fn read(&self, name: &str, max: usize) -> Pending<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.call(false, move |files| match files.get(&name) {
            Some(bytes) if bytes.len() > max => Err(Error::invalid(format!("{name} is too long"))),
            found => Ok(found.cloned()),
        })
    }

    fn create(&self, name: &str, bytes: Vec<u8>) -> Pending<bool> {
        self.put_call(name, bytes, |files, name, bytes| {
            let is_new = !files.contains_key(&name);
            if is_new {
                files.insert(name, bytes);
            }
            is_new
        })
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> Pending {
        self.put_call(name, bytes, |files, name, bytes| drop(files.insert(name, bytes)))
    }

    fn remove(&self, name: &str) -> Pending {
        let name = name.to_owned();
        self.call(true, move |files| {
            files.remove(&name);
            Ok(())
        })
    }
}
