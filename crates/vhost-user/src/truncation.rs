//! The handling of a front-end that shrinks a file whose memory it has shared with us.
//!
//! To touch memory beyond the end of its file raises SIGBUS, which would end the process and with it the disks of all
//! other guests. The handler here looks up the owner of the memory, puts private zeroes in the place of the whole
//! mapping, and goes on: that guest has lost its memory by its own front-end's doing; the others notice nothing. A
//! SIGBUS anywhere else goes to whoever handled it before.
//!
//! The handler runs between any two instructions: it uses atomics, `mmap` and nothing else.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The space for mappings, in chunks: more than the kernel allows a process by default (`vm.max_map_count`), so that no
/// front-end takes the space of another.
const CHUNK: usize = 256;
const CHUNKS_MAX: usize = 256;

/// A guarded mapping; free while `len` is zero.
#[derive(Default)]
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

type Chunk = [Slot; CHUNK];

/// Filled from the front, and never emptied: the handler may look at any time.
static CHUNKS: [AtomicPtr<Chunk>; CHUNKS_MAX] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS_MAX];

/// The chunk at `place`, if it has been made.
fn made(place: &AtomicPtr<Chunk>) -> Option<&'static Chunk> {
    // SAFETY: null, or a box that was leaked.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// The chunk at `place`, which is made if need be.
fn make(place: &AtomicPtr<Chunk>) -> &'static Chunk {
    made(place).unwrap_or_else(|| {
        let ours = Box::into_raw(Box::new(std::array::from_fn(|_| Slot::default())));
        let put = place.compare_exchange(std::ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire);
        let chunk = put.map_or_else(
            |theirs| {
                // SAFETY: made above, and not shared yet.
                drop(unsafe { Box::from_raw(ours) });
                theirs
            },
            |_| ours,
        );
        // SAFETY: a box that is leaked from now on, or was by another thread.
        unsafe { &*chunk }
    })
}

static LOST: AtomicUsize = AtomicUsize::new(0);
/// The earlier handler of the signal, or the error of installing ours.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// How many mappings have been lost so far.
pub(crate) fn lost() -> usize {
    LOST.load(Ordering::Relaxed)
}

/// Guards a mapping until it is dropped, which must be before it is unmapped. The default guards nothing.
#[derive(Default)]
pub(crate) struct Guard(Option<&'static Slot>);

impl Guard {
    /// Guards `len` bytes mapped at `start`: whole pages of their file. An error if there are too many mappings.
    pub fn new(start: NonNull<u8>, len: usize) -> io::Result<Guard> {
        install()?;
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let slot = CHUNKS.iter().flat_map(make).find(|slot| free(slot)).ok_or(io::ErrorKind::OutOfMemory)?;
        slot.lost.store(false, Ordering::Relaxed);
        slot.start.store(start.as_ptr() as usize, Ordering::Relaxed);
        // Last: this makes the slot valid.
        slot.len.store(len, Ordering::Release);
        Ok(Guard(Some(slot)))
    }

    /// True if the mapping's file has shrunk under us.
    pub fn is_lost(&self) -> bool {
        self.0.is_some_and(|slot| slot.lost.load(Ordering::Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.len.store(0, Ordering::Release);
            slot.taken.store(false, Ordering::Release);
        }
    }
}

/// Handles the signal from the first guard on.
fn install() -> io::Result<()> {
    let before = BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: an action of zeroes is valid; its parts are set below.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        // SAFETY: both point to valid actions; the handler does only what a handler may.
        match unsafe { libc::sigaction(libc::SIGBUS, &ours, before.as_mut_ptr()) } {
            // SAFETY: filled by the call.
            0 => Ok(unsafe { before.assume_init() }),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    });
    before.as_ref().map(|_| ()).map_err(|errno| io::Error::from_raw_os_error(*errno))
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid `info` to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in CHUNKS.iter().map_while(made).flatten() {
        let (len, start) = (slot.len.load(Ordering::Acquire), slot.start.load(Ordering::Relaxed));
        if address.wrapping_sub(start) < len && replace(start, len) {
            slot.lost.store(true, Ordering::Release);
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // Not ours. The instruction is tried again, and meets who was here before.
    if let Some(Ok(before)) = BEFORE.get() {
        // SAFETY: the action that was in place before ours.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// Puts private zeroes in the place of a mapping.
fn replace(start: usize, len: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: exactly a guarded mapping, which nobody has unmapped: its guard is dropped first.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
    at != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_front_ends_leave_room_for_others() {
        // 17 front-ends with all the regions that one may have.
        let guards: Vec<_> = (0..17 * 256).map(|_| Guard::new(NonNull::dangling(), 1)).collect();
        assert!(guards.iter().all(Result::is_ok));
        assert!(Guard::new(NonNull::dangling(), 1).is_ok());
    }
}
