//! Making a table, opening it.

use super::digest::Digest;
use super::format::{BLOCKS, HEAD, HEAD_LEN, Head, OBJECTS, PAGE, Plan, TABLE};
use super::table::Table;
use super::{Sums, Tally};
use lamina_block::{Begin, Build, Bytes, Error, ErrorKind, Interval, Io, Level, Node, Result, Zero};
use lamina_kit::home;
use lamina_kit::intent::{Area, Intent, Shape};
use lamina_metadata::{Change, Format, Region, Store};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The shortest [`Wanted::idle`]: intents are checked that often.
const IDLE_MIN: Duration = Duration::from_micros(100);

/// The most bytes that are zeroed by one request.
const ZERO_MAX: u64 = 1 << 30;

/// The settings that the keys ask for.
pub struct Wanted {
    /// The kind of the layer, for messages.
    pub kind: &'static str,
    /// The key for the digest, and its value; without one, the table's own digest.
    pub digest: (&'static str, Option<Digest>),
    /// The digest of a new table if the key is absent.
    pub otherwise: Digest,
    /// Bytes of a block.
    pub block: Option<Bytes>,
    /// Bytes of a region of the intent.
    pub region: Option<Bytes>,
    /// How long a region stays unchanged before its intent is cleared.
    pub idle: Interval,
    /// For pages of the table.
    pub memory: Bytes,
    /// Room for so many bitmaps with a bit for each block.
    pub bitmaps: u64,
    /// A block with another digest is an error.
    pub strict: bool,
}

impl Wanted {
    /// Bytes of a block of a new table.
    fn block(&self) -> u64 {
        self.block.map_or(*BLOCKS.start(), |block| block.0)
    }

    /// Refuses a block that is impossible over logical blocks of `least` bytes.
    pub fn possible(&self, least: u64) -> Result<()> {
        let block = self.block();
        if !block.is_power_of_two() || !BLOCKS.contains(&block) || block < least {
            return Err(Error::invalid(format!(
                "block: {} is not a power of two from {} to {}",
                Bytes(block),
                Bytes(least.max(*BLOCKS.start())),
                Bytes(*BLOCKS.end())
            )));
        }
        Ok(())
    }

