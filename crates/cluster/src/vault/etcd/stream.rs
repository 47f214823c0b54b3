//! A connection, as hyper reads and writes one.

use hyper::rt::{Read, ReadBufCursor, Write};
use lamina_block::{Buf, Conn, Env, Error, Pending};
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Received at a time, in bytes.
const RECEIVE: usize = 16 << 10;

/// A connection.
pub struct Stream {
    env: Rc<dyn Env>,
    conn: Rc<dyn Conn>,
    receiving: Option<(Buf, Pending<usize>)>,
    /// Received, and not yet read from there on.
    received: (Vec<u8>, usize),
    sending: Option<Pending>,
    failed: Failed,
}

/// Why a connection has failed: hyper takes some failures for an end.
pub type Failed = Rc<RefCell<Option<Error>>>;

impl Stream {
    /// Of a connection over which nothing was received yet; how it fails will be in `failed`.
    pub fn new(env: &Rc<dyn Env>, conn: Rc<dyn Conn>, failed: Failed) -> Stream {
        Stream {
            env: Rc::clone(env),
            conn,
            receiving: None,
            received: (Vec::new(), 0),
            sending: None,
            failed,
        }
    }

    fn fails(&self, e: Error) -> io::Error {
        self.failed.replace(Some(e));
        io::ErrorKind::ConnectionReset.into()
    }

    fn sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let sent = ready!(sending.as_mut().poll(cx));
        self.sending = None;
        Poll::Ready(sent.map_err(|e| self.fails(e)))
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        if me.received.1 == me.received.0.len() {
            let (buf, receiving) = me.receiving.get_or_insert_with(|| {
                let buf = me.env.pool().take(RECEIVE);
                let receiving = me.conn.recv(buf.clone());
                (buf, receiving)
            });
            let count = ready!(receiving.as_mut().poll(cx));
            let bytes = count.map(|count| buf.slice(0..count).to_vec());
            me.receiving = None;
            me.received = (bytes.map_err(|e| me.fails(e))?, 0);
        }
        let rest = &me.received.0[me.received.1..];
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        me.received.1 += count;
        Poll::Ready(Ok(()))
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.sent(cx))?;
        self.sending = Some(self.conn.send(Buf::from_vec(from.to_vec())));
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sent(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = ready!(self.sent(cx));
        self.conn.shutdown();
        Poll::Ready(sent)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A request that nobody waits for any more is not to stay under way.
        self.conn.abort();
    }
}
