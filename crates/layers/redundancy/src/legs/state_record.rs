//! The state record of legs, which is kept with the hierarchy: see `docs/formats/kept.md`.

use super::state::State;
use super::{LegState, Legs, Role};
use lamina_block::{Error, Node, Result};
use lamina_kit::intent::Bits;
use lamina_kit::state_record;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::rc::Rc;

/// The version that is written.
const VERSION: u32 = 1;

/// The state record of a device with legs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    version: u32,
    kind: String,
    /// The id of the intent.
    pub id: u64,
    /// Bytes of each leg that are used.
    pub size: u64,
    /// Bytes of a region of the intent.
    pub region: u64,
    pub legs: Vec<KeptLeg>,
    /// The position of a scrub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<u64>,
    /// Bytes after the intent that are the layer's own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tail: u64,
    /// The device has grown, and the new bytes begin at this byte of each leg and are not zeroed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero: Option<u64>,
    /// The ranges where legs may differ, while a column has no leg; otherwise the intent has them.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "unsure")]
    pub needs_resync: Option<Vec<(u64, u64)>>,
    /// The record of the layer itself.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub own: Value,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// At most so many ranges are recorded; those that lie close together become one.
const RANGES_MAX: usize = 64;

/// The runs of a set, or fewer ranges that cover them.
fn ranges(bits: &Bits) -> Vec<(u64, u64)> {
    let mut bits = bits.clone();
    while bits.runs().nth(RANGES_MAX).is_some() {
        let mut coarser = Bits::none(bits.size(), bits.unit() * 2);
        coarser.join(&bits);
        bits = coarser;
    }
    bits.runs().map(|run| (run.start, run.end)).collect()
}

/// One leg.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptLeg {
    pub device: String,
    pub is: Role,
    /// All bytes of the leg from this one on are stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<u64>,
    /// The column of the leg, where each leg has one.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "place")]
    pub column: Option<usize>,
}

impl Kept {
    /// The record of a new device of `kind`.
    pub fn new(kind: &str, id: u64, size: u64, region: u64) -> Kept {
        Kept {
            version: VERSION,
            kind: kind.into(),
            id,
            size,
            region,
            legs: Vec::new(),
            scrub: None,
            tail: 0,
            zero: None,
            needs_resync: None,
            own: Value::Null,
        }
    }

    /// Reads the record of a device of `kind`.
    pub fn read(kind: &str, kept: &Value) -> Result<Kept> {
        let kept: Kept = state_record::read(kept, VERSION.into(), "legs")?;
        if kept.kind != kind {
            return Err(Error::invalid(format!("type: the device was made as {:?}", kept.kind)));
        }
        let twice = |leg: &KeptLeg| kept.legs.iter().filter(|other| other.device == leg.device).count() > 1;
        match kept.legs.iter().any(twice) {
            true => Err(state_record::corrupt("legs", "a device is two legs")),
            false => Ok(kept),
        }
    }

    /// As JSON.
    pub fn write(&self) -> Value {
        state_record::write(self)
    }
}

impl Legs {
    /// The record of the current state.
    pub(super) fn state_record(&self) -> Value {
        self.ask(|state| self.state_record_of(state))
    }

    fn state_record_of(&self, state: &State) -> Value {
        let shape = self.intent.shape();
        let mut kept = Kept::new(self.kind, shape.id, state.roles().size(), shape.region);
        let leg = |(leg, node): (&LegState, &Rc<Node>)| KeptLeg {
            device: node.name().to_owned(),
            is: leg.role,
            copied: leg.copied,
            column: leg.column,
        };
        kept.legs = state.roles().legs().iter().zip(&self.nodes).map(leg).collect();
        kept.scrub = state.findings.position();
        kept.tail = self.tail;
        kept.zero = state.to_zero().map(|new| new.start);
        kept.needs_resync = state.roles().is_degraded().then(|| ranges(state.regions().needs_resync()));
        kept.own = self.own.borrow().clone();
        kept.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::ErrorKind;
    use serde_json::json;

    const GOLDEN: &str = include_str!("../../tests/golden/kept-legs-1.json");

    #[test]
    fn version_1_is_as_it_was() {
        let mut kept = Kept::new("mirror", 0x1122_3344_5566_7788, 1 << 30, 4 << 20);
        let leg = |device: &str, is, copied| KeptLeg { device: device.into(), is, copied, column: None };
        kept.legs = vec![
            leg("a", Role::Sync, None),
            leg("b", Role::Stale, None),
            leg("c", Role::Stale, Some(65536)),
            leg("d", Role::Failed, None),
            leg("e", Role::Spare, None),
        ];
        kept.scrub = Some(4096);
        let text = serde_json::to_string_pretty(&kept.write()).expect("JSON") + "\n";
        if std::env::var_os("LAMINA_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/kept-legs-1.json");
            std::fs::write(path, &text).expect("it can be written");
        }
        assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/kept.md");
        let read = Kept::read("mirror", &serde_json::from_str(GOLDEN).expect("JSON")).expect("read");
        assert_eq!(read.write(), kept.write());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good: Value = serde_json::from_str(GOLDEN).expect("JSON");
        let refused = |change: fn(&mut Value)| {
            let mut bad = good.clone();
            change(&mut bad);
            Kept::read("mirror", &bad).map(|kept| kept.write()).expect_err("it was taken").kind()
        };
        assert_eq!(refused(|kept| kept["version"] = json!(2)), ErrorKind::Unsupported);
        assert_eq!(refused(|kept| kept["version"] = json!(0)), ErrorKind::Corrupt);
        assert_eq!(refused(|kept| kept["more"] = json!(1)), ErrorKind::Corrupt);
        assert_eq!(refused(|kept| kept["legs"][0]["is"] = json!("good")), ErrorKind::Corrupt);
        assert_eq!(refused(|kept| kept["legs"][0]["device"] = json!("b")), ErrorKind::Corrupt);
        assert_eq!(refused(|kept| kept["size"] = json!(-1)), ErrorKind::Corrupt);
        assert_eq!(refused(|kept| kept["kind"] = json!("parity")), ErrorKind::Invalid);
    }
}
