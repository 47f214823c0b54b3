//! A request from the wire, judged: its command, or the reason of its refusal.

use crate::errno;
use crate::wire::{self, cmd, cmd_flag};
use lamina_block::{Durability, Zero};
use std::ops::Range;

/// The command of a client, flags included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send the bytes of the range.
    Read,
    /// Write the payload.
    Write(Durability),
    /// Answer all that is under way, then close.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// The range is not needed; durable at once or later.
    Trim(Durability),
    /// The range will be read soon.
    Cache,
    /// Make the range read as zeroes.
    Zero(Zero),
    /// Report the allocation state of the range; `one`: in one descriptor.
    BlockStatus {
        /// Only one descriptor is wanted.
        one: bool,
    },
}

/// A request that cannot be done, and the error number to answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// [`errno`]
    pub error: u32,
    /// As text.
    pub why: &'static str,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's number for it.
    pub cookie: u64,
    /// Where, in bytes.
    pub at: Range<u64>,
    /// The command, if it can be done.
    pub command: Result<Command, Refusal>,
    /// Bytes that follow the request, valid or not. They may exceed [`wire::PAYLOAD_MAX`]; the request is then refused,
    /// and they are skipped.
    pub payload: u32,
}

/// The agreement of a connection, and the limits of its export.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Why the connection may not write, if it may not.
    pub read_only: Option<&'static str>,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// Block status was agreed on.
    pub block_status: bool,
    /// The export's size in bytes, now.
    pub size: u64,
}

/// The client sent bytes that are no request: the rest cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMagic(pub u32);

impl Request {
    /// Judges a request by itself. Checks of a node (alignment, for one) are not repeated here.
    pub fn judge(message: &wire::Request, rules: &Rules) -> Result<Request, BadMagic> {
        if message.magic.get() != wire::REQUEST_MAGIC {
            return Err(BadMagic(message.magic.get()));
        }
        let (offset, len) = (message.offset.get(), message.len.get());
        let at = offset..offset.saturating_add(len.into());
        let payload = if message.command.get() == cmd::WRITE { len } else { 0 };
        let command =
            command(message, rules).and_then(|command| fits(command, offset, len, rules).map(|()| command));
        Ok(Request { cookie: message.cookie.get(), at, command, payload })
    }

    /// Length of the range in bytes.
    pub fn bytes(&self) -> usize {
        // Lossless: the value came from 32 bits.
        (self.at.end - self.at.start) as usize
    }
}

fn refuse<T>(error: u32, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { error, why })
}

/// The command and its flags.
fn command(message: &wire::Request, rules: &Rules) -> Result<Command, Refusal> {
    let flags = message.flags.get();
    let durability = if flags & cmd_flag::FUA == 0 { Durability::Cached } else { Durability::Fua };
    let (command, allowed) = match message.command.get() {
        cmd::READ => (Command::Read, if rules.structured { cmd_flag::DF } else { 0 }),
        cmd::WRITE => (Command::Write(durability), 0),
        cmd::DISC => (Command::Disconnect, 0),
        cmd::FLUSH => (Command::Flush, 0),
        cmd::TRIM => (Command::Trim(durability), 0),
        cmd::CACHE => (Command::Cache, 0),
        cmd::WRITE_ZEROES => {
            let unmap = flags & cmd_flag::NO_HOLE == 0;
            let fast = flags & cmd_flag::FAST_ZERO != 0;
            (Command::Zero(Zero { unmap, fast, durability }), cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO)
        }
        cmd::BLOCK_STATUS if !rules.block_status => {
            return refuse(errno::EINVAL, "block status was not agreed on");
        }
        cmd::BLOCK_STATUS => {
            (Command::BlockStatus { one: flags & cmd_flag::REQ_ONE != 0 }, cmd_flag::REQ_ONE)
        }
        _ => return refuse(errno::EINVAL, "unknown command"),
    };
    // FUA is allowed, and without meaning, on commands that write nothing.
    if flags & !(allowed | cmd_flag::FUA) != 0 {
        return refuse(errno::EINVAL, "a flag that this command does not have");
    }
    Ok(command)
}

