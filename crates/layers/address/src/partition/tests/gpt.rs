//! Reading a GPT. The tables are written by a writer of the tests' own, from the drawings of UEFI 2.10, chapter 5, so
//! that reader and writer share no mistake.

use super::super::gpt::{Copy, Gpt, read};
use super::*;
use lamina_block::Geometry;

/// CRC-32 as UEFI has it, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
        crc
    })
}

fn put_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A disk with a GPT, whose parts can be made wrong before it is sealed.
struct Disk {
    block: usize,
    bytes: Vec<u8>,
    entries: Vec<u8>,
    count: u32,
    entry_len: u32,
    usable: (u64, u64),
}

impl Disk {
    /// With these partitions: name, first and last block.
    fn new(size: u64, block: usize, partitions: &[(&str, u64, u64)]) -> Disk {
        let blocks = size / block as u64;
        let table = (128 * 128 / block) as u64;
        let mut disk = Disk {
            block,
            bytes: vec![0; size as usize],
            entries: vec![0; 128 * 128],
            count: 128,
            entry_len: 128,
            usable: (2 + table, blocks - 2 - table),
        };
        // The protective record: one partition of type 0xEE over everything.
        disk.bytes[446 + 4] = 0xEE;
        put_at(&mut disk.bytes, 510, &[0x55, 0xAA]);
        for (i, (name, first, last)) in partitions.iter().enumerate() {
            let entry = &mut disk.entries[i * 128..][..128];
            put_at(entry, 0, &[0x0F; 16]);
            put_at(entry, 16, &[i as u8 + 1; 16]);
            put_at(entry, 32, &first.to_le_bytes());
            put_at(entry, 40, &last.to_le_bytes());
            for (j, unit) in name.encode_utf16().enumerate() {
                put_at(entry, 56 + 2 * j, &unit.to_le_bytes());
            }
        }
        disk
    }

    fn header(&self, at: u64, other: u64, entries_at: u64) -> Vec<u8> {
        let mut header = vec![0; self.block];
        put_at(&mut header, 0, b"EFI PART");
        put_at(&mut header, 8, &0x0001_0000u32.to_le_bytes());
        put_at(&mut header, 12, &92u32.to_le_bytes());
        for (i, place) in [at, other, self.usable.0, self.usable.1].into_iter().enumerate() {
            put_at(&mut header, 24 + 8 * i, &place.to_le_bytes());
        }
        put_at(&mut header, 72, &entries_at.to_le_bytes());
        put_at(&mut header, 80, &self.count.to_le_bytes());
        put_at(&mut header, 84, &self.entry_len.to_le_bytes());
        put_at(&mut header, 88, &crc(&self.entries).to_le_bytes());
        let sum = crc(&header[..92]);
        put_at(&mut header, 16, &sum.to_le_bytes());
        header
    }

    /// Both copies in place, with good checksums.
    fn sealed(mut self) -> Vec<u8> {
        let (block, blocks) = (self.block, (self.bytes.len() / self.block) as u64);
        let second = blocks - 1 - (self.entries.len() / block) as u64;
        let headers = [self.header(1, blocks - 1, 2), self.header(blocks - 1, 1, second)];
        put_at(&mut self.bytes, block, &headers[0]);
        put_at(&mut self.bytes, 2 * block, &self.entries.clone());
        put_at(&mut self.bytes, second as usize * block, &self.entries.clone());
        put_at(&mut self.bytes, (blocks as usize - 1) * block, &headers[1]);
        self.bytes
    }
}

const SIZE: u64 = 4 * MIB;

fn usual() -> Disk {
    Disk::new(SIZE, 512, &[("boot", 2048, 4095), ("Größe", 4096, 6000), ("", 6008, 6015)])
}

/// A device that holds `bytes`.
fn device(bytes: &[u8], block: u64) -> Rc<Node> {
    let node = built("memory", json!({ "size": bytes.len(), "block": block }));
    write_bytes(&node, 0, bytes);
    node
}

