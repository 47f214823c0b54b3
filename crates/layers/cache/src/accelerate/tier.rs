//! What a device of kind `tier` does beside what `accelerate` does: its reads, its commands, and what it shows.

mod notes;

use super::read::Fill;
use super::{Accelerate, Keys};
use crate::flash::{Flow, Move, Permit, SLOT};
use crate::tier::{self, Allotment, Heat, Part, Placement, Room};
use lamina_block::{Buf, Build, Bytes, Command, Error, Result};
use lamina_kit::command::{args, unknown};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Extents that are listed unless a number is said, and at most.
const TOP: usize = 20;
const TOP_MAX: usize = 10_000;
/// Bytes that are read at once to be pinned.
const PIECE: u64 = 1 << 20;
/// Segments that are looked at for a heat map before others have their turn: 65,536 slots at most.
const LOOKS: u32 = 32;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Top {
    count: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeatMap {
    cells: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explain {
    offset: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPlacement {
    placement: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetWeight {
    weight: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetWriteBudget {
    budget: Option<Bytes>,
}

impl Accelerate {
    /// Opens a tier: a device with rules of its own of what is copied.
    pub(crate) async fn open_tier(
        keys: Keys,
        heat: Heat,
        allotted: Allotment,
        with: Build,
    ) -> Result<Rc<Accelerate>> {
        let me = Accelerate::open(keys, Some(heat), with).await?;
        me.volume.weight.set(allotted.weight);
        me.volume.budget.borrow_mut().set(allotted.budget, me.env.now());
        if let Some(heat) = &me.heat {
            me.recall(heat).await;
        }
        for pin in allotted.pins {
            me.pin(pin)?;
        }
        Ok(me)
    }

    /// Reads, and fills the flash with what the tier wants there.
    pub(super) async fn read_tier(&self, heat: &Heat, at: Range<u64>, into: Buf) -> Result<()> {
        let blocks = Accelerate::blocks(&at);
        let runs = self.cache.runs(&self.volume, blocks.clone());
        let hits = runs.iter().filter(|run| run.slot.is_some()).map(|run| run.blocks.end - run.blocks.start);
        let level = self.volume.budget.borrow_mut().level(self.env.now());
        if heat.asks_for_share() {
            heat.set_share(self.cache.share(&self.volume));
        }
        let room = Room { level, is_full: self.cache.is_full() };
        let reading = heat.begin_read(&at, hits.sum(), room, self.env.now());
        let is_pinned = self.volume.is_pinned(blocks.start);
        if !is_pinned {
            self.volume.budget.borrow_mut().refuse(reading.refused * SLOT as u64);
        }
        let fills = reading.fills || is_pinned;
        let fill = Fill { blocks: if fills { blocks } else { 0..0 }, counts: reading.counts };
        self.read_filling(at.clone(), into, fill).await?;
        heat.end_read(reading, &at, self.env.now());
        self.note_soon(heat);
        Ok(())
    }

    /// Waits until a request may go to the slow device, while volumes with other weights ask for it, too.
    pub(super) async fn permit(&self, flow: Flow) -> Option<Permit> {
        match &self.heat {
            Some(_) => self.cache.fair.permit(&*self.env, &self.store, &self.volume, flow).await,
            None => None,
        }
    }

    /// Keeps the copies of a part, and makes those that are missing in the background.
    fn pin(self: &Rc<Self>, at: Range<u64>) -> Result<()> {
        let at = at.start..at.end.min(self.whole_bytes());
        let blocks = Accelerate::blocks(&at);
        let pinned = self.pinned() + blocks.end.saturating_sub(blocks.start);
        let most = self.cache.share(&self.volume) / 2;
        if pinned > most {
            let [pinned, most] = [pinned, most].map(|blocks| Bytes(blocks * SLOT as u64));
            let message = format!(
                "{pinned} would be pinned, and half of the volume's part of the flash, {most}, can be: pin less, or \
                 raise its weight"
            );
            return Err(Error::new(lamina_block::ErrorKind::NoSpace, message).on(&self.name));
        }
        self.volume.pins.borrow_mut().push(blocks);
        self.spawn(|me| async move {
            for start in at.clone().step_by(PIECE as usize) {
                let part = start..at.end.min(start + PIECE);
                let into = me.env.pool().take((part.end - part.start) as usize);
                let fill = Fill::of(Accelerate::blocks(&part));
                if me.closed.get() || me.read_filling(part, into, fill).await.is_err() {
                    // A read of a client brings them, too.
                    return;
                }
            }
        });
        Ok(())
    }

    /// Lets copies of a part go.
    fn unpin(&self, at: Range<u64>) {
        let gone = Accelerate::blocks(&at);
        let mut pins = self.volume.pins.borrow_mut();
        let left = pins
            .drain(..)
            .flat_map(|pin| [pin.start..pin.end.min(gone.start), pin.start.max(gone.end)..pin.end]);
        let left: Vec<_> = left.filter(|pin| pin.start < pin.end).collect();
        *pins = left;
    }

    /// Blocks that are pinned.
    fn pinned(&self) -> u64 {
        self.volume.pins.borrow().iter().map(|pin| pin.end - pin.start).sum()
    }

    pub(super) async fn control_tier(self: &Rc<Self>, command: Command) -> Result<Value> {
        let Some(heat) = &self.heat else { return Err(unknown(&command, &tier::VERBS)) };
        match command.name.as_str() {
            "top" => {
                let Top { count } = args(command)?;
                Ok(json!({ "extents": heat.top(count.unwrap_or(TOP).min(TOP_MAX)) }))
            }
            "next" => Ok(self.next(heat, args::<Top>(command)?.count.unwrap_or(TOP).min(TOP_MAX))),
            "heat-map" => self.heat_map(heat, args::<HeatMap>(command)?.cells).await,
            "explain" => Ok(self.explain(heat, args::<Explain>(command)?.offset.0 / SLOT as u64)),
            "pin" => {
                self.pin(args::<Part>(command)?.bytes()?)?;
                Ok(json!({ "pinned_bytes": self.pinned() * SLOT as u64 }))
            }
            "unpin" => {
                self.unpin(args::<Part>(command)?.bytes()?);
                Ok(json!({ "pinned_bytes": self.pinned() * SLOT as u64 }))
            }
            "set-placement" => {
                let placement = args::<SetPlacement>(command)?.placement.parse::<Placement>();
                heat.place(placement.map_err(|e| Error::invalid(format!("placement: {e}")))?);
                Ok(json!({ "placement": heat.placement().to_string() }))
            }
            "set-weight" => {
                self.volume.weight.set(tier::checked(args::<SetWeight>(command)?.weight)?);
                Ok(json!({ "share_bytes": self.cache.share(&self.volume) * SLOT as u64 }))
            }
            "set-write-budget" => {
                let budget = tier::checked_budget(args::<SetWriteBudget>(command)?.budget)?;
                self.volume.budget.borrow_mut().set(budget, self.env.now());
                Ok(json!({ "write_budget": self.write_budget() }))
            }
            _ => Err(unknown(&command, &tier::VERBS)),
        }
    }

    fn write_budget(&self) -> Value {
        self.volume.budget.borrow_mut().info(self.env.now())
    }

    /// How the volume is used, and what the fast device has of it. Requests go on meanwhile: so many segments are
    /// looked at at a time.
    async fn heat_map(&self, heat: &Heat, cells: Option<u64>) -> Result<Value> {
        let mut map = heat.map(self.store.geometry().size.div_ceil(SLOT as u64), cells)?;
        self.volume.pins.borrow().iter().for_each(|pin| map.add_pinned(pin));
        for number in 0..self.cache.segments() {
            self.cache.blocks_in(number, &self.volume).into_iter().for_each(|block| map.add_fast(block));
            if number % LOOKS == LOOKS - 1 {
                self.env.sleep(Duration::ZERO).await;
            }
        }
        Ok(map.json())
    }

    /// What would move next: the tail of the fast device that is reclaimed first, and the extents that would get copies
    /// when they are read.
    fn next(&self, heat: &Heat, count: usize) -> Value {
        let mut tail: Vec<(Range<u64>, Move)> = Vec::new();
        for (block, becomes) in self.cache.next_to_move(&self.volume) {
            match tail.last_mut() {
                Some((blocks, of)) if blocks.end == block && *of == becomes => blocks.end += 1,
                _ => tail.push((block..block + 1, becomes)),
            }
        }
        let place = |blocks: &Range<u64>| {
            let bytes = self.bytes(blocks);
            (bytes.start, bytes.end - bytes.start)
        };
        let tail = tail.into_iter().take(count).map(|(blocks, becomes)| {
            let (offset, bytes) = place(&blocks);
            json!({ "offset": offset, "bytes": bytes, "move": becomes.to_string() })
        });
        let size = self.store.geometry().size.div_ceil(SLOT as u64);
        let missing = |blocks: Range<u64>| {
            let blocks = blocks.start..blocks.end.min(size);
            blocks.clone().count() as u64 - self.cache.present(&self.volume, blocks)
        };
        let copied = heat.wanted(count, missing).into_iter().map(|(blocks, missing)| {
            let (offset, bytes) = place(&(blocks.start..blocks.end.min(size)));
            json!({ "offset": offset, "bytes": bytes, "missing_bytes": missing * SLOT as u64 })
        });
        json!({ "tail": tail.collect::<Vec<_>>(), "when_read": copied.collect::<Vec<_>>() })
    }

    /// Why a block has a copy, or none.
    fn explain(&self, heat: &Heat, block: u64) -> Value {
        json!({
            "copy": self.cache.standing(&self.volume, block),
            "pinned": self.volume.is_pinned(block),
            "extent": heat.extent(block),
        })
    }

    /// What a tier shows beside the figures of `accelerate`.
    pub(super) fn add_tier(&self, info: &mut Value) {
        let (Some(heat), Some(info)) = (&self.heat, info.as_object_mut()) else { return };
        info.extend(heat.info().as_object().cloned().into_iter().flatten());
        info.insert("weight".into(), self.volume.weight.get().into());
        info.insert("write_budget".into(), self.write_budget());
        info.insert("pinned_bytes".into(), (self.pinned() * SLOT as u64).into());
    }
}
