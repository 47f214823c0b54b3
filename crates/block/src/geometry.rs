//! The geometry of a device: its size, its units, and its native operations.

/// The shape of a device. All values are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size; a multiple of `block`.
    pub size: u64,
    /// Logical block: every range is a multiple of it. A power of two, 512 to 64 KiB.
    pub block: u32,
    /// The unit that the device handles best (physical block, stripe unit). A power of two, at least `block`.
    pub optimal: u32,
    /// The unit whose whole, aligned writes the device makes without reading first: a full stripe of a parity. Not
    /// always a power of two; a multiple of `block`. 0: there is none. Layers keep it only where their addresses fit.
    pub stripe: u32,
    /// Writes, zeroing and discards are refused.
    pub read_only: bool,
    /// Discard releases space. Where false, the node completes discards without asking the layer.
    pub discard: bool,
    /// Zeroing is cheaper than writing zeroes. Where false, the node writes zeroes.
    pub zero: bool,
    /// Writes can be made durable one by one. Where false, the node flushes after the write.
    pub fua: bool,
}

impl Geometry {
    /// A writable device of `size` bytes in blocks of 512, with nothing native.
    pub const fn new(size: u64) -> Geometry {
        Geometry {
            size,
            block: 512,
            optimal: 4096,
            stripe: 0,
            read_only: false,
            discard: false,
            zero: false,
            fua: false,
        }
    }

    /// The same with another size.
    pub const fn with_size(self, size: u64) -> Geometry {
        Geometry { size, ..self }
    }

    /// The same for a device whose addresses begin at `offset` of this one: stripes stay where they begin there, too.
    pub fn shifted(self, offset: u64) -> Geometry {
        let fits = self.stripe > 0 && offset.is_multiple_of(self.stripe.into());
        Geometry { stripe: if fits { self.stripe } else { 0 }, ..self }
    }

    /// The shape of a device that spreads requests over two: the stricter unit and permission of both, and native
    /// what is native on either (a child's own node emulates the rest). The size is `self`'s.
    pub fn and(self, other: Geometry) -> Geometry {
        Geometry {
            size: self.size,
            block: self.block.max(other.block),
            optimal: self.optimal.max(other.optimal),
            stripe: if self.stripe == other.stripe { self.stripe } else { 0 },
            read_only: self.read_only || other.read_only,
            discard: self.discard || other.discard,
            zero: self.zero || other.zero,
            fua: self.fua || other.fua,
        }
    }
}

/// The allocation state of a range, for block status (NBD's `base:allocation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Allocated; may have any data.
    Data,
    /// Allocated, and reads as zeroes.
    Zero,
    /// Not allocated, and reads as zeroes.
    Hole,
}

/// A run of bytes in the same state. The place is given by the runs before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, not zero.
    pub len: u64,
    /// The state of the run.
    pub state: ExtentState,
}

impl Extent {
    /// Appends a run to `list`, merged with the last one when the state is the same.
    pub fn push(list: &mut Vec<Extent>, len: u64, state: ExtentState) {
        match list.last_mut() {
            Some(last) if last.state == state => last.len += len,
            _ if len > 0 => list.push(Extent { len, state }),
            _ => {}
        }
    }
}

/// A run of bytes that has perhaps changed since a snapshot, or has not. The place is given by the runs before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Length in bytes, not zero.
    pub len: u64,
    /// Bytes of the run may differ from those of the snapshot.
    pub changed: bool,
}

impl Difference {
    /// Appends a run to `list`, merged with the last one when both have changed, or neither has.
    pub fn push(list: &mut Vec<Difference>, len: u64, changed: bool) {
        match list.last_mut() {
            Some(last) if last.changed == changed => last.len += len,
            _ if len > 0 => list.push(Difference { len, changed }),
            _ => {}
        }
    }
}
