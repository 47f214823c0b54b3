//! What a load meets: a drive or five of them, and layers above.

use super::drives;
use lamina_block::{Begin, Build, Bytes, Env, Error, Node, OpKind, Result};
use lamina_drive::Model;
use lamina_sim::{SimEnv, SimKeep};
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Drives of a parity.
const DRIVES: usize = 5;

/// How loads are put on.
#[derive(Clone, Copy)]
pub struct Load {
    /// Requests at a time.
    pub depth: u32,
    /// A flush after so many writes.
    pub flush: Option<u64>,
}

/// What is asked of the program.
pub struct Wanted {
    has_log: bool,
    has_parity: bool,
    model: Option<Model>,
    size: Bytes,
    unit: Bytes,
    spare: u64,
    /// Blocks that the log shows; by default what `spare` leaves.
    blocks: Option<u64>,
    pub load: Load,
}

fn number<T: std::str::FromStr>(word: &str, text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| format!("{word}: {text:?} is not what is wanted there"))
}

/// Blocks of `FILE:COPIES`: as many as so many copies of a trace write.
fn copied(text: &str) -> std::result::Result<u64, String> {
    let (file, copies) =
        text.rsplit_once(':').ok_or_else(|| format!("--for={text}: FILE:COPIES is wanted"))?;
    let (used, _) = super::phase::traced(std::path::Path::new(file))?;
    Ok(u64::from(used) * number::<u64>("--for", copies)?)
}

impl Wanted {
    /// What `words`, all of them options, say.
    pub fn parse(words: &[String]) -> std::result::Result<Wanted, String> {
        let load = Load { depth: 8, flush: None };
        let (size, unit) = (Bytes(1 << 30), Bytes(64 << 10));
        let mut of = Wanted {
            has_log: true,
            has_parity: false,
            model: None,
            size,
            unit,
            spare: 15,
            blocks: None,
            load,
        };
        let (mut stroke, mut buffer) = (false, true);
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("--stack", "direct") => (of.has_log, of.has_parity) = (false, false),
                ("--stack", "log") => (of.has_log, of.has_parity) = (true, false),
                ("--stack", "parity") => (of.has_log, of.has_parity) = (false, true),
                ("--stack", "log-parity") => (of.has_log, of.has_parity) = (true, true),
                ("--model", "none") => of.model = None,
                ("--model", name) => of.model = Some(drives::model(name)?),
                ("--size", text) => of.size = number(word, text)?,
                ("--unit", text) => of.unit = number(word, text)?,
                ("--spare", text) => of.spare = number(word, text)?,
                ("--for", text) => of.blocks = Some(copied(text)?),
                ("--depth", text) => of.load.depth = number(word, text)?,
                ("--flush", text) => of.load.flush = Some(number(word, text)?),
                ("--stroke", "") => stroke = true,
                ("--no-buffer", "") => buffer = false,
                _ => return Err(format!("{word}: there is no such option")),
            }
        }
        if of.load.depth == 0 {
            return Err("--depth: no request at a time is no load".into());
        }
        if let Some(blocks) = of.blocks {
            let used =
                100u64.checked_sub(of.spare).filter(|used| *used > 0).ok_or("--spare: nothing is left")?;
            of.size = Bytes((blocks * 100).div_ceil(used) * drives::BLOCK);
        }
        let size = of.size.0;
        let model = of.model.as_mut();
        model.into_iter().for_each(|model| {
            if stroke {
                drives::use_all(model, size);
            }
            if !buffer {
                drives::without_buffer(model);
            }
        });
        Ok(of)
    }

    /// The keys of the log.
    fn keys(&self) -> Value {
        match self.blocks {
            Some(blocks) => json!({ "size": blocks * drives::BLOCK }),
            None => json!({ "spare": self.spare }),
        }
    }
}

/// The layers, and the drives as they count what reaches them.
pub struct Stack {
    pub env: Rc<SimEnv>,
    /// What the load meets.
    pub top: Rc<Node>,
    /// What is below the log, and counts what the log writes.
    below: Rc<Node>,
    drives: Vec<Rc<Node>>,
    has_log: bool,
}

/// Bytes since the beginning.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub user: u64,
    pub copied: u64,
    pub metadata: u64,
    pub log: u64,
    pub written: u64,
    pub read: u64,
}

async fn over(env: &Rc<SimEnv>, kind: &str, keys: Value, children: Vec<Rc<Node>>) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind);
    let kind = kind.ok_or_else(|| Error::invalid("no such kind"))?;
    let parse =
        |keys: &Value| kind.parse(keys).map_err(|e| Error::invalid(format!("{}: {}", e.path, e.message)));
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let mut with = Build::new(kind.name, &world, children);
    with.keep = Some(SimKeep::open(env, kind.name).await?.0);
    with.begin = Begin::Format;
    let made = parse(&keys)?.build(with).await?;
    let node = Node::new(kind.name, kind.name, world, made);
    while !node.jobs().is_empty() {
        env.sleep(Duration::from_secs(1)).await;
    }
    Ok(node)
}

impl Stack {
    /// Makes what is wanted.
    pub async fn build(env: Rc<SimEnv>, wanted: Wanted) -> Result<Stack> {
        let is_loaded = Rc::new(Cell::new(false));
        let count = if wanted.has_parity { DRIVES } else { 1 };
        let make = |number| drives::made(&env, number, wanted.size, wanted.model.as_ref(), &is_loaded);
        let (devices, drives): (Vec<_>, Vec<_>) = (0..count).map(make).unzip();
        let below = match wanted.has_parity {
            true => over(&env, "parity", json!({ "unit": wanted.unit }), devices).await?,
            false => Rc::clone(&devices[0]),
        };
        let top = match wanted.has_log {
            true => over(&env, "sequentialize", wanted.keys(), vec![Rc::clone(&below)]).await?,
            false => Rc::clone(&below),
        };
        is_loaded.set(true);
        Ok(Stack { env, top, below, drives, has_log: wanted.has_log })
    }

    /// What the log says of itself.
    pub fn info(&self) -> Value {
        if self.has_log { self.top.info() } else { Value::Null }
    }

    /// What was done so far.
    pub fn counted(&self) -> Counted {
        let info = self.info();
        let of = |key: &str| info[key].as_u64().unwrap_or_default();
        let bytes = |node: &Rc<Node>, op| node.stats().of(op).bytes.get();
        Counted {
            user: bytes(&self.top, OpKind::Write),
            copied: of("copied_bytes"),
            metadata: of("metadata_bytes"),
            log: bytes(&self.below, OpKind::Write),
            written: self.drives.iter().map(|drive| bytes(drive, OpKind::Write)).sum(),
            read: self.drives.iter().map(|drive| bytes(drive, OpKind::Read)).sum(),
        }
    }
}
