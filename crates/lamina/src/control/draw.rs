//! Maps of answers that have cells by address, such as the heat map of a `tier`: in a terminal, and as SVG.
//!
//! ```text
//!      {"bytes": …, "cell_bytes": …, "cells": [{"offset": 0, "reads": 3.5, …}, …]}
//!        ──▶  reads  │ .:-=+*#%@  │     a row for each figure, a column for each cell or several
//! ```
//!
//! Shades are by the logarithm of a figure, as few places are used much more than all others; a figure whose name ends
//! in `_ratio` is shaded by itself. What an answer is about is not known here: only its shape.

use lamina_block::Bytes;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Columns in a terminal.
const COLUMNS: usize = 64;
/// From nothing to the most.
const SHADES: &[u8] = b" .:-=+*#%@";
/// Pixels: of a picture, of a row, and of what stands left of rows, above the first, and below the last.
const WIDTH: u32 = 960;
const ROW: u32 = 48;
const LEFT: u32 = 130;
const ABOVE: u32 = 20;
const BELOW: u32 = 30;

/// A figure of all cells.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    values: Vec<f64>,
}

impl Row {
    fn is_ratio(&self) -> bool {
        self.name.ends_with("_ratio")
    }

    fn most(&self) -> f64 {
        self.values.iter().copied().fold(0.0, f64::max)
    }

    /// How dark each cell is, from 0 to 1.
    fn shades(&self) -> impl Iterator<Item = f64> {
        let most = self.most();
        let is_ratio = self.is_ratio();
        self.values.iter().map(move |value| match is_ratio {
            true => value.clamp(0.0, 1.0),
            false if most > 0.0 => value.max(0.0).ln_1p() / most.ln_1p(),
            false => 0.0,
        })
    }

    /// The same figure in at most so many cells: sums, and means of ratios.
    fn in_columns(&self, most: usize) -> Row {
        let of = self.values.len().div_ceil(most).max(1);
        let columns = self.values.chunks(of).map(|cells| {
            let sum: f64 = cells.iter().sum();
            if self.is_ratio() { sum / cells.len() as f64 } else { sum }
        });
        Row { name: self.name.clone(), values: columns.collect() }
    }

    /// What is said of the most.
    fn told(&self) -> String {
        match self.is_ratio() {
            true => format!("at most {:.0}%", self.most() * 100.0),
            false => format!("at most {:.1}", self.most()),
        }
    }
}

/// An answer with cells.
pub struct Map {
    bytes: u64,
    rows: Vec<Row>,
}

impl Map {
    /// The map of an answer; an error if it has none.
    pub fn of(answer: &Value) -> Result<Map, String> {
        let wrong =
            || "--draw: the command is done, but its answer has no cells, and cannot be drawn".to_owned();
        let bytes = answer["bytes"].as_u64().ok_or_else(wrong)?;
        let cells = answer["cells"].as_array().ok_or_else(wrong)?;
        let names = cells.first().and_then(Value::as_object).into_iter().flat_map(|cell| cell.keys());
        let rows = names.filter(|name| *name != "offset").map(|name| {
            let values = cells.iter().map(|cell| cell[name].as_f64().unwrap_or(0.0));
            Row { name: name.clone(), values: values.collect() }
        });
        Ok(Map { bytes, rows: rows.collect() })
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let (mut out, mut columns) = (String::new(), 0);
        for row in &self.rows {
            let row = row.in_columns(COLUMNS);
            columns = row.values.len();
            let shade = |shade: f64| char::from(SHADES[(shade * (SHADES.len() - 1) as f64).ceil() as usize]);
            let strip: String = row.shades().map(shade).collect();
            let _ = writeln!(out, "{:<width$} │{strip}│ {}", row.name, row.told());
        }
        let end = Bytes(self.bytes).rounded();
        let columns = columns.saturating_sub(1).max(end.len() + 1);
        let _ = writeln!(out, "{:<width$}  0{end:>columns$}", "");
        out
    }

