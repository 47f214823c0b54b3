//! One device in depth.

use super::draw::{BAR, bar, job_line, wrapped};
use super::history::{LATENCIES, SAMPLES, sparkline};
use super::state::State;
use crate::api::{Arg, Device, Hierarchy, Verb};
use crate::events::shown;
use crate::show::figures::{cell, notices_of};
use crate::show::{count, latency, shortened};
use crate::status;
use lamina_block::{Bytes, Figure};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

const TITLE: Style = Style::new().fg(Color::Cyan);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Columns that the rest of a long line is indented by.
const INDENT: usize = 4;
/// Columns of the text beside a sparkline.
const BESIDE: usize = 26;
/// Columns of the name of a figure, and of its value.
const FIGURE: (usize, usize) = (20, 14);

/// All lines about a device, for a screen of this width.
pub fn lines(state: &State, name: &str, width: usize) -> Vec<Line<'static>> {
    let Some((hierarchy, device)) = state.device(name) else {
        return vec![Line::styled(format!("{} is gone (esc: back)", shown(name)), ALARM)];
    };
    let mut lines = head(state, hierarchy, device, width);
    operations(&mut lines, state, device);
    past(&mut lines, state, device, width);
    figures(&mut lines, state, device, width);
    latencies(&mut lines, state, device);
    if !device.jobs.is_empty() {
        section(&mut lines, "JOBS");
        lines.extend(device.jobs.iter().map(job_line));
    }
    commands(&mut lines, state, device, width);
    lines
}

fn section(lines: &mut Vec<Line<'static>>, title: &str) {
    lines.push(Line::styled(title.to_owned(), TITLE));
}

/// Name, shape, neighbours, self time, and what is wrong.
fn head(state: &State, hierarchy: &Hierarchy, device: &Device, width: usize) -> Vec<Line<'static>> {
    let size = Bytes(device.geometry.size).rounded();
    let mut title = format!("{} ({}), {size}, queue {}", device.name, device.kind, device.in_flight);
    if !device.over.is_empty() {
        title += &format!(", over {}", device.over.join(", "));
    }
    let above = hierarchy.devices.iter().filter(|above| above.over.contains(&device.name));
    let above: Vec<&str> = above.map(|above| above.name.as_str()).collect();
    if !above.is_empty() {
        title += &format!(", below {}", above.join(", "));
    }
    let exports = hierarchy.exports.iter().filter(|export| export.device == device.name);
    let exports: Vec<&str> = exports.map(|export| export.name.as_str()).collect();
    if !exports.is_empty() {
        title += &format!(", exported as {}", exports.join(", "));
    }
    let mut lines = wrapped(&title, INDENT, width, Modifier::BOLD);
    lines.push(match state.self_times.get(&device.name) {
        Some(time) => Line::raw(format!(
            "SELF {} of a request on average, {:.1}% of its time {}",
            latency((time.us * 1e3) as u64),
            time.share * 100.0,
            bar(time.share, BAR)
        )),
        None => Line::raw("SELF is not known: no request of an export above was looked at"),
    });
    for (alert, _) in status::alerts(hierarchy, device).filter(|(_, is_on)| *is_on) {
        lines.push(Line::styled(shown(&format!("ALERT {}", alert.replace('_', " "))), ALARM));
    }
    let kind = state.kinds.iter().find(|kind| kind.name == device.kind);
    let notices = kind.into_iter().flat_map(|kind| notices_of(kind, device));
    lines.extend(notices.flat_map(|notice| wrapped(&notice, INDENT, width, ALARM)));
    lines
}

/// A line for each operation that was ever asked for.
fn operations(lines: &mut Vec<Line<'static>>, state: &State, device: &Device) {
    section(lines, "OPERATION        /S   MiB/S     P50     P99   ERRORS      NEW");
    let Some(rates) = state.rates_of(&device.name) else { return };
    for (name, rate) in &rates.operations {
        if device.operations.get(name).is_none_or(|operation| operation.completed == 0) {
            continue;
        }
        let quantile = |ns: Option<u64>| ns.map_or("-".into(), latency);
        let line = format!(
            "{name:<10} {:>8} {:>7} {:>7} {:>7} {:>8} {:>8}",
            count(rate.iops),
            count(rate.bytes_per_second / 1048576.0),
            quantile(rate.p50_ns),
            quantile(rate.p99_ns),
            count(rate.errors_total as f64),
            count(rate.errors as f64),
        );
        lines.push(Line::raw(shown(&line)));
    }
}

