//! The requests of a device as they come, on their way from its core to the control plane.
//!
//! The channel has a bound. A reader that is too slow loses requests, never the device time: the next request that has
//! room says how many were lost before it.

use lamina_block::{Io, OpKind, Time, Watch};
use std::cell::Cell;
use std::ops::Range;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Requests that may wait for their reader: about 3 MB.
pub const WAITING_MAX: usize = 65_536;

/// A request that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Microseconds since the tap was opened.
    pub us: u64,
    pub op: OpKind,
    pub at: Range<u64>,
    /// So many requests before it were lost.
    pub lost: u64,
}

/// Sees the requests of one device.
pub struct Tap {
    asked: mpsc::Sender<Asked>,
    opened: Time,
    lost: Cell<u64>,
}

impl Tap {
    /// Sends what comes from `now` on.
    pub fn new(asked: mpsc::Sender<Asked>, now: Time) -> Tap {
        Tap { asked, opened: now, lost: Cell::new(0) }
    }
}

impl Watch for Tap {
    fn asked(&self, now: Time, io: &Io) {
        let us = now.since(self.opened).as_micros() as u64;
        let asked = Asked { us, op: io.op.kind(), at: io.at.clone(), lost: self.lost.get() };
        match self.asked.try_send(asked) {
            Ok(()) => self.lost.set(0),
            Err(TrySendError::Full(_)) => self.lost.set(self.lost.get() + 1),
            // The reader is gone, and the tap will be soon.
            Err(TrySendError::Closed(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::Buf;

    #[test]
    fn what_a_slow_reader_loses_is_counted_in_the_next() {
        let (sender, mut reader) = mpsc::channel(2);
        let tap = Tap::new(sender, Time(1000));
        let mut came = |us: u64| tap.asked(Time(1000 + us * 1000), &Io::read(us * 512, Buf::zeroed(512)));
        (1..=5).for_each(&mut came);
        assert_eq!(reader.try_recv().map(|asked| (asked.us, asked.lost)), Ok((1, 0)));
        assert_eq!(reader.try_recv().map(|asked| (asked.us, asked.lost)), Ok((2, 0)));
        came(6);
        came(7);
        let asked = Asked { us: 6, op: OpKind::Read, at: 3072..3584, lost: 3 };
        assert_eq!(reader.try_recv(), Ok(asked));
        assert_eq!(reader.try_recv().map(|asked| asked.lost), Ok(0));
        drop(reader);
        came(8);
    }
}
