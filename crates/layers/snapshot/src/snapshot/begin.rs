//! Making and opening the volume's metadata, adopting a device as it is.

use super::core::Core;
use super::format::{
    HEAD, HEAD_LEN, Head, OBJECTS, PAGES, PAGES_IN_USE, Plan, RECORD_LEN, SnapshotRecord, TABLE, map_pages,
    record_at, records_max, space_tags,
};
use super::grace::Grace;
use super::keys::Keys;
use super::state::{Snapshot, State, Versions};
use lamina_block::{Begin, Build, Bytes, Config, Error, ErrorKind, Level, Result};
use lamina_kit::home;
use lamina_metadata::extents::{Pxb, Tree};
use lamina_metadata::{Change, Format, Id, Region, Store};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes in a page of the store.
const PAGE: u64 = 4064;
/// The fewest pages of the map.
const MAP_MIN: u64 = 16;

/// The volume with these keys.
pub(super) async fn volume(keys: Keys, with: Build) -> Result<Rc<Core>> {
    check(&keys, &with)?;
    match with.begin {
        Begin::Open => {}
        Begin::Format => make(&keys, &with, false).await?,
        Begin::Adopt => make(&keys, &with, true).await?,
    }
    open(&keys, &with).await
}

fn check(keys: &Keys, with: &Build) -> Result<()> {
    keys.possible(u64::from(with.child().geometry().block))?;
    home::check(with, keys.memory, "the map")
}

/// The device on which the store lies, and its part of it.
fn region(with: &Build, len: Option<u64>) -> Result<Region> {
    let node = home::of(with);
    let whole = node.geometry().size / 4096 * 4096;
    let len = len.filter(|len| *len > 0).unwrap_or(whole);
    if len > whole {
        let message = format!(
            "{} bytes are too few for a snapshot layer: it needs {} for its metadata alone",
            whole, len
        );
        return Err(Error::new(ErrorKind::NoSpace, message).on(node.name()));
    }
    Region::new(node, 0..len)
}

/// Makes all metadata. The head is committed last: without it there is no volume.
async fn make(keys: &Keys, with: &Build, adopt: bool) -> Result<()> {
    let (child, extent) = (with.child().geometry(), keys.extent().0);
    let device = with.metadata.as_ref().map(|node| node.geometry().size);
    let plan = Plan::new(child.size, keys.size.map_or(child.size, |size| size.0), extent, device);
    let region = region(with, Some(plan.region))?;
    let data = plan.region;
    let physical = child.size.saturating_sub(data) / extent;
    let size = match keys.size {
        Some(size) => size.0,
        None if adopt => child.size,
        None => physical * extent,
    };
    if physical == 0 {
        let message = format!(
            "{} are too few for a snapshot layer: its metadata takes {}",
            Bytes(child.size),
            Bytes(data)
        );
        return Err(Error::new(ErrorKind::NoSpace, message).on(with.child().name()));
    }
    if adopt && size < child.size {
        let message = format!("size: {} is less than the adopted device, {}", Bytes(size), Bytes(child.size));
        return Err(Error::invalid(message));
    }
    if adopt && with.level == Level::Atomic && physical < child.size.div_ceil(extent) + 8 {
        return Err(Error::invalid(
            "at the level atomic a write needs a free extent, and a device that is taken over as a whole has \
             none: make \
             it larger first, or choose another level",
        ));
    }
    let format = Format { level: with.level, log: plan.log, objects: OBJECTS };
    Store::format(&with.env, &region, format).await?;
    let store = Store::open(&with.env, region, home::options(keys.memory)).await?;
    let head_object = store.alloc(PAGE, HEAD).await?;
    store.alloc(plan.table, TABLE).await?;
    let space = Pxb::create(&store, physical, space_tags(0)).await?;
    let pages = map_pages(store.free_pages(), physical);
    if pages < MAP_MIN {
        let message = "the device for the metadata is too small for a snapshot layer over its child";
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    Pxb::create(&store, pages, PAGES_IN_USE).await?;
    Tree::create(&store, pages, PAGES).await?;
    store.commit().await?;
    let adopted = if adopt { child.size.div_ceil(extent) } else { 0 };
    let mut claimed = 0;
    while claimed < adopted.min(physical) {
        let (_, next) = Pxb::page_of(claimed);
        let next = next.min(adopted).min(physical);
        store.change(space.claim(Change::new(), claimed..next)?).await?;
        store.commit().await?;
        claimed = next;
    }
    let head = Head {
        shift: extent.trailing_zeros() as u8,
        size,
        data,
        physical,
        adopted,
        epoch: 1,
        ..Head::default()
    };
    store.change(Change::new().write(head_object.id(), 0, head.encode())).await?;
    store.close().await
}

async fn open(keys: &Keys, with: &Build) -> Result<Rc<Core>> {
    let store = Store::open(&with.env, region(with, None)?, home::options(keys.memory)).await;
    let store = store.map_err(|e| home::missing(Keys::KIND, with, e))?;
    let head = Head::decode(&home::head::<HEAD_LEN>(&store, HEAD, Keys::KIND, with).await?)?;
    let find = |tag: u64| store.find(tag).ok_or_else(|| home::unfinished(Keys::KIND, with));
    let (head_id, table_id) = (find(HEAD)?, find(TABLE)?);
    fits(keys, with, &head)?;
    if with.metadata.is_none() && head.data < store.region_len() {
        return Err(Error::new(ErrorKind::Corrupt, "the volume's extents lie over its metadata"));
    }
    let both = |tags: [u64; 2]| -> Result<[Id; 2]> { Ok([find(tags[0])?, find(tags[1])?]) };
    let space = Pxb::open(&store, both(space_tags(head.space))?, head.physical).await?;
    let tree = Tree::open(&store, PAGES)?;
    let pages = Pxb::open(&store, both(PAGES_IN_USE)?, tree.count()).await?;
    let (snapshots, sealed) = snapshots(&store, table_id, head.extent()).await?;
    if let Some(why) = &sealed {
        tracing::warn!(device = %with.name, "the volume is read-only: {why}");
    }
    let child = with.child();
    let core = Rc::new_cyclic(|me| Core {
        me: me.clone(),
        name: with.name.clone(),
        env: Rc::clone(&with.env),
        grace: Grace::new(&with.name, &with.env, &child),
        child,
        store,
        tree,
        pages,
        space: RefCell::new(Rc::new(space)),
        policy: keys.policy(),
        head_id,
        table_id,
        state: RefCell::new(State::new(Versions::new(head, snapshots))),
        locks: Rc::default(),
        map_lock: Default::default(),
        moved: Default::default(),
        job: RefCell::default(),
        told: Default::default(),
        sealed,
    });
    core.state().debug_check();
    if !core.is_read_only() {
        recover(&core, keys).await?;
    }
    Ok(core)
}

/// Fails unless the keys and the child fit the volume.
fn fits(keys: &Keys, with: &Build, head: &Head) -> Result<()> {
    if keys.extent.is_some_and(|extent| extent.0 != head.extent()) {
        let message = format!("extent: the volume was made with {}, and keeps that", Bytes(head.extent()));
        return Err(Error::invalid(message));
    }
    let child = with.child();
    let block = u64::from(child.geometry().block);
    if !head.size.is_multiple_of(block) || head.extent() < block {
        let message =
            format!("the volume was made over smaller blocks than the {block} bytes of this device");
        return Err(Error::invalid(message).on(child.name()));
    }
    let needed = head.physical.checked_mul(head.extent()).and_then(|len| len.checked_add(head.data));
    match needed.is_some_and(|needed| needed <= child.geometry().size) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the device has become smaller: data are missing")
            .on(child.name())),
    }
}

