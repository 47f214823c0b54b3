//! An open image: what takes the cluster's word for something, and may wait for it.

use super::library::{EXCLUSIVE, Ended, Handle, Library};
use futures_channel::oneshot;
use lamina_block::{Error, ErrorKind, Extent, ExtentState, OpenRbd, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Seconds until a cluster that does not answer is given up at opening.
const CONNECT_MAX: &CStr = c"20";
/// How long to wait for a lock. Ceph believes for 30 s (`osd_client_watch_timeout`) that a client still lives which was
/// killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(40);
/// A lock is asked for so often.
const AGAIN: Duration = Duration::from_secs(1);
/// A key of an image's metadata, which nobody has to set: that there is none is an answer of the cluster.
const PROBED: &CStr = c"lamina";
/// The most runs in one answer; the rest is called data, which is always allowed.
const EXTENTS_MAX: usize = 1 << 16;

/// A connection to a cluster.
struct Cluster {
    library: Arc<Library>,
    handle: Handle,
}

/// A pool, or a namespace in it.
struct Pool {
    cluster: Cluster,
    handle: Handle,
}

/// An open image. Its end waits for requests under way, and for the cluster: on a thread that may wait.
pub(super) struct Image {
    pool: Pool,
    handle: Handle,
    /// Is dropped last: the other end learns that everything is closed.
    _closed: oneshot::Sender<()>,
}

// SAFETY: handles of librados and librbd may be used from any thread.
unsafe impl Send for Image {}
// SAFETY: the same, also from several at a time.
unsafe impl Sync for Image {}

impl Cluster {
    fn connect(open: &OpenRbd) -> Result<Cluster> {
        let library = Library::load()?;
        let user = text(format!("client.{}", open.user))?;
        let conf = text(open.conf.as_os_str().as_bytes())?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the strings end with a zero and live until the call returns; the handle is written before.
        let code =
            unsafe { (library.rados.rados_create2)(&raw mut handle, c"ceph".as_ptr(), user.as_ptr(), 0) };
        check(code).map_err(|e| failed("Ceph's library does not begin", &e))?;
        let cluster = Cluster { library, handle };
        let rados = &cluster.library.rados;
        // SAFETY: the handle lives as long as `cluster`; strings as before.
        let code = unsafe { (rados.rados_conf_read_file)(handle, conf.as_ptr()) };
        check(code).map_err(|e| failed(&format!("{} cannot be read", open.conf.display()), &e))?;
        // Without a cache of its own, that library has nothing that a flush would bring to the cluster.
        for (option, value) in [(c"rbd_cache", c"false"), (c"client_mount_timeout", CONNECT_MAX)] {
            // SAFETY: as before.
            check(unsafe { (rados.rados_conf_set)(handle, option.as_ptr(), value.as_ptr()) })
                .map_err(|e| failed(&format!("the option {}", option.to_string_lossy()), &e))?;
        }
        // SAFETY: as before.
        check(unsafe { (rados.rados_connect)(handle) }).map_err(|e| {
            let (conf, user) = (open.conf.display(), &open.user);
            failed(&format!("the cluster of {conf} does not let client.{user} in"), &e)
        })?;
        Ok(cluster)
    }

    fn pool(self, open: &OpenRbd) -> Result<Pool> {
        let (pool, namespace) = (text(&*open.pool)?, text(&*open.namespace)?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handles are open, or written by the call; the string lives until it returns.
        let code =
            unsafe { (self.library.rados.rados_ioctx_create)(self.handle, pool.as_ptr(), &raw mut handle) };
        check(code).map_err(|e| failed(&format!("the pool {}", open.pool), &e))?;
        // SAFETY: as before.
        unsafe { (self.library.rados.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Pool { cluster: self, handle })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools and images of it are closed: they own it.
        unsafe { (self.library.rados.rados_shutdown)(self.handle) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: images of it are closed: they own it.
        unsafe { (self.cluster.library.rados.rados_ioctx_destroy)(self.handle) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the image is open, and nobody else has the handle any more.
        let code = unsafe { (self.library().rbd.rbd_close)(self.handle) };
        if let Err(e) = check(code) {
            tracing::warn!(error = %e, "an image of Ceph was closed with an error");
        }
    }
}

impl Image {
    /// Opens an image, and locks it unless it is shared. Waits for the cluster. What comes with it ends when the image
    /// is closed, which the last of its users does.
    pub fn open(open: &OpenRbd) -> Result<(Image, oneshot::Receiver<()>)> {
        let pool = Cluster::connect(open)?.pool(open)?;
        let rbd = &pool.cluster.library.rbd;
        let how = if open.read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let (name, mut handle) = (text(&*open.image)?, std::ptr::null_mut());
        // SAFETY: the handles are open, or written by the call; the string lives until it returns.
        let code = unsafe { how(pool.handle, name.as_ptr(), &raw mut handle, null()) };
        check(code).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::offline(format!("there is none: rbd create --size 10G {open}")),
            _ => failed("it cannot be opened", &e),
        })?;
        let (closes, closed) = oneshot::channel();
        let image = Image { pool, handle, _closed: closes };
        if !open.shared && !open.read_only {
            image.lock(open)?;
        }
        Ok((image, closed))
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.pool.cluster.library
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open, and the size is written before the call returns.
        let code = unsafe { (self.library().rbd.rbd_get_size)(self.handle, &raw mut size) };
        check(code).map_err(|e| failed("its size", &e))?;
        Ok(size)
    }

    /// Waits until the cluster has answered. A read does not: librbd knows without the cluster of objects that were
    /// never written, if it has the image's lock and object map. It remembers no metadata.
    pub fn probe(&self) -> Result<()> {
        let (mut value, mut len) = ([0; 1], 1);
        let rbd = &self.library().rbd;
        // SAFETY: the image is open; the key ends with a zero, and the call writes `len` bytes at most.
        let code =
            unsafe { (rbd.rbd_metadata_get)(self.handle, PROBED.as_ptr(), value.as_mut_ptr(), &raw mut len) };
        match check(code) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ERANGE)) => {
                Err(failed("the cluster", &e))
            }
            Err(_) | Ok(()) => Ok(()),
        }
    }

    /// Takes the image's lock, which no other client gets before it is closed.
    fn lock(&self, open: &OpenRbd) -> Result<()> {
        let (end, mut is_told) = (Instant::now() + LOCK_PATIENCE, false);
        loop {
            // SAFETY: the image is open.
            let code = unsafe { (self.library().rbd.rbd_lock_acquire)(self.handle, EXCLUSIVE) };
            let Err(e) = check(code) else { return Ok(()) };
            match e.raw_os_error() {
                Some(libc::EINVAL) => {
                    return Err(Error::unsupported(format!(
                        "it has no locks: rbd feature enable {open} exclusive-lock, or shared = true where a \
                         reservation is above it"
                    )));
                }
                Some(libc::EROFS | libc::EBUSY | libc::EAGAIN) if Instant::now() < end => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(image = %open, owner = self.owner(), "waits for the lock of another client");
                    }
                    std::thread::sleep(AGAIN);
                }
                Some(libc::EROFS | libc::EBUSY | libc::EAGAIN) => {
                    return Err(Error::busy(format!(
                        "it is in use by another client of Ceph ({}): end that one, or set shared = true in both \
                         where a reservation is above them",
                        self.owner()
                    )));
                }
                _ => return Err(failed("its lock", &e)),
            }
        }
    }

    /// Whose lock it is, for people.
    fn owner(&self) -> String {
        let (mut mode, mut owners, mut count) = (0, [std::ptr::null_mut::<c_char>(); 4], 4);
        let rbd = &self.library().rbd;
        // SAFETY: the image is open; the call writes `count` pointers at most, and their number.
        let code = unsafe {
            (rbd.rbd_lock_get_owners)(self.handle, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        if check(code).is_err() || count == 0 {
            return "which is not known".into();
        }
        // SAFETY: the call has written a string that ends with a zero.
        let named = unsafe { CStr::from_ptr(owners[0]) }.to_string_lossy().into_owned();
        // SAFETY: these are the strings of that call.
        unsafe { (rbd.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        named
    }

    /// Data and holes. Waits for the cluster.
    pub fn extents(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        struct Runs {
            list: Vec<Extent>,
            next: u64,
        }
        extern "C" fn found(start: u64, len: usize, is_there: c_int, runs: *mut c_void) -> c_int {
            // SAFETY: the pointer that was given below, while nobody else uses it.
            let runs = unsafe { &mut *runs.cast::<Runs>() };
            if is_there != 0 && start >= runs.next {
                Extent::push(&mut runs.list, start - runs.next, ExtentState::Hole);
                Extent::push(&mut runs.list, len as u64, ExtentState::Data);
                runs.next = start + len as u64;
            }
            if runs.list.len() > EXTENTS_MAX { -libc::E2BIG } else { 0 }
        }
        let (mut runs, len) = (Runs { list: Vec::new(), next: at.start }, at.end - at.start);
        // SAFETY: the image is open; `runs` lives until the call returns, and is used by its callback only.
        let code = unsafe {
            let runs = (&raw mut runs).cast();
            (self.library().rbd.rbd_diff_iterate2)(self.handle, null(), at.start, len, 1, 0, found, runs)
        };
        let rest = match check(code) {
            Ok(()) => ExtentState::Hole,
            Err(e) if e.raw_os_error() == Some(libc::E2BIG) => ExtentState::Data,
            Err(e) => return Err(failed("its allocation", &e).at(at)),
        };
        Extent::push(&mut runs.list, at.end.saturating_sub(runs.next), rest);
        Ok(runs.list)
    }

    /// Begins a request, which gets a completion that calls `ended` with `with`. After an error there is no such call.
    pub fn begin(
        &self,
        ended: Ended,
        with: *mut c_void,
        request: impl FnOnce(Handle, Handle) -> c_int,
    ) -> io::Result<()> {
        let (rbd, mut completion) = (&self.library().rbd, std::ptr::null_mut());
        // SAFETY: the completion is written before the call returns.
        check(unsafe { (rbd.rbd_aio_create_completion)(with, ended, &raw mut completion) })?;
        check(request(self.handle, completion)).inspect_err(|_| {
            // SAFETY: it is complete, and no request has it.
            unsafe { (rbd.rbd_aio_release)(completion) }
        })
    }
}

/// A string as the libraries take it.
fn text(of: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(of).map_err(|_| Error::invalid("a name with a zero byte"))
}

/// Ceph's answer: 0 or more, or the number of an error less than that.
pub(super) fn check(code: c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

/// The error about what the cluster refuses.
pub(super) fn failed(what: &str, e: &io::Error) -> Error {
    let (kind, hint) = match e.raw_os_error() {
        // Ceph's EBLOCKLISTED.
        Some(libc::ESHUTDOWN) => {
            let hint =
                ": the cluster has shut this client out, because another one has taken its lock. Start again";
            (ErrorKind::Offline, hint)
        }
        Some(libc::ENOENT) => (ErrorKind::Offline, ""),
        Some(libc::EPERM | libc::EACCES) => (ErrorKind::Offline, ": look at the user's keyring and caps"),
        _ => (Error::from(io::Error::from(e.kind())).kind(), ""),
    };
    Error::new(kind, format!("{what}: {e}{hint}"))
}