    fn check(&self, with: &Build) -> Result<()> {
        self.possible(u64::from(with.child().geometry().block))?;
        if self.idle.0 < IDLE_MIN {
            let (idle, least) = (self.idle, Interval(IDLE_MIN));
            return Err(Error::invalid(format!("idle: {idle} is less than {least}")));
        }
        home::check(with, self.memory, "the table")
    }
}

/// Makes a table if there is none, and opens it.
pub async fn open(wanted: &Wanted, with: &Build) -> Result<Rc<Sums>> {
    wanted.check(with)?;
    match with.begin {
        Begin::Open => {}
        Begin::Format | Begin::Adopt => make(wanted, with).await?,
    }
    find(wanted, with).await
}

/// The layout on devices of these sizes.
fn lay_out(wanted: &Wanted, with: &Build) -> Result<(Plan, Head)> {
    let (child, home, block) = (with.child().geometry(), home::of(with), wanted.block());
    let digest = wanted.digest.1.unwrap_or(wanted.otherwise);
    let too_small = |node: &Node, needed: u64| {
        let message = format!(
            "{} are too few for the digests of {}: they take {}",
            Bytes(node.geometry().size),
            Bytes(child.size),
            Bytes(needed)
        );
        Error::new(ErrorKind::NoSpace, message).on(node.name())
    };
    let all = child.size / block * block;
    if with.begin == Begin::Adopt && all != child.size {
        let message = format!("the child has {} bytes, which is not a multiple of {block}", child.size);
        return Err(Error::invalid(message).on(with.child().name()));
    }
    let plan = Plan::new(all / block, digest.len() as u64, wanted.bitmaps);
    let region = wanted.region.map_or(Shape::region_for(all), |region| region.0).max(block);
    let shape = Shape { id: with.env.random(), size: all, region };
    let intent = Intent::new(&with.env, shape, home.geometry().block)?;
    let (at, end) = (plan.store, plan.store + intent.area());
    let (data, room) = match &with.metadata {
        Some(_) => (0, home.geometry().size),
        None => (end.next_multiple_of(u64::from(child.optimal).max(block)), child.size),
    };
    if end > room || data >= all {
        return Err(too_small(&home, end.max(data + block)));
    }
    let size = (child.size - data) / block * block;
    let shift = block.trailing_zeros() as u8;
    let region = region.trailing_zeros() as u8;
    match size {
        0 => Err(too_small(&home, data + block)),
        size => Ok((plan, Head { digest, shift, region, size, data, intent: at, id: shape.id })),
    }
}

fn intent(with: &Build, head: &Head) -> Result<(Intent, Area)> {
    let shape = Shape { id: head.id, size: head.size, region: 1 << head.region };
    let home = home::of(with);
    Ok((Intent::new(&with.env, shape, home.geometry().block)?, Area(home, head.intent)))
}

/// Makes a table, and a device that reads as zeroes, or that keeps its bytes. The head is committed last:
/// without it there is no table.
async fn make(wanted: &Wanted, with: &Build) -> Result<()> {
    let (plan, head) = lay_out(wanted, with)?;
    let region = Region::new(home::of(with), 0..plan.store)?;
    // See the module: no other level gives more.
    let format = Format { level: Level::Shadow, log: plan.log, objects: OBJECTS };
    Store::format(&with.env, &region, format).await?;
    let store = Store::open(&with.env, region, home::options(wanted.memory)).await?;
    let head_object = store.alloc(PAGE, HEAD).await?;
    store.alloc(head.blocks() * head.digest.len() as u64, TABLE).await?;
    let (intent, area) = intent(with, &head)?;
    match with.begin {
        // The digests of the bytes there are not known.
        Begin::Adopt => intent.set_all(),
        Begin::Format | Begin::Open => zero(&with.child(), &head).await?,
    }
    intent.write_all(&area).await?;
    store.change(Change::new().write(head_object.id(), 0, head.encode())).await?;
    store.close().await
}

async fn zero(child: &Rc<Node>, head: &Head) -> Result<()> {
    let (mut from, end) = (head.data, head.data + head.size);
    while from < end {
        let to = end.min(from + ZERO_MAX);
        child.submit(Io::zero(from..to, Zero { unmap: true, ..Zero::default() })).await?;
        from = to;
    }
    child.submit(Io::flush()).await
}

async fn find(wanted: &Wanted, with: &Build) -> Result<Rc<Sums>> {
    let home = home::of(with);
    let region = Region::new(Rc::clone(&home), 0..home.geometry().size / 4096 * 4096)?;
    let store = Store::open(&with.env, region, home::options(wanted.memory)).await;
    let store = store.map_err(|e| home::missing(wanted.kind, with, e))?;
    let head = Head::decode(&home::head::<HEAD_LEN>(&store, HEAD, wanted.kind, with).await?)?;
    let entries = store.find(TABLE).ok_or_else(|| home::unfinished(wanted.kind, with))?;
    let entries = store.load(entries)?;
    fits(wanted, with, &head, entries.len())?;
    let (intent, area) = intent(with, &head)?;
    intent.load(&area).await?;
    let block = vec![0; head.block() as usize];
    let mut zero = Vec::new();
    head.digest.add(&block, &mut zero);
    let sums = Rc::new_cyclic(|me| Sums {
        me: me.clone(),
        name: with.name.clone(),
        env: Rc::clone(&with.env),
        child: with.child(),
        store,
        table: Table::new(entries, head.digest.len()),
        head,
        strict: wanted.strict,
        zero,
        needs_resync: RefCell::new(intent.regions()),
        intent,
        idle: wanted.idle.0,
        area,
        locks: Rc::default(),
        resync_marks: Cell::new(0),
        sum_cancelled: Cell::new(false),
        tidying: Cell::new(false),
        jobs: RefCell::default(),
        tasks: Rc::default(),
        closed: Cell::new(false),
        scratch: RefCell::new(block),
        tally: Tally::default(),
    });
    let needs_resync = sums.needs_resync_bytes();
    if needs_resync > 0 {
        tracing::info!(device = %sums.name, bytes = needs_resync, "digests of what was being written are made anew");
        sums.tidy_later();
    }
    Ok(sums)
}

/// Fails unless the keys and the devices fit the table.
fn fits(wanted: &Wanted, with: &Build, head: &Head, table: u64) -> Result<()> {
    let stays = |key: &str, is: String| {
        Err(Error::invalid(format!("{key}: the table was made with {is}, and keeps that")))
    };
    match wanted.digest {
        (key, Some(digest)) if digest != head.digest => return stays(key, head.digest.name().to_owned()),
        (_, None) if wanted.strict != is_checksum(head.digest) => {
            let message =
                format!("its digests are {}: it belongs to another kind of layer", head.digest.name());
            return Err(home::missing(wanted.kind, with, Error::new(ErrorKind::Corrupt, message)));
        }
        _ => {}
    }
    if wanted.block.is_some_and(|block| block.0 != head.block()) {
        return stays("block", Bytes(head.block()).to_string());
    }
    if wanted.region.is_some_and(|region| region.0.max(head.block()) != 1 << head.region) {
        return stays("region", Bytes(1 << head.region).to_string());
    }
    let (child, home) = (with.child(), home::of(with));
    let ends = [(&child, head.data + head.size), (&home, head.intent)];
    if let Some((node, _)) = ends.iter().find(|(node, end)| *end > node.geometry().size) {
        let message = "the device has become smaller: data are missing";
        return Err(Error::new(ErrorKind::Corrupt, message).on(node.name()));
    }
    match table == head.blocks() * head.digest.len() as u64 {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the table has another length than its head says")),
    }
}

/// True if the digest is made to find damage, not to tell contents apart.
fn is_checksum(digest: Digest) -> bool {
    match digest {
        Digest::Crc32c | Digest::Xxh3 => true,
        Digest::Md5 | Digest::Sha256 | Digest::Blake3 => false,
    }
}
