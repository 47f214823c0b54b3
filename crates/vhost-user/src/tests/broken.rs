//! Bytes of a broken or hostile guest: every chain is answered, or the queue is stopped. Never more.

use crate::queue::Turn;
use crate::testing::*;

const SIZE: u16 = 8;
const HEADER: u64 = HEAP;
const DATA: u64 = HEAP + 0x1000;
const STATUS: u64 = HEAP + 0x4000;
const TABLE: u64 = HEAP + 0x5000;
const END: u64 = BASE + 2 * REGION;

#[derive(Debug, PartialEq)]
enum Outcome {
    /// Answered with this status.
    Status(u8),
    /// The queue takes nothing any more.
    Stopped,
}
use Outcome::{Status, Stopped};

/// The chain's descriptors: address, length, flags, next.
type Chain<'a> = &'a [(u64, u32, u16, u16)];

/// Offers a chain in the queue's table and returns its outcome. A request behind it must be answered, too, unless the
/// queue stopped.
fn outcome(kind: u32, sector: u64, chain: Chain, table: Chain) -> Outcome {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    guest.header(HEADER, kind, sector);
    for (i, (address, len, flags, next)) in chain.iter().enumerate() {
        guest.descriptor(i as u16, *address, *len, *flags, *next);
    }
    for (i, (address, len, flags, next)) in table.iter().enumerate() {
        guest.descriptor_at(TABLE + i as u64 * 16, *address, *len, *flags, *next);
    }
    guest.write(STATUS, &[0xee]);
    guest.offer(0);
    let turn = device.run();
    let used = guest.used();
    if turn == Turn::Stopped {
        assert_eq!(used, []);
        return Stopped;
    }
    assert_eq!(used.len(), 1);
    assert_eq!(used[0].0, 0);
    // Not one of these is carried out.
    let changes = device.disk.log.take().into_iter().filter(|line| !line.starts_with("read")).count();
    assert!(changes == 0 || guest.read(STATUS) == [0]);
    guest.request(5, 4, 0, 0);
    guest.offer(5);
    assert_eq!(device.run(), Turn::Idle);
    assert_eq!((guest.used(), guest.status(5)), (vec![(5, 1)], 0));
    Status(guest.read::<1>(STATUS)[0])
}

const STATUS_BYTE: (u64, u32, u16, u16) = (STATUS, 1, WRITE, 0);
const GOOD_HEADER: (u64, u32, u16, u16) = (HEADER, 16, NEXT, 1);

