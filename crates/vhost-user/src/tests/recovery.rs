//! Killed at every point, and started again: every request is done, and answered exactly once.

use crate::inflight::{Region, create};
use crate::memory::Mapper;
use crate::testing::*;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

const SIZE: u16 = 16;
const HEADS: [u16; 5] = [0, 3, 6, 9, 12];

fn region(file: &File, len: u64) -> Region {
    Region::new(Mapper::default().map(file, 0, len).unwrap(), 1, SIZE).unwrap()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The state that outlives the process: the guest's memory, and the region.
type Image = ([Vec<u8>; 2], Vec<u8>);

/// Runs a device over five writes, the second and fourth of which complete late, and keeps the state that a kill would
/// leave after each write to memory.
fn life(guest: &Rc<Guest>, file: &Rc<File>, len: u64) -> Vec<Image> {
    let images = Rc::new(RefCell::new(Vec::new()));
    let tracker = region(file, len).tracker(0, SIZE);
    let mut device = device(guest, With { tracker, ..With::default() });
    let (g, f, i) = (Rc::clone(guest), Rc::clone(file), Rc::clone(&images));
    on_store(Some(Box::new(move || i.borrow_mut().push((g.snapshot(), contents(&f))))));
    for head in HEADS {
        device.disk.asleep.set(head % 2 == 1);
        guest.offer(head);
        // Not published in between: requests that complete at once and others under way are mixed.
        if head % 2 == 1 || head == 12 {
            device.queue.turn();
        }
    }
    device.disk.wake();
    device.run();
    on_store(None);
    assert_eq!(guest.used().len(), HEADS.len());
    images.take()
}

#[test]
fn killed_after_every_write_to_memory() {
    let guest = Rc::new(Guest::new(SIZE));
    let (file, len) = create(1, SIZE).unwrap();
    let file = Rc::new(file);
    for head in HEADS {
        guest.request(head, 1, head as u64, 512);
        guest.write(guest.data(head), &[head as u8 + 1; 512]);
    }
    let images = life(&guest, &file, len);
    assert!(images.len() > 5 * HEADS.len(), "{}", images.len());
    for (n, (memory, tracked)) in images.iter().enumerate() {
        guest.restore(memory);
        file.write_all_at(tracked, 0).unwrap();
        // The guest offers its remaining chains, and looks at the used ring from the beginning.
        guest.available.set(u16::from_le_bytes(guest.read(BASE + 0x2000 + 2)));
        guest.seen.set(0);
        let before = guest.used();
        for head in &HEADS[guest.available.get() as usize..] {
            guest.offer(*head);
        }
        let disk = TestDisk::new(DISK);
        let tracker = region(&file, len).tracker(0, SIZE);
        let mut device = device(&guest, With { tracker, disk: Some(disk.clone()), ..With::default() });
        device.run();
        let mut all: Vec<u32> = before.iter().chain(&guest.used()).map(|used| used.0).collect();
        all.sort_unstable();
        assert_eq!(all, HEADS.map(u32::from), "killed after write {n}: all answered, none twice");
        for head in HEADS.iter().filter(|h| !before.iter().any(|used| used.0 == **h as u32)) {
            let at = *head as usize * 512;
            assert_eq!(
                disk.bytes.slice(at..at + 512).to_vec(),
                [*head as u8 + 1; 512],
                "write {n}, head {head}"
            );
        }
        assert_eq!(device.queue.next_available(), HEADS.len() as u16);
        let again = region(&file, len).tracker(0, SIZE).unwrap();
        assert_eq!(again.recover(guest.used_index()), Ok(vec![]), "nothing is left");
    }
}

#[test]
fn repeated_in_the_order_in_which_they_were_taken() {
    let (file, len) = create(1, SIZE).unwrap();
    let tracker = region(&file, len).tracker(0, SIZE).unwrap();
    assert_eq!(tracker.recover(7), Ok(vec![]));
    for head in [9, 2, 15, 0] {
        tracker.take(head);
    }
    tracker.put(15);
    tracker.published(&[15], 8);
    let next = region(&file, len).tracker(0, SIZE).unwrap();
    assert_eq!(next.recover(8), Ok(vec![9, 2, 0]));
    next.take(5);
    let next = region(&file, len).tracker(0, SIZE).unwrap();
    assert_eq!(next.recover(8), Ok(vec![9, 2, 0, 5]), "counted on from there");
}

#[test]
fn queues_do_not_share_and_have_their_bounds() {
    let (file, len) = create(3, SIZE).unwrap();
    assert_eq!(len, 3 * 320);
    let map = |offset, len, queues, size| {
        Mapper::default().map(&file, offset, len).and_then(|piece| Region::new(piece, queues, size))
    };
    let region = map(0, len, 3, SIZE).unwrap();
    region.tracker(1, SIZE).unwrap().recover(0).unwrap();
    region.tracker(1, SIZE).unwrap().take(3);
    assert_eq!(region.tracker(0, SIZE).unwrap().recover(0), Ok(vec![]));
    assert_eq!(region.tracker(1, SIZE).unwrap().recover(0), Ok(vec![3]));
    assert!(region.tracker(3, SIZE).is_none());
    assert!(region.tracker(0, 2 * SIZE).is_none());
    assert!(map(0, len, 4, SIZE).is_err());
    assert!(map(0, 4 * len, 4, SIZE).is_err(), "longer than its file");
    assert!(map(1, len, 2, SIZE).is_err(), "not aligned");
    assert!(map(u64::MAX - 7, len, 2, SIZE).is_err());
}

#[test]
fn a_region_of_nonsense_costs_no_more_than_its_queue() {
    let mut state = 1u64;
    for _ in 0..2000 {
        let (file, len) = create(1, SIZE).unwrap();
        let mut bytes = vec![0; len as usize];
        for byte in &mut bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 60) as u8 & 3;
        }
        bytes[8..12].copy_from_slice(&[1, 0, SIZE as u8, 0]);
        file.write_all_at(&bytes, 0).unwrap();
        let tracker = region(&file, len).tracker(0, SIZE).unwrap();
        let heads = tracker.recover((state >> 33) as u16).unwrap();
        assert!(heads.len() <= SIZE as usize);
        heads.iter().for_each(|head| tracker.put(*head));
        tracker.published(&heads, 9);
    }
}

