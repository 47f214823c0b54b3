//! Segments that are zones: a breach of a write pointer or of the open limit is a finding of the disk.

use super::*;
use lamina_block::Error;

/// Some twenty segments of ten slots, behind conventional zones for superblock and checkpoints.
const ZONES: Zones = Zones { first: 16 << 10, count: 21, size: 64 << 10, capacity: 40 << 10, open_max: 3 };

fn disk(rig: &Rig) -> Rc<Node> {
    rig.sim_zoned(0, ZONES);
    rig.disk(0)
}

pub fn zoned() -> Subject {
    Subject::new("zoned", |rig| async move {
        let children = vec![disk(&rig)];
        rig.build(&Kind::of::<super::super::Keys>(), "top", json!({}), children).await
    })
}

/// The same with other writes beside.
pub fn zoned_crowded() -> Subject {
    Subject::new("zoned and crowded", |rig| {
        let disk = disk(&rig);
        crowd(rig, disk, json!({}))
    })
    .seeds(3)
}

lamina_sim::gauntlet!(alone, super::zoned());

#[test]
fn zones_that_go_round() {
    for check in [Check::Model, Check::Crash, Check::Faults, Check::Deaths] {
        lamina_sim::test(&zoned_crowded(), check, &lamina_sim::replay!());
    }
}

fn refused(zones: Zones) -> Error {
    super::super::zones::shape(&zones, 1, 2).expect_err("refused")
}

#[test]
fn a_device_whose_zones_do_not_fit_is_refused() {
    for (zones, says) in [
        (Zones { count: 10, ..ZONES }, "too few for a log"),
        (Zones { first: 4096, ..ZONES }, "behind 4096 conventional bytes"),
        (Zones { capacity: 4095 << 3, ..ZONES }, "no multiple of 4096"),
        (Zones { capacity: 4096, ..ZONES }, "too small or too large"),
        (Zones { size: 1 << 40, capacity: 1 << 40, ..ZONES }, "too small or too large"),
        (Zones { open_max: 2, ..ZONES }, "limit of 2 open zones"),
    ] {
        let e = refused(zones);
        assert!(e.message().contains(says), "{zones:?}: {e}");
    }
}

#[test]
fn the_open_limit_bounds_the_classes() {
    let of = |open_max| {
        let zones = Zones { count: 400, first: 1 << 20, open_max, ..ZONES };
        super::super::zones::shape(&zones, 1, 2).expect("a log")
    };
    assert_eq!([0, 3, 6, 7, 128].map(|open_max| of(open_max).classes()), [6, 2, 2, 6, 6]);
    let shape = of(3);
    assert_eq!((shape.start(2), shape.segment_of(256 + 2 * 16 + 9)), (256 + 2 * 16, 2));
    let size = 1 << 30;
    assert_eq!(super::super::format::Super::decode(&shape.encode(), size), Ok(shape));
}

/// A disk with these zones, and a log on it.
async fn made(world: &World) -> (Rc<Node>, Rc<Node>) {
    let options = lamina_sim::DiskOptions::new(ZONES.range().end);
    world.sim.put_disk("disk", lamina_sim::Image::zoned(options, ZONES));
    let disk = world.sim.disk("disk").expect("there");
    let disk = Node::new("disk", "simulated", Rc::clone(&world.env), disk);
    let keys = Kind::of::<super::super::Keys>().parse(&json!({})).map_err(|e| e.message).expect("keys");
    let mut with = lamina_block::Build::new("log", &world.env, vec![Rc::clone(&disk)]);
    with.begin = lamina_block::Begin::Format;
    let layer = keys.build(with).await.expect("made");
    let log = Node::new("log", "sequentialize", Rc::clone(&world.env), layer);
    (disk, log)
}

/// The device allows no more zones than are open, and a write fails in each of them: those are finished.
#[test]
fn zones_that_failed_are_closed() {
    simulated(|world| async move {
        let (_, log) = made(&world).await;
        for turn in 0..60u64 {
            let fault = move |_: u64, _: &str, io: &Io| {
                let is_write = io.op.kind() == OpKind::Write && io.at.start >= ZONES.first;
                is_write.then(|| Error::media("unwritable"))
            };
            if turn % 5 == 0 {
                world.sim.set_fault(Some(Box::new(fault)));
            }
            let write =
                Io::write(turn % 50 * 4096, Buf::from_vec(vec![turn as u8 + 1; 4096]), Durability::Cached);
            let result = log.submit(write).await;
            assert_eq!(result.is_err(), turn % 5 == 0, "turn {turn}: {result:?}");
            world.sim.set_fault(None);
            assert_eq!(world.sim.take_finding(), None, "turn {turn}");
        }
        let into = Buf::from_vec(vec![0; 4096]);
        log.submit(Io::read(7 * 4096, into.clone())).await.expect("read");
        assert_eq!(into.to_vec(), [58; 4096]);
        log.close().await.expect("closed");
    });
}

/// What others have had in memory does not get to the device.
#[test]
fn what_pads_a_zone_is_zeroes() {
    simulated(|world| async move {
        let (disk, log) = made(&world).await;
        // Two batches of three slots, and one that goes to the end of the zone.
        for turn in 0..3 {
            world.env.pool().take(4 * 4096).copy_from(&Buf::from_vec(vec![0xFF; 4 * 4096]));
            let write = Io::write(turn * 2 * 4096, Buf::from_vec(vec![0xFF; 2 * 4096]), Durability::Cached);
            log.submit(write).await.expect("written");
        }
        let into = Buf::zeroed(ZONES.capacity as usize);
        disk.submit(Io::read(ZONES.first, into.clone())).await.expect("read");
        let is_full_of =
            |slot: usize, byte| into.to_vec()[slot * 4096..][..4096].iter().all(|of| *of == byte);
        assert!(is_full_of(8, 0xFF) && is_full_of(9, 0), "padding that is not zeroes");
        log.close().await.expect("closed");
    });
}