/// The last minutes as sparklines.
fn past(lines: &mut Vec<Line<'static>>, state: &State, device: &Device, width: usize) {
    section(lines, "THE LAST MINUTES");
    let room = width.saturating_sub(BESIDE).max(1);
    let each = SAMPLES.div_ceil(room);
    let samples = || state.history.of(&device.name);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let mut line = |label: &str, values: Vec<f64>, largest: &dyn Fn(f64) -> String| {
        let bars = sparkline(&values, room, each);
        let beside = format!("{label:<10} up to {:<9}", largest(most(&values)));
        lines.push(Line::from(vec![Span::raw(beside), Span::styled(bars, TITLE)]));
    };
    line("requests/s", samples().map(|sample| sample.iops).collect(), &count);
    line("MiB/s", samples().map(|sample| sample.bytes / 1048576.0).collect(), &count);
    let p99 = samples().map(|sample| sample.p99_ns.unwrap_or(0) as f64).collect();
    line("P99", p99, &|ns| latency(ns as u64));
}

/// The figures that the kind declares.
fn figures(lines: &mut Vec<Line<'static>>, state: &State, device: &Device, width: usize) {
    let kind = state.kinds.iter().find(|kind| kind.name == device.kind);
    let figures = kind.map_or(&[][..], |kind| kind.traits.figures);
    section(lines, "FIGURES");
    if figures.is_empty() {
        lines.push(Line::raw(shown(&format!("the kind {} has none", device.kind))));
    }
    // Those that `lamina show` has come first.
    let (columns, others): (Vec<_>, Vec<_>) = figures.iter().partition(|figure| figure.column.is_some());
    for figure in columns.into_iter().chain(others) {
        let (name, value) = (shortened(&label(figure), FIGURE.0), cell(figure, &device.info));
        let (first, second) = FIGURE;
        let figure = format!("{name:<first$} {value:>second$}  {}", figure.help);
        lines.extend(wrapped(&figure, first + second + 3, width, Style::new()));
    }
}

/// The title of its column, or its place.
fn label(figure: &Figure) -> String {
    let place = || figure.at.trim_start_matches('/').replace(['_', '/'], " ");
    figure.column.map_or_else(place, str::to_owned)
}

/// The latencies of the last minutes, a bar for each power of two.
fn latencies(lines: &mut Vec<Line<'static>>, state: &State, device: &Device) {
    let counts = state.history.latencies(&device.name);
    let (all, most) = (counts.iter().sum::<u64>(), counts.iter().copied().max().unwrap_or_default());
    section(lines, "LATENCY");
    let (Some(first), Some(last)) =
        (counts.iter().position(|count| *count > 0), counts.iter().rposition(|count| *count > 0))
    else {
        lines.push(Line::raw("no request in the last minutes"));
        return;
    };
    for (power, count) in counts.iter().enumerate().take(last + 1).skip(first) {
        let end = if power == LATENCIES - 1 { "more".into() } else { latency(1 << power) };
        let part = *count as f64 / most as f64;
        let percent = *count as f64 * 100.0 / all as f64;
        lines.push(Line::from(vec![
            Span::raw(format!("below {end:>6} {percent:>6.1}%  ")),
            Span::styled("█".repeat((part * 40.0).ceil() as usize), TITLE),
        ]));
    }
}

/// The commands that the device understands.
fn commands(lines: &mut Vec<Line<'static>>, state: &State, device: &Device, width: usize) {
    section(lines, "COMMANDS");
    match state.commands.as_ref().filter(|(of, _)| *of == device.name) {
        None => lines.push(Line::raw("not known yet")),
        Some((_, verbs)) if verbs.is_empty() => lines.push(Line::raw("none")),
        Some((_, verbs)) => lines.extend(verbs.iter().flat_map(|verb| command(&device.name, verb, width))),
    }
}

/// How it is given, and what it does.
fn command(device: &str, Verb { name, summary, args }: &Verb, width: usize) -> Vec<Line<'static>> {
    let arg = |Arg { name, required, .. }: &Arg| match required {
        true => format!(" {}", name.to_uppercase()),
        false => format!(" [{name}=]"),
    };
    let args: String = args.iter().map(arg).collect();
    let mut lines = wrapped(&format!("lamina ctl {device} {name}{args}"), INDENT, width, Modifier::BOLD);
    lines.extend(wrapped(&format!("  {summary}"), 2, width, Style::new()));
    lines
}
