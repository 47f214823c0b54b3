//! The device's description: feature bits and configuration space (virtio 1.2, section 5.2.4).

use crate::request::{RANGE_SECTORS_MAX, RANGES_MAX, SECTOR, SEGMENT_LEN_MAX, SEGMENTS_MAX};
use lamina_block::Geometry;
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Bytes of the configuration space that we fill. Bytes beyond read as zero.
const LEN: usize = 60;
/// Where the cache mode is: the one field that a guest may write.
pub(crate) const WRITE_BACK_OFFSET: u32 = 32;
/// The physical block that guests are told, at most: file systems refuse larger ones.
const PHYSICAL_BLOCK_MAX: u32 = 4096;

/// The front-end logs what is written to memory, for a migration (vhost-user specification).
pub(crate) const LOG_ALL: u64 = 1 << 26;
/// The front-end speaks of protocol features (vhost-user specification).
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The guest sends flushes.
pub(crate) const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
/// Interrupts and kicks are asked for by index.
pub(crate) const EVENT_INDEX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

/// The features that a device of this shape has.
pub(crate) fn features(geometry: &Geometry, read_only: bool) -> u64 {
    let mut bits = vec![
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
    ];
    if read_only || geometry.read_only {
        bits.push(VIRTIO_BLK_F_RO);
    } else {
        bits.push(VIRTIO_BLK_F_WRITE_ZEROES);
        if geometry.discard {
            bits.push(VIRTIO_BLK_F_DISCARD);
        }
    }
    bits.into_iter().fold(LOG_ALL | PROTOCOL_FEATURES, |all, bit| all | 1 << bit)
}

/// The configuration space.
pub(crate) fn space(geometry: &Geometry, queues: u16, write_back: bool) -> [u8; LEN] {
    let block = geometry.block;
    let physical = geometry.optimal.clamp(block, PHYSICAL_BLOCK_MAX.max(block));
    let in_blocks = |bytes: u32| bytes / block;
    let mut space = [0; LEN];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(geometry.size / SECTOR).to_le_bytes());
    put(8, &SEGMENT_LEN_MAX.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    put(24, &[in_blocks(physical).ilog2() as u8]);
    put(26, &u16::try_from(in_blocks(physical)).unwrap_or(u16::MAX).to_le_bytes());
    put(28, &in_blocks(geometry.optimal).to_le_bytes());
    put(WRITE_BACK_OFFSET as usize, &[write_back as u8]);
    put(34, &queues.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &(geometry.optimal / SECTOR as u32).to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[geometry.discard as u8]);
    space
}

/// The part of the configuration space that a front-end asks for; zero where there is nothing.
pub(crate) fn read(space: &[u8], offset: u32, len: u32) -> Vec<u8> {
    let byte = |at: u64| usize::try_from(at).ok().and_then(|at| space.get(at)).copied().unwrap_or(0);
    (0..len as u64).map(|i| byte(offset as u64 + i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_is_laid_out_as_the_specification_says() {
        let geometry = Geometry { block: 4096, optimal: 65536, discard: true, ..Geometry::new(1 << 30) };
        let space = space(&geometry, 3, true);
        let u32_at = |at: u32| u32::from_le_bytes(read(&space, at, 4).try_into().unwrap());
        assert_eq!(u32_at(0), 1 << 21, "sectors of 512 bytes");
        assert_eq!((u32_at(20), space[24]), (4096, 0), "block, physical block");
        assert_eq!(u32_at(28), 16, "optimal size in blocks");
        assert_eq!(read(&space, 32, 4), [1, 0, 3, 0], "cache mode, queues");
        assert_eq!(u32_at(44), 128, "discards are aligned to the optimal size");
        assert_eq!(read(&space, 58, 8), [0; 8], "zero beyond the end");
        assert_eq!(read(&space, u32::MAX, 2), [0; 2]);
    }

    #[test]
    fn small_blocks_show_their_physical_block() {
        let space = space(&Geometry::new(1 << 20), 1, false);
        assert_eq!((space[24], space[26], space[32]), (3, 8, 0));
    }

    #[test]
    fn a_read_only_device_offers_nothing_that_writes() {
        let geometry = Geometry { discard: true, ..Geometry::new(1 << 20) };
        let writes = 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        assert_eq!(features(&geometry, false) & writes, writes);
        assert_eq!(features(&geometry, true) & (writes | 1 << VIRTIO_BLK_F_RO), 1 << VIRTIO_BLK_F_RO);
    }
}
