//! Whatever we write to the guest's memory is in the log of a migration.

use crate::dirty::DirtyLog;
use crate::memory::Mapper;
use crate::testing::*;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

const SIZE: u16 = 16;

fn log_in(file: &File) -> DirtyLog {
    DirtyLog::new(Mapper::default().map(file, 0, 4096).unwrap())
}

#[test]
fn every_page_that_changed_is_marked() {
    let guest = Guest::new(SIZE);
    let file = memfd(4096);
    let log = Some(Rc::new(log_in(&file)));
    let mut device = device(&guest, With { log, ring_log: Some(BASE + 0x3000), ..With::default() });
    device.disk.bytes.fill(9);
    let before = guest.snapshot();
    guest.request(0, 0, 0, 4096);
    guest.request(3, 1, 8, 4096);
    guest.request(6, 8, 0, 20);
    guest.request(9, 77, 0, 512);
    device.disk.asleep.set(true);
    for head in [0, 3, 6, 9] {
        guest.offer(head);
    }
    let offered = guest.snapshot();
    device.run();
    device.disk.wake();
    device.run();
    assert_eq!(guest.used().len(), 4);
    assert_ne!(before, guest.snapshot());

    let mut bits = [0; 4096];
    file.read_exact_at(&mut bits, 0).unwrap();
    let marked: BTreeSet<u64> =
        (0..8 * 4096).filter(|p| bits[*p as usize / 8] & (1 << (p % 8)) != 0).collect();
    let after = guest.snapshot();
    let changed: BTreeSet<u64> = (0..2 * REGION / 4096)
        .filter(|page| {
            let (n, at) = ((page * 4096 / REGION) as usize, (page * 4096 % REGION) as usize);
            offered[n][at..at + 4096] != after[n][at..at + 4096]
        })
        .map(|page| BASE / 4096 + page)
        .collect();
    assert!(changed.len() >= 4, "{changed:?}");
    assert!(changed.is_subset(&marked), "changed {changed:?}, marked {marked:?}");
    assert!(marked.len() <= changed.len() + 2, "and little else: {marked:?}");
}

#[test]
fn without_a_log_nothing_is_marked_and_with_one_later_all_is() {
    let guest = Guest::new(SIZE);
    let mut device = device(&guest, With::default());
    guest.request(0, 0, 0, 512);
    guest.offer(0);
    device.run();
    let file = memfd(4096);
    device.queue.set_log(Some(Rc::new(log_in(&file))));
    guest.request(0, 0, 0, 512);
    guest.offer(0);
    device.run();
    let page = guest.data(0) / 4096;
    let mut byte = [0];
    file.read_exact_at(&mut byte, page / 8).unwrap();
    assert_ne!(byte[0] & (1 << (page % 8)), 0);
}

#[test]
fn a_used_ring_of_several_pages_is_marked_where_it_changed() {
    // Its index is in the first page, the entry in the second, the wish for a kick in the third.
    let guest = Guest::new(1024);
    let used = BASE + 0x3000;
    guest.set_available(600);
    guest.write(used + 2, &600u16.to_le_bytes());
    guest.seen.set(600);
    let file = memfd(4096);
    let log = Some(Rc::new(log_in(&file)));
    let mut device = device(&guest, With { log, ring_log: Some(used), base: 600, ..With::default() });
    guest.request(0, 4, 0, 0);
    guest.offer(0);
    device.run();
    assert_eq!(guest.used(), [(0, 1)]);
    for page in [used / 4096, used / 4096 + 1, used / 4096 + 2] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, page / 8).unwrap();
        assert_ne!(byte[0] & (1 << (page % 8)), 0, "{page}");
    }
}

/// For a refused request only the status is written and marked. The request could name all of the guest's memory a
/// thousand times.
#[test]
fn of_a_refused_request_only_the_status_is_marked() {
    let guest = Guest::new(SIZE);
    let file = memfd(4096);
    let mut device = device(&guest, With { log: Some(Rc::new(log_in(&file))), ..With::default() });
    guest.request(0, 99, 0, 512);
    guest.descriptor(1, BASE + REGION, REGION as u32, NEXT | WRITE, 2);
    guest.offer(0);
    device.run();
    assert_eq!(guest.status(0), 2);
    let mut bits = [0; 4096];
    file.read_exact_at(&mut bits, 0).unwrap();
    let marked: Vec<u64> = (0..8 * 4096).filter(|p| bits[*p as usize / 8] & (1 << (p % 8)) != 0).collect();
    assert_eq!(marked, [guest.status_at(0) / 4096]);
}
