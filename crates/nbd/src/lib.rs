//! NBD, both sides: a [`server`] that exports nodes to any client, and a [`client`] that is a sink.
//!
//! The protocol ([`wire`]) is fixed newstyle with structured replies, block status (`base:allocation`) and TLS. All
//! decisions about bytes are made without a socket: the negotiations, the judging of requests, the reading of replies.
//! The code that moves bytes decides nothing. Both sides run on any [`lamina_block::Env`].
//!
//! Invariant: a peer that breaks the protocol gets an error or loses its connection; the memory that a peer can make us
//! use is bounded by configuration.

pub mod client;
pub mod context;
pub mod errno;
pub mod inbox;
pub mod server;
pub mod wire;
