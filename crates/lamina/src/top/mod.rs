//! `lamina top`: a live view of a running daemon in the terminal.
//!
//! ```text
//!   keys, size ────┐
//!   signals ───────┼──▶ main thread: State ──▶ draw
//!   daemon ──▶ Poller       │
//!                ▲──────────┘ what is on the screen
//! ```
//!
//! A daemon that hangs does not keep the screen from keys: the poller waits for it in a thread of its own. The state
//! ([`state`]) knows neither terminal nor daemon nor clock, and the drawing ([`draw`]) decides nothing. After the end,
//! a panic or a signal the terminal is as it was.

mod columns;
mod device;
mod draw;
mod history;
mod poller;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use crate::api::Snapshot;
use crate::cli::Top;
use crate::control::Client;
use crate::exit::Failure;
use poller::Poller;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use state::{Answer, Queries, State};
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};

/// A shorter interval is refused: the daemon copies its whole state for each look.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// An input of the main thread.
enum Input {
    /// A key, or another size of the terminal.
    Terminal(Event),
    /// News of the daemon.
    Daemon(Answer),
    /// A signal, or the end of a thread that is needed.
    Stop,
}

/// Says at the end of a thread, also by a panic, that it has ended.
struct Thread(Sender<Input>);

impl Drop for Thread {
    fn drop(&mut self) {
        // The main thread may have ended already.
        let _ = self.0.send(Input::Stop);
    }
}

/// Runs `lamina top`.
pub fn run(args: &Top) -> Result<(), Failure> {
    if args.interval.0 < INTERVAL_MIN {
        return Err(Failure::usage("--interval: 100ms is the shortest time"));
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is no terminal: use `lamina show --watch` instead"));
    }
    let client = Client::find(args.daemon.control.as_deref())?;
    let first: Snapshot = client.get_within("/v1/hierarchy", poller::LIMIT)?;
    let mut state = State::default();
    state.on_answer(Answer::Snapshot(Box::new(first)), now_ms());
    let (inputs, received) = channel();
    stop_on_signals(&inputs)?;
    let mut terminal = ratatui::try_init()?;
    read_terminal(&inputs);
    let queries = poll(client, args.interval.0, &inputs);
    let ended = watch(&mut terminal, &mut state, &received, &queries);
    // The terminal may be gone; then nobody can be told either.
    let _ = ratatui::try_restore();
    ended
}

/// Draws the state after each input until the end.
fn watch(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    inputs: &Receiver<Input>,
    queries: &Sender<Queries>,
) -> Result<(), Failure> {
    let mut told = Queries::default();
    loop {
        terminal.draw(|frame| draw::draw(frame, state))?;
        let now = state.queries();
        if now != told {
            // The end of the poller is an input.
            let _ = queries.send(now.clone());
            told = now;
        }
        // Everything that has come meanwhile is drawn at once.
        let Ok(first) = inputs.recv() else { return Ok(()) };
        for input in std::iter::once(first).chain(inputs.try_iter()) {
            match input {
                Input::Stop => return Ok(()),
                Input::Daemon(answer) => state.on_answer(answer, now_ms()),
                Input::Terminal(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if state.on_key(key) {
                        return Ok(());
                    }
                }
                Input::Terminal(_) => {}
            }
        }
    }
}

/// Hands on keys and changes of the size.
fn read_terminal(inputs: &Sender<Input>) {
    let thread = Thread(inputs.clone());
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if thread.0.send(Input::Terminal(event)).is_err() {
                return;
            }
        }
    });
}

/// Asks the daemon again and again; gives the way to say what is wanted.
fn poll(client: Client, interval: Duration, inputs: &Sender<Input>) -> Sender<Queries> {
    let (queries, wanted) = channel();
    let thread = Thread(inputs.clone());
    std::thread::spawn(move || {
        let tell = |answer| thread.0.send(Input::Daemon(answer)).is_ok();
        Poller::new(client, interval).run(&wanted, tell);
    });
    queries
}

/// A signal ends the program in order: the terminal is as it was.
fn stop_on_signals(inputs: &Sender<Input>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt, mut hang_up) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)
    };
    let thread = Thread(inputs.clone());
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        drop(thread);
    });
    Ok(())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
