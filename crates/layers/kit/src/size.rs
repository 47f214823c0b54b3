//! Sizes from the file, as sinks and parts of devices take them.

use lamina_block::{Bytes, Error, Geometry, Result};

/// A logical block: a power of two from 512 to 64 KiB.
pub fn logical_block(block: Bytes) -> Result<u32> {
    match u32::try_from(block.0) {
        Ok(block) if block.is_power_of_two() && (512..=64 << 10).contains(&block) => Ok(block),
        _ => Err(Error::invalid(format!("block: {block} is not a power of two from 512 to 64KiB"))),
    }
}

/// The size of a device: at least one `block`, whole blocks, and an offset that a kernel can express.
pub fn device_size(size: Bytes, block: u32) -> Result<u64> {
    if size.0 == 0 || !size.0.is_multiple_of(block as u64) || size.0 > i64::MAX as u64 {
        return Err(Error::invalid(format!(
            "size: {size} is not a multiple of {block} bytes, from {block} to 2^63"
        )));
    }
    Ok(size.0)
}

/// The geometry of a sink that does every operation itself.
pub fn all_native(bytes: Bytes, block: Option<Bytes>) -> Result<Geometry> {
    let block = block.map_or(Ok(512), logical_block)?;
    let native = Geometry::new(device_size(bytes, block)?);
    Ok(Geometry { block, optimal: native.optimal.max(block), discard: true, zero: true, fua: true, ..native })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_powers_of_two_that_a_disk_has() {
        let good = |bytes| logical_block(Bytes(bytes)).is_ok();
        assert!([512, 4096, 64 << 10].into_iter().all(good));
        assert!(![0, 1, 256, 513, 3 << 9, 128 << 10, 1 << 32, (1 << 32) + 512].into_iter().any(good));
    }

    #[test]
    fn sizes_are_whole_blocks() {
        let size = |bytes, block| device_size(Bytes(bytes), block).ok();
        assert_eq!(size(512, 512), Some(512));
        assert_eq!(size(i64::MAX as u64 - 511, 512), Some(i64::MAX as u64 - 511));
        for (bytes, block) in [(0, 512), (511, 512), (512, 4096), (6144, 4096), (1 << 63, 512)] {
            assert_eq!(size(bytes, block), None, "{bytes} in blocks of {block}");
        }
    }

    #[test]
    fn a_sink_has_the_block_it_is_told() {
        let shape = all_native(Bytes(1 << 20), Some(Bytes(16 << 10))).unwrap();
        assert_eq!((shape.size, shape.block), (1 << 20, 16 << 10));
        assert!(shape.discard && shape.zero && shape.fua && shape.optimal >= shape.block);
        assert_eq!(all_native(Bytes(1 << 20), None).unwrap().block, 512);
    }
}
