//! Random requests on one file or device, several in flight: how many a second, and the cost of each.
//!
//! `cargo run --release -p lamina-host --example disk -- PATH [read|write] [depth=1,16,64] [seconds=5] [block=4096]
//! [direct=1] [spin_us=0] [size=1073741824]`
//!
//! To compare with fio: `fio --name=x --filename=PATH --rw=randread --bs=4k --direct=1 --ioengine=io_uring --iodepth=16
//! --time_based --runtime=5 --size=1g`. `idle` instead of `read` sleeps and shows the cost of that.

use lamina_block::{Buf, Durability, Env, Io, Node, OpenDisk};
use lamina_host::{Host, Options, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

struct Args {
    path: String,
    what: String,
    depths: Vec<u64>,
    seconds: u64,
    block: u64,
    direct: bool,
    spin: Duration,
    size: u64,
}

fn args() -> Args {
    let mut all = std::env::args().skip(1);
    let path = all.next().expect("a path");
    let rest: Vec<String> = all.collect();
    let what = rest.iter().find(|a| !a.contains('=')).cloned().unwrap_or("read".into());
    let given = |key: &str| rest.iter().find_map(|a| a.strip_prefix(&format!("{key}=")).map(String::from));
    let number = |key, default| given(key).map_or(default, |n| n.parse().expect("a number"));
    let depths = given("depth").unwrap_or("1,16,64".into());
    Args {
        path,
        what,
        depths: depths.split(',').map(|d| d.parse().expect("a number")).collect(),
        seconds: number("seconds", 5),
        block: number("block", 4096),
        direct: number("direct", 1) == 1,
        spin: Duration::from_micros(number("spin_us", 0)),
        size: number("size", 1 << 30),
    }
}

/// Processor time of this process, its kernel workers included.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc is mounted");
    let after = stat.rsplit_once(')').expect("a name in brackets").1;
    let ticks: u64 = after.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

async fn one(host: Rc<Host>, node: Rc<Node>, write: bool, block: u64, end: Instant, done: Rc<Cell<u64>>) {
    let buf: Buf = host.pool().take(block as usize);
    let places = node.geometry().size / block;
    while Instant::now() < end {
        let at = host.random() % places * block;
        let io = match write {
            true => Io::write(at, buf.clone(), Durability::Cached),
            false => Io::read(at, buf.clone()),
        };
        node.submit(io).await.expect("the disk works");
        done.set(done.get() + 1);
    }
}

fn main() {
    let args = args();
    let reactor = Reactor::new(Options { spin: args.spin, ..Options::default() }).expect("a reactor");
    let host = reactor.env();
    let open = OpenDisk {
        path: args.path.into(),
        read_only: false,
        direct: args.direct,
        create: Some(args.size),
        block: None,
    };
    let layer = reactor.run(host.open_disk(open)).expect("the disk opens");
    let node = Node::new("disk", "file", Rc::clone(&host) as Rc<dyn Env>, layer);
    for depth in args.depths {
        let (begun, spent, done) = (Instant::now(), cpu(), Rc::new(Cell::new(0)));
        let end = begun + Duration::from_secs(args.seconds);
        let running = Rc::new(Cell::new(if args.what == "idle" { 0 } else { depth }));
        for _ in 0..running.get() {
            let (host, node, done, running) =
                (Rc::clone(&host), Rc::clone(&node), Rc::clone(&done), Rc::clone(&running));
            let write = args.what == "write";
            host.clone().task(async move {
                one(host, node, write, args.block, end, done).await;
                running.set(running.get() - 1);
            });
        }
        reactor.run(async {
            host.sleep(end - Instant::now()).await;
            while running.get() > 0 {
                host.sleep(Duration::from_millis(1)).await;
            }
        });
        let (time, spent) = (begun.elapsed().as_secs_f64(), (cpu() - spent).as_secs_f64());
        println!(
            "{} depth {depth}: {:.0} a second, {:.2} us of processor each, {:.2}% of a core",
            args.what,
            done.get() as f64 / time,
            spent * 1e6 / done.get().max(1) as f64,
            spent / time * 100.0
        );
    }
}
