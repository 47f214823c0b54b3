//! Tables as text.

use std::fmt::Write;

/// The most columns of a table that fit on a person's screen.
pub const WIDTH: usize = 100;
/// The least width of the first column, whatever the others need.
const FIRST_MIN: usize = 8;

/// Columns as wide as their widest cell, two spaces apart, or one where that would be wider than [`WIDTH`]; a line that
/// is still too wide loses the middle of its first cell. The first `text_columns` hold text and stand to the left; the
/// others are numbers and stand to the right. A row may be shorter than the titles.
pub fn table(titles: &[&str], text_columns: usize, rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = titles.iter().map(|title| title.to_string()).collect();
    let lines = || std::iter::once(&titles).chain(rows);
    let width =
        |column: usize| lines().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let total = |gap: usize| widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1);
    let gap = if total(2) > WIDTH { 1 } else { 2 };
    let too_wide = total(gap).saturating_sub(WIDTH);
    if let Some(first) = widths.first_mut().filter(|first| **first > FIRST_MIN) {
        *first = first.saturating_sub(too_wide).max(FIRST_MIN);
    }
    let mut out = String::new();
    for row in lines() {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(if column == 0 { 0 } else { gap });
            let cell = if column == 0 { &shortened(cell, width) } else { cell };
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

/// A text in at most `width` characters: its begin and its end.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width == 0 {
        return text.into();
    }
    let head = width / 2;
    let tail = width - head - 1;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_comes_closer_and_loses_the_middle_of_its_names() {
        let row = |name: &str| vec![name.to_owned(), "x".repeat(40), "y".repeat(40)];
        let fits = table(&["N", "X", "Y"], 1, &[row(&"n".repeat(16))]);
        assert!(
            fits.lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("nnnnnnnnnnnnnnnn  xx") && line.len() == 100)
        );
        let closer = table(&["N", "X", "Y"], 1, &[row(&"n".repeat(18))]);
        assert!(
            closer
                .lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("nnnnnnnnnnnnnnnnnn xx") && line.len() == 100)
        );
        let cut = table(&["N", "X", "Y"], 1, &[row("begin-something-long-end")]);
        assert!(cut.lines().nth(1).is_some_and(|line| line.starts_with("begin-som…long-end xx")), "{cut}");
    }
}
