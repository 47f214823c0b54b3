//! The bytes of options and of replies to them; the handshake interprets them.
//!
//! Invariant: any bytes of a client are read without a panic, and takes no memory beyond what was sent.

use crate::wire::{self, OptionReplyHeader, rep};
use zerocopy::IntoBytes;

/// Appends a reply to an option.
pub fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    let header = OptionReplyHeader {
        magic: wire::OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    out.extend(header.as_bytes());
    out.extend(data);
}

/// Appends an error reply, with a message for people, cut where it is too long.
pub fn error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    reply(out, option, kind, &message.as_bytes()[..message.floor_char_boundary(wire::STRING_MAX)]);
}

/// Appends a metadata context: its number and its name.
pub fn context(out: &mut Vec<u8>, option: u32, id: u32, name: &[u8]) {
    reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), name].concat());
}

/// Appends a piece of information about an export.
pub fn info_reply(out: &mut Vec<u8>, option: u32, kind: u16, data: &[u8]) {
    let mut body = kind.to_be_bytes().to_vec();
    body.extend(data);
    reply(out, option, rep::INFO, &body);
}

/// A string with its length in front.
fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (string, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    *data = rest;
    Some(string)
}

/// Reads `INFO` and `GO`: the name and the kinds of information asked for. `None` if the option is malformed.
pub fn info_request(mut data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let name = string(&mut data)?;
    let (count, rest) = data.split_first_chunk::<2>()?;
    let (kinds, []) = rest.as_chunks::<2>() else { return None };
    let valid = kinds.len() == usize::from(u16::from_be_bytes(*count)) && name.len() <= wire::STRING_MAX;
    valid.then(|| (name, kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect()))
}

/// Reads `LIST_META_CONTEXT` and `SET_META_CONTEXT`: the name and the queries. `None` if the option is malformed.
pub fn meta_request(mut data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let name = string(&mut data)?;
    let (count, rest) = data.split_first_chunk::<4>()?;
    data = rest;
    let mut queries = Vec::new();
    // Each query takes at least four of the present bytes, so a large count ends at once.
    for _ in 0..u32::from_be_bytes(*count) {
        queries.push(string(&mut data)?);
    }
    (data.is_empty() && name.len() <= wire::STRING_MAX).then_some((name, queries))
}
