//! The price of layers: instructions for one request through a chain of layers, counted by callgrind.
//!
//! `cargo bench -p lamina-layers --bench price` counts each chain again and compares with the table in
//! `docs/price-of-layers.md`: it fails if a chain has become more than 3% dearer, and says so if one has become
//! cheaper. With `LAMINA_PRICE=write` it writes the table instead.
//!
//! Each chain runs in a process of its own under callgrind, twice with different numbers of requests: the difference
//! is free of what it costs to begin and to end. Instructions do not depend on the load of the machine, so this is
//! what gates; the nanoseconds beside them are measured without callgrind, and only inform.

use lamina_block::{Begin, Buf, Build, Children, Durability, Env, Io, Keep, Node, Pending};
use lamina_sim::Simulation;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fmt::Write;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Requests of the shorter run under callgrind; the longer one has twice as many.
const REQUESTS: u64 = 20_000;
/// A rise that is not accepted, in percent.
const RISE: f64 = 3.0;
/// Requests of one measurement of time, and how many are made: the fastest counts.
const TIMED: u64 = 100_000;
const TIMES: usize = 7;

/// A chain: its name in the table, and the layers over the null sink, from below.
struct Chain {
    name: &'static str,
    kind: &'static str,
    count: usize,
}

const CHAINS: [Chain; 18] = [
    Chain { name: "null alone", kind: "linear", count: 0 },
    Chain { name: "1 linear", kind: "linear", count: 1 },
    Chain { name: "4 linear", kind: "linear", count: 4 },
    Chain { name: "8 linear", kind: "linear", count: 8 },
    Chain { name: "1 stripe, gathering", kind: "stripe", count: 1 },
    Chain { name: "8 stripe, gathering", kind: "stripe", count: 8 },
    Chain { name: "1 template", kind: "template", count: 1 },
    Chain { name: "8 template", kind: "template", count: 8 },
    Chain { name: "1 schedule, noop", kind: "schedule", count: 1 },
    Chain { name: "1 stripe of two", kind: "stripe of two", count: 1 },
    Chain { name: "1 concat of two", kind: "concat of two", count: 1 },
    Chain { name: "1 view of a partition", kind: "view", count: 1 },
    Chain { name: "1 snapshot, nothing shared", kind: "snapshot", count: 1 },
    Chain { name: "1 integrity, crc32c", kind: "integrity crc32c", count: 1 },
    Chain { name: "1 integrity, crc32c, reads", kind: "integrity crc32c", count: 1 },
    Chain { name: "1 integrity, xxh3", kind: "integrity xxh3", count: 1 },
    Chain { name: "1 fingerprint, blake3", kind: "fingerprint blake3", count: 1 },
    Chain { name: "1 accelerate", kind: "accelerate", count: 1 },
];

/// Bytes that requests go to, over and over.
const SPAN: u64 = 1024 * LENGTH as u64;

/// Requests of one run of the simulator, which has no more steps than a test needs.
const RUN: u64 = 1000;

/// Bytes of a request: two units of a stripe, so that it has to gather.
const LENGTH: usize = 4096;

/// Words in memory, for layers that only persistent hierarchies have.
#[derive(Default)]
struct Words(RefCell<Option<Value>>);

impl Keep for Words {
    fn get(&self) -> Option<Value> {
        self.0.borrow().clone()
    }

    fn set(&self, value: Value) -> Pending {
        self.0.replace(Some(value));
        Box::pin(async { Ok(()) })
    }
}

async fn layer(env: &Rc<dyn Env>, kind: &str, keys: Value, children: Children) -> Rc<Node> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("the kind is there");
    let mut with = Build::new(kind.name, env, children);
    if kind.traits.keeps {
        with.begin = Begin::Format;
        with.keep = Some(Rc::new(Words::default()));
    }
    if kind.traits.metadata {
        // The null sink would forget it.
        let memory = layer(env, "memory", json!({"size": "64MiB"}), vec![]);
        with.metadata = Some(Box::pin(memory).await);
    }
    let keys = kind.parse(&keys).expect("the keys are right");
    let made = keys.build(with).await.expect("the layer can be built");
    Node::new(kind.name, kind.name, Rc::clone(env), made)
}

async fn null(env: &Rc<dyn Env>) -> Rc<Node> {
    layer(env, "null", json!({"size": "1TiB"}), vec![]).await
}

