//! A part of a device: where a store lies.

use crate::format::BLOCK;
use lamina_block::{Buf, Durability, Env, Error, Io, Node, Result, Zero, all};
use std::ops::Range;
use std::rc::Rc;

/// The most that one request zeroes, in bytes.
const ZERO_MAX: u64 = 1 << 30;

/// A range of a device, in bytes, beginning and ending at multiples of 4096.
#[derive(Clone)]
pub struct Region {
    node: Rc<Node>,
    at: Range<u64>,
}

impl Region {
    /// The range `at` of `node`. The region must lie inside, at multiples of 4096, and the device's logical block may
    /// have at most 4096 bytes.
    pub fn new(node: Rc<Node>, at: Range<u64>) -> Result<Region> {
        let (geometry, unit) = (node.geometry(), BLOCK as u64);
        if geometry.block as usize > BLOCK {
            let message = format!("metadata cannot lie on a device with blocks of {} bytes", geometry.block);
            return Err(Error::unsupported(message).on(node.name()));
        }
        let fits = at.start <= at.end && at.end <= geometry.size;
        match fits && at.start.is_multiple_of(unit) && at.end.is_multiple_of(unit) {
            true => Ok(Region { node, at }),
            false => {
                let message =
                    format!("a region for metadata lies inside its device, in units of {BLOCK} bytes");
                Err(Error::invalid(message).at(at).on(node.name()))
            }
        }
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an empty region is never asked for")]
    pub fn len(&self) -> u64 {
        self.at.end - self.at.start
    }

    pub(crate) fn read_only(&self) -> bool {
        self.node.geometry().read_only
    }

    /// Writes all of `parts`, in any order.
    pub(crate) async fn write(&self, parts: Vec<(u64, Buf)>, durability: Durability) -> Result<()> {
        let write = |(at, from)| self.node.submit(Io::write(self.at.start + at, from, durability));
        all(parts.into_iter().map(write)).await
    }

    /// Writes `bytes`.
    pub(crate) async fn put(
        &self,
        env: &dyn Env,
        at: u64,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let buf = env.pool().take(bytes.len());
        buf.write(0, bytes);
        self.write(vec![(at, buf)], durability).await
    }

    /// Reads `len` bytes into memory of their own.
    pub(crate) async fn get(&self, env: &dyn Env, at: u64, len: usize) -> Result<Vec<u8>> {
        let buf = env.pool().take(len);
        self.node.submit(Io::read(self.at.start + at, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        self.node.submit(Io::flush()).await
    }

    /// Makes `at` read as zeroes.
    pub(crate) async fn zero(&self, at: Range<u64>) -> Result<()> {
        let how = Zero { unmap: true, ..Zero::default() };
        let mut from = at.start;
        while from < at.end {
            let to = at.end.min(from + ZERO_MAX);
            self.node.submit(Io::zero(self.at.start + from..self.at.start + to, how)).await?;
            from = to;
        }
        Ok(())
    }
}
