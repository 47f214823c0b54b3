//! What is done with events as they come: a file has them, and a program is told.

use super::log_file::LogFile;
use super::{Journal, MOST};
use crate::api::Event;
use crate::exit::Failure;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;

/// A program that takes longer is ended.
const LONGEST: Duration = Duration::from_secs(60);

/// Keeps events, and tells of them.
pub struct Keeper {
    journal: Arc<Journal>,
    file: Option<LogFile>,
    program: Option<PathBuf>,
    /// The last event that was seen to.
    seen: u64,
    /// The file does not take events.
    is_failing: bool,
}

impl Keeper {
    /// Keeps the events of this process in a file, behind those that are there, and starts a program for each.
    pub fn open(
        journal: &Arc<Journal>,
        file: Option<&Path>,
        program: Option<&Path>,
    ) -> Result<Keeper, Failure> {
        let wrong = |path: &Path, e| Failure::failed(format!("--events: {}: {e}", path.display()));
        let opened = file.map(|path| LogFile::open(path).map_err(|e| wrong(path, e))).transpose()?;
        let seen = opened.as_ref().and_then(|(_, earlier)| earlier.last()).map_or(0, |last| last.number);
        let file = opened.map(|(file, earlier)| {
            journal.begin_with(earlier);
            file
        });
        Ok(Keeper {
            journal: Arc::clone(journal),
            file,
            program: program.map(Path::to_path_buf),
            seen,
            is_failing: false,
        })
    }

    /// Goes on until it is dropped.
    pub async fn go_on(&mut self) -> Infallible {
        let told = self.program.clone().map(|program| {
            let (sender, events) = mpsc::channel(MOST);
            // A task of its own: a program that takes long keeps no event from the file.
            tokio::spawn(tell_all(program, events));
            sender
        });
        loop {
            self.journal.moved_after(self.seen).await;
            for event in self.keep().into_iter().filter(|event| event.times == 1) {
                if told.as_ref().is_some_and(|told| told.try_send(event).is_err()) {
                    tracing::warn!("the program of --on-event takes too long: it is not told of an event");
                }
            }
        }
    }

    /// The file gets what it does not have yet; that is given.
    pub fn keep(&mut self) -> Vec<Event> {
        let events = self.journal.after(self.seen);
        self.seen = events.last().map_or(self.seen, |last| last.number);
        if let Some(file) = &mut self.file {
            let added = file.add(&events, || self.journal.after(0));
            if let Err(e) = &added
                && !self.is_failing
            {
                tracing::warn!(error = %e, "the file of events takes no more");
            }
            self.is_failing = added.is_err();
        }
        events
    }
}

/// Runs a program for each event, one after the other.
async fn tell_all(program: PathBuf, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        tell(&program, &event).await;
    }
}

/// Runs a program for an event, which is in its environment.
async fn tell(program: &Path, event: &Event) {
    let mut command = Command::new(program);
    command
        .env("LAMINA_EVENT_NUMBER", event.number.to_string())
        .env("LAMINA_EVENT_TIME", super::command::time(event.time_ms))
        .env("LAMINA_EVENT_SEVERITY", &event.severity)
        .env("LAMINA_EVENT_DEVICE", event.device.as_deref().unwrap_or_default())
        .env("LAMINA_EVENT_MESSAGE", event.message.replace('\0', "\u{FFFD}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    let failed = match tokio::time::timeout(LONGEST, async { command.spawn()?.wait().await }).await {
        Ok(Ok(status)) if status.success() => return,
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("it was ended after {} seconds", LONGEST.as_secs()),
    };
    tracing::warn!(program = %program.display(), event = event.number, failed, "the program of --on-event has failed");
}
