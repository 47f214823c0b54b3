//! What is told with `LAMINA_STORY`: what happens to the hosts, and what they say of it in their logs.

use super::*;
use std::fmt::Write as _;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    /// The world that is told of.
    static WORLD: RefCell<Weak<SimEnv>> = RefCell::default();
}

/// Whether it is to be told what happens.
pub fn is_told() -> bool {
    std::env::var_os("LAMINA_STORY").is_some()
}

/// Tells what happens, and when.
pub fn tell(world: &SimEnv, what: impl std::fmt::Display) {
    if is_told() {
        println!("{:9.3} s {:6}: {what}", world.now().0 as f64 / 1e9, world.tick());
    }
}

/// Tells what hosts log, until it is dropped.
pub fn tell_logs(world: &Rc<SimEnv>) -> Option<DefaultGuard> {
    WORLD.with_borrow_mut(|of| *of = Rc::downgrade(world));
    is_told().then(|| tracing::subscriber::set_default(Logs))
}

struct Logs;

impl Subscriber for Logs {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= Level::DEBUG && of.target().starts_with("lamina")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        if let Some(world) = WORLD.with_borrow(Weak::upgrade) {
            tell(&world, format!("  {} {}", event.metadata().level(), line.0));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Of a log.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        }
        .expect("a string has space");
    }
}