#[test]
fn chains_in_the_queues_table() {
    let cases: &[(&str, u32, u64, Chain, Outcome)] = &[
        ("a loop of one", 0, 0, &[(HEADER, 16, NEXT, 0)], Stopped),
        ("a loop of two", 0, 0, &[GOOD_HEADER, (DATA, 512, NEXT | WRITE, 0)], Stopped),
        ("a successor outside the table", 0, 0, &[(HEADER, 16, NEXT, SIZE)], Stopped),
        ("a successor far outside", 0, 0, &[(HEADER, 16, NEXT, 0xffff)], Stopped),
        ("nothing but a header", 4, 0, &[(HEADER, 16, 0, 0)], Stopped),
        ("no writable byte", 1, 0, &[GOOD_HEADER, (DATA, 512, 0, 0)], Stopped),
        ("a status of no length", 4, 0, &[GOOD_HEADER, (STATUS, 0, WRITE, 0)], Stopped),
        ("a status outside memory", 4, 0, &[GOOD_HEADER, (END, 1, WRITE, 0)], Stopped),
        ("a status at the last address", 4, 0, &[GOOD_HEADER, (u64::MAX, 1, WRITE, 0)], Stopped),
        ("a status that begins inside memory only", 4, 0, &[GOOD_HEADER, (END - 1, 2, WRITE, 0)], Stopped),
        ("only a status", 4, 0, &[STATUS_BYTE], Status(1)),
        ("a writable header", 0, 0, &[(HEADER, 16, WRITE | NEXT, 1), STATUS_BYTE], Status(1)),
        ("a header too short", 4, 0, &[(HEADER, 15, NEXT, 1), STATUS_BYTE], Status(1)),
        ("a header outside memory", 4, 0, &[(BASE - 1, 16, NEXT, 1), STATUS_BYTE], Status(1)),
        ("a header of no length", 4, 0, &[(HEADER, 0, NEXT, 1), STATUS_BYTE], Status(1)),
        (
            "data outside memory",
            0,
            0,
            &[GOOD_HEADER, (END - 511, 512, WRITE | NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        ("data at address zero", 1, 0, &[GOOD_HEADER, (0, 512, NEXT, 2), STATUS_BYTE], Status(1)),
        (
            "data that wraps around",
            0,
            0,
            &[GOOD_HEADER, (u64::MAX - 255, 512, WRITE | NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        ("data longer than memory", 1, 0, &[GOOD_HEADER, (DATA, u32::MAX, NEXT, 2), STATUS_BYTE], Status(1)),
        ("data of half a sector", 0, 0, &[GOOD_HEADER, (DATA, 256, WRITE | NEXT, 2), STATUS_BYTE], Status(1)),
        ("data of 513 bytes", 1, 0, &[GOOD_HEADER, (DATA, 513, NEXT, 2), STATUS_BYTE], Status(1)),
        ("a read into readable memory", 0, 0, &[GOOD_HEADER, (DATA, 512, NEXT, 2), STATUS_BYTE], Status(1)),
        (
            "a write from writable memory",
            1,
            0,
            &[GOOD_HEADER, (DATA, 512, WRITE | NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        (
            "readable after writable",
            1,
            0,
            &[GOOD_HEADER, (STATUS, 1, WRITE | NEXT, 2), (DATA, 512, 0, 0)],
            Status(1),
        ),
        (
            "a read behind the end",
            0,
            DISK / 512,
            &[GOOD_HEADER, (DATA, 512, WRITE | NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        (
            "a write across the end",
            1,
            DISK / 512 - 1,
            &[GOOD_HEADER, (DATA, 1024, NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        (
            "a sector that overflows",
            0,
            u64::MAX,
            &[GOOD_HEADER, (DATA, 512, WRITE | NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        (
            "a sector that overflows in bytes",
            1,
            1 << 55,
            &[GOOD_HEADER, (DATA, 512, NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        ("an unknown request", 77, 0, &[GOOD_HEADER, STATUS_BYTE], Status(2)),
        ("a request of the obsolete kind", 2, 0, &[GOOD_HEADER, STATUS_BYTE], Status(2)),
        ("a secure erase", 14, 0, &[GOOD_HEADER, (DATA, 16, NEXT, 2), STATUS_BYTE], Status(2)),
        ("a discard without ranges", 11, 0, &[GOOD_HEADER, STATUS_BYTE], Status(1)),
        ("a discard of half a range", 11, 0, &[GOOD_HEADER, (DATA, 8, NEXT, 2), STATUS_BYTE], Status(1)),
        (
            "a discard of too many ranges",
            11,
            0,
            &[GOOD_HEADER, (DATA, 33 * 16, NEXT, 2), STATUS_BYTE],
            Status(1),
        ),
        ("an indirect table of no length", 0, 0, &[(TABLE, 0, INDIRECT, 0)], Stopped),
        ("an indirect table of half a descriptor", 0, 0, &[(TABLE, 24, INDIRECT, 0)], Stopped),
        ("an indirect table outside memory", 0, 0, &[(END, 32, INDIRECT, 0)], Stopped),
        ("an indirect table that wraps around", 0, 0, &[(u64::MAX - 15, 64, INDIRECT, 0)], Stopped),
        (
            "an indirect table with a successor",
            0,
            0,
            &[(TABLE, 32, INDIRECT | NEXT, 1), STATUS_BYTE],
            Stopped,
        ),
        ("the serial into no space", 8, 0, &[GOOD_HEADER, STATUS_BYTE], Status(0)),
        ("a read of nothing", 0, 0, &[GOOD_HEADER, STATUS_BYTE], Status(0)),
        ("a flush with data", 4, 0, &[GOOD_HEADER, (DATA, 512, NEXT, 2), STATUS_BYTE], Status(0)),
    ];
    for (name, kind, sector, chain, expected) in cases {
        assert_eq!(outcome(*kind, *sector, chain, &[]), *expected, "{name}");
    }
}

#[test]
fn chains_in_an_indirect_table() {
    let indirect = |n: u32| (TABLE, n * 16, INDIRECT, 0);
    let long: Vec<_> = (1..=3000).map(|i| (DATA, 0, NEXT, i)).collect();
    let cases: &[(&str, Chain, Chain, Outcome)] = &[
        ("all is well", &[indirect(2)], &[GOOD_HEADER, STATUS_BYTE], Status(0)),
        ("a table within a table", &[indirect(2)], &[GOOD_HEADER, (TABLE, 32, INDIRECT, 0)], Stopped),
        ("a table that is its own entry", &[indirect(1)], &[(TABLE, 16, INDIRECT, 0)], Stopped),
        ("a successor outside the table", &[indirect(2)], &[(HEADER, 16, NEXT, 2)], Stopped),
        ("a loop", &[indirect(2)], &[GOOD_HEADER, (DATA, 512, NEXT | WRITE, 1)], Stopped),
        ("a chain longer than any request", &[indirect(3000)], &long, Stopped),
        ("a table of 4 GiB", &[(TABLE, u32::MAX - 15, INDIRECT, 0)], &[GOOD_HEADER, STATUS_BYTE], Status(0)),
        ("after a direct header", &[GOOD_HEADER, indirect(1)], &[STATUS_BYTE], Status(0)),
    ];
    for (name, chain, table, expected) in cases {
        assert_eq!(outcome(4, 0, chain, table), *expected, "{name}");
    }
}

#[test]
fn ranges_that_cannot_be() {
    let range = |sector: u64, sectors: u32, flags: u32| {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    let cases = [
        (11, range(0, 8, 0), 0),
        (11, range(0, 8, 1), 2),
        (11, range(0, 8, 2), 2),
        (13, range(0, 8, 1), 0),
        (13, range(0, 8, 0x8000_0000), 2),
        (13, range(u64::MAX, 8, 0), 1),
        (13, range(u64::MAX / 512, u32::MAX, 0), 1),
        (13, range(DISK / 512 - 1, 2, 0), 1),
        (11, range(0, u32::MAX, 0), 1),
        (11, range(0, 0, 0), 0),
    ];
    for (kind, bytes, status) in cases {
        let guest = Guest::new(SIZE);
        let mut device = device(&guest, With::default());
        guest.request(0, kind, 0, 16);
        guest.write(guest.data(0), &bytes);
        guest.offer(0);
        device.run();
        assert_eq!((guest.used(), guest.status(0)), (vec![(0, 1)], status), "{kind} {bytes:?}");
    }
}

#[test]
fn rings_that_cannot_be() {
    let guest = Guest::new(SIZE);
    let mut offered = device(&guest, With::default());
    guest.offer(SIZE);
    assert_eq!(offered.run(), Turn::Stopped, "a head outside the table");

    let guest = Guest::new(SIZE);
    let mut jumped = device(&guest, With::default());
    guest.set_available(SIZE + 1);
    assert_eq!(jumped.run(), Turn::Stopped, "an index that jumps");
    assert_eq!(guest.used(), []);

    let guest = Guest::new(SIZE);
    let mut backwards = device(&guest, With::default());
    guest.set_available(u16::MAX);
    assert_eq!(backwards.run(), Turn::Stopped, "an index that goes back");

    let guest = Guest::new(SIZE);
    let mut greedy = device(&guest, With::default());
    greedy.disk.asleep.set(true);
    guest.request(0, 0, 0, 512);
    for _ in 0..SIZE {
        guest.offer(0);
    }
    assert_eq!(greedy.run(), Turn::Idle);
    guest.offer(0);
    assert_eq!(greedy.run(), Turn::Stopped, "more in flight than there are entries");
    assert_eq!(greedy.queue.in_flight(), SIZE as u32);
    greedy.disk.wake();
    greedy.run();
    assert_eq!(
        (guest.used().len(), greedy.queue.in_flight()),
        (SIZE as usize, 0),
        "what was taken completes"
    );
}

#[test]
fn rings_in_places_that_cannot_be() {
    use crate::ring::{Ring, RingAddress};
    let guest = Guest::new(SIZE);
    let good = guest.address();
    assert!(Ring::map(SIZE, &good, &guest.memory).is_ok());
    for size in [0, 3, 1000, 0xffff] {
        assert!(Ring::map(size, &good, &guest.memory).is_err(), "{size} entries");
    }
    assert!(Ring::map(32768, &good, &guest.memory).is_err(), "larger than its region");
    let cases = [
        RingAddress { descriptors: good.descriptors + 8, ..good },
        RingAddress { available: good.available + 1, ..good },
        RingAddress { used: good.used + 2, ..good },
        RingAddress { used: END - 4, ..good },
        RingAddress { used: u64::MAX - 3, ..good },
        RingAddress { descriptors: 0, ..good },
        // In the guest's memory, but in two mappings.
        RingAddress { descriptors: BASE + REGION - 64, ..good },
    ];
    for address in cases {
        assert!(Ring::map(SIZE, &address, &guest.memory).is_err(), "{address:?}");
    }
}

#[test]
fn a_stopped_queue_tells_the_front_end() {
    use lamina_host::Bell;
    use rustix::event::{EventfdFlags, eventfd};
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    let error = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    device.queue.set_error(Some(Bell::new(&error).unwrap()));
    guest.offer(SIZE);
    assert_eq!(device.run(), Turn::Stopped);
    assert!(rustix::io::read(&error, &mut [0; 8]).is_ok());
}