fn found(bytes: &[u8], block: u64) -> Result<Option<Gpt>> {
    at_once(read(&device(bytes, block)))
}

fn places(gpt: &Gpt) -> Vec<(usize, &str, Range<u64>)> {
    gpt.partitions.iter().map(|p| (p.number, p.name.as_str(), p.at.clone())).collect()
}

#[test]
fn both_copies_are_read_and_the_second_replaces_the_first() {
    let good = usual().sealed();
    let expected =
        [(1, "boot", MIB..2 * MIB), (2, "Größe", 2 * MIB..6001 * 512), (3, "", 6008 * 512..6016 * 512)];
    let gpt = found(&good, 512).unwrap().unwrap();
    assert_eq!((gpt.copy, places(&gpt)), (Copy::Primary, expected.to_vec()));
    // Damaged in the header, behind it (where nothing counts), in the entries, or with everything around it.
    for damage in [512..513, 700..703, 1024 + 40..1024 + 41, 0..17 << 10] {
        let mut bytes = good.clone();
        bytes[damage.clone()].iter_mut().for_each(|byte| *byte ^= 0x40);
        let gpt = found(&bytes, 512).unwrap().unwrap_or_else(|| panic!("{damage:?}: nothing found"));
        assert_eq!(places(&gpt), expected, "{damage:?}");
        assert_eq!(gpt.copy, if damage.start == 700 { Copy::Primary } else { Copy::Backup }, "{damage:?}");
    }
    // The second one is damaged, and nobody minds; both are, and it is said.
    let end = good.len();
    let mut bytes = good.clone();
    bytes[end - 500] ^= 1;
    assert_eq!(found(&bytes, 512).unwrap().unwrap().copy, Copy::Primary);
    bytes[512 + 20] ^= 1;
    bytes[512 + 16] ^= 1;
    let e = found(&bytes, 512).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.message().contains("checksum of its header"), "{e}");
}

#[test]
fn a_device_that_has_grown_has_its_second_copy_where_the_first_says() {
    let mut bytes = usual().sealed();
    bytes.resize(bytes.len() + MIB as usize, 0);
    assert_eq!(found(&bytes, 512).unwrap().unwrap().copy, Copy::Primary);
    bytes[2 * 512] ^= 1;
    assert_eq!(found(&bytes, 512).unwrap().unwrap().copy, Copy::Backup);
}

#[test]
fn tables_of_other_block_sizes_are_understood() {
    let of_4096 = Disk::new(SIZE, 4096, &[("x", 256, 511)]).sealed();
    for block in [512, 4096] {
        assert_eq!(places(&found(&of_4096, block).unwrap().unwrap()), [(1, "x", MIB..2 * MIB)]);
    }
    let of_512 = Disk::new(SIZE, 512, &[("x", 2048, 4095)]).sealed();
    assert_eq!(places(&found(&of_512, 4096).unwrap().unwrap()), [(1, "x", MIB..2 * MIB)]);
    let between = Disk::new(SIZE, 512, &[("x", 2049, 4095)]).sealed();
    let e = found(&between, 4096).unwrap_err();
    assert!(e.message().contains("blocks of 4096 bytes"), "{e}");
}

