//! What the log has done, and how it is: figures.

use super::batch::Part;
use super::format::{Head, SLOT, What};
use super::log::Log;
use lamina_block::{Figure, Time, Unit};
use serde_json::{Value, json};
use std::cell::Cell;

/// What is shown, in the order of the columns.
pub(super) const FIGURES: &[Figure] = {
    use Unit::{Bytes, Count, Pieces, Ratio, Seconds};
    const SEGMENTS: Unit = Pieces("/segment_bytes");
    &[
        Figure::gauge("segments", "/segments", SEGMENTS, "Segments of the log.").column("LOG"),
        Figure::gauge("free_segments", "/free_segments", SEGMENTS, "Segments that are free.").column("FREE"),
        Figure::gauge("segment_bytes", "/segment_bytes", Bytes, "Size of a segment."),
        Figure::gauge("live_bytes", "/live_bytes", Bytes, "Blocks in the log that count.").column("LIVE"),
        Figure::gauge("live_ratio", "/live_ratio", Ratio, "The part of used segments that counts."),
        Figure::counter(
            "user_bytes_total",
            "/user_bytes",
            Bytes,
            "Data that users wrote, to the log as whole blocks.",
        )
        .column("WRITTEN"),
        Figure::counter(
            "direct_bytes_total",
            "/direct_bytes",
            Bytes,
            "Data that users wrote home, past the log.",
        ),
        Figure::counter(
            "copied_bytes_total",
            "/copied_bytes",
            Bytes,
            "Blocks that collection and tidying copied.",
        )
        .column("COPIED"),
        Figure::counter("homed_bytes_total", "/homed_bytes", Bytes, "Blocks that collection wrote home."),
        Figure::counter(
            "metadata_bytes_total",
            "/metadata_bytes",
            Bytes,
            "Heads, pages of the map, and checkpoints that were written.",
        ),
        Figure::gauge(
            "amplification_ratio",
            "/amplification",
            Ratio,
            "Bytes written to the device for each byte that users wrote, as whole blocks.",
        )
        .nullable()
        .column("AMPL"),
        Figure::counter(
            "collected_segments_total",
            "/collected_segments",
            Count,
            "Segments that were collected.",
        ),
        Figure::counter("checkpoints_total", "/checkpoints", Count, "Checkpoints that were made."),
        Figure::gauge("checkpoint_age_seconds", "/checkpoint_age", Seconds, "Since the last checkpoint."),
        Figure::gauge("memory_bytes", "/memory", Bytes, "Memory of the map and of the segments."),
    ]
};

/// What was done since the device was opened.
pub(super) struct Counters {
    user: Cell<u64>,
    copied: Cell<u64>,
    homed: Cell<u64>,
    /// Bytes that users wrote home.
    direct: Cell<u64>,
    pages: Cell<u64>,
    heads: Cell<u64>,
    saved: Cell<u64>,
    collected: Cell<u64>,
    collected_live: Cell<u64>,
    checkpoints: Cell<u64>,
    checkpoint: Cell<Time>,
    /// Slots that were appended, by class.
    classes: Vec<Cell<u64>>,
}

fn add(to: &Cell<u64>, more: u64) {
    to.set(to.get() + more);
}

impl Counters {
    /// Nothing was done by `now`.
    pub fn new(classes: usize, now: Time) -> Counters {
        Counters {
            user: Cell::default(),
            copied: Cell::default(),
            homed: Cell::default(),
            direct: Cell::default(),
            pages: Cell::default(),
            heads: Cell::default(),
            saved: Cell::default(),
            collected: Cell::default(),
            collected_live: Cell::default(),
            checkpoints: Cell::default(),
            checkpoint: Cell::new(now),
            classes: vec![Cell::default(); classes],
        }
    }

    /// A batch is written.
    pub fn batch(&self, class: u8, head: &Head, parts: &[Part]) {
        let is_map = usize::from(class) + 1 == self.classes.len();
        add(&self.heads, 1);
        add(&self.classes[usize::from(class)], u64::from(head.slots));
        for part in parts {
            match part.what {
                What::Written if is_map => add(&self.pages, u64::from(part.count)),
                What::Written => add(&self.user, u64::from(part.count)),
                What::Copied => add(&self.copied, u64::from(part.count)),
                What::Homed => add(&self.homed, u64::from(part.count)),
                What::Dropped => {}
            }
        }
    }

    /// Users write bytes home.
    pub fn direct(&self, bytes: u64) {
        add(&self.direct, bytes);
    }

    /// A segment is collected, in which so many blocks counted.
    pub fn collected(&self, live: u64) {
        add(&self.collected, 1);
        add(&self.collected_live, live);
    }

    /// Bytes of a checkpoint are written.
    pub fn saved(&self, bytes: u64) {
        add(&self.saved, bytes);
    }

    /// A checkpoint is durable.
    pub fn checkpoint(&self, now: Time) {
        add(&self.checkpoints, 1);
        self.checkpoint.set(now);
    }

    /// Blocks that were copied.
    pub fn copied(&self) -> u64 {
        self.copied.get()
    }

    /// Bytes appended to the log.
    pub fn written(&self) -> u64 {
        let slots = [&self.user, &self.copied, &self.pages, &self.heads];
        slots.iter().map(|slots| slots.get()).sum::<u64>() * SLOT as u64
    }
}

impl Log {
    /// What is shown of it.
    pub fn info(&self) -> Value {
        let (counters, shape, segments) = (&self.counters, &self.shape, self.segments.borrow());
        let bytes = |slots: &Cell<u64>| slots.get() * SLOT as u64;
        let live: u64 = segments.iter().map(|(_, segment)| u64::from(segment.live)).sum();
        let used = u64::from(shape.segments - segments.free()) * u64::from(shape.segment_slots);
        let all = counters.written() + counters.saved.get() + counters.direct.get() + bytes(&counters.homed);
        let user = bytes(&counters.user) + counters.direct.get();
        let classes: Vec<Value> = counters.classes.iter().enumerate().map(|(class, slots)| {
            let of = segments.iter().filter(|(_, segment)| usize::from(segment.class) == class);
            let of: Vec<_> = of.filter(|(_, segment)| segment.sequence > 0).collect();
            let live: u64 = of.iter().map(|(_, segment)| u64::from(segment.live)).sum();
            json!({ "segments": of.len(), "live_bytes": live * SLOT as u64, "written_bytes": bytes(slots) })
        }).collect();
        json!({
            "segments": shape.segments,
            "free_segments": segments.free(),
            "segment_bytes": u64::from(shape.segment_slots) * SLOT as u64,
            "live_bytes": live * SLOT as u64,
            "live_ratio": live as f64 / used.max(1) as f64,
            "user_bytes": user,
            "direct_bytes": counters.direct.get(),
            "copied_bytes": bytes(&counters.copied),
            "homed_bytes": bytes(&counters.homed),
            "metadata_bytes": bytes(&counters.pages) + bytes(&counters.heads) + counters.saved.get(),
            "amplification": (user > 0).then(|| all as f64 / user as f64),
            "collected_segments": counters.collected.get(),
            "collected_live_bytes": bytes(&counters.collected_live),
            "checkpoints": counters.checkpoints.get(),
            "checkpoint_age": self.env.now().since(counters.checkpoint.get()).as_secs_f64(),
            "memory": self.map.borrow().memory() + segments.memory(),
            "classes": classes,
        })
    }
}
