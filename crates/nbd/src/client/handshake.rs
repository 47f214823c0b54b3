//! The client's side of the negotiation, without a socket: bytes in, bytes out.
//!
//! ```text
//!   greeting ─▶ [STARTTLS] ─▶ STRUCTURED_REPLY ─▶ SET_META_CONTEXT ─▶ GO ─▶ transmission
//!                                                                     └─ not known: EXPORT_NAME
//! ```
//!
//! The client does without extensions that a server does not know. Invariant: no reply longer than [`REPLY_MAX`] is
//! taken in, and no more than [`REPLIES_MAX`] of them.

use crate::context::{self, ANSWER_MAX};
use crate::wire::{
    self, InfoBlockSize, InfoExport, OptionHeader, OptionReplyHeader, Session, handshake, info, opt, rep,
};
use lamina_block::{Error, ErrorKind, ReservationKey, Result};
use zerocopy::{FromBytes, IntoBytes};

/// The longest reply to an option, in bytes.
const REPLY_MAX: usize = 16 << 10;
/// The most replies in one negotiation.
const REPLIES_MAX: u32 = 1000;

/// A server's description of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// [`wire::flag`]
    pub flags: u16,
    /// Smallest block, best block, largest payload in bytes, if the server said so.
    pub blocks: Option<(u32, u32, u32)>,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The number of `base:allocation`, if block status can be asked for.
    pub context: Option<u32>,
    /// Nothing that was sent over older connections of the session happens any more.
    pub fenced: bool,
    /// The connection is registered with the key.
    pub registered: bool,
}

/// The wish of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Use the export, and have the older connections of the session ended; `must`: without that, do not use it.
    Go {
        /// Whose connection it is.
        session: Session,
        /// The server knew sessions before.
        must: bool,
        /// The key of this host, if it has the volume.
        key: Option<ReservationKey>,
    },
    /// Know about the export.
    Info,
    /// Ask what keeps the records of the export.
    Ask(Vec<u8>),
}

/// The next step after a message of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The message is not complete: receive more.
    Receive,
    /// A message was understood; there may be another.
    Answered,
    /// Encrypt, then call [`Handshake::encrypted`].
    StartTls,
    /// Done; for [`Purpose::Go`] transmission begins.
    Ready(Facts),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    StartTls,
    Structured,
    Ask,
    Meta,
    Go,
    ExportName,
}

/// The state of a negotiation.
pub struct Handshake {
    export: String,
    purpose: Purpose,
    tls: bool,
    state: State,
    no_zeroes: bool,
    facts: Facts,
    described: bool,
    replies: u32,
    /// What was answered to a question; `None` without any answer.
    answer: Option<Vec<u8>>,
}

fn odd<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Offline, what))
}

impl Handshake {
    /// A new connection to an export. With `tls`, nothing goes on without encryption.
    pub fn new(export: &str, purpose: Purpose, tls: bool) -> Handshake {
        Handshake {
            export: export.to_owned(),
            purpose,
            tls,
            state: State::Greeting,
            no_zeroes: false,
            facts: Facts::default(),
            described: false,
            replies: 0,
            answer: None,
        }
    }

