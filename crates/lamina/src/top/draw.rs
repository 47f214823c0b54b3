//! The drawing of the state. Everything that a daemon says is shown without control characters.

use super::columns::{Column, place};
use super::device;
use super::state::{KEYS, Mode, Row, State};
use crate::api::{Event, Job};
use crate::events::{line, shown, time};
use crate::jobs::percent;
use crate::show::{duration, shortened};
use crate::why;
use lamina_block::Bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

/// Jobs that are shown below the tree, at most.
const JOBS: usize = 3;
/// Columns of a bar.
pub const BAR: usize = 16;

const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const QUIET: Style = Style::new().fg(Color::DarkGray);
const LABEL: Style = Style::new().fg(Color::Cyan);
const HOT: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
/// A device with so much of a request's time stands out.
const HOT_SHARE: f64 = 0.5;

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &mut State) {
    let jobs = job_lines(state);
    let [head, main, reason, below, last, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(2),
        Constraint::Length(jobs.len() as u16),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(header(state), head);
    match state.mode.clone() {
        Mode::Tree => tree(frame, main, state),
        Mode::Device(name) => scrolled(frame, main, state, |state, width| device::lines(state, &name, width)),
        Mode::Events => scrolled(frame, main, state, events),
    }
    frame.render_widget(Paragraph::new(why_slow(state)).wrap(Wrap { trim: true }), reason);
    frame.render_widget(Paragraph::new(jobs), below);
    frame.render_widget(last_line(state), last);
    frame.render_widget(footer(state), foot);
    if state.is_help {
        help(frame);
    }
}

/// Text that a daemon may have said, in lines that are broken between words; all but the first are indented.
pub fn wrapped(text: &str, indent: usize, width: usize, style: impl Into<Style>) -> Vec<Line<'static>> {
    let (text, indent, style) = (shown(text), indent.min(width / 2), style.into());
    let columns = |text: &str| Span::raw(text).width();
    let (mut lines, mut last) = (Vec::new(), String::new());
    for (number, word) in text.split(' ').enumerate() {
        if number > 0 && columns(&last) + 1 + columns(word) > width {
            lines.push(Line::styled(std::mem::replace(&mut last, " ".repeat(indent) + word), style));
        } else {
            last.extend((number > 0).then_some(' '));
            last.push_str(word);
        }
    }
    lines.push(Line::styled(last, style));
    lines
}

/// The daemon in one line.
fn header(state: &State) -> Line<'static> {
    let (Some(snapshot), Some(rates)) = (&state.snapshot, &state.rates) else {
        return Line::raw("lamina top");
    };
    let mut spans = vec![
        Span::styled(format!("lamina {}", shown(&snapshot.version)), STRONG),
        Span::raw(format!(
            "  pid {}  up {}  {}  {:.1}% of a core",
            snapshot.pid,
            duration(snapshot.uptime_ns / 1_000_000_000),
            Bytes(rates.resident_bytes).rounded(),
            rates.cpu * 100.0
        )),
    ];
    spans.push(match state.alerts().len() {
        0 => Span::raw("  no alerts"),
        1 => Span::styled("  1 alert", ALARM),
        more => Span::styled(format!("  {more} alerts"), ALARM),
    });
    if state.is_paused {
        spans.push(Span::styled("  PAUSED", HOT));
    }
    Line::from(spans)
}

fn tree(frame: &mut Frame, area: Rect, state: &mut State) {
    state.fit(usize::from(area.height.saturating_sub(1)), state.rows.len());
    let name = |row: &Row| format!("{}{}", row.branches, row.device.as_deref().unwrap_or_default());
    let devices = state.rows.iter().filter(|row| row.device.is_some());
    let longest = devices.map(|row| Span::raw(shown(&name(row))).width()).max().unwrap_or_default();
    let kinds =
        state.rates.iter().flat_map(|rates| &rates.devices).map(|device| shown(&device.kind).chars().count());
    let columns = place(area.width, longest, kinds.max().unwrap_or_default());
    let buffer = frame.buffer_mut();
    for (column, at, width) in &columns {
        // Titles stand as their cells.
        put(buffer, area, area.y, (*column, *at, *width), column.title().into(), LABEL);
    }
    let rows = state.rows.iter().enumerate().skip(state.first);
    for ((number, row), y) in rows.zip(area.y + 1..area.bottom()) {
        let Some(device) = &row.device else {
            let heading = shortened(&shown(&row.branches), area.width.into());
            buffer.set_stringn(area.x, y, heading, area.width.into(), STRONG);
            continue;
        };
        let share = state.self_times.get(device).map_or(0.0, |time| time.share);
        for (column, at, width) in &columns {
            let style = match column {
                Column::SelfTime | Column::Share if share >= HOT_SHARE => HOT,
                Column::Last => LABEL,
                _ => Style::new(),
            };
            let cell = column.cell(state, row, device, *width);
            put(buffer, area, y, (*column, *at, *width), cell, style);
        }
        if state.cursor == Some(number) {
            buffer.set_style(Rect { y, height: 1, ..area }, CHOSEN);
        }
    }
}

/// Puts a cell in its place: text to the left, numbers to the right.
fn put(
    buffer: &mut ratatui::buffer::Buffer,
    area: Rect,
    y: u16,
    (column, at, width): (Column, u16, u16),
    cell: String,
    style: Style,
) {
    let cell = shortened(&shown(&cell), width.into());
    let room = if column.is_text() { 0 } else { width.saturating_sub(Span::raw(&cell).width() as u16) };
    let x = area.x.saturating_add(at + room);
    if x < area.right() && y < area.bottom() {
        let most = (width - room).min(area.right() - x);
        buffer.set_stringn(x, y, cell, most.into(), style);
    }
}

