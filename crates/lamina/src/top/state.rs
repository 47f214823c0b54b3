//! The state of the screen: what is known of the daemon, what is chosen, and what a key changes. It decides everything
//! that is shown, and draws nothing.

use super::history::History;
use crate::api::{Device, Event, Export, Hierarchy, Job, Snapshot, Verb, Why};
use crate::files;
use crate::show::{DeviceRates, Rates, below, over};
use crate::status::Status;
use crate::why::self_time::{SelfTime, self_times};
use lamina_block::Kind;
use lamina_graph::rows;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{BTreeMap, BTreeSet};

/// Events that are kept, the newest ones.
const EVENTS: usize = 200;

/// The keys and their effects, for the help.
pub const KEYS: [(&str, &str); 11] = [
    ("up, down, k, j", "choose a device, or scroll"),
    ("page up, page down", "the same by a screen"),
    ("home, end, g, G", "the first, the last"),
    ("enter", "show the chosen device in depth"),
    ("esc", "back; in the tree: choose no device"),
    ("s", "sort: tree, requests, bytes, self time, P99"),
    ("e", "show events and alerts"),
    ("p", "pause: the daemon is not asked"),
    ("?", "this help"),
    ("q, ctrl-c", "quit"),
    ("lamina why EXPORT", "where the time goes, in full"),
];

/// News of the daemon.
pub enum Answer {
    /// Its state.
    Snapshot(Box<Snapshot>),
    /// Events since those before.
    Events(Vec<Event>),
    /// The samples of an export.
    Why(Why),
    /// The commands of a device.
    Commands(String, Vec<Verb>),
    /// The reason why it does not answer.
    Failed(String),
}

/// What the daemon is to be asked for besides its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queries {
    /// Nothing is to be asked.
    pub is_paused: bool,
    /// Exports whose samples are wanted.
    pub exports: Vec<String>,
    /// The device whose commands are wanted.
    pub commands: Option<String>,
}

/// The order of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Each device under those that stand on it.
    #[default]
    Tree,
    /// Most requests first.
    Requests,
    /// Most bytes first.
    Bytes,
    /// Largest self time first.
    SelfTime,
    /// Largest 99th percentile first.
    P99,
}

impl Sort {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Tree => "tree",
            Sort::Requests => "requests",
            Sort::Bytes => "bytes",
            Sort::SelfTime => "self time",
            Sort::P99 => "P99",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Tree => Sort::Requests,
            Sort::Requests => Sort::Bytes,
            Sort::Bytes => Sort::SelfTime,
            Sort::SelfTime => Sort::P99,
            Sort::P99 => Sort::Tree,
        }
    }
}

/// The screen that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All devices.
    #[default]
    Tree,
    /// One device in depth.
    Device(String),
    /// What has happened.
    Events,
}

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The text of the first column before the name.
    pub branches: String,
    /// The device; nothing in the heading of a hierarchy, which is `branches` alone.
    pub device: Option<String>,
    /// The devices below are drawn elsewhere.
    pub is_again: bool,
}

/// A daemon that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When its last answer came, in milliseconds since 1970.
    pub since_ms: u64,
    /// For how long that is, in milliseconds.
    pub for_ms: u64,
    /// The reason.
    pub reason: String,
}

/// Everything that is shown.
pub struct State {
    /// The last snapshot of the daemon.
    pub snapshot: Option<Snapshot>,
    /// The activity before it.
    pub rates: Option<Rates>,
    /// The last minutes.
    pub history: History,
    /// Self times by device.
    pub self_times: BTreeMap<String, SelfTime>,
    /// Events, the newest last.
    pub events: Vec<Event>,
    /// The commands of a device.
    pub commands: Option<(String, Vec<Verb>)>,
    /// The daemon does not answer.
    pub outage: Option<Outage>,
    /// The screen.
    pub mode: Mode,
    /// The order of devices.
    pub sort: Sort,
    /// The daemon is not asked.
    pub is_paused: bool,
    /// The help is shown above everything.
    pub is_help: bool,
    /// The lines of the tree.
    pub rows: Vec<Row>,
    /// The chosen line.
    pub cursor: Option<usize>,
    /// The first line that is shown, of the tree or of another screen.
    pub first: usize,
    /// Lines that there is room for; known when it is drawn.
    pub height: usize,
    /// The kinds of layers.
    pub kinds: Vec<Kind>,
    whys: BTreeMap<String, Why>,
    /// When the last snapshot came.
    answered_ms: u64,
    /// The first line of the tree, while another screen is shown.
    first_of_tree: usize,
}

