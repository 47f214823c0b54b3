//! TLS: a connection inside a connection.
//!
//! [`accept`] and [`connect`] make a [`Conn`](lamina_block::Conn) whose bytes travel encrypted over another. Everything
//! above it is the same with and without. rustls does the protocol; here its bytes are moved. Hosts that are clients
//! and servers of each other have [`MutualTls`].
//!
//! Invariants: nothing is handed out that was not authenticated; a peer whose certificate is not wanted gets an alert
//! and no byte more; a connection that ends without saying so is an error, never an end. A handshake takes as long as
//! its peer likes: whoever begins one limits the time.

mod conn;
mod files;
mod mutual;
mod reload;

pub use conn::{accept, connect};
pub use files::{ClientTls, ServerTls};
pub use mutual::{MutualTls, Shown};
