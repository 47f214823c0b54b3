//! The server's side of the negotiation, without a socket: bytes in, bytes out.
//!
//! ```text
//!   greeting ─▶ client flags ─▶ option ─▶ reply ─▶ ... ─▶ GO or EXPORT_NAME ─▶ transmission
//!                                 └─ STARTTLS: earlier agreements are dropped
//! ```
//!
//! Invariants: at most [`OPTION_MAX`] bytes of an option are ever needed at once, longer ones are skipped and refused;
//! a reply is made only for a whole option; where TLS is required, a client learns nothing about exports before it.

use super::bitmap;
use super::option::{context, error, info_reply, info_request, meta_request, reply};
use crate::context::{self as own, QUESTION_MAX};
use crate::wire::{self, InfoBlockSize, InfoExport, OptionHeader, Session, handshake, info, opt, rep};
use lamina_block::{PIECE, ReservationKey};
use zerocopy::{FromBytes, IntoBytes};

/// The longest option that is looked at, in bytes.
pub const OPTION_MAX: usize = 16 << 10;

/// The properties of an export that a client learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name; an empty name asked for may mean another.
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// [`wire::flag`], without what depends on structured replies.
    pub flags: u16,
    /// Every request is a multiple of this, in bytes.
    pub minimum: u32,
    /// Best handled, in bytes.
    pub preferred: u32,
    /// It keeps records of the hosts that share it.
    pub records: bool,
}

/// The exports that a client can choose from.
pub trait Exports {
    /// All of them.
    fn list(&self) -> Vec<Facts>;
    /// The one with this name.
    fn find(&self, name: &str) -> Option<Facts>;
    /// The snapshots that the one with this name can be compared with.
    fn snapshots(&self, name: &str) -> Vec<String>;
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// There are no certificates: TLS is refused.
    Unavailable,
    /// A client may ask for TLS.
    Offered,
    /// TLS comes first.
    Required,
    /// The connection is encrypted.
    Active,
}

/// The agreement of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The name of the export that was found.
    pub export: String,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// `base:allocation` can be asked for; its number is [`CONTEXT_ID`].
    pub block_status: bool,
    /// Changes since this snapshot can be asked for; their number is [`BITMAP_ID`].
    pub changed_since: Option<String>,
    /// The connection belongs to this session.
    pub session: Option<Session>,
    /// The connection is registered with this key.
    pub key: Option<ReservationKey>,
    /// The client used `EXPORT_NAME`, to which there is no error.
    pub oldest: bool,
}

/// The number of the context `base:allocation`.
pub const CONTEXT_ID: u32 = 1;
/// The numbers of the contexts of a session and of a key, of which there is nothing to ask.
const SESSION_ID: u32 = 2;
const KEY_ID: u32 = 3;
/// The number of the context of a dirty bitmap.
pub const BITMAP_ID: u32 = 4;

/// The next step after a message of the client. If the export cannot be used, send the result of [`Next::refuse`]
/// instead of the answer, and close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The message is not complete: receive more.
    Receive,
    /// A message was answered; there may be another.
    Answered,
    /// The connection says whose it is: see to that, then send the answer, with what [`Handshake::identified`] adds.
    Identify(Identity),
    /// A question to what keeps the records of this export: send its answer ([`answer`]).
    Ask(String, Vec<u8>),
    /// Send the answer, then encrypt, and begin a new [`Handshake`] with [`Tls::Active`].
    StartTls,
    /// Send the answer, then begin transmission.
    Transmission(Agreed),
    /// Send the answer, then close.
    Close,
}

impl Next {
    /// The refusal, instead of the answer. Nothing can be said to who begins in the oldest way.
    pub fn refuse(&self, why: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Next::Identify(_) => error(&mut out, opt::SET_META_CONTEXT, rep::ERR_POLICY, why),
            Next::Ask(..) => error(&mut out, opt::LIST_META_CONTEXT, rep::ERR_POLICY, why),
            Next::Transmission(agreed) if !agreed.oldest => error(&mut out, opt::GO, rep::ERR_POLICY, why),
            Next::Transmission(_) | Next::Receive | Next::Answered | Next::StartTls | Next::Close => {}
        }
        out
    }
}