impl Default for State {
    fn default() -> State {
        State {
            snapshot: None,
            rates: None,
            history: History::default(),
            self_times: BTreeMap::new(),
            events: Vec::new(),
            commands: None,
            outage: None,
            mode: Mode::default(),
            sort: Sort::default(),
            is_paused: false,
            is_help: false,
            rows: Vec::new(),
            cursor: None,
            first: 0,
            height: 1,
            kinds: files::kinds(),
            whys: BTreeMap::new(),
            answered_ms: 0,
            first_of_tree: 0,
        }
    }
}

impl State {
    /// Takes news of the daemon.
    pub fn on_answer(&mut self, answer: Answer, now_ms: u64) {
        match answer {
            // One that was under way when the pause began would move the screen.
            _ if self.is_paused => {}
            Answer::Snapshot(snapshot) => self.on_snapshot(*snapshot, now_ms),
            Answer::Events(events) => {
                for event in events {
                    // An event that happens again takes the place of the one before.
                    let is_again = |before: &Event| {
                        event.times > 1
                            && (&before.device, &before.message) == (&event.device, &event.message)
                    };
                    self.events.retain(|before| !is_again(before));
                    self.events.push(event);
                }
                let surplus = self.events.len().saturating_sub(EVENTS);
                self.events.drain(..surplus);
            }
            Answer::Why(why) => {
                self.whys.insert(why.export.clone(), why);
                self.update();
            }
            Answer::Commands(device, verbs) => self.commands = Some((device, verbs)),
            Answer::Failed(reason) => {
                let since_ms = self.answered_ms;
                self.outage = Some(Outage { since_ms, for_ms: now_ms.saturating_sub(since_ms), reason });
            }
        }
    }

    /// Takes the state of the daemon.
    pub fn on_snapshot(&mut self, now: Snapshot, now_ms: u64) {
        self.outage = None;
        self.answered_ms = now_ms;
        match &self.snapshot {
            Some(before) => {
                let rates = Rates::between(before, &now);
                self.history.add(before, &now, &rates);
                if before.pid != now.pid {
                    // Another daemon: what is known of the one before is not of this one.
                    (self.commands, self.events, self.whys) = (None, Vec::new(), BTreeMap::new());
                }
                self.rates = Some(rates);
            }
            None => self.rates = Some(Rates::between(&now, &now)),
        }
        self.whys.retain(|name, _| now.exports().any(|export| export.name == *name));
        self.snapshot = Some(now);
        self.update();
    }