/// Whether the export has the range and allows the command.
fn fits(command: Command, offset: u64, len: u32, rules: &Rules) -> Result<(), Refusal> {
    let writes = match command {
        Command::Write(_) | Command::Trim(_) | Command::Zero(_) => true,
        Command::Read | Command::Cache | Command::BlockStatus { .. } => false,
        Command::Flush if offset != 0 || len != 0 => {
            return refuse(errno::EINVAL, "a flush has no range");
        }
        Command::Flush | Command::Disconnect => return Ok(()),
    };
    if let Some(why) = rules.read_only.filter(|_| writes) {
        return refuse(errno::EPERM, why);
    }
    if offset.checked_add(len.into()).is_none_or(|end| end > rules.size) {
        // The protocol wants ENOSPC for writes, and EINVAL for other commands.
        let no_room = matches!(command, Command::Write(_) | Command::Zero(_));
        return refuse(if no_room { errno::ENOSPC } else { errno::EINVAL }, "beyond the end of the export");
    }
    match command {
        Command::Write(_) if len > wire::PAYLOAD_MAX => refuse(errno::EINVAL, "a write of more than 32 MiB"),
        Command::Read if len > wire::PAYLOAD_MAX => {
            let error = if rules.structured { errno::EOVERFLOW } else { errno::EINVAL };
            refuse(error, "a read of more than 32 MiB")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { read_only: None, structured: true, block_status: true, size: 1 << 40 };

    fn message(command: u16, flags: u16, offset: u64, len: u32) -> wire::Request {
        wire::Request {
            magic: wire::REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.into(),
            cookie: 7.into(),
            offset: offset.into(),
            len: len.into(),
        }
    }

    fn judged(rules: Rules, command: u16, flags: u16, offset: u64, len: u32) -> Result<Command, u32> {
        let request = Request::judge(&message(command, flags, offset, len), &rules).expect("a request");
        assert_eq!(request.payload, if command == cmd::WRITE { len } else { 0 });
        request.command.map_err(|refusal| refusal.error)
    }

    #[test]
    fn good_requests() {
        let ok = |command, flags| judged(RULES, command, flags, 4096, 512);
        assert_eq!(ok(cmd::READ, cmd_flag::DF), Ok(Command::Read));
        assert_eq!(ok(cmd::READ, cmd_flag::FUA), Ok(Command::Read));
        assert_eq!(ok(cmd::WRITE, 0), Ok(Command::Write(Durability::Cached)));
        assert_eq!(ok(cmd::WRITE, cmd_flag::FUA), Ok(Command::Write(Durability::Fua)));
        assert_eq!(ok(cmd::TRIM, cmd_flag::FUA), Ok(Command::Trim(Durability::Fua)));
        assert_eq!(ok(cmd::CACHE, 0), Ok(Command::Cache));
        assert_eq!(ok(cmd::BLOCK_STATUS, cmd_flag::REQ_ONE), Ok(Command::BlockStatus { one: true }));
        let zero = Zero { unmap: false, fast: true, durability: Durability::Cached };
        assert_eq!(ok(cmd::WRITE_ZEROES, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO), Ok(Command::Zero(zero)));
        assert_eq!(judged(RULES, cmd::FLUSH, 0, 0, 0), Ok(Command::Flush));
        assert_eq!(judged(RULES, cmd::DISC, 0, 0, 0), Ok(Command::Disconnect));
        assert_eq!(judged(RULES, cmd::READ, 0, (1 << 40) - 512, 512), Ok(Command::Read));
    }

    #[test]
    fn bad_requests() {
        let plain = Rules { structured: false, block_status: false, ..RULES };
        let read_only = Rules { read_only: Some("it may not"), ..RULES };
        let end = RULES.size;
        for (rules, command, flags, offset, len, error) in [
            (RULES, 99, 0, 0, 0, errno::EINVAL),
            (RULES, cmd::READ, 1 << 15, 0, 512, errno::EINVAL),
            (RULES, cmd::WRITE, cmd_flag::NO_HOLE, 0, 512, errno::EINVAL),
            (plain, cmd::READ, cmd_flag::DF, 0, 512, errno::EINVAL),
            (plain, cmd::BLOCK_STATUS, 0, 0, 512, errno::EINVAL),
            (RULES, cmd::FLUSH, 0, 0, 512, errno::EINVAL),
            (RULES, cmd::READ, 0, end, 1, errno::EINVAL),
            (RULES, cmd::READ, 0, u64::MAX, u32::MAX, errno::EINVAL),
            (RULES, cmd::TRIM, 0, end - 512, 1024, errno::EINVAL),
            (RULES, cmd::WRITE, 0, end, 512, errno::ENOSPC),
            (RULES, cmd::WRITE_ZEROES, 0, u64::MAX - 5, 512, errno::ENOSPC),
            (RULES, cmd::WRITE, 0, 0, wire::PAYLOAD_MAX + 1, errno::EINVAL),
            (RULES, cmd::READ, 0, 0, wire::PAYLOAD_MAX + 1, errno::EOVERFLOW),
            (plain, cmd::READ, 0, 0, wire::PAYLOAD_MAX + 1, errno::EINVAL),
            (read_only, cmd::WRITE, 0, 0, 512, errno::EPERM),
            (read_only, cmd::TRIM, 0, 0, 512, errno::EPERM),
            (read_only, cmd::WRITE_ZEROES, 0, 0, 512, errno::EPERM),
        ] {
            let got = judged(rules, command, flags, offset, len);
            assert_eq!(got, Err(error), "{command} {flags:#x} {offset} {len}");
        }
        let mut bad = message(cmd::READ, 0, 0, 0);
        bad.magic = 5.into();
        assert_eq!(Request::judge(&bad, &RULES), Err(BadMagic(5)));
    }
}
