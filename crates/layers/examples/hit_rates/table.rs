//! Tables, for people and for pages.

/// Rows of cells; the first column is text, the others are figures.
pub struct Table(Vec<Vec<String>>);

impl Table {
    pub fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Table {
        Table(vec![head.into_iter().map(String::from).collect()])
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    pub fn show(&self, title: &str, markdown: bool) -> String {
        let width = |column: usize| self.0.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.0[0].len()).map(width).collect();
        let mut text = format!("{}{title}\n\n", if markdown { "## " } else { "" });
        for (number, row) in self.0.iter().enumerate() {
            if markdown {
                text += &format!("| {} |\n", row.join(" | "));
            } else {
                let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                    0 => format!("{cell:width$}"),
                    _ => format!("{cell:>width$}"),
                });
                text += &format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end());
            }
            if markdown && number == 0 {
                text += &format!("|---|{}\n", "---:|".repeat(row.len() - 1));
            }
        }
        text + "\n"
    }
}
