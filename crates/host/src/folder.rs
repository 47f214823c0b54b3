//! Folders of small files on the real machine, perhaps on a network file system. Calls block, and run on a helper
//! thread.
//!
//! A new file is written under a name of its own, made durable, and then linked to its name: `link(2)` fails if the
//! name is there, on every file system, and the file is whole from its first moment on.

use crate::helper::Helpers;
use futures_channel::oneshot;
use lamina_block::{Error, Folder, Pending};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// What files begin with that are being written.
const PARTIAL: &str = ".partial-";

/// A folder of the machine's. Its calls are done one after the other: a file system that hangs holds one thread.
pub(crate) struct HostFolder {
    path: PathBuf,
    helpers: Rc<Helpers>,
    queue: Arc<Mutex<Queue>>,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    is_served: bool,
}

/// Does what is in a queue until there is nothing.
fn serve(queue: &Mutex<Queue>) {
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let work = queue.work.pop_front();
        queue.is_served = work.is_some();
        work
    };
    while let Some(work) = next() {
        work();
    }
}

impl HostFolder {
    pub fn new(path: PathBuf, helpers: Rc<Helpers>) -> HostFolder {
        HostFolder { path, helpers, queue: Arc::default() }
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (path, (send, receive)) = (self.path.clone(), oneshot::channel());
        let work = Box::new(move || {
            // Perhaps no task waits any more.
            let _ = send.send(work(&path).map_err(|e| told(&path, &e)));
        });
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.work.push_back(work);
        if !std::mem::replace(&mut queue.is_served, true) {
            let this = Arc::clone(&self.queue);
            if let Err(e) = self.helpers.begin(Box::new(move || serve(&this))) {
                queue.is_served = false;
                queue.work.clear();
                let e = told(&self.path, &e);
                return Box::pin(async move { Err(e) });
            }
        }
        Box::pin(async move {
            receive.await.map_err(|_| Error::offline("work on another thread ended without a result"))?
        })
    }
}

fn told(path: &Path, e: &io::Error) -> Error {
    let kind = Error::from(io::Error::from(e.kind())).kind();
    Error::new(kind, format!("{}: {e}", path.display()))
}

/// A durable file in `folder` under a name that nobody else uses, removed when this is dropped.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // What stays is swept up by nobody, and does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

impl Partial {
    fn write(folder: &Path, bytes: &[u8]) -> io::Result<Partial> {
        fs::create_dir_all(folder)?;
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let partial = Partial(folder.join(format!("{PARTIAL}{:016x}", u64::from_ne_bytes(random))));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial.0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(partial)
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// `None` if there is none.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

impl Folder for HostFolder {
    fn list(&self) -> Pending<Vec<String>> {
        self.call(|folder| {
            let Some(entries) = present(fs::read_dir(folder))? else { return Ok(Vec::new()) };
            let mut names = Vec::new();
            for entry in entries {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if !name.starts_with(PARTIAL) {
                    names.push(name);
                }
            }
            Ok(names)
        })
    }

    fn read(&self, name: &str, max: usize) -> Pending<Option<Vec<u8>>> {
        let name = name.to_owned();
        let read = self.call(move |folder| {
            let Some(file) = present(File::open(folder.join(name)))? else { return Ok(None) };
            let mut bytes = Vec::new();
            file.take(max as u64 + 1).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        });
        let path = self.path.clone();
        Box::pin(async move {
            match read.await? {
                Some(bytes) if bytes.len() > max => {
                    Err(Error::invalid(format!("{}: a file is longer than {max} bytes", path.display())))
                }
                found => Ok(found),
            }
        })
    }

    fn create(&self, name: &str, bytes: Vec<u8>) -> Pending<bool> {
        let name = name.to_owned();
        self.call(move |folder| {
            let partial = Partial::write(folder, &bytes)?;
            let is_new = match fs::hard_link(&partial.0, folder.join(name)) {
                Ok(()) => true,
                // Over NFS the answer to a link that was made may have been lost, and the link been asked for again.
                Err(_) if fs::metadata(&partial.0).is_ok_and(|meta| meta.nlink() == 2) => true,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => false,
                Err(e) => return Err(e),
            };
            // Also the name of one that is there: whoever made it may have died before this.
            sync(folder)?;
            Ok(is_new)
        })
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> Pending {
        let name = name.to_owned();
        self.call(move |folder| {
            let partial = Partial::write(folder, &bytes)?;
            fs::rename(&partial.0, folder.join(name))?;
            sync(folder)
        })
    }

    fn remove(&self, name: &str) -> Pending {
        let name = name.to_owned();
        self.call(move |folder| present(fs::remove_file(folder.join(name))).map(drop))
    }
}
