//! NBD, both sides: a [`server`] that exports nodes to any client, and a [`client`] that is a sink.
//!
//! The protocol ([`wire`]) is fixed newstyle with structured replies, block status (`base:allocation`) and TLS. What
//! is decided about bytes is decided without a socket: the negotiations, the judging of requests, the reading of
//! replies. What moves bytes knows no decisions. Both sides run on any [`lamina_block::Env`].
//!
//! Invariant: whatever the other side sends, it gets an error or loses its connection; memory that it can make us
//! hold is bounded by configuration.

pub mod client;
pub mod errno;
pub mod inbox;
pub mod server;
pub mod tls;
pub mod wire;
