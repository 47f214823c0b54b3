//! Tables as text.

use std::fmt::Write;

/// Columns as wide as their widest cell, two spaces apart. The first `text_columns` hold text and stand to the left; the others
/// are numbers and stand to the right. A row may be shorter than the titles.
pub fn table(titles: &[&str], text_columns: usize, rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = titles.iter().map(|title| title.to_string()).collect();
    let lines = || std::iter::once(&titles).chain(rows);
    let width =
        |column: usize| lines().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut out = String::new();
    for row in lines() {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let _ = match column < text_columns {
                true => write!(line, "{gap}{cell:<width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
