//! Dirty bitmaps on the wire: a chunk for each context, and a snapshot that goes while a client is connected.

mod common;

use common::*;
use lamina_nbd::errno;
use lamina_nbd::wire::{self, cmd, cmd_flag, opt};
use std::cell::Cell;
use std::ops::Range;

/// A disk with a snapshot, "monday": every second 4 KiB have changed since.
struct Kept {
    disk: Rc<Node>,
    is_there: Cell<bool>,
}

impl Layer for Kept {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(self: Rc<Self>, _io: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.disk))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn changed(self: Rc<Self>, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        Box::pin(async move {
            let names = self.snapshots();
            if !names.contains(&since) {
                return Err(Error::invalid(format!("there is no snapshot {since:?}")));
            }
            let mut runs = Vec::new();
            let mut from = at.start;
            while from < at.end {
                let end = at.end.min((from / 4096 + 1) * 4096);
                Difference::push(&mut runs, end - from, from / 4096 % 2 == 1);
                from = end;
            }
            Ok(runs)
        })
    }

    fn snapshots(&self) -> Vec<String> {
        if self.is_there.get() { vec!["monday".into()] } else { Vec::new() }
    }
}

impl Manage for Kept {}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&wire::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn status(flags: u16, offset: u64, len: u32) -> Vec<u8> {
    [
        &wire::REQUEST_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &cmd::BLOCK_STATUS.to_be_bytes(),
        &7u64.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

async fn send(conn: &Rc<dyn Conn>, bytes: Vec<u8>) {
    conn.send(Buf::from_vec(bytes)).await.expect("sends");
}

async fn exactly(conn: &Rc<dyn Conn>, n: usize) -> Vec<u8> {
    let buf = Buf::zeroed(n);
    let mut got = 0;
    while got < n {
        got += conn.recv(buf.slice(got..n)).await.expect("receives");
    }
    buf.to_vec()
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

/// Receives the chunks of a reply: the kind of each, and its words.
async fn chunks(conn: &Rc<dyn Conn>) -> Vec<(u16, Vec<u32>)> {
    let mut all = Vec::new();
    loop {
        let header = exactly(conn, wire::Chunk::LEN).await;
        assert_eq!(number(&header[..4]), wire::STRUCTURED_REPLY_MAGIC);
        let body = exactly(conn, number(&header[16..]) as usize).await;
        let kind = u16::from_be_bytes([header[6], header[7]]);
        all.push((kind, body.chunks_exact(4).map(number).collect()));
        if header[5] == wire::chunk::FLAG_DONE as u8 {
            return all;
        }
    }
}

/// Connects to the export "disk", with these contexts; how many bytes the server says before transmission.
async fn connect(world: &World, contexts: &[&str]) -> Rc<dyn Conn> {
    let conn = world.connect().await;
    let queries: Vec<u8> = contexts.iter().flat_map(|name| string(name)).collect();
    let set = [string("disk"), (contexts.len() as u32).to_be_bytes().to_vec(), queries].concat();
    let go = option(opt::GO, &[&string("disk")[..], &[0, 0]].concat());
    let begin =
        [vec![0, 0, 0, 3], option(opt::STRUCTURED_REPLY, &[]), option(opt::SET_META_CONTEXT, &set), go];
    send(&conn, begin.concat()).await;
    let agreed: usize = contexts.iter().map(|name| 20 + 4 + name.len()).sum();
    exactly(&conn, 18 + 20 + (agreed + 20) + (20 + 12) + (20 + 14) + 20).await;
    conn
}

#[test]
fn a_status_has_a_chunk_for_each_context_and_a_deleted_snapshot_is_an_error_of_a_request() {
    const BITMAP: &str = "qemu:dirty-bitmap:monday";
    simulate(0..2, Settings::default(), async |world| {
        let kept = Rc::new(Kept { disk: Rc::clone(&world.node), is_there: Cell::new(true) });
        let node = Node::new("kept", "test", world.dyn_env(), Rc::clone(&kept) as _);
        world.server.remove("disk");
        world
            .server
            .add(ExportInfo {
                name: "disk".into(),
                description: String::new(),
                node,
                read_only: false,
                memory: Rc::default(),
                records: None,
            })
            .expect("a new name");
        let (alone, both) =
            (connect(&world, &[BITMAP]).await, connect(&world, &[BITMAP, wire::BASE_ALLOCATION]));
        let both = both.await;
        send(&alone, status(0, 4096, 12 << 10)).await;
        assert_eq!(chunks(&alone).await, [(5, vec![4, 4096, 1, 4096, 0, 4096, 1])]);
        send(&alone, status(cmd_flag::REQ_ONE, 512, 1 << 20)).await;
        assert_eq!(chunks(&alone).await, [(5, vec![4, 3584, 0])]);
        send(&both, status(0, 0, 8192)).await;
        assert_eq!(chunks(&both).await, [(5, vec![1, 8192, 0]), (5, vec![4, 4096, 0, 4096, 1])]);
        kept.is_there.set(false);
        for conn in [&alone, &both] {
            send(conn, status(0, 0, 8192)).await;
            let [(kind, error)] = &chunks(conn).await[..] else { panic!("one chunk") };
            assert_eq!((*kind, error[0]), (wire::chunk::ERROR, errno::EINVAL));
        }
        kept.is_there.set(true);
        send(&alone, status(0, 0, 4096)).await;
        assert_eq!(chunks(&alone).await, [(5, vec![4, 4096, 0])]);
    });
}
