//! The disposal of descriptors and memory from an export's front-end.
//!
//! To close a descriptor may take as long as its owner likes (a socket that lingers, a file system that does not
//! answer), a socket may have others' descriptors in its queue, and to unmap the last of a guest's memory frees it
//! page by page. So nothing of the kind is let go on the reactor: a thread of the export does it, for which nobody
//! waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Things that may wait to be let go before a front-end may bring more.
const WAITING_MAX: usize = 256;

/// The way to an export's thread for letting things go. The thread ends with the last of these.
#[derive(Clone)]
pub(crate) struct Disposal {
    things: Sender<Box<dyn Send>>,
    waiting: Arc<AtomicUsize>,
}

impl Default for Disposal {
    /// Without a thread: things are let go on the spot.
    fn default() -> Disposal {
        Disposal { things: channel().0, waiting: Arc::default() }
    }
}

impl Disposal {
    /// Starts the thread of an export.
    pub fn start(export: &str) -> io::Result<Disposal> {
        let (things, received) = channel::<Box<dyn Send>>();
        let waiting = Arc::<AtomicUsize>::default();
        let left = Arc::clone(&waiting);
        std::thread::Builder::new().name(format!("close {export}")).spawn(move || {
            for thing in received {
                drop(thing);
                left.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(Disposal { things, waiting })
    }

    /// Lets `thing` go, soon.
    pub fn take(&self, thing: impl Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Without a thread it comes back, and is dropped here.
        if self.things.send(Box::new(thing)).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until few things wait. For the control thread: a front-end that brings more than can be let go waits
    /// itself.
    pub fn keep_up(&self) {
        while self.waiting.load(Ordering::Relaxed) > WAITING_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    /// Takes as long to be dropped as its sender likes.
    struct Slow(std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn nobody_waits_for_what_is_slow_to_close() {
        let disposal = Disposal::start("test").unwrap();
        let (end, slow) = sync_channel(1);
        disposal.take(Slow(slow));
        disposal.take(3);
        assert!(disposal.waiting.load(Ordering::Relaxed) > 0);
        end.send(()).unwrap();
        while disposal.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }
}
