//! Every request, as an ordinary guest sends it, and how the guest is told.

use crate::queue::Turn;
use crate::testing::*;
use lamina_block::Budget;
use std::rc::Rc;

const SIZE: u16 = 16;

#[test]
fn write_then_read() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    guest.request(0, 1, 2, 4096);
    guest.write(guest.data(0), &[7; 4096]);
    guest.offer(0);
    assert_eq!(device.run(), Turn::Idle);
    assert_eq!(guest.used(), [(0, 1)]);
    assert_eq!(guest.status(0), 0);
    guest.request(3, 0, 2, 4096);
    guest.offer(3);
    device.run();
    assert_eq!(guest.used(), [(3, 4097)]);
    assert_eq!(guest.status(3), 0);
    assert_eq!(guest.read::<4096>(guest.data(3)), [7; 4096]);
}

#[test]
fn flush_discard_zeroes_and_serial() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    guest.request(0, 4, 0, 0);
    guest.offer(0);
    guest.request(3, 11, 0, 32);
    for (at, sector, sectors) in [(0, 8u64, 8u32), (16, 64, 16)] {
        guest.write(guest.data(3) + at, &sector.to_le_bytes());
        guest.write(guest.data(3) + at + 8, &(sectors as u64).to_le_bytes());
    }
    guest.offer(3);
    guest.request(6, 13, 0, 16);
    guest
        .write(guest.data(6), &[&16u64.to_le_bytes()[..], &2u32.to_le_bytes(), &1u32.to_le_bytes()].concat());
    guest.offer(6);
    guest.request(9, 8, 0, 20);
    guest.offer(9);
    device.run();
    let mut used = guest.used();
    used.sort_unstable();
    assert_eq!(used, [(0, 1), (3, 1), (6, 1), (9, 21)]);
    assert_eq!([0, 3, 6, 9].map(|head| guest.status(head)), [0; 4]);
    let mut log = device.disk.log.take();
    log.sort_unstable();
    assert_eq!(log, ["discard 32768..40960", "discard 4096..8192", "flush 0..0", "zero 8192..9216"]);
    assert_eq!(&guest.read::<20>(guest.data(9)), b"serial\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn data_in_many_pieces_across_regions_and_in_an_indirect_table() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    let (header, data, status) = (HEAP, BASE + REGION - 700, BASE + 2 * REGION - 1);
    // The table itself lies across the two regions, and so does the data before it.
    let table = BASE + REGION - 24;
    guest.header(header, 1, 4);
    let bytes: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
    guest.write(HEAP + 0x1000, &bytes);
    guest.descriptor_at(table, header, 7, NEXT, 1);
    guest.descriptor_at(table + 16, header + 7, 9, NEXT, 2);
    guest.descriptor_at(table + 32, HEAP + 0x1000, 1000, NEXT, 3);
    guest.descriptor_at(table + 48, HEAP + 0x1000 + 1000, 24, NEXT, 4);
    guest.descriptor_at(table + 64, status, 1, WRITE, 0);
    guest.descriptor(5, table, 5 * 16, INDIRECT, 0);
    guest.offer(5);
    device.run();
    assert_eq!((guest.used(), guest.read(status)), (vec![(5, 1)], [0]));
    assert_eq!(device.disk.bytes.slice(2048..3072).to_vec(), bytes);

    guest.header(header, 0, 4);
    guest.descriptor(0, header, 16, NEXT, 1);
    guest.descriptor(1, data, 1024, WRITE | NEXT, 2);
    guest.descriptor(2, status, 1, WRITE, 0);
    guest.offer(0);
    device.run();
    assert_eq!((guest.used(), guest.read(status)), (vec![(0, 1025)], [0]));
    assert_eq!(guest.read::<1024>(data).to_vec(), bytes);
}

#[test]
fn a_read_only_export_writes_nothing() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With { read_only: true, ..With::default() });
    for (head, kind, len) in [(0, 1, 512), (3, 11, 16), (6, 13, 16), (9, 0, 512), (12, 4, 0)] {
        guest.request(head, kind, 0, len);
        guest.offer(head);
    }
    device.run();
    assert_eq!([0, 3, 6, 9, 12].map(|head| guest.status(head)), [1, 1, 1, 0, 0]);
    assert_eq!(device.disk.log.take(), ["read 0..512", "flush 0..0"]);
}

#[test]
fn what_waits_completes_later_and_is_published_once() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    device.disk.asleep.set(true);
    for head in [0, 3, 6] {
        guest.request(head, 1, head as u64, 512);
        guest.offer(head);
    }
    assert_eq!(device.run(), Turn::Idle);
    assert_eq!((guest.used(), device.queue.in_flight()), (vec![], 3));
    device.disk.wake();
    device.pool.run_until_stalled();
    assert_eq!(guest.used(), [], "not before it is published");
    device.queue.publish();
    assert_eq!(guest.used().len(), 3);
    assert_eq!(device.queue.in_flight(), 0);
}

