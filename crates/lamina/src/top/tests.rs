//! The screen as text, and keys.

use super::draw::{draw, wrapped};
use super::state::{Answer, Mode, Outage, Queries, Sort, State};
use crate::api::{Arg, ArgType, Event, Job, OperationTimes, Share, Snapshot, Verb, Why};
use crate::show::tests::{cached, later, snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Style;

/// Samples of reads of `vm1` through an export.
pub fn why(export: &str, requests: u64, seconds: f64, shares: &[(&str, &str, f64)]) -> Why {
    let share = |(device, cause, us): &(&str, &str, f64)| Share {
        device: (*device).into(),
        kind: "file".into(),
        cause: (*cause).into(),
        us: *us,
    };
    let mean: Vec<Share> = shares.iter().map(share).collect();
    let reads = OperationTimes { requests, seconds, slow: mean.clone(), mean, ..OperationTimes::default() };
    Why {
        export: export.into(),
        device: "vm1".into(),
        samples: 100,
        operations: [("read".to_owned(), reads)].into(),
        ..Why::default()
    }
}

fn event(number: u64, message: &str, times: u64) -> Event {
    Event {
        number,
        time_ms: 1_795_900_123_456,
        severity: "warning".into(),
        device: Some("vm1".into()),
        message: message.into(),
        times,
    }
}

fn job(device: &str, name: &str) -> Job {
    Job {
        device: device.into(),
        name: name.into(),
        state: "running".into(),
        done: 1 << 30,
        total: 4 << 30,
        rate: 40 << 20,
        limit: None,
        seconds_left: Some(77),
        error: None,
    }
}

/// A daemon with 100 reads a second.
fn busy() -> State {
    let mut state = State::default();
    tell(&mut state, snapshot());
    tell(&mut state, later());
    let samples = why("vm1", 100, 1.0, &[("a", "itself", 60.0), ("vm1", "lock", 20.0)]);
    state.on_answer(Answer::Why(samples), 0);
    state
}

fn tell(state: &mut State, snapshot: Snapshot) {
    state.on_answer(Answer::Snapshot(Box::new(snapshot)), 1_795_900_123_456);
}

/// The lines of a screen.
fn screen(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, state)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn lines(state: &mut State) -> Vec<String> {
    screen(state, 80, 24)
}

/// The lines of all of a screen that is scrolled.
fn tall(state: &mut State) -> String {
    screen(state, 120, 200).join("\n")
}

fn press(state: &mut State, keys: &[KeyCode]) -> bool {
    keys.iter().any(|key| state.on_key(KeyEvent::from(*key)))
}

const DOWN: KeyCode = KeyCode::Down;
const ENTER: KeyCode = KeyCode::Enter;

fn char(c: char) -> KeyCode {
    KeyCode::Char(c)
}

#[test]
fn the_tree_fits_eighty_columns_and_twenty_four_lines() {
    let mut state = busy();
    let lines = lines(&mut state);
    assert_eq!(lines[0], "lamina 0.1.0  pid 17  up 1h0m  9MiB  0.0% of a core  no alerts");
    let titles: Vec<&str> = lines[1].split_whitespace().collect();
    let all = "DEVICE KIND QUEUE READ/S WRITE/S MiB/S P99 SELF SHARE REQUESTS";
    assert_eq!(titles.join(" "), all);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(&lines[2]), "vm1 stripe 3 100 0 0.4 80us 20us 25% █");
    assert_eq!(words(&lines[3]), "├─ a file 3 50 0 0.2 80us 60us 75% █");
    assert_eq!(words(&lines[4]), "└─ b file 3 50 0 0.2 80us 0ns 0% █");
    // Numbers stand below the ends of their titles.
    let end =
        |line: &str, word: &str| line.chars().count() - line.split(word).nth(1).expect(word).chars().count();
    assert_eq!(end(&lines[1], "SHARE"), end(&lines[3], "75%"));
    let reason = "WHY SLOW vm1: read: of the slowest 1% 80us, 75% is in a (file)";
    assert_eq!((lines[20].as_str(), lines[22].as_str()), (reason, "nothing has happened"));
    assert_eq!(lines[23], "enter device  s sort: tree  e events  p pause  ? help  q quit");
}

