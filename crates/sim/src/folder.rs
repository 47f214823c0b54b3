//! Folders of a simulation: every call takes its time, and where it is asked for, some fail before they are done, some
//! after, and some fail first and are done later.

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

/// A folder of a simulation.
pub struct SimFolder {
    executor: Rc<Executor>,
    rng: Rc<RefCell<Rng>>,
    files: Rc<RefCell<Files>>,
    /// One call of so many fails; 0: none.
    fails: Cell<u32>,
    space: Rc<Cell<usize>>,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
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
            fails: Cell::new(0),
            space: Rc::new(Cell::new(usize::MAX)),
        })
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

    fn fate(&self) -> Fate {
        let mut rng = self.rng.borrow_mut();
        match self.fails.get() {
            one_in if one_in > 0 && rng.u32(0..one_in) == 0 => {
                *rng.choice(&[Fate::Unanswered, Fate::Lost, Fate::Late]).expect("three")
            }
            _ => Fate::Done,
        }
    }

    /// Does `work` on the files, some time from now.
    fn call<T: 'static>(&self, work: impl FnOnce(&mut Files) -> Result<T> + 'static) -> Pending<T> {
        let (executor, rng, files) =
            (Rc::clone(&self.executor), Rc::clone(&self.rng), Rc::clone(&self.files));
        let fate = self.fate();
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
        let (name, space) = (name.to_owned(), Rc::clone(&self.space));
        self.call(move |files| {
            let used: usize = files.iter().filter(|(of, _)| **of != name).map(|(_, bytes)| bytes.len()).sum();
            if used + bytes.len() > space.get() {
                return Err(Error::new(ErrorKind::NoSpace, "the folder's file system is full"));
            }
            Ok(work(files, name, bytes))
        })
    }
}

impl Folder for SimFolder {
    fn list(&self) -> Pending<Vec<String>> {
        self.call(|files| Ok(files.keys().cloned().collect()))
    }

    fn read(&self, name: &str, max: usize) -> Pending<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.call(move |files| match files.get(&name) {
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
        self.call(move |files| {
            files.remove(&name);
            Ok(())
        })
    }
}
