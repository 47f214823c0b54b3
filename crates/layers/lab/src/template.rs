//! `template`: remembers how far a device has been written, the high-water mark.
//!
//! The example to begin a layer with. `make new-layer NAME=x FAMILY=lab` copies this file, without this paragraph, and
//! registers the copy; replace what it does, and keep its shape.
//!
//! For a device that is filled from the front, the mark tells how much of it is in use. The mark is at least
//! the end of every write that has completed since the layer was built or reset.
//!
//! ```text
//!      read, discard, flush ──────────────▶ below     handed on, not seen again
//!      write, zero ──────▶ below
//!                            │
//!      mark = max(mark, end) ◀┘                       on the way up, without error
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `warn-at` (never): a size such as "900MiB"; a log line is written when the mark first passes it.
//!
//! Commands: `reset` puts the mark back to 0 and answers with the old mark. The layer deliberately does not
//! persist the mark: see `record` for a layer with something on disk.

use lamina_block::{
    Build, Bytes, Command, Config, Consent, Effect, Figure, Geometry, Io, Layer, Made, Manage, Node, Op,
    Passthrough, Pending, Step, Traits, Unit, Verb,
};
use lamina_kit::command::unknown;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;

/// The keys; see the module. One field a key: unknown ones are refused, and messages name the line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    warn_at: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "template";
    const SUMMARY: &'static str = "how far a device has been written (the example)";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        figures: &[Figure::gauge("mark_bytes", "/mark", Unit::Bytes, "The end of the last written byte.")
            .column("MARK")],
        verbs: &[Verb::new("reset", "puts the mark back to 0")],
        ..Traits::NONE
    };

    /// Makes the layer. This may wait for disks and children, and fail with an error that names the key.
    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let layer =
                Template { name: with.name.clone(), child: with.child(), keys: self, mark: Cell::new(0) };
            Ok(Rc::new(layer) as Made)
        })
    }
}

/// The layer: its children, its keys, its state. One core, so `Cell` and `RefCell`, no locks.
struct Template {
    name: String,
    child: Rc<Node>,
    keys: Keys,
    mark: Cell<u64>,
}

impl Template {
    /// The decisions of the layer, apart from the flow of requests.
    fn passed(&self, end: u64) {
        let before = self.mark.replace(self.mark.get().max(end));
        if let Some(warn) = self.keys.warn_at.filter(|warn| (before..end).contains(&warn.0)) {
            tracing::warn!(device = %self.name, "written beyond {warn}");
        }
    }
}

impl Layer for Template {
    /// As below, with the native operations of the device below.
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            // Forward: costs next to nothing, and nothing on the way up.
            Op::Read(_) | Op::Discard | Op::Flush => Step::Forward(Rc::clone(&self.child)),
            // Control: before the child's `.await` is the way down, after it the way up. No borrow may be held
            // across it.
            Op::Write(..) | Op::Zero(_) => {
                let io = io.take();
                Step::control(async move {
                    let end = io.at.end;
                    self.child.submit(io).await?;
                    self.passed(end);
                    Ok(())
                })
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Template {
    /// The layer keeps no state about the bytes below. A layer that does forgets it here, or refuses.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "reset" => Ok(json!({ "mark": self.mark.take() })),
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn info(&self) -> Value {
        json!({ "mark": self.mark.get() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({ "warn-at": "64KiB" }), 1)
    }

    #[test]
    fn the_mark_is_the_end_of_what_was_written() {
        let node = over("template", json!({"warn-at": "64KiB"}), &[&memory("1MiB")]);
        write(&node, 4096, 1, 512);
        submit(&node, Io::zero(0..512, Default::default())).unwrap();
        read(&node, 1 << 19, 512);
        assert_eq!(node.info()["mark"], 4608);
        assert_eq!(command(&node, "reset", json!({})).unwrap()["mark"], 4608);
        assert_eq!(node.info()["mark"], 0);
    }
}
