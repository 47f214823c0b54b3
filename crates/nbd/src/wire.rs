//! The numbers and messages of the NBD protocol.
//!
//! Source: `doc/proto.md` of the NetworkBlockDevice project, read in 2026. All fields are big-endian. No decisions
//! here; readers of a message check its lengths.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of a server's greeting ("NBDMAGIC").
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting and first of every option ("IHAVEOPT").
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of the reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The longest string (a name, a description, an error message) in bytes.
pub const STRING_MAX: usize = 4096;
/// The most bytes of data of one read or write: every peer must be ready for so much.
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// The most descriptors in one block status chunk.
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// Zeroes after the reply to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;

/// Flags of the greeting and of the client's answer.
pub mod handshake {
    /// Options other than `EXPORT_NAME` are understood.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The zeroes after the reply to `EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 2;
}

/// Options: requests of a client before transmission.
pub mod opt {
    /// Choose an export and begin; no error can be told.
    pub const EXPORT_NAME: u32 = 1;
    /// End the connection.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Encrypt from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin.
    pub const GO: u32 = 7;
    /// Replies to reads come in chunks that describe themselves.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the kinds of block status.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose kinds of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of reply to an option.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A kind of block status.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// The option is forbidden.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is going down.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
}

/// Facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name.
    pub const NAME: u16 = 1;
    /// A line for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest and best block, largest payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the abilities of an export.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Nothing may be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Forced unit access works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Trim works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write zeroes works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads may ask for one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Write zeroes may be told to fail rather than be slow.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data follow the request.
    pub const WRITE: u16 = 1;
    /// End the connection when all is answered.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Read ahead.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// The allocation state of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod cmd_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// The space stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// At most one chunk of data.
    pub const DF: u16 = 1 << 2;
    /// One descriptor only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks in a structured reply.
pub mod chunk {
    /// The reply is complete.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Descriptors of a range.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// Flag: this is the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1;
}

/// States in a descriptor of `base:allocation`.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// The name of the one kind of block status that the protocol itself defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// A session: one connection of a client, and those that take its place when it is lost.
///
/// A session is a context of our own, `x-lamina:session=` and 32 random hexadecimal digits of the client. A server that
/// acknowledges it says: nothing that came over an older connection of this session happens from now on. It has no
/// block status. See `docs/decisions/0007-a-lost-connection-is-fenced.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(pub u128);

impl Session {
    /// How the names of such contexts begin.
    pub const PREFIX: &str = "x-lamina:session=";

    /// The name of its context.
    pub fn name(self) -> String {
        format!("{}{:032x}", Session::PREFIX, self.0)
    }

    /// The session with this name, written exactly as [`Session::name`] does.
    pub fn parse(name: &[u8]) -> Option<Session> {
        let digits = name.strip_prefix(Session::PREFIX.as_bytes())?;
        let strict = digits.len() == 32 && digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
        let digits = std::str::from_utf8(digits).ok().filter(|_| strict)?;
        u128::from_str_radix(digits, 16).ok().map(Session)
    }
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        impl $name {
            /// Its length on the wire in bytes.
            pub const LEN: usize = size_of::<$name>();
        }
    };
}

message!(
    /// The first message of a server.
    Greeting {
        /// [`MAGIC`]
        magic: U64,
        /// [`OPTION_MAGIC`]
        option_magic: U64,
        /// [`handshake`]
        flags: U16,
    }
);
message!(
    /// Begins an option; `len` bytes follow.
    OptionHeader {
        /// [`OPTION_MAGIC`]
        magic: U64,
        /// [`opt`]
        option: U32,
        /// Bytes that follow.
        len: U32,
    }
);
message!(
    /// Begins a reply to an option; `len` bytes follow.
    OptionReplyHeader {
        /// [`OPTION_REPLY_MAGIC`]
        magic: U64,
        /// The option answered.
        option: U32,
        /// [`rep`]
        kind: U32,
        /// Bytes that follow.
        len: U32,
    }
);
message!(
    /// Size and flags of an export ([`info::EXPORT`], and the reply to [`opt::EXPORT_NAME`]).
    InfoExport {
        /// Bytes.
        size: U64,
        /// [`flag`]
        flags: U16,
    }
);
message!(
    /// Sizes that an export wants ([`info::BLOCK_SIZE`]), in bytes.
    InfoBlockSize {
        /// Every offset and length is a multiple of this.
        minimum: U32,
        /// Handled best.
        preferred: U32,
        /// Most data in one request.
        payload: U32,
    }
);
message!(
    /// A command; after a write, `len` bytes of data follow.
    Request {
        /// [`REQUEST_MAGIC`]
        magic: U32,
        /// [`cmd_flag`]
        flags: U16,
        /// [`cmd`]
        command: U16,
        /// Chosen by the client, returned in the reply.
        cookie: U64,
        /// First byte.
        offset: U64,
        /// Bytes.
        len: U32,
    }
);
message!(
    /// Answers a command; after a read, the data follow unless there was an error.
    SimpleReply {
        /// [`SIMPLE_REPLY_MAGIC`]
        magic: U32,
        /// 0, or an error of [`crate::errno`].
        error: U32,
        /// The request's.
        cookie: U64,
    }
);
message!(
    /// Begins a chunk of a structured reply; `len` bytes follow.
    Chunk {
        /// [`STRUCTURED_REPLY_MAGIC`]
        magic: U32,
        /// [`chunk::FLAG_DONE`]
        flags: U16,
        /// [`chunk`]
        kind: U16,
        /// The request's.
        cookie: U64,
        /// Bytes that follow.
        len: U32,
    }
);
message!(
    /// Body of [`chunk::OFFSET_HOLE`].
    Hole {
        /// First byte.
        offset: U64,
        /// Bytes, not zero.
        len: U32,
    }
);
message!(
    /// First part of the body of an error chunk; the message follows.
    ErrorBody {
        /// Not zero.
        error: U32,
        /// Bytes of message.
        message_len: U16,
    }
);
message!(
    /// One run of a block status.
    Descriptor {
        /// Bytes, not zero.
        len: U32,
        /// [`state`]
        status: U32,
    }
);

#[cfg(test)]
mod tests {
    use super::Session;

    #[test]
    fn sessions_have_names() {
        for id in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            assert_eq!(Session::parse(Session(id).name().as_bytes()), Some(Session(id)));
        }
        let digits = "0123456789abcdef0123456789abcdef";
        for bad in [
            String::new(),
            "x-lamina:session=".into(),
            format!("x-lamina:session={}", &digits[1..]),
            format!("x-lamina:session={digits}0"),
            format!("x-lamina:session={}", digits.to_uppercase()),
            format!("x-lamina:session=+{}", &digits[1..]),
            format!("session={digits}"),
        ] {
            assert_eq!(Session::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