/// One link of a chain, over what there is.
async fn link(env: &Rc<dyn Env>, kind: &str, below: Rc<Node>) -> Rc<Node> {
    match kind {
        "stripe" => layer(env, kind, json!({"unit": LENGTH / 2}), vec![below]).await,
        "linear" => layer(env, kind, json!({"offset": LENGTH}), vec![below]).await,
        "stripe of two" => layer(env, "stripe", json!({"unit": "64KiB"}), vec![below, null(env).await]).await,
        "concat of two" => layer(env, "concat", json!({}), vec![below, null(env).await]).await,
        "view" => {
            let table = json!({"partitions": [{"name": "root", "size": "1GiB"}]});
            let table = layer(env, "partition", table, vec![below]).await;
            layer(env, "view", json!({"name": "root"}), vec![table]).await
        }
        "snapshot" => layer(env, kind, json!({"size": "1GiB"}), vec![below]).await,
        "integrity crc32c" => summed(env, "integrity", json!({"checksum": "crc32c"}), below).await,
        "integrity xxh3" => summed(env, "integrity", json!({"checksum": "xxh3"}), below).await,
        "fingerprint blake3" => summed(env, "fingerprint", json!({"hash": "blake3"}), below).await,
        "accelerate" => {
            let memory = layer(env, "memory", json!({"size": "256MiB"}), vec![]).await;
            let flash = layer(env, "flash", json!({}), vec![memory]).await;
            layer(env, kind, json!({}), vec![below, flash]).await
        }
        kind => layer(env, kind, json!({}), vec![below]).await,
    }
}

/// A layer with a table, over the first GiB: the table of all of the null sink would be too large for a memory.
async fn summed(env: &Rc<dyn Env>, kind: &str, keys: Value, below: Rc<Node>) -> Rc<Node> {
    let part = layer(env, "linear", json!({"size": "1GiB"}), vec![below]).await;
    layer(env, kind, keys, vec![part]).await
}

impl Chain {
    /// True if its layer keeps digests.
    fn is_summed(&self) -> bool {
        self.kind.starts_with("integrity") || self.kind.starts_with("fingerprint")
    }

    async fn build(&self, env: Rc<dyn Env>) -> Rc<Node> {
        let mut top = null(&env).await;
        for _ in 0..self.count {
            top = link(&env, self.kind, top).await;
        }
        // Whatever a layer does once for a place is done.
        let data = Buf::zeroed(SPAN as usize);
        top.submit(Io::write(0, data, Durability::Cached)).await.expect("the null sink takes everything");
        top
    }

    /// Makes requests, one after the other.
    fn run(&'static self, requests: u64) -> f64 {
        let simulation = Simulation::new(0);
        let env = simulation.env();
        let top = simulation.run(async move { self.build(env).await }).expect("it can be built");
        let data = Buf::zeroed(LENGTH);
        let (reads, summed) = (self.name.ends_with("reads"), self.is_summed());
        let began = Instant::now();
        if self.kind == "accelerate" {
            // Tasks of its own do a part of the work.
            for first in (0..requests).step_by(RUN as usize) {
                let (top, data) = (Rc::clone(&top), data.clone());
                let run = async move {
                    for number in first..requests.min(first + RUN) {
                        let at = number * LENGTH as u64 % SPAN;
                        let write = top.submit(Io::write(at, data.clone(), Durability::Cached));
                        write.await.expect("there is room");
                    }
                };
                simulation.run(run).expect("it ends");
            }
            return began.elapsed().as_nanos() as f64 / requests as f64;
        }
        for number in 0..requests {
            if summed {
                // Or no digest would change.
                data.write(0, &(number + 1).to_le_bytes());
            }
            let at = number * LENGTH as u64 % SPAN;
            let mut request = top.submit(match reads {
                true => Io::read(at, data.clone()),
                false => Io::write(at, data.clone(), Durability::Cached),
            });
            let result = request.ready().unwrap_or_else(|| at_once(request));
            result.expect("the null sink takes everything");
        }
        began.elapsed().as_nanos() as f64 / requests as f64
    }

    /// Nanoseconds for a request.
    fn time(&'static self) -> f64 {
        (0..TIMES).map(|_| self.run(TIMED)).fold(f64::INFINITY, f64::min)
    }

    /// Instructions for a request.
    fn count(&self) -> Result<f64, String> {
        let short = self.instructions(REQUESTS)?;
        let long = self.instructions(2 * REQUESTS)?;
        Ok((long.saturating_sub(short)) as f64 / REQUESTS as f64)
    }

    /// Instructions of a whole process that makes `requests`.
    fn instructions(&self, requests: u64) -> Result<u64, String> {
        let this = std::env::current_exe().map_err(|e| e.to_string())?;
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(this)
            .args(["--run", self.name, &requests.to_string()])
            .output()
            .map_err(|e| format!("valgrind cannot be run ({e}): it is needed to count instructions"))?;
        let said = String::from_utf8_lossy(&run.stderr);
        let total = said.lines().find_map(|line| line.split_once("Collected : ").map(|(_, n)| n.trim()));
        match total.map(str::parse) {
            Some(Ok(total)) if run.status.success() => Ok(total),
            _ => Err(format!("callgrind gave no count:\n{said}")),
        }
    }
}

