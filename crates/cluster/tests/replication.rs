//! A primary and a peer over connections that are cut and stranded: what the peer says to have it has, and what it was
//! sent arrives; a generation that is over gets no answer; hostile hosts end their own connection.

use lamina_block::{Address, Buf, Conn, Env, Error, ErrorKind, Pending, Result, Signal};
use lamina_cluster::Uuid;
use lamina_cluster::conn::{receive, send};
use lamina_cluster::peer::Peer;
use lamina_cluster::secure::Caller;
use lamina_cluster::sender::Sender;
use lamina_cluster::serve::{Member, Replica};
use lamina_cluster::wire::{Ack, BLOCK, Batch, Credit, Entry, Frame, Hello, Welcome};
use lamina_sim::{SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Credit = Credit { bytes: 64 << 10, writes: 12 };
const WRITES: u64 = 150;

fn address() -> Address {
    Address::Tcp("peer:7000".into())
}

fn hello(generation: u64) -> Hello {
    Hello {
        versions: (1, 1),
        volume: Uuid::from_u128(1),
        size: 1 << 30,
        generation,
        flash: Uuid::from_u128(9),
        is_anew: false,
    }
}

/// What write `serial` of a generation has.
fn data(generation: u64, serial: u64) -> Vec<u8> {
    vec![(serial * 7 + generation) as u8; BLOCK]
}

fn batch(generation: u64, serials: std::ops::RangeInclusive<u64>) -> (Frame, Buf) {
    let (mut entries, mut bytes) = (Vec::new(), Vec::new());
    for serial in serials {
        let data = data(generation, serial);
        entries.push(Entry {
            serial,
            block: serial % 40,
            count: 1,
            absent: 0,
            checksum: crc32c::crc32c(&data),
        });
        bytes.extend(data);
    }
    (Frame::Batch(Batch { generation, checkpoint: 0, entries }), Buf::from_vec(bytes))
}

/// A replica in memory: writes by serial number, and whether they would survive a loss of power.
struct Kept {
    env: Rc<SimEnv>,
    writes: RefCell<BTreeMap<u64, (Vec<u8>, bool)>>,
    fails: Cell<bool>,
}

impl Kept {
    async fn pause(&self) {
        self.env.sleep(Duration::from_nanos(self.env.random() % 3_000_000)).await;
    }

    /// Fails unless what a peer has said is so.
    fn check(&self, generation: u64, ack: &Ack) -> std::result::Result<(), String> {
        let writes = self.writes.borrow();
        for serial in 1..=ack.written {
            let (bytes, is_durable) = writes.get(&serial).ok_or(format!("{serial} is not here: {ack:?}"))?;
            if *bytes != data(generation, serial) || serial <= ack.durable && !is_durable {
                return Err(format!("{serial} is not what was said: {ack:?}"));
            }
        }
        Ok(())
    }
}

/// As a peer has it.
struct Here(Rc<Kept>);

impl Replica for Here {
    fn admit(&self, _hello: Hello, _caller: &Caller) -> Pending {
        Box::pin(async { Ok(()) })
    }

    fn begin(&self, _hello: Hello, _caller: &Caller) -> Pending {
        let kept = Rc::clone(&self.0);
        Box::pin(async move {
            kept.pause().await;
            kept.writes.borrow_mut().clear();
            Ok(())
        })
    }

    fn put(&self, batch: Batch, data: Buf) -> Pending {
        let kept = Rc::clone(&self.0);
        Box::pin(async move {
            kept.pause().await;
            if kept.fails.get() {
                return Err(Error::media("the flash has failed"));
            }
            for (n, entry) in batch.entries.iter().enumerate() {
                let bytes = data.slice(n * BLOCK..(n + 1) * BLOCK).to_vec();
                kept.writes.borrow_mut().insert(entry.serial, (bytes, false));
            }
            Ok(())
        })
    }

    fn flush(&self) -> Pending {
        let kept = Rc::clone(&self.0);
        Box::pin(async move {
            let before: Vec<u64> = kept.writes.borrow().keys().copied().collect();
            kept.pause().await;
            let mut writes = kept.writes.borrow_mut();
            for serial in before {
                if let Some((_, is_durable)) = writes.get_mut(&serial) {
                    *is_durable = true;
                }
            }
            Ok(())
        })
    }

    fn stored(&self, _upto: u64) {}

    fn space(&self) -> u64 {
        1 << 20
    }

    fn reaches_store(&self) -> bool {
        true
    }
}

/// A peer that listens.
fn listen(env: &Rc<SimEnv>) -> (Rc<Member>, Rc<Kept>) {
    let kept = Rc::new(Kept { env: Rc::clone(env), writes: RefCell::default(), fails: Cell::new(false) });
    let peer = Peer::new(Uuid::from_u128(2), (0, 0), LIMIT);
    let member = Member::new(Rc::clone(env) as _, peer, Rc::new(Here(Rc::clone(&kept))));
    let listener = env.listen(address()).expect("nobody else listens");
    let (of, clock) = (Rc::clone(&member), Rc::clone(env));
    env.spawn(Box::pin(async move {
        while let Ok(conn) = listener.accept().await {
            let (member, env) = (Rc::clone(&of), Rc::clone(&clock));
            clock.spawn(Box::pin(async move {
                if let Ok(Some((Frame::Hello(hello), _))) = receive(&*conn, &*env).await {
                    // Why it ended is the other end's concern.
                    let _ = member.serve(conn, hello, Caller::default()).await;
                }
            }));
        }
    }));
    (member, kept)
}

/// Begins a connection.
async fn begin(env: &Rc<SimEnv>, generation: u64) -> Result<(Rc<dyn Conn>, Welcome)> {
    let conn = env.connect(address()).await?;
    send(&*conn, &Frame::Hello(hello(generation)), Buf::empty()).await?;
    match receive(&*conn, &**env).await? {
        Some((Frame::Welcome(welcome), _)) => Ok((conn, welcome)),
        Some((Frame::Refuse(refuse), _)) => Err(Error::new(ErrorKind::Fenced, refuse.why)),
        other => Err(Error::offline(format!("{other:?}"))),
    }
}

/// What a primary knows of a connection.
struct Link {
    sender: RefCell<Sender>,
    last: Cell<Ack>,
    ended: RefCell<Option<Result<()>>>,
    moved: Signal,
}

/// Sends all writes over one connection; true if all are durable at the end.
async fn replicate(env: &Rc<SimEnv>, generation: u64, kept: &Rc<Kept>) -> std::result::Result<bool, Error> {
    let (conn, welcome) = begin(env, generation).await?;
    let is_known = welcome.generation == generation;
    let from = if is_known { welcome } else { Welcome { written: 0, durable: 0, ..welcome } };
    let (written, durable) = (from.written, from.durable);
    let link = Rc::new(Link {
        sender: Sender::new(&from, env.now()).into(),
        last: Cell::new(Ack { written, durable, ..Ack::default() }),
        ended: RefCell::default(),
        moved: Signal::new(),
    });
    let (hears, ears, clock, kept) = (Rc::clone(&link), Rc::clone(&conn), Rc::clone(env), Rc::clone(kept));
    env.spawn(Box::pin(async move {
        let heard = async {
            while let Some((frame, _)) = receive(&*ears, &*clock).await? {
                let Frame::Ack(ack) = frame else { return Err(Error::invalid("no answer")) };
                hears.sender.borrow_mut().acked(ack, clock.now())?;
                kept.check(generation, &ack).unwrap_or_else(|e| panic!("{e}"));
                hears.last.set(ack);
                hears.moved.notify();
            }
            Err(Error::offline("the peer has ended the connection"))
        };
        hears.ended.replace(Some(heard.await));
        hears.moved.notify();
    }));
    let mut next = written + 1;
    while link.last.get().durable < WRITES {
        if let Some(ended) = link.ended.borrow().clone() {
            return ended.map(|()| false);
        }
        let size = (env.random() % 4).min(WRITES.saturating_sub(next));
        let credit = Credit { bytes: (size + 1) * BLOCK as u64, writes: size + 1 };
        if next <= WRITES && link.sender.borrow().may_send(credit) {
            let (frame, data) = batch(generation, next..=next + size);
            link.sender.borrow_mut().sends(credit, next + size, env.now());
            next += size + 1;
            send(&*conn, &frame, data).await?;
            if next > WRITES || env.random().is_multiple_of(8) {
                link.sender.borrow_mut().flushes(env.now());
                send(&*conn, &Frame::Flush(next - 1), Buf::empty()).await?;
            }
        } else if next > WRITES
            && link.last.get().written == WRITES
            && link.sender.borrow().silent_for(env.now()).is_zero()
        {
            send(&*conn, &Frame::Flush(WRITES), Buf::empty()).await?;
            link.moved.wait().await;
        } else {
            link.moved.wait().await;
        }
    }
    conn.shutdown();
    Ok(true)
}

#[test]
fn everything_arrives_over_connections_that_are_lost() {
    for seed in 0..200 {
        let world = Simulation::new(seed);
        let env = world.env();
        let run = async move {
            let (_member, kept) = listen(&env);
            let done = Rc::new(Cell::new(false));
            let (over, clock) = (Rc::clone(&done), Rc::clone(&env));
            if seed % 2 == 1 {
                env.spawn(Box::pin(async move {
                    while !over.get() {
                        clock.sleep(Duration::from_nanos(clock.random() % 40_000_000)).await;
                        match clock.random() % 3 {
                            0 => clock.net().cut(&address()),
                            1 => clock.net().strand(&address()),
                            _ => clock.net().heal(&address()),
                        }
                    }
                }));
            }
            for _ in 0..10_000 {
                if let Ok(true) = replicate(&env, 1, &kept).await {
                    done.set(true);
                    let last = Ack { written: WRITES, durable: WRITES, ..Ack::default() };
                    kept.check(1, &last).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    return;
                }
                env.sleep(Duration::from_millis(1)).await;
            }
            panic!("seed {seed}: it does not arrive");
        };
        world.run(run).expect("it ends");
    }
}

#[test]
fn a_generation_that_is_over_hears_nothing_more() {
    let world = Simulation::new(7);
    let env = world.env();
    let run = async move {
        let (member, kept) = listen(&env);
        let (conn, welcome) = begin(&env, 1).await.expect("nothing was promised");
        assert_eq!((welcome.generation, welcome.written), (0, 0));
        let (frame, data) = batch(1, 1..=3);
        send(&*conn, &frame, data).await.expect("sent");
        let answer = receive(&*conn, &*env).await.expect("received");
        assert!(matches!(answer, Some((Frame::Ack(Ack { written: 3, .. }), _))), "{answer:?}");
        member.promise(2);
        let (frame, data) = batch(1, 4..=4);
        // Perhaps it is sent before the end of the connection is seen.
        let _ = send(&*conn, &frame, data).await;
        assert!(!matches!(receive(&*conn, &*env).await, Ok(Some(_))), "it is answered");
        let e = begin(&env, 1).await.err().expect("it is over");
        assert!(e.kind() == ErrorKind::Fenced && e.message().contains("2 was promised"), "{e}");
        // The next primary sends what is dirty anew.
        assert_eq!(replicate(&env, 2, &kept).await, Ok(true));
        assert_eq!(member.written(), WRITES);
    };
    world.run(run).expect("it ends");
}

#[test]
fn a_flash_that_fails_ends_the_connection() {
    let world = Simulation::new(8);
    let env = world.env();
    let run = async move {
        let (_member, kept) = listen(&env);
        kept.fails.set(true);
        assert!(replicate(&env, 1, &kept).await.is_err());
        kept.fails.set(false);
        assert_eq!(replicate(&env, 1, &kept).await, Ok(true));
    };
    world.run(run).expect("it ends");
}

#[test]
fn a_hostile_host_ends_its_own_connection() {
    let world = Simulation::new(9);
    let env = world.env();
    let run = async move {
        let (_member, kept) = listen(&env);
        let wrong: [fn() -> (Frame, Buf); 5] = [
            || batch(2, 1..=1),
            || batch(1, 1..=13),
            || (batch(1, 1..=1).0, Buf::zeroed(BLOCK)),
            || (Frame::Flush(99), Buf::empty()),
            || (Frame::Ack(Ack::default()), Buf::empty()),
        ];
        for (n, make) in wrong.iter().enumerate() {
            let (conn, _) = begin(&env, 1).await.expect("a new connection");
            let (frame, data) = make();
            let _ = send(&*conn, &frame, data).await;
            assert!(!matches!(receive(&*conn, &*env).await, Ok(Some(_))), "case {n} is answered");
        }
        // One that never reads: what there is to say does not grow.
        let (deaf, _) = begin(&env, 1).await.expect("a new connection");
        for serial in 1..=12 {
            let (frame, data) = batch(1, serial..=serial);
            send(&*deaf, &frame, data).await.expect("it was granted");
        }
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(replicate(&env, 1, &kept).await, Ok(true));
    };
    world.run(run).expect("it ends");
}