#[test]
fn no_size_is_too_small() {
    let mut state = busy();
    let mut busy_daemon = cached();
    busy_daemon.hierarchies[0].devices[0].jobs = vec![job("a", "move"); 5];
    let screens = [vec![], vec![ENTER], vec![char('e')], vec![char('?')]];
    for keys in screens {
        press(&mut state, &keys);
        for (width, height) in [(1, 1), (2, 3), (10, 5), (40, 10), (79, 23), (300, 3), (7, 100)] {
            let lines = screen(&mut state, width, height);
            assert_eq!(lines.len(), usize::from(height));
        }
        tell(&mut state, busy_daemon.clone());
    }
}

#[test]
fn keys_choose_sort_and_leave() {
    let mut state = busy();
    assert_eq!(state.chosen(), None);
    for (key, chosen) in [
        (DOWN, "vm1"),
        (DOWN, "a"),
        (char('j'), "b"),
        (DOWN, "b"),
        (KeyCode::Up, "a"),
        (char('k'), "vm1"),
        (KeyCode::Up, "vm1"),
        (KeyCode::End, "b"),
        (KeyCode::Home, "vm1"),
        (char('G'), "b"),
        (char('g'), "vm1"),
        (KeyCode::PageDown, "b"),
        (KeyCode::PageUp, "vm1"),
        (DOWN, "a"),
    ] {
        // A page has room for all.
        lines(&mut state);
        assert!(!press(&mut state, &[key]));
        assert_eq!(state.chosen(), Some(chosen), "{key:?}");
    }
    for (sort, order) in [
        (Sort::Requests, ["vm1", "a", "b"]),
        (Sort::Bytes, ["vm1", "a", "b"]),
        (Sort::SelfTime, ["a", "vm1", "b"]),
        (Sort::P99, ["vm1", "a", "b"]),
        (Sort::Tree, ["vm1", "a", "b"]),
    ] {
        press(&mut state, &[char('s')]);
        let devices: Vec<_> = state.rows.iter().filter_map(|row| row.device.as_deref()).collect();
        assert_eq!((state.sort, devices.as_slice()), (sort, &order[..]));
        // The chosen device stays so.
        assert_eq!(state.chosen(), Some("a"));
        assert!(lines(&mut state)[23].contains(&format!("s sort: {}", sort.name())));
    }
    press(&mut state, &[ENTER]);
    assert_eq!(state.mode, Mode::Device("a".into()));
    press(&mut state, &[char('e')]);
    assert_eq!(state.mode, Mode::Events);
    press(&mut state, &[char('e'), ENTER, KeyCode::Esc]);
    assert_eq!((&state.mode, state.chosen()), (&Mode::Tree, Some("a")));
    press(&mut state, &[KeyCode::Esc, ENTER]);
    assert_eq!((&state.mode, state.chosen()), (&Mode::Device("vm1".into()), None));
    assert!(press(&mut state, &[char('q')]));
    assert!(!press(&mut state, &[char('c')]));
    assert!(state.on_key(KeyEvent::new(char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn help_names_all_keys_and_is_closed_by_any() {
    let mut state = busy();
    press(&mut state, &[char('?')]);
    let text = lines(&mut state).join("\n");
    for word in [
        "enter ",
        "esc ",
        "ctrl-c",
        "page up",
        "s  ",
        "e  ",
        "p  ",
        "SELF is the mean time",
        "any key closes this",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    press(&mut state, &[char('s')]);
    assert_eq!((state.is_help, state.sort), (false, Sort::Tree));
    press(&mut state, &[char('?')]);
    assert!(press(&mut state, &[char('q')]));
}

#[test]
fn more_devices_than_lines_are_scrolled() {
    let mut many = later();
    for number in 0..40 {
        let mut device = many.hierarchies[0].devices[0].clone();
        device.name = format!("d{number:02}");
        many.hierarchies[0].devices.push(device);
    }
    let mut state = busy();
    tell(&mut state, many);
    let before = lines(&mut state);
    assert!(before[2].starts_with("vm1") && !before.join("\n").contains("d39"), "{before:#?}");
    press(&mut state, &[KeyCode::End]);
    let end = lines(&mut state);
    assert!(end[19].starts_with("d39"), "{end:#?}");
    press(&mut state, &[KeyCode::PageUp]);
    assert_eq!(state.chosen(), Some("d22"));
    // What is not on the screen is not asked for.
    assert_eq!(state.queries().exports, Vec::<String>::new());
    press(&mut state, &[KeyCode::Home]);
    assert!(lines(&mut state)[2].starts_with("vm1"));
    assert_eq!(state.queries().exports, ["vm1"]);
    // A smaller screen keeps the chosen device.
    press(&mut state, &[KeyCode::End]);
    assert!(screen(&mut state, 80, 12)[7].starts_with("d39"));
    // And fewer devices leave no empty screen.
    tell(&mut state, later());
    assert!(lines(&mut state)[2].starts_with("vm1"));
}

#[test]
fn an_order_by_self_time_needs_all_exports() {
    let mut state = busy();
    let mut other = later().hierarchies.remove(0);
    other.devices.iter_mut().for_each(|device| {
        device.name += "2";
        device.over.iter_mut().for_each(|name| name.push('2'));
    });
    (other.exports[0].name, other.exports[0].device) = ("vm2".into(), "vm12".into());
    let mut two = later();
    two.hierarchies.push(other);
    tell(&mut state, two);
    let all = lines(&mut state);
    assert_eq!((all[2].as_str(), all[6].as_str()), ("vm.toml on core 0: ok", "vm.toml on core 0: ok"));
    assert_eq!(state.queries().exports, ["vm1", "vm2"]);
    // The last device of a small screen is of the first hierarchy.
    screen(&mut state, 80, 10);
    assert_eq!(state.queries().exports, ["vm1"]);
    press(&mut state, &[char('s'), char('s'), char('s')]);
    assert_eq!((state.sort, state.queries().exports), (Sort::SelfTime, vec!["vm1".into(), "vm2".into()]));
    // Headings are not chosen.
    press(&mut state, &[char('s'), char('s'), KeyCode::Home]);
    assert_eq!(state.chosen(), Some("vm1"));
}

#[test]
fn a_device_in_depth() {
    let mut state = State::default();
    tell(&mut state, cached());
    let mut next = cached();
    next.uptime_ns += 1_000_000_000;
    let reads = later().hierarchies[0].devices[0].operations["read"].clone();
    next.hierarchies[0].devices[1].operations.insert("read".into(), reads);
    next.hierarchies[0].devices[1].jobs.push(job("vm1", "replay"));
    tell(&mut state, next);
    state.on_answer(Answer::Why(why("vm1", 9, 1.0, &[("vm1", "room", 10.0)])), 0);
    press(&mut state, &[ENTER]);
    assert_eq!(state.queries().commands.as_deref(), Some("vm1"));
    let verb = Verb {
        name: "drain".into(),
        summary: "Brings everything to the store.".into(),
        args: vec![Arg { name: "limit".into(), is: ArgType::Size, required: false, summary: "".into() }],
    };
    assert!(tall(&mut state).contains("not known yet"));
    state.on_answer(Answer::Commands("vm1".into(), vec![verb]), 0);
    assert_eq!(state.queries().commands, None);
    let text = tall(&mut state);
    for said in [
        "vm1 (accelerate), 1GiB, queue 3, over b, cache, exported as vm1",
        "SELF 10us of a request on average, 100.0% of its time ████████████████",
        "read            150     0.6    80us    80us        0        0",
        "requests/s up to 150",
        "P99        up to 80us",
        "\nPOLICY                   write-back  When writes are acknowledged.",
        "\nbypassed bytes                    ?  Missed, and kept from filling the flash.",
        "below  131us   99.3%  ████████████████████████████████████████",
        "below  1.0ms    0.7%  █",
        "JOB vm1 replay           ████░░░░░░░░░░░░  25.0% of 4GiB  40MiB/s  1m17s left",
        "lamina ctl vm1 drain [limit=]\n  Brings everything to the store.",
    ] {
        assert!(text.contains(said), "{said}:\n{text}");
    }
    // There is an end to scrolling.
    press(&mut state, &[KeyCode::End]);
    let end = lines(&mut state);
    assert!(end[19].starts_with("  Brings everything"), "{end:#?}");
    press(&mut state, &[KeyCode::Home]);
    assert!(lines(&mut state)[1].starts_with("vm1 (accelerate)"));
    tell(&mut state, snapshot_without_devices());
    assert!(tall(&mut state).contains("vm1 is gone (esc: back)"));
}

fn snapshot_without_devices() -> Snapshot {
    let mut empty = later();
    empty.hierarchies.clear();
    empty
}

#[test]
fn alerts_events_and_jobs_are_told() {
    let mut state = busy();
    state.on_answer(Answer::Events(vec![event(1, "a leg is lost", 1), event(2, "no answer", 1)]), 0);
    let last = |state: &mut State| lines(state)[22].clone();
    assert_eq!(last(&mut state), "2026-11-28T21:08:43Z warning vm1: no answer");
    // The same again takes the place of the one before.
    state.on_answer(Answer::Events(vec![event(3, "no answer", 2)]), 0);
    assert_eq!(
        (state.events.len(), last(&mut state).as_str()),
        (2, "2026-11-28T21:08:43Z warning vm1: no answer (2 times)")
    );
    let mut troubled = later();
    troubled.hierarchies[0].devices[0].info =
        serde_json::json!({ "alerts": { "lagging": true, "lost": true } });
    troubled.hierarchies[0].devices[2].jobs =
        ["move", "scrub", "zero", "fifth", "sixth"].map(|name| job("vm1", name)).into();
    tell(&mut state, troubled);
    let all = lines(&mut state);
    assert!(all[0].ends_with("2 alerts"), "{all:#?}");
    assert_eq!(all[22], "ALERT a: lagging, and 1 more (e: all)");
    assert_eq!(all[18], "JOB vm1 move             ████░░░░░░░░░░░░  25.0% of 4GiB  40MiB/s  1m17s left");
    assert_eq!(all[21], "and 2 more jobs: `lamina jobs`");
    press(&mut state, &[char('e')]);
    let all = lines(&mut state);
    assert_eq!(all[1..4], ["ALERTS", "a: lagging", "a: lost"]);
    assert_eq!(all[6], "2026-11-28T21:08:43Z warning vm1: no answer (2 times)");
    assert!(all[7].ends_with("a leg is lost"), "{all:#?}");
    state.on_answer(Answer::Events((4..1000).map(|n| event(n, "more", 1)).collect()), 0);
    assert_eq!((state.events.len(), state.events[199].number), (200, 999));
}

#[test]
fn a_daemon_that_goes_away_and_comes_back() {
    let mut state = busy();
    state.on_answer(Answer::Events(vec![event(1, "of the one before", 1)]), 0);
    state.on_answer(Answer::Failed("vm.ctl: refused".into()), 1_795_900_135_456);
    let outage = Outage { since_ms: 1_795_900_123_456, for_ms: 12_000, reason: "vm.ctl: refused".into() };
    assert_eq!(state.outage, Some(outage));
    let all = lines(&mut state);
    assert_eq!(all[20], "NO ANSWER since 2026-11-28T21:08:43Z (12s): vm.ctl: refused");
    // What was known stays on the screen.
    assert!(all[3].contains("├─ a"), "{all:#?}");
    let mut again = snapshot();
    again.pid += 1;
    tell(&mut state, again);
    let all = lines(&mut state);
    assert!(all[20].starts_with("WHY SLOW nothing is known yet") && all[0].contains("pid 18"), "{all:#?}");
    assert_eq!((state.events.len(), state.self_times.len()), (0, 0));
}

#[test]
fn a_pause_keeps_the_screen_and_asks_for_nothing() {
    let mut state = busy();
    press(&mut state, &[char('p')]);
    let before = lines(&mut state);
    assert!(before[0].ends_with("PAUSED"), "{before:#?}");
    assert!(state.queries().is_paused);
    let mut next = later();
    next.uptime_ns += 1_000_000_000;
    next.pid += 1;
    tell(&mut state, next);
    state.on_answer(Answer::Failed("gone".into()), 0);
    assert_eq!(lines(&mut state), before);
    // Keys go on.
    press(&mut state, &[DOWN]);
    assert_eq!(state.chosen(), Some("vm1"));
    press(&mut state, &[char('p')]);
    assert_eq!(state.queries(), Queries { is_paused: false, exports: vec!["vm1".into()], commands: None });
}

#[test]
fn long_lines_are_broken_between_words() {
    let lines = |text: &str, indent, width| -> Vec<String> {
        wrapped(text, indent, width, Style::new()).iter().map(ToString::to_string).collect()
    };
    assert_eq!(lines("NAME    7  one two three", 11, 18), ["NAME    7  one two", "         three"]);
    assert_eq!(lines("NAME    7  one two three", 4, 18), ["NAME    7  one two", "    three"]);
    assert_eq!(lines("a word-that-is-too-long b", 2, 8), ["a", "  word-that-is-too-long", "  b"]);
    assert_eq!((lines("", 4, 0), lines("x\u{7}", 4, 0)), (vec![String::new()], vec!["x\\u{7}".into()]));
}

#[test]
fn names_move_no_cursor() {
    let mut hostile = later();
    for device in &mut hostile.hierarchies[0].devices {
        let rename = |name: &str| format!("{name}\u{1b}[2J\n");
        device.name = rename(&device.name);
        device.over.iter_mut().for_each(|name| *name = rename(name));
        device.kind = "\u{7}kind\r".into();
        device.jobs = vec![Job { error: Some("\u{9b}31m".into()), ..job("x\u{1b}c", "y\t") }];
    }
    hostile.version = "1\u{1b}[31m".into();
    let mut state = State::default();
    tell(&mut state, hostile.clone());
    state.on_answer(Answer::Failed("\u{1b}]0;title\u{7}".into()), 0);
    state.on_answer(Answer::Events(vec![event(1, "\u{1b}[1A", 1)]), 0);
    for (keys, said) in [
        (
            vec![],
            &[
                "└─ b\\u{1b}[2J\\n ",
                "lamina 1\\u{1b}[31m",
                " \\u{7}kind\\r ",
                "x\\u{1b}c y\\t ",
                "\\u{9b}31m",
            ][..],
        ),
        (vec![char('s'), ENTER], &["over a\\u{1b}[2J\\n, b", "NO ANSWER since", "\\u{1b}]0;title\\u{7}"]),
        (vec![char('e')], &["warning vm1: \\u{1b}[1A"]),
    ] {
        press(&mut state, &keys);
        let text = tall(&mut state);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        said.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
    }
}

#[test]
fn the_sentence_is_of_the_busiest_export_or_of_that_above_the_chosen_device() {
    let mut two = later();
    let mut export = two.hierarchies[0].exports[0].clone();
    (export.name, export.device) = ("of-b".into(), "b".into());
    two.hierarchies[0].exports.push(export);
    let mut state = busy();
    tell(&mut state, two.clone());
    two.uptime_ns += 1_000_000_000;
    two.hierarchies[0].devices[1].operations.get_mut("read").expect("reads").completed += 1000;
    tell(&mut state, two);
    let mut of_b = why("of-b", 1, 1.0, &[("b", "itself", 5.0)]);
    of_b.device = "b".into();
    state.on_answer(Answer::Why(of_b), 0);
    state.on_answer(Answer::Why(why("vm1", 1, 1.0, &[("a", "itself", 5.0)])), 0);
    let of = |state: &State| state.why().map(|why| why.export.clone());
    assert_eq!(of(&state).as_deref(), Some("of-b"));
    for (device, export) in [("vm1", "vm1"), ("a", "vm1"), ("b", "of-b")] {
        press(&mut state, &[DOWN]);
        assert_eq!((state.chosen(), of(&state).as_deref()), (Some(device), Some(export)));
    }
}
