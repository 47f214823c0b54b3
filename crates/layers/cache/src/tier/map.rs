//! The heat map of a volume: what is known of all its extents, in few cells by address.
//!
//! ```text
//!      cell     ▓▓▒▒░░░░    ░░▒▒        each as many extents as the others, the last perhaps fewer
//!               reads · writes · milliseconds saved and spent · parts on the fast device, and pinned
//! ```
//!
//! A map is a sum: it decides nothing, and its figures are aged as those of the monitor.

use super::monitor::{EXTENT, Extent};
use crate::flash::SLOT;
use lamina_block::{Error, Result};
use serde_json::{Value, json};
use std::ops::{Range, RangeInclusive};

/// Cells of a map.
const CELLS: RangeInclusive<u64> = 1..=512;
/// Cells unless a number is said.
const USUAL: u64 = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    reads: f32,
    writes: f32,
    saved_ms: f32,
    spent_ms: f32,
    /// Blocks.
    fast: u64,
    pinned: u64,
}

/// A map that is being made.
pub struct Map {
    /// Blocks of the volume, and of a cell.
    blocks: u64,
    cell: u64,
    cells: Vec<Cell>,
}

impl Map {
    /// An empty map of a volume of so many blocks, in at most `cells` cells of whole extents.
    ///
    /// Fails with `Invalid` unless these are 1 to 512.
    pub fn new(blocks: u64, cells: Option<u64>) -> Result<Map> {
        let most = cells.unwrap_or(USUAL);
        if !CELLS.contains(&most) {
            return Err(Error::invalid(format!(
                "cells: {most} is not from {} to {}",
                CELLS.start(),
                CELLS.end()
            )));
        }
        let cell = blocks.div_ceil(EXTENT).div_ceil(most).max(1) * EXTENT;
        Ok(Map { blocks, cell, cells: vec![Cell::default(); blocks.div_ceil(cell) as usize] })
    }

    /// The cell of a block; none behind the end of the volume, where a larger one was known.
    fn cell(&mut self, block: u64) -> Option<&mut Cell> {
        self.cells.get_mut((block / self.cell) as usize)
    }

    /// Adds what is known of an extent.
    pub fn add(&mut self, number: u64, extent: &Extent) {
        let Some(cell) = self.cell(number * EXTENT) else { return };
        cell.reads += extent.reads;
        cell.writes += extent.writes;
        cell.saved_ms += extent.saved_ms;
        cell.spent_ms += extent.spent_ms;
    }

    /// The fast device has a block.
    pub fn add_fast(&mut self, block: u64) {
        self.cell(block).into_iter().for_each(|cell| cell.fast += 1);
    }

    /// Blocks are pinned, which no other call has said.
    pub fn add_pinned(&mut self, blocks: &Range<u64>) {
        for (number, cell) in self.cells.iter_mut().enumerate() {
            let start = number as u64 * self.cell;
            let end = blocks.end.min(start + self.cell);
            cell.pinned += end.saturating_sub(blocks.start.max(start));
        }
    }

    /// What is shown: cells in the order of their places.
    pub fn json(&self) -> Value {
        let slot = SLOT as u64;
        let cell = |(number, cell): (usize, &Cell)| {
            let start = number as u64 * self.cell;
            let blocks = (self.blocks - start).min(self.cell) as f64;
            json!({
                "offset": start * slot,
                "reads": cell.reads,
                "writes": cell.writes,
                "saved_ms": cell.saved_ms,
                "spent_ms": cell.spent_ms,
                "fast_ratio": cell.fast as f64 / blocks,
                "pinned_ratio": (cell.pinned as f64 / blocks).min(1.0),
            })
        };
        json!({
            "bytes": self.blocks * slot,
            "cell_bytes": self.cell * slot,
            "cells": self.cells.iter().enumerate().map(cell).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_whole_extents_and_few() {
        // Blocks of the volume, cells asked for, cells, and extents of each.
        for (blocks, asked, cells, extents) in [
            (1, None, 1, 1),
            (640, Some(3), 3, 4),
            (640, None, 10, 1),
            (1 << 40, None, 256, 1 << 26),
            (0, None, 0, 1),
        ] {
            let map = Map::new(blocks, asked).expect("possible");
            assert_eq!((map.cells.len(), map.cell), (cells, extents * EXTENT), "{blocks} in {asked:?}");
        }
        for cells in [0, 513] {
            let wrong = Map::new(1, Some(cells)).err().expect("wrong").to_string();
            assert!(wrong.contains("1 to 512"), "{wrong}");
        }
    }

    #[test]
    fn all_of_a_cell_adds_up() {
        let mut map = Map::new(150, Some(2)).expect("possible");
        let extent = Extent::of([1.0, 2.0, 3.0, 0.0, 4.0, 5.0]);
        // The last two are of a volume that was larger.
        [0, 1, 2, 4, 1 << 33].into_iter().for_each(|number| map.add(number, &extent));
        [0, 127, 128, 1 << 39].into_iter().for_each(|block| map.add_fast(block));
        map.add_pinned(&(64..139));
        let shown = map.json();
        assert_eq!((&shown["bytes"], &shown["cell_bytes"]), (&json!(150 * 4096), &json!(128 * 4096)));
        let [first, second] = [0, 1].map(|n: usize| &shown["cells"][n]);
        assert_eq!(
            *first,
            json!({
                "offset": 0, "reads": 2.0, "writes": 4.0, "saved_ms": 8.0, "spent_ms": 10.0,
                "fast_ratio": 2.0 / 128.0, "pinned_ratio": 0.5,
            })
        );
        assert_eq!(
            (&second["reads"], &second["fast_ratio"], &second["pinned_ratio"]),
            (&json!(1.0), &json!(1.0 / 22.0), &json!(0.5))
        );
    }
}