/// What a connection to an export says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the export.
    pub export: String,
    /// It belongs to this session: nothing of the older connections of it may happen when the answer is sent.
    pub session: Option<Session>,
    /// It is of the host with this key, if that is still the newest one when the answer is sent.
    pub key: Option<ReservationKey>,
}

/// A client broke the protocol, or made a request that has no error reply: close the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// The state of a negotiation.
pub struct Handshake {
    tls: Tls,
    /// The client's flags, once it has sent them.
    flags: Option<u32>,
    structured: bool,
    /// Sessions are known.
    sessions: bool,
    /// The export for which contexts were agreed on, and which.
    contexts: Option<Contexts>,
    /// Bytes of an option that are still to be skipped, and the option.
    skip: Option<(u32, usize)>,
}

/// Contexts that a client has set.
struct Contexts {
    export: String,
    block_status: bool,
    changed_since: Option<String>,
    session: Option<Session>,
    key: Option<ReservationKey>,
}

type Step = Result<Next, Refused>;

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

impl Handshake {
    /// A new connection. Send [`Handshake::greeting`] first. Without `sessions` the server does not know them.
    pub fn new(tls: Tls, sessions: bool) -> Handshake {
        Handshake { tls, flags: None, structured: false, sessions, contexts: None, skip: None }
    }

    /// The negotiation that goes on, inside TLS, where `before` stopped: the greeting is not repeated, and nothing
    /// agreed on before is kept.
    pub fn encrypted(before: &Handshake) -> Handshake {
        Handshake { flags: before.flags, ..Handshake::new(Tls::Active, before.sessions) }
    }

    /// The first message of the server.
    pub fn greeting() -> Vec<u8> {
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let greeting = wire::Greeting {
            magic: wire::MAGIC.into(),
            option_magic: wire::OPTION_MAGIC.into(),
            flags: flags.into(),
        };
        greeting.as_bytes().to_vec()
    }

    /// Reads one message from `input` and appends the answer to `out`. Returns the number of consumed bytes of `input`,
    /// and the next step.
    pub fn step(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Next), Refused> {
        if let Some((option, left)) = self.skip.take() {
            let now = left.min(input.len());
            if now < left {
                self.skip = Some((option, left - now));
                return Ok((now, Next::Receive));
            }
            error(out, option, rep::ERR_TOO_BIG, "the option is too long");
            return Ok((now, Next::Answered));
        }
        if self.flags.is_none() {
            let Some((flags, _)) = input.split_first_chunk::<4>() else { return Ok((0, Next::Receive)) };
            self.client_flags(u32::from_be_bytes(*flags))?;
            return Ok((4, Next::Answered));
        }
        let Ok((header, rest)) = OptionHeader::read_from_prefix(input) else {
            return Ok((0, Next::Receive));
        };
        if header.magic.get() != wire::OPTION_MAGIC {
            return refused("an option does not begin with IHAVEOPT");
        }
        let (option, len) = (header.option.get(), header.len.get() as usize);
        if len > OPTION_MAX {
            if option == opt::EXPORT_NAME {
                return refused(format!("an export name of {len} bytes"));
            }
            self.skip = Some((option, len));
            return Ok((OptionHeader::LEN, Next::Answered));
        }
        let Some(data) = rest.get(..len) else { return Ok((0, Next::Receive)) };
        let next = self.option(option, data, exports, out)?;
        Ok((OptionHeader::LEN + len, next))
    }