/// The snapshots; and, if not all can be found, why.
async fn snapshots(store: &Store, table: Id, extent: u64) -> Result<(Vec<Snapshot>, Option<String>)> {
    let table = store.load(table)?;
    let (mut snapshots, mut missing) = (Vec::new(), None);
    for index in 0..records_max(table.len()) {
        let mut bytes = [0; RECORD_LEN];
        match table
            .read(record_at(index), &mut bytes)
            .await
            .and_then(|()| SnapshotRecord::decode(&bytes, extent))
        {
            Ok(Some(record)) => snapshots.push(Snapshot::new(record, index)),
            Ok(None) => {}
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                missing = missing.or(Some(format!("not all snapshots can be found: {}", e.message())));
            }
            Err(e) => return Err(e),
        }
    }
    Ok((snapshots, missing))
}

/// Puts the metadata of an interrupted run in order; uses the space by which the device below has grown.
async fn recover(core: &Rc<Core>, keys: &Keys) -> Result<()> {
    if core.store.level() == Level::Lazy {
        if core.head().open {
            // Counts and bits may be of different moments, and entries on their way into the map are lost.
            recount(core, &core.pages).await?;
            let space = Rc::clone(&core.space.borrow());
            recount(core, &space).await?;
            core.change(|state| state.versions.note_garbage());
        }
        core.stage_head(Change::new(), Head { open: true, ..core.head() }).await?;
        core.commit().await?;
    }
    match core.grow().await {
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(device = %core.name, "the space by which the device below has grown is not used: {e}");
        }
        grown => grown?,
    }
    if let Some(size) = keys.size.filter(|size| size.0 > core.head().size) {
        core.resize(size.0, false).await?;
    }
    if core.head().garbage {
        core.start_reclaim();
    }
    Ok(())
}

async fn recount(core: &Core, of: &Pxb) -> Result<()> {
    let mut from = 0;
    while from < of.physical() {
        let (change, next) = of.recount(Change::new(), from).await?;
        core.stage(change).await?;
        from = next;
    }
    Ok(())
}
