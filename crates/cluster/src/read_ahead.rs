//! A connection that receives more than is asked for: the head, the body and the data of a small frame come with one
//! receive instead of three.

use lamina_block::{Buf, Conn, Pending, Result};
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that may be there before they are asked for: the writes that a host makes together, mostly. What asks for as
/// many gets them without a copy.
const AHEAD: usize = 64 << 10;

/// A connection whose bytes are for one reader, who asks for them one time after the other.
pub(crate) struct ReadAhead(Rc<Inner>);

struct Inner {
    conn: Rc<dyn Conn>,
    buf: Buf,
    /// What of it is still to be given: from, and up to.
    rest: Cell<(usize, usize)>,
}

impl ReadAhead {
    pub fn new(conn: Rc<dyn Conn>) -> ReadAhead {
        ReadAhead(Rc::new(Inner { conn, buf: Buf::zeroed(AHEAD), rest: Cell::default() }))
    }
}

impl Inner {
    async fn recv(&self, into: Buf) -> Result<usize> {
        let (mut from, mut to) = self.rest.get();
        if from == to {
            if into.len() >= AHEAD {
                return self.conn.recv(into).await;
            }
            (from, to) = (0, self.conn.recv(self.buf.clone()).await?);
        }
        let given = into.len().min(to - from);
        into.slice(0..given).copy_from(&self.buf.slice(from..from + given));
        self.rest.set((from + given, to));
        Ok(given)
    }
}

impl Conn for ReadAhead {
    fn recv(&self, into: Buf) -> Pending<usize> {
        let inner = Rc::clone(&self.0);
        Box::pin(async move { inner.recv(into).await })
    }

    fn send(&self, from: Buf) -> Pending {
        self.0.conn.send(from)
    }

    fn shutdown(&self) {
        self.0.conn.shutdown();
    }

    fn abort(&self) {
        self.0.conn.abort();
    }

    fn peer(&self) -> String {
        self.0.conn.peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::{Address, Env};
    use lamina_sim::Simulation;

    /// Whatever is asked for, and however the bytes come, they are the ones that were sent, and then there are none.
    #[test]
    fn bytes_are_received_in_order() {
        for seed in 0..50 {
            let world = Simulation::new(seed);
            let env = world.env();
            let sent: Vec<u8> = (0..4 * AHEAD as u32).map(|n| (n * 31 % 251) as u8).collect();
            let (expected, from) = (sent.clone(), Rc::clone(&env));
            world
                .run(async move {
                    let listener = env.listen(Address::Tcp("127.0.0.1:0".into())).expect("it listens");
                    let to = listener.address();
                    from.spawn(Box::pin({
                        let from = Rc::clone(&from);
                        async move {
                            let conn = from.connect(to).await.expect("it is heard");
                            conn.send(Buf::from_vec(sent)).await.expect("it is taken");
                            conn.shutdown();
                        }
                    }));
                    let conn = ReadAhead::new(listener.accept().await.expect("it connects"));
                    let mut received = Vec::new();
                    loop {
                        let wanted = [1, 40, 4096, AHEAD, 2 * AHEAD][env.random() as usize % 5];
                        let into = Buf::zeroed(wanted);
                        match conn.recv(into.clone()).await.expect("it goes on") {
                            0 => break,
                            n => received.extend_from_slice(&into.to_vec()[..n]),
                        }
                    }
                    assert!(received == expected, "seed {seed}: {} bytes", received.len());
                })
                .expect("it ends");
        }
    }
}