#[test]
fn what_is_no_table_is_none_and_what_cannot_be_right_is_refused() {
    assert_eq!(found(&vec![0; SIZE as usize], 512).unwrap(), None);
    assert_eq!(found(&[0xFF; 1024], 512).unwrap(), None);
    assert_eq!(found(&vec![0xEE; 4096], 4096).unwrap(), None);
    let with = |change: fn(&mut Disk)| {
        let mut disk = usual();
        change(&mut disk);
        disk
    };
    for (disk, says) in [
        (Disk::new(SIZE, 512, &[("a", 2048, 4095), ("b", 4095, 5000)]), "partitions 1 and 2 share space"),
        (Disk::new(SIZE, 512, &[("a", 4096, 5000), ("b", 2048, 4096)]), "partitions 2 and 1 share space"),
        (Disk::new(SIZE, 512, &[("a", 33, 4095)]), "partition 1 lies outside"),
        (Disk::new(SIZE, 512, &[("a", 2048, 8190)]), "partition 1 lies outside"),
        (Disk::new(SIZE, 512, &[("a", 4096, 4095)]), "partition 1 lies outside"),
        (Disk::new(SIZE, 512, &[("a", 2048, u64::MAX)]), "partition 1 lies outside"),
        (with(|d| d.usable = (0, 8000)), "outside of the device"),
        (with(|d| d.usable = (34, u64::MAX)), "outside of the device"),
        (with(|d| d.usable = (34, 8192)), "outside of the device"),
        (with(|d| d.entry_len = 0), "entries of 0 bytes"),
        (with(|d| d.entry_len = 129), "entries of 129 bytes"),
        (with(|d| (d.count, d.entry_len) = (u32::MAX, 1 << 31)), "of entries, and 1MiB are the most"),
        (with(|d| d.count = 129), "checksum of its entries"),
        (with(|d| put_at(&mut d.bytes, 446 + 4, &[0x83])), "the MBR has partitions"),
    ] {
        let e = found(&disk.sealed(), 512).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt);
        assert!(e.message().contains(says), "{says}: {e}");
    }
}

#[test]
fn its_partitions_are_views_and_it_is_not_changed() {
    simulated(|world| async move {
        let bytes = Disk::new(
            SIZE,
            512,
            &[("boot", 2048, 4095), ("2", 4096, 5000), ("x", 5001, 5001), ("x", 6000, 6001)],
        );
        let below = world.memory("4MiB").await;
        let image = bytes.sealed();
        below.submit(Io::write(0, Buf::from_vec(image.clone()), Durability::Cached)).await.unwrap();
        for (begin, kept) in
            [(Begin::Open, false), (Begin::Format, true), (Begin::Adopt, true), (Begin::Open, true)]
        {
            let keep = Rc::new(MemoryKeep::default());
            let keep = kept.then_some(keep as Rc<dyn Keep>);
            let table = build(&world.env, &below, json!({}), begin, keep).await.unwrap();
            assert_eq!(table.info()["table"], "primary GPT");
            let boot = view(&world.env, &table, "boot").await.unwrap();
            assert_eq!(boot.geometry(), Geometry { size: MIB, ..below.geometry() });
            put(&boot, MIB - 512, 7, 512).await;
            assert!(is_all(&below, 2 * MIB - 512..2 * MIB, 7).await);
            put(&boot, MIB - 512, 0, 512).await;
            // By name first, then by number.
            assert_eq!(view(&world.env, &table, "2").await.unwrap().geometry().size, 905 * 512);
            assert_eq!(view(&world.env, &table, "4").await.unwrap().geometry().size, 1024);
            let e = table.view("x").await.err().unwrap();
            assert!(e.message().contains("use a number"), "{e}");
            let e = table.view("5").await.err().unwrap();
            assert!(e.message().contains("1 (\"boot\"), 2 (\"2\")"), "{e}");
            for verb in ["create", "resize"] {
                let e = table.control(to(verb, json!({ "name": "y", "size": "1MiB" }))).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unsupported);
            }
        }
        assert_eq!(get(&below, 0, SIZE).await, image, "it was changed");
    });
}

#[test]
fn without_a_table_of_any_kind_it_says_what_to_do() {
    simulated(|world| async move {
        let below = world.memory("4MiB").await;
        for (keys, keep, says) in [
            (json!({}), None, "[hierarchy]"),
            (two(), None, "partitions: a table is kept by a persistent hierarchy only"),
            (json!({}), Some(Rc::new(MemoryKeep::default()) as Rc<dyn Keep>), "no table of its partitions"),
        ] {
            let e = build(&world.env, &below, keys, Begin::Open, keep).await.err().unwrap();
            assert!(e.message().contains(says), "{e}");
        }
    });
}
