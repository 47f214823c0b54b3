//! A layer's request as the drive below sees it.
//!
//! A drive here deliberately knows no forced unit access: a durable write takes what any other write takes, which is
//! too little for a drive with a buffer of writes that a loss of power empties. A flush behind the write costs what is
//! missing.

use crate::{Op, Request, SECTOR};
use lamina_block::Io;

impl From<&Io> for Request {
    /// The sectors that `io` touches; the longest request has `u32::MAX` of them.
    fn from(io: &Io) -> Request {
        let op = match &io.op {
            lamina_block::Op::Read(_) => Op::Read,
            lamina_block::Op::Write(..) | lamina_block::Op::Zero(_) => Op::Write,
            lamina_block::Op::Discard => Op::Discard,
            lamina_block::Op::Flush => Op::Flush,
        };
        let lbn = io.at.start / SECTOR;
        let sectors = io.at.end.div_ceil(SECTOR).saturating_sub(lbn);
        Request { op, lbn, sectors: u32::try_from(sectors).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::Buf;

    #[test]
    fn a_request_has_the_sectors_that_it_touches() {
        for (io, op, lbn, sectors) in [
            (Io::read(4096, Buf::zeroed(1024)), Op::Read, 8, 2),
            (Io::write(512, Buf::zeroed(512), Default::default()), Op::Write, 1, 1),
            (Io::zero(0..4096, Default::default()), Op::Write, 0, 8),
            (Io::discard(0..1 << 50), Op::Discard, 0, u32::MAX),
            (Io::flush(), Op::Flush, 0, 0),
        ] {
            assert_eq!(Request::from(&io), Request { op, lbn, sectors });
        }
    }
}
