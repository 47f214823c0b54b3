//! The problems of a hierarchy file: all at once, each with file, line, device and key.
//!
//! Every problem has one shape, on one line: `disk.toml:12: device "vm1": key "over": there is no device "sam" (did
//! you mean "san"?)`. [`Report::pictures`] adds the line of the file with what is meant underlined, for a terminal.
//!
//! Text from the file is printed with control characters escaped, so that a file cannot command a terminal, and the
//! number of problems is bounded, so that a hostile file cannot fill a log.

use crate::source::Source;
use crate::spelling;
use lamina_block::ErrorKind;
use std::fmt::{self, Write};
use std::ops::Range;
use std::sync::Arc;

/// The most problems that are listed; the rest is counted.
pub const PROBLEMS_MAX: usize = 100;

/// The most characters of a message.
const MESSAGE_MAX: usize = 600;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, and perhaps has a mistake.
    Warning,
}

/// The subject of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The file as a whole.
    File,
    /// `[hierarchy]`
    Hierarchy,
    /// `[device.NAME]`
    Device(String),
    /// `[export.NAME]`
    Export(String),
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The subject of the problem.
    pub subject: Subject,
    /// The key, as a path inside the table of the subject (`units[2].size`), if the problem is about a key.
    pub key: Option<String>,
    /// The mistake and, if there is one, the likely correction.
    pub message: String,
    /// The bytes of the file that are meant.
    span: Option<Range<usize>>,
}

/// All that is wrong with a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Report {
    source: Arc<Source>,
    /// Sorted by line once the checks are through.
    problems: Vec<Problem>,
    /// How many more there were.
    more: usize,
    /// The class of the first error.
    kind: Option<ErrorKind>,
}

impl Report {
    pub(crate) fn new(source: Arc<Source>) -> Report {
        Report { source, problems: Vec::new(), more: 0, kind: None }
    }

    /// A report of one problem of the file as a whole.
    pub(crate) fn of_file(name: &str, message: &str) -> Report {
        let mut report = Report::new(Arc::new(Source::new(name, "")));
        report.error(Subject::File, None, None, message);
        report
    }

    /// The file is wrong.
    pub(crate) fn error(
        &mut self,
        of: Subject,
        key: Option<&str>,
        span: Option<Range<usize>>,
        message: &str,
    ) {
        self.failed(ErrorKind::Invalid, of, key, span, message);
    }

    /// The devices of the file cannot be used, for a reason of this class.
    pub(crate) fn failed(
        &mut self,
        kind: ErrorKind,
        of: Subject,
        key: Option<&str>,
        span: Option<Range<usize>>,
        message: &str,
    ) {
        self.kind.get_or_insert(kind);
        self.add(Severity::Error, of, key, span, message);
    }

    pub(crate) fn warning(
        &mut self,
        of: Subject,
        key: Option<&str>,
        span: Option<Range<usize>>,
        message: &str,
    ) {
        self.add(Severity::Warning, of, key, span, message);
    }

    fn add(
        &mut self,
        severity: Severity,
        subject: Subject,
        key: Option<&str>,
        span: Option<Range<usize>>,
        message: &str,
    ) {
        if self.is_full() {
            self.more += 1;
            return;
        }
        let key = key.map(|k| printable(k, 80));
        let message = printable(message, MESSAGE_MAX);
        self.problems.push(Problem { severity, subject, key, message, span });
    }

    /// True if no further problem will be listed.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= PROBLEMS_MAX
    }

    /// ` (did you mean "san"?)`, or nothing. Without effect in a report that is full.
    pub(crate) fn hint<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
        if self.is_full() { String::new() } else { spelling::hint(word, known) }
    }

    /// Puts the problems in the order of the file.
    pub(crate) fn sort(&mut self) {
        self.problems.sort_by_key(|p| p.span.as_ref().map_or(0, |s| s.start));
    }

    /// True if something is wrong that keeps the file from being used.
    pub fn has_errors(&self) -> bool {
        self.more > 0 || self.problems.iter().any(|p| p.severity == Severity::Error)
    }

    /// The class of the first error: later errors may only follow from it.
    pub fn kind(&self) -> ErrorKind {
        self.kind.unwrap_or(ErrorKind::Invalid)
    }

    /// True if there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// The problems in the order of the file, at most [`PROBLEMS_MAX`].
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The line and column of a problem, counted from 1; `None` if the problem has no place in the file.
    pub fn place(&self, problem: &Problem) -> Option<(usize, usize)> {
        let place = self.source.place(problem.span.as_ref()?.start);
        Some((place.line, place.column))
    }

    /// One problem on one line, without its end.
    pub fn line(&self, problem: &Problem) -> String {
        let mut line = printable(&self.source.name, 4096);
        if let Some((n, _)) = self.place(problem) {
            let _ = write!(line, ":{n}");
        }
        if problem.severity == Severity::Warning {
            line.push_str(": warning");
        }
        match &problem.subject {
            Subject::File => {}
            Subject::Hierarchy => line.push_str(": hierarchy"),
            Subject::Device(name) => line.push_str(&format!(": device {}", quoted(name))),
            Subject::Export(name) => line.push_str(&format!(": export {}", quoted(name))),
        }
        if let Some(key) = &problem.key {
            line.push_str(&format!(": key \"{key}\""));
        }
        line + ": " + &problem.message
    }

    /// Every problem with the line of the file that is meant, for a terminal.
    ///
    /// ```text
    /// disk.toml:12: device "vm1": key "over": there is no device "sam" (did you mean "san"?)
    ///    12 | over = "sam"
    ///       |        ^^^^^
    /// ```
    pub fn pictures(&self) -> String {
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&self.line(problem));
            out.push('\n');
            if let Some(span) = &problem.span {
                out.push_str(&picture(&self.source, span));
            }
        }
        out + &self.rest()
    }

    fn rest(&self) -> String {
        match self.more {
            0 => String::new(),
            n => format!("{}: and at least {n} more\n", printable(&self.source.name, 4096)),
        }
    }
}

impl fmt::Display for Report {
    /// One problem a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{}", self.line(problem))?;
        }
        f.write_str(&self.rest())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Report {}

/// A name in quotes, safe to print.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", printable(name, 80))
}

/// `text` on one line, control characters escaped, at most `max` characters.
pub(crate) fn printable(text: &str, max: usize) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        match c {
            _ if n == max => return out + "…",
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Characters that reorder or hide text on a terminal.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The most characters of a line of the file that a picture shows.
const PICTURE_WIDTH: usize = 100;

/// A line of the file with `span` underlined. Only the part around the span is shown of a long line.
fn picture(source: &Source, span: &Range<usize>) -> String {
    let place = source.place(span.start);
    let line: Vec<char> = source.line(place.line).replace('\t', " ").chars().collect();
    let column = (place.column - 1).min(line.len());
    let from = (column + 20).saturating_sub(PICTURE_WIDTH);
    let shown: String = line.iter().skip(from).take(PICTURE_WIDTH).map(|c| plain(*c)).collect();
    let marked = source.get(span.clone()).lines().next().unwrap_or_default().chars().count();
    let marked = marked.clamp(1, (shown.chars().count() + from).saturating_sub(column).max(1));
    let (indent, carets) = (" ".repeat(column - from), "^".repeat(marked));
    format!("{:>5} | {}\n      | {indent}{carets}\n", place.line, shown.trim_end())
}

/// The character, or a stand-in of the same width for a character that a terminal would act on.
fn plain(c: char) -> char {
    if c.is_control() || is_invisible(c) { '\u{fffd}' } else { c }
}
