//! Formatting, and opening: the newest root, replay of the log, the directory.
//!
//! Replay may be interrupted anywhere and begun again: a page says which records its bytes include, and these are
//! skipped; the tail stays in place until every change is in its page.

use crate::directory::{self, DIRECTORY, Directory};
use crate::format::{self, BLOCK, DIRECTORY_PAGES_MAX, LOG_BLOCKS_MIN, PAYLOAD, Shape, Tail};
use crate::service::{Service, from_the_future};
use crate::state::{State, WriteBack};
use crate::{Format, Options, Region};
use lamina_block::{Durability, Env, Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Pages in memory, besides the directory's, at the least.
const CAPACITY_MIN: usize = 64;

/// The shape of a store of `region` bytes.
fn shape(env: &Rc<dyn Env>, region: u64, format: Format) -> Result<Shape> {
    let log_blocks = (format.log / BLOCK as u64).clamp(LOG_BLOCKS_MIN.into(), 1 << 20) as u32;
    let directory_pages = directory::pages_for(format.objects.min(u32::MAX - 1));
    let blocks = region / BLOCK as u64;
    let pages = blocks.saturating_sub(2 + u64::from(log_blocks)) / 2;
    if pages <= u64::from(directory_pages) || directory_pages > DIRECTORY_PAGES_MAX {
        return Err(Error::invalid(format!(
            "{region} bytes cannot hold metadata of {} objects with a log of {} bytes",
            format.objects,
            u64::from(log_blocks) * BLOCK as u64
        )));
    }
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    Ok(Shape {
        uuid,
        level: format.level,
        log_blocks,
        pages: pages.min(u64::from(u32::MAX)) as u32,
        directory_pages,
    })
}

/// A root is written last, so a half-formatted region is no store.
pub(crate) async fn format(env: &Rc<dyn Env>, region: &Region, format: Format) -> Result<()> {
    let shape = shape(env, region.len(), format)?;
    region.zero(0..2 * BLOCK as u64).await?;
    region.flush().await?;
    region.zero(2 * BLOCK as u64..shape.len()).await?;
    let mut data = [0; PAYLOAD];
    let (number, offset, bytes) = Directory::first_entry();
    data[offset..offset + bytes.len()].copy_from_slice(&bytes);
    let mut page = Vec::new();
    format::page(number, DIRECTORY, 0, 1, &data, &mut page);
    region.put(&**env, shape.slot_at(number, 0), &page, Durability::Cached).await?;
    region.flush().await?;
    let root = format::root(&shape, 0, Tail { seq: 1, block: 0 });
    region.put(&**env, 0, &root, Durability::Fua).await
}

/// A root, and whether the other one is lost.
struct Found {
    shape: Shape,
    generation: u64,
    tail: Tail,
    alone: bool,
}

/// The newest good root.
async fn root(env: &dyn Env, region: &Region) -> Result<Found> {
    if region.len() < 2 * BLOCK as u64 {
        return Err(Error::new(ErrorKind::Corrupt, "the region is too small for a metadata store"));
    }
    let (mut best, mut wrong) = (None::<Found>, None);
    for slot in 0..2 {
        let bytes = region.get(env, slot * BLOCK as u64, BLOCK).await?;
        match format::read_root(&bytes, region.len()) {
            Ok((shape, generation, tail)) => {
                if best.as_ref().is_none_or(|best| best.generation < generation) {
                    best = Some(Found { shape, generation, tail, alone: false });
                }
            }
            // A newer program has been here.
            Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
            Err(e) => wrong = wrong.or(Some(e)),
        }
    }
    match (best, wrong) {
        (Some(best), wrong) => Ok(Found { alone: wrong.is_some(), ..best }),
        (None, Some(e)) => Err(e),
        (None, None) => Err(Error::invalid("a store has two roots")),
    }
}

/// The remaining root may be the older one, and the log may have wrapped over the tail that it names. Then there are
/// records beyond the end that was found.
async fn is_the_end(service: &Service) -> Result<()> {
    let (shape, head) = (&service.shape, service.state.borrow().log.head);
    let mut at = 0;
    while at < shape.log_blocks {
        let blocks = (shape.log_blocks - at).min(64);
        let bytes = service.region.get(&*service.env, shape.log_at(at), blocks as usize * BLOCK).await?;
        let newer = |block: &[u8]| format::record_seq(block, shape).is_some_and(|seq| seq > head.seq);
        if bytes.chunks(BLOCK).any(newer) {
            let message =
                "the newest root of the metadata store is lost, and the log has gone on since the other";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        at += blocks;
    }
    Ok(())
}

pub(crate) async fn open(env: &Rc<dyn Env>, region: Region, options: Options) -> Result<Rc<Service>> {
    if !region.read_only() {
        // The data read below may be in a cache only, if the process died and not the machine.
        region.flush().await?;
    }
    let Found { shape, generation, tail, alone } = root(&**env, &region).await?;
    // Half for pages, half for the copies of those that change while they are written back.
    let capacity = (options.memory / 2 / BLOCK).max(CAPACITY_MIN);
    let state = State::new(shape, capacity, generation, tail);
    let service = Service::new(env, region, shape, options, state);
    let replayed = replay(&service).await?;
    if alone {
        is_the_end(&service).await?;
    }
    let mut pages = Vec::new();
    for number in 0..shape.directory_pages {
        while !service.state.borrow().pages.contains_key(&number) {
            service.bring(number, false).await?;
        }
        let page = service.state.borrow().pages.get(&number).map(Rc::clone);
        pages.extend(page);
    }
    for page in &pages {
        page.becomes(DIRECTORY);
    }
    let bytes: Vec<Vec<u8>> = pages.iter().map(|page| page.data.borrow().to_vec()).collect();
    *service.directory_pages.borrow_mut() = pages;
    let directory = Directory::read(&bytes, shape.pages)?;
    service.state.borrow_mut().directory = directory;
    if replayed > 0 && !service.region.read_only() {
        home(&service, true).await?;
    }
    Ok(service)
}

/// Writes the pages back that replay has changed; moves the tail if that was all.
async fn home(service: &Service, all: bool) -> Result<()> {
    if service.region.read_only() {
        let message = "the log of the metadata store must be replayed, which takes more memory than allowed";
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    {
        let state = &mut *service.state.borrow_mut();
        let (head, used) = (state.log.head, state.log.used);
        let root = all.then_some((head, used));
        state.write_back = Some(WriteBack { pages: state.shots(), seq: head.seq - 1, root });
    }
    service.write_back().await
}

/// Applies the records from the tail on, as far as they are whole; how many there were.
async fn replay(service: &Service) -> Result<u64> {
    let (mut count, mut newest) = (0, (0, 0));
    while let Some(record) = read_record(service).await? {
        let Some(changes) = format::changes(&record, &service.shape) else { break };
        let seq = service.state.borrow().log.head.seq;
        let mut touched = BTreeSet::new();
        for change in changes {
            while !service.state.borrow().pages.contains_key(&change.page) {
                service.bring(change.page, true).await?;
            }
            let state = &mut *service.state.borrow_mut();
            let Some(page) = state.pages.get(&change.page).map(Rc::clone) else { continue };
            if page.seq.get() >= seq {
                newest = newest.max((page.seq.get(), change.page));
                continue;
            }
            page.becomes(change.owner);
            let end = change.offset + change.bytes.len();
            Rc::make_mut(&mut page.data.borrow_mut())[change.offset..end].copy_from_slice(change.bytes);
            state.touch(change.page, &page);
            touched.insert(change.page);
        }
        let blocks = record.len().div_ceil(BLOCK) as u32;
        let crowded = {
            let state = &mut *service.state.borrow_mut();
            for page in touched.iter().filter_map(|number| state.pages.get(number)) {
                page.seq.set(seq);
            }
            let block = (state.log.head.block + blocks) % service.shape.log_blocks;
            state.log.head = Tail { seq: seq + 1, block };
            state.log.used += blocks;
            state.dirty.len() > state.capacity / 2
        };
        if crowded {
            home(service, false).await?;
        }
        count += 1;
    }
    match newest {
        (seq, page) if seq >= service.state.borrow().log.head.seq => Err(from_the_future(page)),
        _ => Ok(count),
    }
}

/// The bytes of the record at the head, if one seems to be there.
async fn read_record(service: &Service) -> Result<Option<Vec<u8>>> {
    let (shape, log) = (&service.shape, service.state.borrow().log);
    let block = |block| service.region.get(&*service.env, shape.log_at(block), BLOCK);
    let mut bytes = block(log.head.block).await?;
    let Some(len) = format::record_len(&bytes, shape, log.head.seq) else { return Ok(None) };
    let blocks = len.div_ceil(BLOCK) as u32;
    if log.used + blocks > shape.log_blocks {
        return Ok(None);
    }
    for i in 1..blocks {
        let at = (log.head.block + i) % shape.log_blocks;
        bytes.extend(block(at).await?);
    }
    bytes.truncate(len);
    Ok(Some(bytes))
}