    /// Reads one message from `input` and appends the answer to `out`. Returns the number of consumed bytes of `input`,
    /// and the next step.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Next)> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::ExportName => self.export_name(input),
            State::StartTls | State::Structured | State::Ask | State::Meta | State::Go => {
                self.reply(input, out)
            }
        }
    }

    /// The connection is encrypted now.
    pub fn encrypted(&mut self, out: &mut Vec<u8>) {
        self.ask(State::Structured, out);
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Next)> {
        let Ok((greeting, _)) = wire::Greeting::read_from_prefix(input) else {
            return Ok((0, Next::Receive));
        };
        if greeting.magic.get() != wire::MAGIC || greeting.option_magic.get() != wire::OPTION_MAGIC {
            return odd("no NBD server, or one with the handshake of before 2011");
        }
        let flags = greeting.flags.get() & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.no_zeroes = flags & handshake::NO_ZEROES != 0;
        out.extend(u32::from(flags).to_be_bytes());
        let fixed = flags & handshake::FIXED_NEWSTYLE != 0;
        if self.tls && !fixed {
            return odd("the server cannot encrypt");
        }
        let first = match fixed {
            true if self.tls => State::StartTls,
            true => State::Structured,
            false => State::ExportName,
        };
        self.ask(first, out);
        Ok((wire::Greeting::LEN, Next::Answered))
    }

    /// Sends the option of a state and waits for its reply.
    fn ask(&mut self, state: State, out: &mut Vec<u8>) {
        self.state = state;
        let name = self.export.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let with_name = |rest: &[u8]| [&length, name, rest].concat();
        match state {
            State::Greeting => {}
            State::StartTls => option(out, opt::STARTTLS, &[]),
            State::Ask => {
                let Purpose::Ask(question) = &self.purpose else { return };
                option(out, opt::LIST_META_CONTEXT, &with_name(&queries(&context::pieces(question))));
            }
            State::Structured => option(out, opt::STRUCTURED_REPLY, &[]),
            State::Meta => {
                let mut names = vec![wire::BASE_ALLOCATION.to_owned()];
                if let Purpose::Go { session, key, .. } = &self.purpose {
                    names.push(session.name());
                    names.extend(key.map(context::key_name));
                }
                option(out, opt::SET_META_CONTEXT, &with_name(&queries(&names)));
            }
            State::Go => {
                let wanted = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
                option(out, self.go(), &with_name(&wanted));
            }
            State::ExportName => option(out, opt::EXPORT_NAME, name),
        }
    }

    fn go(&self) -> u32 {
        match self.purpose {
            Purpose::Go { .. } => opt::GO,
            Purpose::Info | Purpose::Ask(_) => opt::INFO,
        }
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Next)> {
        let Ok((header, rest)) = OptionReplyHeader::read_from_prefix(input) else {
            return Ok((0, Next::Receive));
        };
        let asked = match self.state {
            State::StartTls => opt::STARTTLS,
            State::Structured => opt::STRUCTURED_REPLY,
            State::Ask => opt::LIST_META_CONTEXT,
            State::Meta => opt::SET_META_CONTEXT,
            State::Go | State::Greeting | State::ExportName => self.go(),
        };
        let (len, kind) = (header.len.get() as usize, header.kind.get());
        if header.magic.get() != wire::OPTION_REPLY_MAGIC || header.option.get() != asked || len > REPLY_MAX {
            return odd("the server's reply to an option is malformed");
        }
        let Some(data) = rest.get(..len) else { return Ok((0, Next::Receive)) };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return odd("the server does not stop replying to an option");
        }
        Ok((OptionReplyHeader::LEN + len, self.replied(kind, data, out)?))
    }

    fn replied(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Next> {
        match (self.state, kind) {
            (State::StartTls, rep::ACK) => return Ok(Next::StartTls),
            (State::Structured, rep::ACK) => {
                self.facts.structured = true;
                let asks = matches!(self.purpose, Purpose::Ask(_));
                self.ask(if asks { State::Ask } else { State::Meta }, out);
            }
            (State::Structured, kind) if kind & rep::ERROR != 0 => {
                self.required(kind, data)?;
                if let Purpose::Ask(_) = self.purpose {
                    return Ok(self.ready(out));
                }
                self.ask(State::Go, out);
            }
            (State::Ask, rep::META_CONTEXT) => self.piece(data)?,
            (State::Ask, rep::ACK) => return Ok(self.ready(out)),
            (State::Meta, rep::META_CONTEXT) => self.context(data),
            (State::Meta, rep::ACK) => self.ask(State::Go, out),
            (State::Meta, kind) if kind & rep::ERROR != 0 => {
                if let Purpose::Go { must: true, .. } = self.purpose {
                    return Err(self.refused(kind, data));
                }
                (self.facts.context, self.facts.fenced) = (None, false);
                self.ask(State::Go, out);
            }
            (State::Go, rep::INFO) => self.info(data)?,
            (State::Go, rep::ACK) if self.described => return Ok(self.ready(out)),
            (State::Go, rep::ERR_UNSUP) if self.purpose != Purpose::Info => {
                (self.facts.context, self.facts.fenced) = (None, false);
                self.ask(State::ExportName, out);
            }
            (State::StartTls | State::Ask | State::Go, kind) if kind & rep::ERROR != 0 => {
                return Err(self.refused(kind, data));
            }
            _ => return odd(format!("the server's reply {kind:#x} does not fit the option")),
        }
        Ok(Next::Answered)
    }

    /// An error that ends the negotiation whatever was asked.
    fn required(&self, kind: u32, data: &[u8]) -> Result<()> {
        match kind {
            rep::ERR_TLS_REQD | rep::ERR_SHUTDOWN => Err(self.refused(kind, data)),
            _ => Ok(()),
        }
    }

    fn refused(&self, kind: u32, data: &[u8]) -> Error {
        let why = match kind {
            rep::ERR_UNKNOWN => format!("the server has no export {:?}", self.export),
            rep::ERR_TLS_REQD => "the server wants TLS: use nbds:// or the tls key".to_owned(),
            rep::ERR_SHUTDOWN => "the server is shutting down".to_owned(),
            rep::ERR_POLICY => "the server does not allow it".to_owned(),
            rep::ERR_UNSUP if self.state == State::StartTls => "the server cannot encrypt".to_owned(),
            kind => format!("the server refused with {kind:#x}"),
        };
        let said: String =
            String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).take(200).collect();
        let said = if said.is_empty() { said } else { format!(" (the server says: {said})") };
        Error::new(ErrorKind::Offline, why + &said)
    }

    fn context(&mut self, data: &[u8]) {
        let Some((id, name)) = data.split_first_chunk::<4>() else { return };
        if name == wire::BASE_ALLOCATION.as_bytes() {
            self.facts.context = Some(u32::from_be_bytes(*id));
        }
        if let Purpose::Go { session, key, .. } = &self.purpose {
            self.facts.fenced |= Session::parse(name) == Some(*session);
            self.facts.registered |= key.is_some() && context::key(name) == *key;
        }
    }

    /// A piece of the answer to a question.
    fn piece(&mut self, data: &[u8]) -> Result<()> {
        let Some(piece) = data.get(4..).and_then(context::piece) else { return Ok(()) };
        let answer = self.answer.get_or_insert_default();
        if answer.len() + piece.len() > ANSWER_MAX {
            return odd("the server's answer about its hosts is too long");
        }
        answer.extend(piece);
        Ok(())
    }

    /// What the server has answered to a question; `None` if it does not know such questions.
    pub fn answer(&mut self) -> Option<Vec<u8>> {
        self.answer.take()
    }

    fn info(&mut self, data: &[u8]) -> Result<()> {
        let Some((kind, body)) = data.split_first_chunk::<2>() else {
            return odd("the server's description of the export is malformed");
        };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                let Ok(export) = InfoExport::read_from_bytes(body) else {
                    return odd("the server's description of the export is malformed");
                };
                (self.facts.size, self.facts.flags) = (export.size.get(), export.flags.get());
                self.described = true;
            }
            info::BLOCK_SIZE => {
                let Ok(sizes) = InfoBlockSize::read_from_bytes(body) else {
                    return odd("the server's block sizes are malformed");
                };
                self.facts.blocks = Some((sizes.minimum.get(), sizes.preferred.get(), sizes.payload.get()));
            }
            _ => {}
        }
        Ok(())
    }

    fn ready(&self, out: &mut Vec<u8>) -> Next {
        if matches!(self.purpose, Purpose::Info | Purpose::Ask(_)) {
            option(out, opt::ABORT, &[]);
        }
        Next::Ready(self.facts)
    }

    /// The reply to `EXPORT_NAME` has no header.
    fn export_name(&mut self, input: &[u8]) -> Result<(usize, Next)> {
        let padding = if self.no_zeroes { 0 } else { wire::EXPORT_NAME_PADDING };
        let len = InfoExport::LEN + padding;
        match InfoExport::read_from_prefix(input) {
            Ok((export, _)) if input.len() >= len => {
                (self.facts.size, self.facts.flags) = (export.size.get(), export.flags.get());
                Ok((len, Next::Ready(self.facts)))
            }
            _ => Ok((0, Next::Receive)),
        }
    }
}

/// Names of contexts, with their number in front.
fn queries(names: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut queries = (names.len() as u32).to_be_bytes().to_vec();
    for name in names.iter().map(AsRef::as_ref) {
        queries.extend((name.len() as u32).to_be_bytes());
        queries.extend(name);
    }
    queries
}

fn option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    let header = OptionHeader {
        magic: wire::OPTION_MAGIC.into(),
        option: option.into(),
        len: (data.len() as u32).into(),
    };
    out.extend(header.as_bytes());
    out.extend(data);
}