    fn client_flags(&mut self, flags: u32) -> Result<(), Refused> {
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return refused(format!("unknown client flags {flags:#x}"));
        }
        self.flags = Some(flags);
        Ok(())
    }

    fn option(&mut self, option: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        if self.tls == Tls::Required && !matches!(option, opt::STARTTLS | opt::ABORT) {
            if option == opt::EXPORT_NAME {
                return refused("the client asked for an export before TLS, which is required");
            }
            error(out, option, rep::ERR_TLS_REQD, "this server wants TLS first");
            return Ok(Next::Answered);
        }
        match option {
            opt::EXPORT_NAME => self.export_name(data, exports, out),
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                Ok(Next::Close)
            }
            opt::LIST => Ok(list(data, exports, out)),
            opt::STARTTLS => Ok(self.start_tls(data, out)),
            opt::INFO | opt::GO => Ok(self.info(option, data, exports, out)),
            opt::STRUCTURED_REPLY if !data.is_empty() => {
                error(out, option, rep::ERR_INVALID, "this option has no data");
                Ok(Next::Answered)
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply(out, option, rep::ACK, &[]);
                Ok(Next::Answered)
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                Ok(self.meta_context(option, data, exports, out))
            }
            _ => {
                error(out, option, rep::ERR_UNSUP, "this server does not know the option");
                Ok(Next::Answered)
            }
        }
    }

    /// The oldest way to begin. The option knows no errors: the connection is closed instead.
    fn export_name(&mut self, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        let Some(facts) = std::str::from_utf8(data).ok().and_then(|name| exports.find(name)) else {
            return refused(unknown(data, exports));
        };
        out.extend(self.info_export(&facts).as_bytes());
        if self.flags.unwrap_or(0) & u32::from(handshake::NO_ZEROES) == 0 {
            out.extend([0; wire::EXPORT_NAME_PADDING]);
        }
        Ok(Next::Transmission(Agreed { oldest: true, ..self.agreed(facts) }))
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Next {
        let why = match self.tls {
            _ if !data.is_empty() => (rep::ERR_INVALID, "this option has no data"),
            Tls::Active => (rep::ERR_INVALID, "the connection is encrypted already"),
            Tls::Unavailable => (rep::ERR_POLICY, "this server has no certificate"),
            Tls::Offered | Tls::Required => {
                reply(out, opt::STARTTLS, rep::ACK, &[]);
                return Next::StartTls;
            }
        };
        error(out, opt::STARTTLS, why.0, why.1);
        Next::Answered
    }

    /// `INFO` and `GO`.
    fn info(&mut self, option: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Next {
        let Some((name, wanted)) = info_request(data) else {
            error(out, option, rep::ERR_INVALID, "the option is malformed");
            return Next::Answered;
        };
        let Some(facts) = std::str::from_utf8(name).ok().and_then(|name| exports.find(name)) else {
            error(out, option, rep::ERR_UNKNOWN, &unknown(name, exports));
            return Next::Answered;
        };
        info_reply(out, option, info::EXPORT, self.info_export(&facts).as_bytes());
        if wanted.contains(&info::NAME) || facts.name.as_bytes() != name {
            info_reply(out, option, info::NAME, facts.name.as_bytes());
        }
        if wanted.contains(&info::DESCRIPTION) && !facts.description.is_empty() {
            info_reply(out, option, info::DESCRIPTION, facts.description.as_bytes());
        }
        let sizes = InfoBlockSize {
            minimum: facts.minimum.into(),
            preferred: facts.preferred.into(),
            // Longer ones, up to what the protocol has, may have to wait for each other.
            payload: (PIECE as u32).into(),
        };
        info_reply(out, option, info::BLOCK_SIZE, sizes.as_bytes());
        reply(out, option, rep::ACK, &[]);
        if option == opt::GO { Next::Transmission(self.agreed(facts)) } else { Next::Answered }
    }

    fn meta_context(&mut self, option: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Next {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.contexts = None;
        }
        let Some((name, queries)) = meta_request(data) else {
            error(out, option, rep::ERR_INVALID, "the option is malformed");
            return Next::Answered;
        };
        if !self.structured {
            error(out, option, rep::ERR_INVALID, "structured replies come first");
            return Next::Answered;
        }
        let Some(facts) = std::str::from_utf8(name).ok().and_then(|name| exports.find(name)) else {
            error(out, option, rep::ERR_UNKNOWN, &unknown(name, exports));
            return Next::Answered;
        };
        let named = queries.contains(&wire::BASE_ALLOCATION.as_bytes());
        // A list without queries names everything, and "base:" is a wildcard in a list.
        if named || !set && (queries.is_empty() || queries.contains(&&b"base:"[..])) {
            context(out, option, if set { CONTEXT_ID } else { 0 }, wire::BASE_ALLOCATION.as_bytes());
        }
        let snapshots = exports.snapshots(&facts.name);
        let changed_since = bitmap::chosen(&queries, &snapshots).filter(|_| set);
        let listed =
            if set { changed_since.into_iter().collect() } else { bitmap::listed(&queries, &snapshots) };
        for snapshot in listed {
            context(out, option, if set { BITMAP_ID } else { 0 }, bitmap::name(snapshot).as_bytes());
        }
        let session = queries.iter().find_map(|query| Session::parse(query)).filter(|_| set && self.sessions);
        if let Some(session) = session {
            context(out, option, SESSION_ID, session.name().as_bytes());
        }
        // In a list, how such a name begins stands for all of them.
        let listed = |query: &&[u8]| matches!(*query, b"x-lamina:" | b"x-lamina:session=");
        if !set && self.sessions && (queries.is_empty() || queries.iter().any(listed)) {
            context(out, option, 0, Session::PREFIX.as_bytes());
        }
        let question: Vec<u8> =
            queries.iter().filter_map(|query| own::piece(query)).flatten().copied().collect();
        if !set && facts.records && question.len() <= QUESTION_MAX && !question.is_empty() {
            return Next::Ask(facts.name, question);
        }
        let key = queries.iter().find_map(|query| own::key(query)).filter(|_| set && facts.records);
        if set {
            let (export, changed_since) = (facts.name.clone(), changed_since.cloned());
            self.contexts = Some(Contexts { export, block_status: named, changed_since, session, key: None });
        }
        if session.is_some() || key.is_some() {
            return Next::Identify(Identity { export: facts.name, session, key });
        }
        reply(out, option, rep::ACK, &[]);
        Next::Answered
    }

    /// Ends the answer to an identity; `key` is what the connection is registered with.
    pub fn identified(&mut self, key: Option<ReservationKey>, out: &mut Vec<u8>) {
        if let Some(key) = key {
            context(out, opt::SET_META_CONTEXT, KEY_ID, own::key_name(key).as_bytes());
        }
        if let Some(contexts) = &mut self.contexts {
            contexts.key = key;
        }
        reply(out, opt::SET_META_CONTEXT, rep::ACK, &[]);
    }

    fn info_export(&self, facts: &Facts) -> InfoExport {
        let flags = facts.flags | if self.structured { wire::flag::SEND_DF } else { 0 };
        InfoExport { size: facts.size.into(), flags: flags.into() }
    }

    fn agreed(&self, facts: Facts) -> Agreed {
        let contexts = self.contexts.as_ref().filter(|contexts| contexts.export == facts.name);
        Agreed {
            structured: self.structured,
            block_status: contexts.is_some_and(|contexts| contexts.block_status),
            changed_since: contexts.and_then(|contexts| contexts.changed_since.clone()),
            session: contexts.and_then(|contexts| contexts.session),
            key: contexts.and_then(|contexts| contexts.key),
            oldest: false,
            export: facts.name,
        }
    }
}

/// Appends the answer of what keeps the records to a question.
pub fn answer(bytes: &[u8], out: &mut Vec<u8>) {
    for piece in own::pieces(bytes) {
        context(out, opt::LIST_META_CONTEXT, 0, &piece);
    }
    reply(out, opt::LIST_META_CONTEXT, rep::ACK, &[]);
}

fn list(data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Next {
    if !data.is_empty() {
        error(out, opt::LIST, rep::ERR_INVALID, "this option has no data");
        return Next::Answered;
    }
    for facts in exports.list() {
        let mut entry = (facts.name.len() as u32).to_be_bytes().to_vec();
        entry.extend(facts.name.as_bytes());
        entry.extend(facts.description.as_bytes());
        reply(out, opt::LIST, rep::SERVER, &entry);
    }
    reply(out, opt::LIST, rep::ACK, &[]);
    Next::Answered
}

/// The message about an unknown name.
fn unknown(name: &[u8], exports: &dyn Exports) -> String {
    let name = String::from_utf8_lossy(&name[..name.len().min(256)]).into_owned();
    let mut names: Vec<String> = exports.list().into_iter().map(|e| format!("{:?}", e.name)).collect();
    names.truncate(20);
    match names.as_slice() {
        [] => format!("there is no export {name:?}: this server has none"),
        names => format!("there is no export {name:?}: this server has {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::OptionReplyHeader;

    struct Two;

    fn facts(name: &str) -> Facts {
        Facts {
            name: name.into(),
            description: format!("about {name}"),
            size: 1 << 20,
            flags: wire::flag::HAS_FLAGS,
            minimum: 512,
            preferred: 4096,
            records: name == "b",
        }
    }

    impl Exports for Two {
        fn list(&self) -> Vec<Facts> {
            vec![facts("a"), facts("b")]
        }
        fn find(&self, name: &str) -> Option<Facts> {
            self.list().into_iter().find(|facts| facts.name == name)
        }
        fn snapshots(&self, name: &str) -> Vec<String> {
            if name == "a" { vec!["monday".into(), "tuesday".into()] } else { Vec::new() }
        }
    }

    /// A client that has sent its flags.
    fn begun(tls: Tls) -> Handshake {
        let mut handshake = Handshake::new(tls, true);
        let step = handshake.step(&[0, 0, 0, 3], &Two, &mut Vec::new());
        assert_eq!(step, Ok((4, Next::Answered)));
        handshake
    }

    fn message(option: u32, data: &[u8]) -> Vec<u8> {
        let len = (data.len() as u32).into();
        let header = OptionHeader { magic: wire::OPTION_MAGIC.into(), option: option.into(), len };
        [header.as_bytes(), data].concat()
    }

    /// Asks, a byte more at a time, and returns what comes next and the kinds and data of the replies.
    fn ask(handshake: &mut Handshake, option: u32, data: &[u8]) -> (Next, Vec<(u32, Vec<u8>)>) {
        let (input, mut out) = (message(option, data), Vec::new());
        for end in 0..input.len() {
            assert_eq!(handshake.step(&input[..end], &Two, &mut out), Ok((0, Next::Receive)));
        }
        let (used, next) = handshake.step(&input, &Two, &mut out).expect("no breach");
        assert_eq!(used, input.len());
        (next, replies(option, &out))
    }

    fn replies(option: u32, mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut list = Vec::new();
        while !out.is_empty() {
            let (header, rest) = OptionReplyHeader::read_from_prefix(out).expect("a reply");
            assert_eq!((header.magic.get(), header.option.get()), (wire::OPTION_REPLY_MAGIC, option));
            let (data, rest) = rest.split_at(header.len.get() as usize);
            list.push((header.kind.get(), data.to_vec()));
            out = rest;
        }
        list
    }

    fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
        replies.iter().map(|(kind, _)| *kind).collect()
    }

    fn named(name: &str, rest: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes(), name.as_bytes(), rest].concat()
    }

    fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = named(name, &(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(named(query, &[])));
        data
    }

    #[test]
    fn a_negotiation() {
        let mut handshake = begun(Tls::Unavailable);
        let (next, list) = ask(&mut handshake, opt::LIST, &[]);
        assert_eq!((next, kinds(&list)), (Next::Answered, vec![rep::SERVER, rep::SERVER, rep::ACK]));
        assert_eq!(list[1].1, [&[0, 0, 0, 1][..], b"b", b"about b"].concat());

        let early = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &[wire::BASE_ALLOCATION]));
        assert_eq!(kinds(&early.1), [rep::ERR_INVALID]);
        assert_eq!(kinds(&ask(&mut handshake, opt::STRUCTURED_REPLY, &[]).1), [rep::ACK]);
        let known = ask(&mut handshake, opt::LIST_META_CONTEXT, &contexts("a", &["base:"]));
        assert_eq!(kinds(&known.1), [rep::META_CONTEXT, rep::ACK]);
        let wild = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &["base:", "x:y"]));
        assert_eq!(kinds(&wild.1), [rep::ACK]);
        let set = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &["x:y", wire::BASE_ALLOCATION]));
        assert_eq!(set.1[0].1, [&[0, 0, 0, 1][..], b"base:allocation"].concat());

        let info = ask(&mut handshake, opt::INFO, &named("a", &[0, 2, 0, 1, 0, 2]));
        assert_eq!(info.0, Next::Answered);
        assert_eq!(kinds(&info.1), [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]);
        assert_eq!(info.1[1].1, [&[0, 1][..], b"a"].concat());
        let (next, go) = ask(&mut handshake, opt::GO, &named("a", &[0, 0]));
        assert_eq!(go[0].1[2..10], (1u64 << 20).to_be_bytes());
        let agreed = Agreed {
            export: "a".into(),
            structured: true,
            block_status: true,
            changed_since: None,
            session: None,
            key: None,
            oldest: false,
        };
        assert_eq!(next, Next::Transmission(agreed));
    }

    #[test]
    fn block_status_is_for_the_export_it_was_set_for() {
        let mut handshake = begun(Tls::Unavailable);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &[wire::BASE_ALLOCATION]));
        let (next, _) = ask(&mut handshake, opt::GO, &named("b", &[0, 0]));
        let agreed = Agreed {
            export: "b".into(),
            structured: true,
            block_status: false,
            changed_since: None,
            session: None,
            key: None,
            oldest: false,
        };
        assert_eq!(next, Next::Transmission(agreed));
    }

    #[test]
    fn a_dirty_bitmap_is_since_one_snapshot_of_its_export() {
        let mut handshake = begun(Tls::Unavailable);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        let queries = ["sunday", "tuesday", "monday"].map(bitmap::name);
        let queries: Vec<&str> = queries.iter().map(String::as_str).chain(["qemu:"]).collect();
        for (export, since) in [("a", Some("tuesday")), ("b", None)] {
            let (_, replies) = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts(export, &queries));
            let mut expected = vec![(rep::ACK, Vec::new())];
            if let Some(since) = since {
                let context = [&[0, 0, 0, 4], bitmap::name(since).as_bytes()].concat();
                expected.insert(0, (rep::META_CONTEXT, context));
            }
            assert_eq!(replies, expected);
            let (next, _) = ask(&mut handshake, opt::GO, &named(export, &[0, 0]));
            let Next::Transmission(agreed) = next else { panic!("{next:?}") };
            assert_eq!((agreed.block_status, agreed.changed_since.as_deref()), (false, since));
        }
    }

    #[test]
    fn a_session_is_fenced_before_it_is_acknowledged() {
        let mut handshake = begun(Tls::Unavailable);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        let name = Session(7).name();
        let set = contexts("a", &[&name, wire::BASE_ALLOCATION, "x-lamina:session=7", "x-lamina:"]);
        let (next, replies) = ask(&mut handshake, opt::SET_META_CONTEXT, &set);
        let identity = Identity { export: "a".into(), session: Some(Session(7)), key: None };
        assert_eq!(next, Next::Identify(identity));
        assert_eq!(kinds(&replies), [rep::META_CONTEXT, rep::META_CONTEXT]);
        let mut out = Vec::new();
        handshake.identified(None, &mut out);
        assert_eq!(kinds(&super::tests::replies(opt::SET_META_CONTEXT, &out)), [rep::ACK]);
        assert_eq!(replies[1].1, [&[0, 0, 0, 2], name.as_bytes()].concat());
        let (next, _) = ask(&mut handshake, opt::GO, &named("a", &[0, 0]));
        let agreed = Agreed {
            export: "a".into(),
            structured: true,
            block_status: true,
            changed_since: None,
            session: Some(Session(7)),
            key: None,
            oldest: false,
        };
        assert_eq!(next, Next::Transmission(agreed));
        // Of another export it says nothing, and a later option replaces it.
        let (next, _) = ask(&mut handshake, opt::GO, &named("b", &[0, 0]));
        assert!(matches!(next, Next::Transmission(agreed) if agreed.session.is_none()));
        ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &[wire::BASE_ALLOCATION]));
        let (next, _) = ask(&mut handshake, opt::GO, &named("a", &[0, 0]));
        assert!(matches!(next, Next::Transmission(agreed) if agreed.session.is_none()));
    }

    #[test]
    fn a_key_is_for_an_export_with_records_and_counts_when_it_is_granted() {
        let mut handshake = begun(Tls::Unavailable);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        let key = ReservationKey { volume: 0x11, generation: 4 };
        let name = own::key_name(key);
        let mut out = Vec::new();
        for granted in [None, Some(key)] {
            let (next, _) = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("b", &[&name]));
            let identity = Identity { export: "b".into(), session: None, key: Some(key) };
            assert_eq!(next, Next::Identify(identity));
            out.clear();
            handshake.identified(granted, &mut out);
            let (next, _) = ask(&mut handshake, opt::GO, &named("b", &[0, 0]));
            assert!(matches!(next, Next::Transmission(agreed) if agreed.key == granted));
        }
        let list = replies(opt::SET_META_CONTEXT, &out);
        assert_eq!(list[0], (rep::META_CONTEXT, [&[0, 0, 0, 3], name.as_bytes()].concat()));
        // Of one without records nothing is heard.
        let (next, list) = ask(&mut handshake, opt::SET_META_CONTEXT, &contexts("a", &[&name]));
        assert_eq!((next, kinds(&list)), (Next::Answered, vec![rep::ACK]));
    }

    #[test]
    fn a_question_is_for_an_export_with_records() {
        let mut handshake = begun(Tls::Unavailable);
        let question = vec![7; 9000];
        let pieces = own::pieces(&question);
        let mut list = named("b", &(pieces.len() as u32).to_be_bytes());
        for piece in &pieces {
            list.extend([&(piece.len() as u32).to_be_bytes(), &piece[..]].concat());
        }
        let early = ask(&mut handshake, opt::LIST_META_CONTEXT, &list);
        assert_eq!(kinds(&early.1), [rep::ERR_INVALID]);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        let (next, replies) = ask(&mut handshake, opt::LIST_META_CONTEXT, &list);
        assert_eq!((next, replies), (Next::Ask("b".into(), question), Vec::new()));
        let mut out = Vec::new();
        answer(&[1; 5000], &mut out);
        let list = super::tests::replies(opt::LIST_META_CONTEXT, &out);
        assert_eq!(kinds(&list), [rep::META_CONTEXT, rep::META_CONTEXT, rep::ACK]);
        let (next, list) =
            ask(&mut handshake, opt::LIST_META_CONTEXT, &contexts("a", &["x-lamina:records=7"]));
        assert_eq!((next, kinds(&list)), (Next::Answered, vec![rep::ACK]));
    }

    #[test]
    fn a_list_of_contexts_names_all_kinds() {
        let mut handshake = begun(Tls::Unavailable);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        for (queries, count) in [
            (&[][..], 4),
            (&["x-lamina:"], 1),
            (&["base:"], 1),
            (&["qemu:"], 2),
            (&["qemu:dirty-bitmap:", "base:"], 3),
            (&["qemu:dirty-bitmap:monday"], 1),
            (&["x-other:"], 0),
        ] {
            let (next, replies) = ask(&mut handshake, opt::LIST_META_CONTEXT, &contexts("a", queries));
            assert_eq!((next, replies.len()), (Next::Answered, count + 1), "{queries:?}");
        }
        let mut without = Handshake::new(Tls::Unavailable, false);
        without.step(&[0, 0, 0, 3], &Two, &mut Vec::new()).expect("good flags");
        ask(&mut without, opt::STRUCTURED_REPLY, &[]);
        let (next, replies) = ask(&mut without, opt::SET_META_CONTEXT, &contexts("a", &[&Session(7).name()]));
        assert_eq!((next, kinds(&replies)), (Next::Answered, vec![rep::ACK]));
    }

    #[test]
    fn the_oldest_way() {
        for (flags, len) in [(3, 10), (1, 134), (0, 134)] {
            let (mut handshake, mut out) = (Handshake::new(Tls::Unavailable, true), Vec::new());
            handshake.step(&[0, 0, 0, flags], &Two, &mut out).expect("good flags");
            let (_, next) = handshake.step(&message(opt::EXPORT_NAME, b"b"), &Two, &mut out).expect("there");
            assert!(matches!(next, Next::Transmission(agreed) if agreed.export == "b" && !agreed.structured));
            assert_eq!(out.len(), len);
        }
        let nobody = begun(Tls::Unavailable).step(&message(opt::EXPORT_NAME, b"c"), &Two, &mut Vec::new());
        assert_eq!(nobody, refused("there is no export \"c\": this server has \"a\", \"b\""));
    }

    #[test]
    fn what_is_wrong_is_refused_and_the_talk_goes_on() {
        let mut handshake = begun(Tls::Unavailable);
        for (option, data, kind) in [
            (99, vec![1, 2, 3], rep::ERR_UNSUP),
            (4, vec![], rep::ERR_UNSUP),
            (opt::LIST, vec![1], rep::ERR_INVALID),
            (opt::STARTTLS, vec![], rep::ERR_POLICY),
            (opt::STARTTLS, vec![1], rep::ERR_INVALID),
            (opt::STRUCTURED_REPLY, vec![1], rep::ERR_INVALID),
            (opt::GO, vec![], rep::ERR_INVALID),
            (opt::GO, vec![255; 6], rep::ERR_INVALID),
            (opt::GO, named("a", &[0, 2, 0, 1]), rep::ERR_INVALID),
            (opt::GO, named("a", &[0, 1, 0, 1, 0]), rep::ERR_INVALID),
            (opt::GO, named("c", &[0, 0]), rep::ERR_UNKNOWN),
            (opt::GO, [&[0, 0, 0, 1, 0xff][..], &[0, 0]].concat(), rep::ERR_UNKNOWN),
            (opt::INFO, named(&"x".repeat(5000), &[0, 0]), rep::ERR_INVALID),
            (opt::LIST_META_CONTEXT, vec![0; 7], rep::ERR_INVALID),
            (opt::SET_META_CONTEXT, named("a", &[255; 4]), rep::ERR_INVALID),
            (opt::SET_META_CONTEXT, [contexts("a", &[]), vec![0]].concat(), rep::ERR_INVALID),
        ] {
            let (next, replies) = ask(&mut handshake, option, &data);
            assert_eq!((next, kinds(&replies)), (Next::Answered, vec![kind]), "{option} {data:?}");
            assert!(std::str::from_utf8(&replies[0].1).is_ok_and(|text| text.len() > 10));
        }
        let (next, replies) = ask(&mut handshake, opt::ABORT, b"whatever");
        assert_eq!((next, kinds(&replies)), (Next::Close, vec![rep::ACK]));
    }

    #[test]
    fn a_long_option_is_skipped() {
        let (mut handshake, mut out) = (begun(Tls::Unavailable), Vec::new());
        let long = message(opt::LIST, &vec![0; OPTION_MAX + 1]);
        let mut at = 0;
        while at < long.len() {
            let end = long.len().min(at + 1000);
            let (used, _) = handshake.step(&long[at..end], &Two, &mut out).expect("no breach");
            assert!(used > 0);
            at += used;
        }
        assert_eq!(kinds(&replies(opt::LIST, &out)), [rep::ERR_TOO_BIG]);
        assert_eq!(ask(&mut handshake, opt::LIST, &[]).1.len(), 3);
    }

    #[test]
    fn what_cannot_be_answered_ends_the_connection() {
        let step = |handshake: &mut Handshake, input: &[u8]| handshake.step(input, &Two, &mut Vec::new());
        assert!(step(&mut Handshake::new(Tls::Offered, true), &[0, 0, 0, 7]).is_err(), "unknown flags");
        let mut magic = message(opt::LIST, &[]);
        magic[0] = 0;
        assert!(step(&mut begun(Tls::Offered), &magic).is_err(), "no IHAVEOPT");
        let long = message(opt::EXPORT_NAME, &vec![b'x'; OPTION_MAX + 1]);
        assert!(step(&mut begun(Tls::Offered), &long).is_err(), "a long name");
        assert!(step(&mut begun(Tls::Required), &message(opt::EXPORT_NAME, b"a")).is_err(), "not encrypted");
    }

    #[test]
    fn tls_comes_first_and_makes_all_forget() {
        let mut handshake = begun(Tls::Required);
        for option in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, 99] {
            assert_eq!(kinds(&ask(&mut handshake, option, &[]).1), [rep::ERR_TLS_REQD], "{option}");
        }
        assert_eq!(ask(&mut handshake, opt::STARTTLS, &[]).0, Next::StartTls);
        let mut handshake = begun(Tls::Offered);
        ask(&mut handshake, opt::STRUCTURED_REPLY, &[]);
        ask(&mut handshake, opt::STARTTLS, &[]);
        let mut handshake = Handshake::encrypted(&handshake);
        assert_eq!(kinds(&ask(&mut handshake, opt::STARTTLS, &[]).1), [rep::ERR_INVALID]);
        let (next, _) = ask(&mut handshake, opt::GO, &named("a", &[0, 0]));
        assert!(matches!(next, Next::Transmission(agreed) if !agreed.structured));
    }
}