#[test]
fn the_guest_is_interrupted_where_it_asked_for_it() {
    use lamina_host::Bell;
    use rustix::event::{EventfdFlags, eventfd};
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    device.queue.set_call(Some(Bell::new(&call).unwrap()));
    let interrupts = || {
        let mut count = [0; 8];
        rustix::io::read(&call, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    assert_eq!(interrupts(), 1, "what came before may not have been heard");
    let mut batch = |count: u16| {
        for _ in 0..count {
            guest.request(0, 4, 0, 0);
            guest.offer(0);
        }
        device.run();
    };
    guest.interrupt_at(2);
    batch(2);
    assert_eq!(interrupts(), 0, "the third was asked for");
    batch(3);
    assert_eq!(interrupts(), 1, "once for all three");
    guest.interrupt_at(4);
    batch(1);
    assert_eq!(interrupts(), 0, "long ago");
    assert_eq!(guest.kick_wanted_at(), 6);
}

#[test]
fn indices_wrap() {
    let guest = Guest::new(SIZE);
    guest.set_available(u16::MAX - 1);
    guest.write(BASE + 0x3000 + 2, &(u16::MAX - 1).to_le_bytes());
    guest.seen.set(u16::MAX - 1);
    let mut device = device(&guest, With { base: u16::MAX - 1, ..With::default() });
    for _ in 0..10 {
        guest.request(0, 4, 0, 0);
        guest.offer(0);
        device.run();
        assert_eq!(guest.used(), [(0, 1)]);
    }
    assert_eq!(device.queue.next_available(), 8);
}

#[test]
fn memory_that_is_taken_away_stays_until_its_requests_are_done() {
    let mut guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    device.disk.asleep.set(true);
    guest.request(0, 0, 0, 4096);
    guest.offer(0);
    device.run();
    guest.memory = std::rc::Rc::default();
    device.queue.set_memory(Guest::new(SIZE).ring(), Guest::new(SIZE).memory);
    device.disk.bytes.fill(5);
    device.disk.wake();
    device.run();
    assert_eq!((guest.status(0), guest.read::<4096>(guest.data(0))), (0, [5; 4096]));
}

/// Chains that do not fit into the memory for requests stay in the ring, and are taken when there is space: in order,
/// each once.
#[test]
fn chains_wait_in_the_ring_while_there_is_no_memory() {
    let guest = Guest::new(SIZE);
    let memory = Budget::new(9 << 10);
    let mut device = device(&guest, With { memory: Rc::clone(&memory), ..With::default() });
    device.disk.asleep.set(true);
    for head in [0, 3, 6, 9] {
        guest.request(head, 1, u64::from(head) * 8, 4096);
        guest.offer(head);
    }
    assert_eq!(device.run(), Turn::Full);
    assert_eq!((device.queue.in_flight(), device.queue.next_available()), (1, 1));
    let mut used = Vec::new();
    for _ in 0..4 {
        device.disk.wake();
        device.pool.run_until_stalled();
        device.queue.publish();
        device.disk.asleep.set(true);
        device.run();
        assert!(memory.used() <= memory.max());
        used.extend(guest.used());
    }
    assert_eq!((used, memory.used()), (vec![(0, 1), (3, 1), (6, 1), (9, 1)], 0));
    let log = device.disk.log.take();
    let writes: Vec<_> = [0, 3, 6, 9].map(|n| format!("write {}..{}", n * 4096, n * 4096 + 4096)).into();
    assert_eq!(log, writes);
}

/// A request of more than a piece reaches the node in pieces, one after the other, and takes the memory of one.
#[test]
fn a_long_request_is_done_in_pieces() {
    let guest = Guest::new(SIZE);
    let disk = TestDisk::new(4 << 20);
    let mut device = device(&guest, With { disk: Some(Rc::clone(&disk)), ..With::default() });
    // The same memory again and again.
    let (header, status) = (HEAP, HEAP + 64);
    guest.header(header, 1, 8);
    guest.descriptor(0, header, 16, NEXT, 1);
    for i in 1..=9 {
        guest.descriptor(i, BASE + REGION, REGION as u32, NEXT, i + 1);
    }
    guest.descriptor(10, status, 1, WRITE, 0);
    guest.offer(0);
    for _ in 0..4 {
        device.run();
    }
    assert_eq!(guest.used(), [(0, 1)]);
    let (piece, end) = (1 << 20, 4096 + 9 * REGION);
    let pieces = [(4096, piece), (piece, 2 * piece), (2 * piece, end)];
    assert_eq!(disk.log.take(), pieces.map(|(start, end)| format!("write {start}..{end}")));
}

/// A request under way when the memory goes was copied from zeroes: it does not succeed.
#[test]
fn requests_in_flight_fail_when_the_memory_goes() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    device.disk.asleep.set(true);
    // The data are in the second region, header and status in the first.
    guest.header(HEAP, 1, 8);
    guest.descriptor(0, HEAP, 16, NEXT, 1);
    guest.descriptor(1, BASE + REGION, 4096, NEXT, 2);
    guest.descriptor(2, HEAP + 64, 1, WRITE, 0);
    guest.offer(0);
    assert_eq!(device.run(), Turn::Idle);
    guest.take_away();
    device.disk.wake();
    device.run();
    assert_eq!(guest.read::<1>(HEAP + 64), [1]);
    device.queue.check_memory();
    assert!(device.queue.is_stopped());
}

/// The work of one chain may take minutes: the server does not wait for it once the front-end is gone.
#[test]
fn zeroes_that_nobody_waits_for_end_early() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    device.disk.asleep.set(true);
    guest.request(0, 13, 0, 48);
    for (range, sector) in [0u64, 8, 16].into_iter().enumerate() {
        let entry = [&sector.to_le_bytes()[..], &8u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
        guest.write(guest.data(0) + 16 * range as u64, &entry);
    }
    guest.offer(0);
    assert_eq!((device.run(), device.queue.in_flight()), (Turn::Idle, 1));
    device.queue.stop();
    device.queue.abandon();
    device.disk.wake();
    device.run();
    assert_eq!((guest.used(), device.queue.in_flight()), (vec![], 0), "it is left to a successor");
    assert_eq!(device.disk.log.take().len(), 1, "the first range was begun");
}