#[test]
fn a_region_of_another_kind_is_refused_while_it_holds_anything() {
    for (header, fits) in
        [([1, 0, SIZE as u8, 0], true), ([1, 0, 8, 0], false), ([2, 0, SIZE as u8, 0], false)]
    {
        let (file, len) = create(1, SIZE).unwrap();
        file.write_all_at(&header, 8).unwrap();
        file.write_all_at(&[1], 16 + 16 * 2).unwrap();
        let tracker = || region(&file, len).tracker(0, SIZE).unwrap();
        assert_eq!(tracker().recover(0).is_ok(), fits, "{header:?}");
        file.write_all_at(&[0], 16 + 16 * 2).unwrap();
        assert_eq!(tracker().recover(0), Ok(vec![]), "{header:?} with nothing in flight");
    }
}

/// A store that is away when the daemon ends is no error of the guest's: the next daemon repeats the request. Where
/// nothing outlives the daemon, and while the guest is served, it is told.
#[test]
fn a_request_whose_store_is_away_is_left_to_a_successor() {
    for (tracked, ends) in [(true, true), (true, false), (false, true)] {
        let guest = Guest::new(SIZE);
        let (file, len) = create(1, SIZE).unwrap();
        let tracker = if tracked { region(&file, len).tracker(0, SIZE) } else { None };
        let mut device = device(&guest, With { tracker, ..With::default() });
        device.disk.asleep.set(true);
        guest.request(0, 1, 2, 4096);
        guest.offer(0);
        device.run();
        assert_eq!(device.queue.in_flight(), 1);
        if ends {
            device.queue.stop();
            device.queue.abandon();
        }
        device.disk.away.set(true);
        device.disk.wake();
        device.run();
        assert_eq!(device.queue.in_flight(), 0);
        if tracked && ends {
            assert_eq!(guest.used(), []);
            let again = region(&file, len).tracker(0, SIZE).unwrap();
            assert_eq!(again.recover(guest.used_index()), Ok(vec![0]), "it is repeated");
        } else {
            assert_eq!((guest.used(), guest.status(0)), (vec![(0, 1)], 1));
        }
    }
}