    /// As a picture, into the file at `path`.
    pub fn svg(&self, path: &Path, title: &str) -> Result<(), String> {
        let height = ABOVE + ROW * self.rows.len() as u32 + BELOW;
        let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
        let drawn = area.fill(&WHITE).and_then(|()| self.paint(&area, title)).and_then(|()| area.present());
        drawn.map_err(|e| format!("{}: {e}", path.display()))
    }

    fn paint(
        &self,
        area: &DrawingArea<SVGBackend, Shift>,
        title: &str,
    ) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let font = ("sans-serif", 13).into_font();
        let say = |text: &str, x: u32, y: u32| {
            area.draw(&Text::new(text.to_owned(), (x as i32, y as i32), font.clone()))
        };
        say(title, LEFT, 3)?;
        for (number, row) in self.rows.iter().enumerate() {
            let top = ABOVE + number as u32 * ROW;
            say(&row.name, 8, top + 8)?;
            say(&row.told(), 8, top + 24)?;
            let across = |cell: usize| {
                (LEFT + (WIDTH - LEFT - 10) * cell as u32 / row.values.len().max(1) as u32) as i32
            };
            for (cell, shade) in row.shades().enumerate().filter(|(_, shade)| *shade > 0.0) {
                // From yellow to dark red.
                let fade = |from: f64, to: f64| (from + (to - from) * shade) as u8;
                let color = RGBColor(fade(255.0, 128.0), fade(237.0, 0.0), fade(160.0, 38.0));
                let corners = [
                    (across(cell), top as i32),
                    (across(cell + 1).max(across(cell) + 1), (top + ROW - 4) as i32),
                ];
                area.draw(&Rectangle::new(corners, color.filled()))?;
            }
            let frame = [(LEFT as i32, top as i32), ((WIDTH - 10) as i32, (top + ROW - 4) as i32)];
            area.draw(&Rectangle::new(frame, BLACK.mix(0.3)))?;
        }
        let bottom = ABOVE + ROW * self.rows.len() as u32 + 4;
        say("0", LEFT, bottom)?;
        say(&Bytes(self.bytes).rounded(), WIDTH - 80, bottom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(cells: usize) -> Value {
        let cell = |n: usize| json!({ "offset": n << 20, "reads": n as f64, "fast_ratio": (n % 2) as f64 });
        json!({ "bytes": cells << 20, "cell_bytes": 1 << 20, "cells": (0..cells).map(cell).collect::<Vec<_>>() })
    }

    #[test]
    fn rows_are_shaded_in_a_terminal() {
        let text = Map::of(&answer(4)).expect("a map").text();
        // Of 3 the logarithm is twice that of 1, each with 1 more.
        let expected = "fast_ratio │ @ @│ at most 100%\nreads      │ +%@│ at most 3.0\n            0 4MiB\n";
        assert_eq!(text, expected);
        let wide = Map::of(&answer(512)).expect("a map").text();
        assert!(wide.lines().all(|line| line.chars().count() <= 11 + 2 + 64 + 2 + 20), "{wide}");
        assert!(wide.contains("at most 50%") && wide.contains("at most 4060.0"), "sums and means: {wide}");
    }

    #[test]
    fn pictures_are_written_also_of_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        for cells in [0, 1, 512] {
            let path = folder.path().join(format!("{cells}.svg"));
            Map::of(&answer(cells)).expect("a map").svg(&path, "vm").expect("written");
            let svg = std::fs::read_to_string(&path).expect("a picture");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            // The ground, a frame for each row, and the cells that are not empty.
            let rects = svg.matches("<rect").count();
            assert_eq!(rects, 1 + if cells == 0 { 0 } else { 2 + cells / 2 + cells - 1 }, "{cells} cells");
        }
        let nowhere = Map::of(&answer(1)).expect("a map").svg(&folder.path().join("no/x.svg"), "vm");
        assert!(nowhere.expect_err("no folder").contains("no/x.svg"));
    }

    #[test]
    fn other_answers_are_refused() {
        for other in [Value::Null, json!({ "cells": [] }), json!({ "bytes": 5, "cells": 3 })] {
            assert!(Map::of(&other).err().expect("none").contains("has no cells"), "{other}");
        }
    }
}
