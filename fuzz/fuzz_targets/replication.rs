//! Frames between hosts: any bytes are one, with its checksums made good if the first byte says so; what comes of it
//! goes to a peer, which has granted little.
//!
//! What must hold: no panic; a frame that is taken is no longer than is allowed, and is the same one when it is read
//! again; a peer never says that it has more than it took.

#![no_main]

use lamina_cluster::Uuid;
use lamina_cluster::peer::Peer;
use lamina_cluster::vault::is_name;
use lamina_cluster::wire::{Credit, DATA_MAX, Frame, HEAD, READ_MAX, lengths};
use libfuzzer_sys::fuzz_target;

const LIMIT: Credit = Credit { bytes: 64 << 10, writes: 16 };

/// Makes the checksums of a frame, and its length, good.
fn seal(bytes: &mut [u8]) {
    let body = (bytes.len() - HEAD) as u32;
    bytes[..4].copy_from_slice(b"LMRP");
    bytes[8..12].copy_from_slice(&body.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[HEAD..]);
    bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    bytes[20..24].fill(0);
    let checksum = crc32c::crc32c(&bytes[..HEAD]);
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut peer = Peer::new(Uuid::from_u128(2), (1, 10), LIMIT);
    // Frames of one length each, one after the other.
    for bytes in rest.chunks(HEAD + 8 + usize::from(first / 2)) {
        let mut bytes = bytes.to_vec();
        if bytes.len() < HEAD {
            return;
        }
        if first % 2 == 1 {
            seal(&mut bytes);
        }
        let (head, body) = bytes.split_first_chunk().expect("a head");
        let Ok(of) = lengths(head) else { return };
        assert!(of.data <= DATA_MAX && of.body <= 1 << 20);
        let Ok(frame) = Frame::decode(&of, body) else { continue };
        let again = frame.encode();
        let (head, body) = again.split_first_chunk().expect("a head");
        assert_eq!(Frame::decode(&lengths(head).expect("as it was"), body).as_ref(), Ok(&frame));
        match frame {
            Frame::Hello(hello) => drop(peer.hello(&hello)),
            Frame::Batch(batch) => {
                let before = peer.written();
                let Ok(()) = peer.takes(&batch) else { continue };
                let last = batch.entries.last().expect("a write").serial;
                if last % 3 > 0 {
                    let said = peer.wrote(last, true);
                    assert!(said.is_none_or(|ack| before < ack.written && ack.durable <= ack.written));
                }
            }
            Frame::Flush(serial) => {
                let ack = peer.flushed(serial, true);
                assert!(ack.durable <= ack.written);
            }
            Frame::Read(read) => {
                let blocks = read.blocks();
                assert!((1..=u64::from(READ_MAX)).contains(&(blocks.end - blocks.start)));
            }
            Frame::Found(found) => assert!(found.len() <= DATA_MAX),
            Frame::Take(asking) | Frame::ReadFrom(asking) => assert!(is_name(&asking.host)),
            Frame::Welcome(_) | Frame::Ack(_) | Frame::Refuse(_) | Frame::Checkpoint(_) | Frame::Given(_) => {
            }
        }
    }
});