/// The result of something that does not have to wait.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the null sink completes at once"),
    }
}

struct Row {
    name: &'static str,
    instructions: f64,
    /// What each layer adds to the chain without layers.
    per_layer: Option<f64>,
    ns: f64,
    ns_per_layer: Option<f64>,
}

fn measure() -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for chain in &CHAINS {
        let (instructions, ns) = (chain.count()?, chain.time());
        let over = |all: f64, alone: fn(&Row) -> f64| {
            rows.first().map(|first| (all - alone(first)) / chain.count as f64)
        };
        let per_layer = over(instructions, |row| row.instructions);
        let ns_per_layer = over(ns, |row| row.ns);
        rows.push(Row { name: chain.name, instructions, per_layer, ns, ns_per_layer });
    }
    Ok(rows)
}

const HEAD: &str = "\
# The price of layers

One write of 4 KiB through a chain of layers over the null sink, everything included: the nodes' checks, counting and
timing, and what the caller spends on the request. Instructions are counted by callgrind and gate: `cargo bench -p
lamina-layers --bench price` counts again and fails when a chain has become more than 3% dearer. Nanoseconds are of
the machine that wrote the table, and only inform. `LAMINA_PRICE=write` with the same command writes this page.

* `linear` moves addresses: its requests are handed on and not seen again.
* `stripe` here has one device and units of 2 KiB, so that each request is split, gathered and waited for.
* `template` keeps each write until the layer below has done it.
* `schedule` with the policy `noop` keeps each write until the layer below has done it, too, and counts it.
* `stripe` and `concat` of two devices, a `view` of a partition, and a `snapshot` volume in which no extent is shared
  have to look up where a request goes, and send it there.
* `integrity` and `fingerprint` make a digest of each block, after a copy of it, and change it in their tables; they
  stand on a `linear`. Under callgrind a processor has fewer instructions for digests than it has without.
* `accelerate` has its flash in a device of kind `memory`, and requests come one by one: each has a head of its own
  there. The work of the destager is included.

| chain | instructions | for each layer | ns | for each layer |
|---|---:|---:|---:|---:|
";

fn page(rows: &[Row]) -> String {
    let mut page = HEAD.to_owned();
    let each = |value: Option<f64>, digits: usize| value.map_or("".into(), |v| format!("{v:.digits$}"));
    for row in rows {
        let (per, ns) = (each(row.per_layer, 0), each(row.ns_per_layer, 1));
        let _ = writeln!(page, "| {} | {:.0} | {per} | {:.0} | {ns} |", row.name, row.instructions, row.ns);
    }
    page
}

/// The instructions that the page states for a chain.
fn stated(page: &str, name: &str) -> Option<f64> {
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| {name} | ")))?;
    row.split('|').next()?.trim().parse().ok()
}

/// Compares with the page; what has become dearer, in words.
fn compare(page: &str, rows: &[Row]) -> Vec<String> {
    let mut dearer = Vec::new();
    for row in rows {
        let Some(before) = stated(page, row.name) else {
            dearer.push(format!("{}: not in the table", row.name));
            continue;
        };
        let rise = (row.instructions / before - 1.0) * 100.0;
        println!("{:26} {:6.0} instructions ({rise:+.1}%), {:.0} ns", row.name, row.instructions, row.ns);
        if rise > RISE {
            dearer.push(format!("{}: {before:.0} before, {:.0} now", row.name, row.instructions));
        } else if rise < -RISE {
            println!("  cheaper than the table says: write it again with LAMINA_PRICE=write");
        }
    }
    dearer
}

fn gate() -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/price-of-layers.md");
    let rows = measure()?;
    if std::env::var("LAMINA_PRICE").is_ok_and(|how| how == "write") {
        let page = page(&rows);
        print!("{page}");
        return std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()));
    }
    let page = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let dearer = compare(&page, &rows);
    if dearer.is_empty() {
        Ok(())
    } else {
        Err(format!("dearer by more than {RISE}%:\n{}", dearer.join("\n")))
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, run, name, requests] = &args[..]
        && run == "--run"
    {
        let chain = CHAINS.iter().find(|chain| chain.name == name).expect("a chain of the table");
        chain.run(requests.parse().expect("a number of requests"));
        return ExitCode::SUCCESS;
    }
    match gate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("price: {e}");
            ExitCode::FAILURE
        }
    }
}
