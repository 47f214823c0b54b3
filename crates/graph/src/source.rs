//! The text of a hierarchy file, and where in it something stands.

use std::ops::Range;

/// The text of a file with the name it is reported under.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub name: String,
    pub text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// A place in the text, counted from 1. The column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub line: usize,
    pub column: usize,
}

impl Source {
    pub fn new(name: &str, text: &str) -> Source {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Source { name: name.into(), text: text.into(), lines }
    }

    /// The place of a byte of the text; the end of the text for a byte beyond.
    pub fn place(&self, at: usize) -> Place {
        let at = self.text.floor_char_boundary(at);
        let line = self.lines.partition_point(|start| *start <= at);
        let column = self.text[self.lines[line - 1]..at].chars().count() + 1;
        Place { line, column }
    }

    /// A line of the text without its end.
    pub fn line(&self, line: usize) -> &str {
        let start = self.lines[line - 1];
        let end = self.lines.get(line).map_or(self.text.len(), |next| next - 1);
        self.text[start..end].trim_end_matches('\r')
    }

    /// The text of `span`; empty if there is no such part.
    pub fn get(&self, span: Range<usize>) -> &str {
        self.text.get(span).unwrap_or_default()
    }

    /// The line of the byte `at` and the lines before it, backwards.
    pub fn lines_back_from(&self, at: usize) -> impl Iterator<Item = &str> {
        (1..=self.place(at).line).rev().map(|line| self.line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_and_lines_from_one() {
        let s = Source::new("f", "ab\nä€c\r\n\nlast");
        let at = |needle: &str| {
            let p = s.place(s.text.find(needle).unwrap());
            (p.line, p.column)
        };
        assert_eq!(at("ab"), (1, 1));
        assert_eq!(at("c"), (2, 3));
        assert_eq!(at("last"), (4, 1));
        assert_eq!(s.place(1000).line, 4);
        assert_eq!([s.line(1), s.line(2), s.line(3), s.line(4)], ["ab", "ä€c", "", "last"]);
    }

    #[test]
    fn an_empty_text_has_one_line() {
        let s = Source::new("f", "");
        assert_eq!((s.place(0), s.line(1)), (Place { line: 1, column: 1 }, ""));
    }
}