    /// Takes a key; true to quit.
    pub fn on_key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return true,
            KeyCode::Char('q') if !is_control => return true,
            _ if self.is_help => self.is_help = false,
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') if self.mode == Mode::Tree => {
                self.sort = self.sort.next();
                self.update();
            }
            KeyCode::Char('e') if self.mode == Mode::Events => self.show(Mode::Tree),
            KeyCode::Char('e') => self.show(Mode::Events),
            KeyCode::Enter if self.mode == Mode::Tree => {
                if let Some(device) = self.chosen().or(self.rows.iter().find_map(|row| row.device.as_deref()))
                {
                    self.show(Mode::Device(device.to_owned()));
                }
            }
            KeyCode::Esc if self.mode == Mode::Tree => self.cursor = None,
            KeyCode::Esc => self.show(Mode::Tree),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-(self.height.max(2) as isize - 1)),
            KeyCode::PageDown => self.go(self.height.max(2) as isize - 1),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            _ => {}
        }
        false
    }

    /// What the daemon is to be asked for.
    pub fn queries(&self) -> Queries {
        let exports = self.snapshot.iter().flat_map(|snapshot| &snapshot.hierarchies);
        let shown = self.shown();
        let wanted = |(hierarchy, export): (&Hierarchy, &Export)| {
            let is_wanted = shown.is_none() || {
                let below = below(&over(hierarchy), &export.device);
                shown.iter().flatten().any(|device| below.contains(device))
            };
            is_wanted.then(|| export.name.clone())
        };
        let commands = match &self.mode {
            Mode::Device(device) if self.commands.as_ref().is_none_or(|(of, _)| of != device) => {
                Some(device.clone())
            }
            Mode::Device(_) | Mode::Tree | Mode::Events => None,
        };
        Queries {
            is_paused: self.is_paused,
            exports: exports
                .flat_map(|hierarchy| hierarchy.exports.iter().map(move |export| (hierarchy, export)))
                .filter_map(wanted)
                .collect(),
            commands,
        }
    }

    /// The devices on the screen; `None` for all: an order by self time needs those of all devices.
    fn shown(&self) -> Option<Vec<&str>> {
        match &self.mode {
            Mode::Device(device) => Some(vec![device]),
            Mode::Events => Some(Vec::new()),
            Mode::Tree if self.sort == Sort::SelfTime => None,
            Mode::Tree => {
                let rows = self.rows.iter().skip(self.first).take(self.height);
                Some(rows.filter_map(|row| row.device.as_deref()).collect())
            }
        }
    }

    /// The device of the chosen line.
    pub fn chosen(&self) -> Option<&str> {
        self.rows.get(self.cursor?)?.device.as_deref()
    }

    /// A device, and its hierarchy.
    pub fn device(&self, name: &str) -> Option<(&Hierarchy, &Device)> {
        let mut hierarchies = self.snapshot.iter().flat_map(|snapshot| &snapshot.hierarchies);
        hierarchies.find_map(|hierarchy| {
            Some((hierarchy, hierarchy.devices.iter().find(|device| device.name == name)?))
        })
    }

    /// The rates of a device.
    pub fn rates_of(&self, device: &str) -> Option<&DeviceRates> {
        self.rates.iter().flat_map(|rates| &rates.devices).find(|rates| rates.name == device)
    }

    /// All jobs.
    pub fn jobs(&self) -> Vec<&Job> {
        self.snapshot.iter().flat_map(Snapshot::devices).flat_map(|device| &device.jobs).collect()
    }

    /// All alerts that are on.
    pub fn alerts(&self) -> Vec<String> {
        let hierarchies = self.snapshot.iter().flat_map(|snapshot| &snapshot.hierarchies);
        hierarchies.flat_map(|hierarchy| Status::of(hierarchy).alerts).collect()
    }

    /// The samples of the busiest export above the chosen device, or of all exports.
    pub fn why(&self) -> Option<&Why> {
        let chosen = match &self.mode {
            Mode::Device(device) => Some(device.as_str()),
            Mode::Tree | Mode::Events => self.chosen(),
        };
        let hierarchies = self.snapshot.iter().flat_map(|snapshot| &snapshot.hierarchies);
        let exports = hierarchies.flat_map(|h| h.exports.iter().map(move |export| (h, export)));
        let above = exports.filter(|(h, export)| {
            chosen.is_none_or(|device| below(&over(h), &export.device).contains(&device))
        });
        let rate = |why: &Why| self.history.last(&why.device).map_or(0.0, |sample| sample.iops);
        // The first one of several that are idle.
        let known = above.filter_map(|(_, export)| self.whys.get(&export.name)).collect::<Vec<_>>();
        known.into_iter().rev().max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }

    fn show(&mut self, mode: Mode) {
        if self.mode == Mode::Tree {
            self.first_of_tree = self.first;
        }
        self.first = if mode == Mode::Tree { self.first_of_tree } else { 0 };
        self.mode = mode;
    }

    /// Moves the cursor, or scrolls, by so many lines.
    fn go(&mut self, by: isize) {
        if self.mode != Mode::Tree {
            // The drawing knows the last line.
            self.first = self.first.saturating_add_signed(by);
            return;
        }
        let lines: Vec<usize> =
            (0..self.rows.len()).filter(|line| self.rows[*line].device.is_some()).collect();
        let at = self.cursor.and_then(|cursor| lines.iter().position(|line| *line == cursor));
        let next = match at {
            Some(at) => at.saturating_add_signed(by).min(lines.len() - 1),
            None if by == isize::MAX => lines.len().saturating_sub(1),
            None => 0,
        };
        self.cursor = lines.get(next).copied();
        self.follow_cursor();
    }

    /// Scrolls so that the cursor is on the screen.
    fn follow_cursor(&mut self) {
        if let Some(cursor) = self.cursor {
            // With the heading above the first device.
            let upper = if cursor <= 1 { 0 } else { cursor };
            self.first = self.first.min(upper).max((cursor + 1).saturating_sub(self.height));
        }
    }

    /// Tells how many lines are drawn at most, and how many there are: no more than that is scrolled.
    pub fn fit(&mut self, height: usize, lines: usize) {
        let is_other = self.height != height;
        self.height = height;
        if is_other && self.mode == Mode::Tree {
            self.follow_cursor();
        }
        self.first = self.first.min(lines.saturating_sub(height));
    }

    /// What follows from the snapshot, the samples and the order.
    fn update(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        self.self_times = self_times(snapshot, &self.whys);
        let chosen = self.chosen().map(str::to_owned);
        let rows = match self.sort {
            Sort::Tree => tree(snapshot, &self.kinds),
            sort => self.sorted(snapshot, sort),
        };
        self.rows = rows;
        let is_chosen = |row: &Row| row.device.is_some() && row.device == chosen;
        // A device that several stand on has several lines.
        let is_same = self.cursor.and_then(|cursor| self.rows.get(cursor)).is_some_and(is_chosen);
        if !is_same {
            self.cursor = self.rows.iter().position(is_chosen);
            if self.mode == Mode::Tree {
                self.follow_cursor();
            }
        }
    }

    fn sorted(&self, snapshot: &Snapshot, sort: Sort) -> Vec<Row> {
        let last = |name: &str| self.history.last(name);
        let value = |name: &str| match sort {
            Sort::Tree => 0.0,
            Sort::Requests => last(name).map_or(0.0, |sample| sample.iops),
            Sort::Bytes => last(name).map_or(0.0, |sample| sample.bytes),
            Sort::SelfTime => self.self_times.get(name).map_or(-1.0, |time| time.us),
            Sort::P99 => last(name).and_then(|sample| sample.p99_ns).map_or(-1.0, |ns| ns as f64),
        };
        let mut seen = BTreeSet::new();
        let tree = tree(snapshot, &self.kinds).into_iter().filter_map(|row| row.device);
        let mut devices: Vec<String> = tree.filter(|device| seen.insert(device.clone())).collect();
        devices.sort_by(|a, b| value(b).total_cmp(&value(a)));
        let row = |device| Row { branches: String::new(), device: Some(device), is_again: false };
        devices.into_iter().map(row).collect()
    }
}

/// The lines of all trees, with a heading above each if there are several.
fn tree(snapshot: &Snapshot, kinds: &[Kind]) -> Vec<Row> {
    let is_view = |kind: &str| kinds.iter().any(|known| known.name == kind && known.is_view());
    let mut all = Vec::new();
    for hierarchy in &snapshot.hierarchies {
        if snapshot.hierarchies.len() > 1 {
            let status = Status::of(hierarchy);
            let heading = format!("{} on core {}: {}", hierarchy.file, hierarchy.core, status.state.name());
            all.push(Row { branches: heading, device: None, is_again: false });
        }
        let devices =
            hierarchy.devices.iter().map(|d| (d.name.as_str(), d.over.as_slice(), is_view(&d.kind)));
        let row = |row: lamina_graph::Row| Row {
            branches: row.branches,
            device: Some(row.device),
            is_again: row.again,
        };
        all.extend(rows(devices).into_iter().map(row));
    }
    all
}