/// Lines that may be more than there is room for.
fn scrolled(
    frame: &mut Frame,
    area: Rect,
    state: &mut State,
    lines: impl Fn(&State, usize) -> Vec<Line<'static>>,
) {
    let lines = lines(state, area.width.into());
    state.fit(area.height.into(), lines.len());
    let shown: Vec<Line> = lines.into_iter().skip(state.first).take(area.height.into()).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

/// All alerts, then events, the newest first.
fn events(state: &State, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("ALERTS", LABEL)];
    let alerts = state.alerts();
    lines.extend(alerts.iter().map(|alert| Line::styled(shown(alert), ALARM)));
    if alerts.is_empty() {
        lines.push(Line::raw("none"));
    }
    lines.extend([Line::raw(""), Line::styled("EVENTS", LABEL)]);
    if state.events.is_empty() {
        lines.push(Line::raw("nothing has happened"));
    }
    let event = |event: &Event| wrapped(&line(event), 4, width, severity(&event.severity));
    lines.extend(state.events.iter().rev().flat_map(event));
    lines
}

fn severity(name: &str) -> Style {
    match name {
        "error" => ALARM,
        "warning" => HOT,
        _ => Style::new(),
    }
}

/// Why requests are slow; or that the daemon does not answer, which is more important.
fn why_slow(state: &State) -> Line<'static> {
    if let Some(outage) = &state.outage {
        let (since, for_s) = (time(outage.since_ms), outage.for_ms / 1000);
        let said = format!("NO ANSWER since {since} ({}): {}", duration(for_s), shown(&outage.reason));
        return Line::styled(said, ALARM);
    }
    let sentence = state.why().map_or("nothing is known yet".into(), |why| shown(&why::largest(why)));
    Line::from(vec![Span::styled("WHY SLOW ", LABEL), Span::raw(sentence)])
}

/// The first jobs, and how many more there are. The screen of a device has its jobs itself.
fn job_lines(state: &State) -> Vec<Line<'static>> {
    let jobs = match state.mode {
        Mode::Tree => state.jobs(),
        Mode::Device(_) | Mode::Events => Vec::new(),
    };
    let mut lines: Vec<Line> = jobs.iter().take(JOBS).map(|job| job_line(job)).collect();
    if let Some(more @ 1..) = jobs.len().checked_sub(JOBS) {
        lines.push(Line::styled(format!("and {more} more jobs: `lamina jobs`"), QUIET));
    }
    lines
}

/// A job with its progress.
pub fn job_line(job: &Job) -> Line<'static> {
    let part = job.done as f64 / job.total.max(1) as f64;
    let name = shortened(&shown(&format!("{} {}", job.device, job.name)), 20);
    let left = job.seconds_left.map(|left| format!("  {} left", duration(left))).unwrap_or_default();
    let (is, of, rate) = (percent(job), Bytes(job.total).rounded(), Bytes(job.rate).rounded());
    let mut spans = vec![
        Span::styled("JOB ", LABEL),
        Span::raw(format!("{name:<20} {} {is:>6} of {of}  {rate}/s{left}", bar(part, BAR))),
    ];
    if job.state != "running" {
        spans.push(Span::styled(format!("  {}", shown(&job.state)), HOT));
    }
    if let Some(error) = &job.error {
        spans.push(Span::styled(format!("  {}", shown(error)), ALARM));
    }
    Line::from(spans)
}

/// A part of 1 as a bar.
pub fn bar(part: f64, width: usize) -> String {
    let full = ((part * width as f64) as usize).min(width);
    "█".repeat(full) + &"░".repeat(width - full)
}

/// An alert that is on, or else the last event.
fn last_line(state: &State) -> Line<'static> {
    let alerts = state.alerts();
    match (alerts.as_slice(), state.events.last()) {
        ([alert], _) => Line::styled(format!("ALERT {}", shown(alert)), ALARM),
        ([alert, more @ ..], _) => {
            Line::styled(format!("ALERT {}, and {} more (e: all)", shown(alert), more.len()), ALARM)
        }
        ([], Some(event)) => Line::styled(line(event), severity(&event.severity)),
        ([], None) => Line::styled("nothing has happened", QUIET),
    }
}

fn footer(state: &State) -> Line<'static> {
    let keys = match state.mode {
        Mode::Tree => {
            format!("enter device  s sort: {}  e events  p pause  ? help  q quit", state.sort.name())
        }
        Mode::Device(_) | Mode::Events => "esc back  up, down scroll  p pause  ? help  q quit".into(),
    };
    Line::styled(keys, QUIET)
}

/// All keys, above everything.
fn help(frame: &mut Frame) {
    let columns = "SELF is the mean time of a request in the device itself, without those below, and SHARE its part of \
                   the whole time: of the requests that `lamina why` looks at. P99 has the devices below in it. \
                   REQUESTS are those per second, of late.";
    let width = frame.area().width.min(72);
    let line =
        |(key, effect)| Line::from(vec![Span::styled(format!("{key:<22}"), STRONG), Span::raw(effect)]);
    let mut lines: Vec<Line> = KEYS.into_iter().map(line).collect();
    lines.extend([Line::raw(""), Line::raw(columns)]);
    let height = frame.area().height.min(lines.len() as u16 + 6);
    let area = frame.area().centered(Constraint::Length(width), Constraint::Length(height));
    let block = Block::bordered().title(" lamina top: keys ").title_bottom(" any key closes this ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), area);
}
