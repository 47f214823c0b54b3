//! librados and librbd, which are loaded when the first image is opened.
//!
//! The functions are those of Ceph 15 and later (`rados/librados.h`, `rbd/librbd.h`), by their names there. Handles are
//! pointers, and may be used from any thread.

use lamina_block::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A handle of one of the libraries.
pub(super) type Handle = *mut c_void;
/// Called when a request has ended: its completion, and what it was begun with.
pub(super) type Ended = extern "C" fn(Handle, *mut c_void);
/// Called for a run of an image: its place and length, whether there are data, and what the look was begun with.
pub(super) type Found = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `LOCK_MODE_EXCLUSIVE`.
pub(super) const EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the space stays allocated.
pub(super) const THICK: c_int = 1;

/// A table of functions, as the library has them.
macro_rules! functions {
    ($(#[$about:meta])* $of:ident in $file:literal: $($name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        $(#[$about])*
        pub(super) struct $of {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $of {
            fn load() -> std::result::Result<$of, libloading::Error> {
                // SAFETY: Ceph's libraries ask nothing of the process that loads them. They stay loaded, because their
                // threads may run until the end.
                let library = ManuallyDrop::new(unsafe { libloading::Library::new($file)? });
                // SAFETY: the functions have these types since Ceph 15 (see the module).
                Ok($of { $($name: unsafe {
                    *library.get(concat!(stringify!($name), "\0").as_bytes())?
                },)* })
            }
        }
    };
}

functions! {
    /// What reaches a cluster.
    Rados in "librados.so.2":
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle);
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_ioctx_destroy(Handle);
}

functions! {
    /// What reads and writes images.
    Rbd in "librbd.so.1":
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
    rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, Found, *mut c_void) -> c_int;
    rbd_aio_create_completion(*mut c_void, Ended, *mut Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_release(Handle);
    rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    rbd_aio_flush(Handle, Handle) -> c_int;
}

/// Both libraries.
pub(super) struct Library {
    pub rados: Rados,
    pub rbd: Rbd,
}

impl Library {
    /// Loads both, which are in memory once, however often they are loaded. May take a moment.
    pub fn load() -> Result<Arc<Library>> {
        let load = || Ok(Library { rados: Rados::load()?, rbd: Rbd::load()? });
        load().map(Arc::new).map_err(|e: libloading::Error| {
            Error::unsupported(format!(
                "Ceph's library cannot be loaded ({e}): install librbd1 (Debian) or librbd"
            ))
        })
    }
}
