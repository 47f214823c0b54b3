//! `legs`: the same bytes on every child, for tests in which members fail and come back.
//!
//! One request after the other. A child that the record calls stale is not read, and copied whole when it is there
//! again.

use lamina_block::{
    Begin, Buf, Build, Children, Config, Durability, Error, Geometry, Io, Keep, Kind, Layer, Made, Manage,
    Node, Passthrough, Pending, Result, Signal, Step, Traits,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// The kind.
pub const KIND: Kind = Kind::of::<Keys>();

/// Bytes that are copied at once.
const PIECE: u64 = 256 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    /// The canary: a missed write is not recorded before the write is done.
    #[serde(default)]
    forgetful: bool,
}

impl Config for Keys {
    const KIND: &'static str = "legs";
    const SUMMARY: &'static str = "the same bytes on every child";
    const CHILDREN: RangeInclusive<usize> = 2..=9;
    const TRAITS: Traits = Traits { keeps: true, ..Traits::NONE };

    fn survives(&self, children: usize) -> usize {
        children - 1
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let keep = with.keep.clone().ok_or_else(|| Error::invalid("only in a persistent hierarchy"))?;
            let stale = match with.begin {
                Begin::Open => {
                    keep.get().and_then(|kept| serde_json::from_value(kept).ok()).unwrap_or_default()
                }
                Begin::Format | Begin::Adopt => BTreeSet::new(),
            };
            let there = with.children.iter().filter(|child| !child.is_absent());
            let size = there.map(|child| child.geometry().size).min().unwrap_or(0);
            let legs = Rc::new(Legs {
                children: with.children,
                size,
                keep,
                forgetful: self.forgetful,
                stale: RefCell::new(stale),
                busy: Cell::new(false),
                free: Signal::new(),
                closed: Cell::new(false),
            });
            let absent =
                legs.children.iter().filter(|child| child.is_absent()).map(|child| child.name().into());
            legs.go_stale(absent.collect()).await?;
            if !legs.children.iter().any(|child| legs.is_good(child)) {
                return Err(Error::offline("no child is good"));
            }
            for child in &legs.children {
                legs.catch_up(child).await?;
                let (legs, child, env) = (Rc::downgrade(&legs), Rc::clone(child), Rc::clone(&with.env));
                env.spawn(Box::pin(async move {
                    loop {
                        child.resized().await;
                        let Some(legs) = legs.upgrade().filter(|legs| !legs.closed.get()) else { return };
                        let _turn = legs.turn().await;
                        let _ = legs.catch_up(&child).await;
                    }
                }));
            }
            Ok(legs as Made)
        })
    }
}

struct Legs {
    children: Children,
    size: u64,
    keep: Rc<dyn Keep>,
    forgetful: bool,
    /// The children that missed a write.
    stale: RefCell<BTreeSet<String>>,
    busy: Cell<bool>,
    free: Signal,
    closed: Cell<bool>,
}

impl Legs {
    fn is_good(&self, child: &Rc<Node>) -> bool {
        !child.is_absent() && !self.stale.borrow().contains(child.name())
    }

    fn good(&self) -> Vec<Rc<Node>> {
        self.children.iter().filter(|child| self.is_good(child)).cloned().collect()
    }

    /// Records durably that these children have missed a write.
    async fn go_stale(&self, names: Vec<String>) -> Result<()> {
        let mut stale = self.stale.borrow().clone();
        stale.extend(names);
        if stale == *self.stale.borrow() {
            return Ok(());
        }
        self.stale.replace(stale.clone());
        if self.forgetful { Ok(()) } else { self.keep.set(json!(stale)).await }
    }

    /// Copies everything to a child that is there and stale.
    async fn catch_up(&self, child: &Rc<Node>) -> Result<()> {
        let from = self.good().into_iter().next().ok_or_else(|| Error::offline("no child is good"))?;
        if child.is_absent() || self.is_good(child) {
            return Ok(());
        }
        for at in (0..self.size).step_by(PIECE as usize) {
            let buf = Buf::zeroed(PIECE.min(self.size - at) as usize);
            from.submit(Io::read(at, buf.clone())).await?;
            child.submit(Io::write(at, buf, Durability::Cached)).await?;
        }
        child.submit(Io::flush()).await?;
        let mut stale = self.stale.borrow().clone();
        stale.remove(child.name());
        self.keep.set(json!(stale)).await?;
        self.stale.replace(stale);
        Ok(())
    }

    async fn turn(&self) -> Turn<'_> {
        self.free.until(|| !self.busy.get()).await;
        self.busy.set(true);
        Turn(self)
    }

    async fn read(&self, at: u64, buf: Buf) -> Result<()> {
        let mut result = Err(Error::offline("no child is good"));
        for child in self.good() {
            result = child.submit(Io::read(at, buf.clone())).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Runs the request on all good children; those that fail become stale.
    async fn change(&self, io: impl Fn() -> Io) -> Result<()> {
        let (mut failed, mut result) = (Vec::new(), Err(Error::offline("no child is good")));
        for child in self.good() {
            match child.submit(io()).await {
                Ok(()) => result = Ok(()),
                Err(_) => failed.push(child.name().to_owned()),
            }
        }
        result?;
        self.go_stale(failed).await
    }
}

struct Turn<'a>(&'a Legs);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.free.notify();
    }
}

impl Layer for Legs {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.size)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let io = io.take();
        Step::control(async move {
            let _turn = self.turn().await;
            let at = io.at.start;
            match io.op {
                lamina_block::Op::Read(buf) => self.read(at, buf).await,
                lamina_block::Op::Write(buf, how) => self.change(|| Io::write(at, buf.clone(), how)).await,
                lamina_block::Op::Flush => self.change(Io::flush).await,
                lamina_block::Op::Zero(_) | lamina_block::Op::Discard => Err(Error::unsupported("not here")),
            }
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn close(self: Rc<Self>) -> Pending {
        self.closed.set(true);
        Box::pin(async { Ok(()) })
    }
}

impl Manage for Legs {
    fn info(&self) -> Value {
        json!({ "stale": *self.stale.borrow() })
    }
}
