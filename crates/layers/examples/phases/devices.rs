//! The volumes, and what is below them.

use super::options::{On, Wanted};
use lamina_block::{Begin, Build, Command, Env, Error, Geometry, Node, Result};
use lamina_drive::Model;
use lamina_sim::{Contents, DiskOptions, Image, SimEnv, SimKeep};
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// What a device of the tier shows that a step is judged by.
const SHOWN: [&str; 6] =
    ["share_bytes", "cached_bytes", "dirty_bytes", "filled_bytes", "destaged_bytes", "hit_rate"];

/// The volumes.
pub struct Devices {
    pub volumes: Vec<Rc<Node>>,
}

/// A drive that keeps what is `kept`.
fn drive(env: &Rc<SimEnv>, name: &str, model: &Model, geometry: Geometry, contents: Contents) -> Rc<Node> {
    let options =
        DiskOptions { geometry, latency_max: Duration::ZERO, contents, ..DiskOptions::new(geometry.size) };
    let disk = env.put_disk(name, Image::blank(options));
    disk.set_drive(model.drive(1));
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    Node::new(name, "drive", world, disk)
}

fn native(size: u64, block: u32) -> Geometry {
    Geometry { block, discard: true, zero: true, fua: true, ..Geometry::new(size) }
}

async fn over(
    env: &Rc<SimEnv>,
    name: String,
    kind: &str,
    keys: Value,
    children: Vec<Rc<Node>>,
) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind);
    let kind = kind.ok_or_else(|| Error::invalid("no such kind"))?;
    let keys = kind.parse(&keys).map_err(|e| Error::invalid(format!("{}: {}", e.path, e.message)))?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let mut with = Build::new(&name, &world, children);
    if kind.traits.keeps {
        with.keep = Some(SimKeep::open(env, &name).await?.0);
        with.begin = Begin::Format;
    }
    let made = keys.build(with).await?;
    Ok(Node::new(&name, kind.name, world, made))
}

impl Devices {
    /// Makes what is wanted, on an SSD of `slots` blocks of 4 KiB if there is a tier.
    pub async fn build(env: &Rc<SimEnv>, wanted: &Wanted, slots: u64) -> Result<Devices> {
        let size = wanted.load.size();
        let all = native(size * wanted.volumes as u64, 512);
        let slow = match wanted.on {
            On::Ssd => drive(env, "ssd", &wanted.ssd, all, Contents::Zeroes),
            On::Tier | On::Disk => drive(env, "disk", &wanted.disk, all, Contents::Zeroes),
        };
        let flash = match wanted.on {
            On::Tier => {
                // The flash reads what it says of itself; what clients write are zeroes.
                let ssd = drive(env, "ssd", &wanted.ssd, native(slots * 4096, 4096), Contents::Durable);
                Some(over(env, "flash".into(), "flash", json!({}), vec![ssd]).await?)
            }
            On::Disk | On::Ssd => None,
        };
        let mut volumes = Vec::new();
        for number in 0..wanted.volumes {
            let keys = json!({ "offset": number as u64 * size, "size": size });
            let part = over(env, format!("part-{number}"), "linear", keys, vec![Rc::clone(&slow)]).await?;
            volumes.push(match &flash {
                Some(flash) => {
                    let keys = json!({ "placement": wanted.placement });
                    let children = vec![part, Rc::clone(flash)];
                    over(env, format!("volume-{number}"), "tier", keys, children).await?
                }
                None => part,
            });
        }
        Ok(Devices { volumes })
    }

    /// Slots of the flash that all volumes have together; none without a tier.
    pub fn slots(&self) -> Option<u64> {
        let shares = self.volumes.iter().map(|volume| volume.info()["share_bytes"].as_u64());
        shares.sum::<Option<u64>>().map(|bytes| bytes / 4096)
    }

    /// Some of the volumes are told.
    pub async fn command(&self, volumes: Range<usize>, command: &Command) -> Result<()> {
        for volume in &self.volumes[volumes] {
            volume.control(command.clone()).await?;
        }
        Ok(())
    }
}

/// What a volume shows.
pub fn shown(volume: &Rc<Node>) -> Value {
    let info = volume.info();
    SHOWN.into_iter().map(|key| (key.to_owned(), info[key].clone())).collect()
}
