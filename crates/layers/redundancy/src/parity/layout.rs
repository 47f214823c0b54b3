//! The layout of the units of a stripe: left-symmetric, as most others have it.
//!
//! A stripe has a cell for each column: its data, `P`, and `Q` if there are two parities. From stripe to
//! stripe the parity moves one column to the left, and the data begins after it, so that a long read goes
//! over all columns.
//!
//! ```text
//!             column 0   1    2    3              with P and Q:  0    1    2    3
//!   stripe 0:       0    1    2    P                             Q    0    1    P
//!   stripe 1:       4    5    P    3                             2    3    P    Q
//!   stripe 2:       8    P    6    7                             5    P    Q    4
//! ```

use std::ops::Range;

/// The most columns.
pub const COLUMNS_MAX: usize = 32;

/// The layout of stripes on columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a unit: a power of two.
    pub unit: u64,
    /// How many columns there are.
    pub columns: usize,
    /// How many of the cells of a stripe are parity: 1 or 2.
    pub parity: usize,
}

/// A part of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the stripe.
    pub stripe: u64,
    /// The bytes of the stripe, counted from its first data cell.
    pub within: Range<u64>,
}

impl Layout {
    /// How many cells of a stripe are data; the numbers after them are `P` and `Q`.
    pub fn data(&self) -> usize {
        self.columns - self.parity
    }

    /// Bytes of data in a stripe.
    pub fn width(&self) -> u64 {
        self.unit * self.data() as u64
    }

    /// The column on which a cell of a stripe lies.
    pub fn column(&self, stripe: u64, cell: usize) -> usize {
        let p = self.columns - 1 - (stripe % self.columns as u64) as usize;
        match cell.checked_sub(self.data()) {
            Some(parity) => (p + parity) % self.columns,
            None => (p + self.parity + cell) % self.columns,
        }
    }

    /// The cell of a stripe that lies on a column.
    pub fn cell(&self, stripe: u64, column: usize) -> usize {
        let p = self.columns - 1 - (stripe % self.columns as u64) as usize;
        let offset = (column + self.columns - p) % self.columns;
        if offset < self.parity { self.data() + offset } else { offset - self.parity }
    }

    /// The parts of stripes that make up `at`, in order.
    pub fn pieces(&self, at: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let (width, at) = (self.width(), at.clone());
        (at.start / width..at.end.div_ceil(width)).map(move |stripe| {
            let first = stripe * width;
            Piece { stripe, within: at.start.max(first) - first..at.end.min(first + width) - first }
        })
    }

    /// The cells of a part of a stripe, and the rows of each: bytes from the beginning of the unit.
    pub fn cells(&self, within: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let (unit, within) = (self.unit, within.clone());
        (within.start / unit..within.end.div_ceil(unit)).map(move |cell| {
            let first = cell * unit;
            (cell as usize, within.start.max(first) - first..within.end.min(first + unit) - first)
        })
    }

    /// The stripes of a range of each column, and the part of the range in each.
    pub fn stripes(&self, at: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let (unit, at) = (self.unit, at.clone());
        (at.start / unit..at.end.div_ceil(unit))
            .map(move |stripe| (stripe, at.start.max(stripe * unit)..at.end.min((stripe + 1) * unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_column_of_its_own() {
        for (columns, parity) in
            (1..=2).flat_map(|parity| (parity + 1..9).map(move |columns| (columns, parity)))
        {
            let layout = Layout { unit: 4096, columns, parity };
            for stripe in 0..20 {
                let mut seen: Vec<usize> = (0..columns).map(|cell| layout.column(stripe, cell)).collect();
                for (cell, column) in seen.iter().enumerate() {
                    assert_eq!(layout.cell(stripe, *column), cell);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..columns));
            }
        }
    }

    /// The drawing above.
    #[test]
    fn it_is_left_symmetric() {
        let drawn = |layout: Layout, stripe: u64| -> Vec<String> {
            let name = |column| match layout.cell(stripe, column) {
                cell if cell < layout.data() => (stripe as usize * layout.data() + cell).to_string(),
                cell => ["P", "Q"][cell - layout.data()].to_owned(),
            };
            (0..layout.columns).map(name).collect()
        };
        let (one, two) =
            (Layout { unit: 512, columns: 4, parity: 1 }, Layout { unit: 512, columns: 4, parity: 2 });
        assert_eq!([0, 1, 2].map(|s| drawn(one, s).join(" ")), ["0 1 2 P", "4 5 P 3", "8 P 6 7"]);
        assert_eq!([0, 1, 2].map(|s| drawn(two, s).join(" ")), ["Q 0 1 P", "2 3 P Q", "5 P Q 4"]);
        // A long read goes to all columns.
        let columns: Vec<usize> = (0..8).map(|unit| one.column(unit / 3, (unit % 3) as usize)).collect();
        assert_eq!(columns, [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn pieces_and_cells_cover_a_range_exactly() {
        let layout = Layout { unit: 1024, columns: 4, parity: 1 };
        for (start, end) in (0..20).flat_map(|a| (a + 1..24).map(move |b| (a * 512u64, b * 512u64))) {
            let mut next = start;
            for piece in layout.pieces(&(start..end)) {
                for (cell, part) in layout.cells(&piece.within) {
                    let here = piece.stripe * layout.width() + cell as u64 * layout.unit + part.start;
                    assert_eq!(here, next);
                    next += part.end - part.start;
                }
            }
            assert_eq!(next, end);
            let parts: Vec<_> = layout.stripes(&(start..end)).collect();
            assert!(parts.windows(2).all(|w| w[0].1.end == w[1].1.start && w[0].0 + 1 == w[1].0));
            assert_eq!((parts[0].1.start, parts.last().unwrap().1.end), (start, end));
        }
    }
}
