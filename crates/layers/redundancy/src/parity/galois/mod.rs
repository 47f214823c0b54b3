//! The arithmetic of parity: bytes are elements of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 and
//! the generator 2, as in H. P. Anvin's "The mathematics of RAID-6".
//!
//! A stripe with the data `d0`, `d1`, … has `P = d0 + d1 + …` and `Q = g^0 d0 + g^1 d1 + …`, where a sum is
//! an exclusive or. Everything is made of three operations on runs of bytes: [`add`] and [`add_times`], and
//! for writes, [`copy_and_encode`], which goes through the memory once. They do 32 bytes at a time where the
//! processor has AVX2, which is looked up once, otherwise 8 at a time, or one.

mod collect;

use collect::{Collect, GROUP};
use lamina_block::Buf;
use std::sync::LazyLock;

/// The polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1D;

/// `2^i`, and which `i` it is for each element but 0.
const TABLES: ([u8; 255], [u8; 256]) = {
    let (mut powers, mut logs) = ([0; 255], [0; 256]);
    let (mut power, mut i) = (1u8, 0);
    while i < 255 {
        powers[i] = power;
        logs[power as usize] = i as u8;
        power = (power << 1) ^ if power & 0x80 == 0 { 0 } else { POLYNOMIAL };
        i += 1;
    }
    (powers, logs)
};

/// `g^i`.
pub const fn power(i: usize) -> u8 {
    TABLES.0[i % 255]
}

/// The product of two elements.
pub const fn times(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { power(TABLES.1[a as usize] as usize + TABLES.1[b as usize] as usize) }
}

/// The element that gives `a`, not zero `b` times.
pub const fn divide(a: u8, b: u8) -> u8 {
    if a == 0 { 0 } else { power(TABLES.1[a as usize] as usize + 255 - TABLES.1[b as usize] as usize) }
}

/// Which power of `g` the element is, which is not 0.
pub const fn log(a: u8) -> usize {
    TABLES.1[a as usize] as usize
}

/// The products of one element with all that have only their low, or only their high four bits.
#[repr(align(16))]
struct Products {
    low: [u8; 16],
    high: [u8; 16],
}

impl Products {
    fn of(factor: u8) -> Products {
        let product = |i: usize| times(factor, i as u8);
        Products { low: std::array::from_fn(product), high: std::array::from_fn(|i| product(i << 4)) }
    }

    fn with(&self, byte: u8) -> u8 {
        self.low[usize::from(byte & 15)] ^ self.high[usize::from(byte >> 4)]
    }
}

/// The operations as a kind of processor does them. The pointers are valid for `len` bytes, `into` for writes; the two
/// runs do not overlap.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    add: unsafe fn(into: *mut u8, from: *const u8, len: usize),
    add_times: unsafe fn(into: *mut u8, from: *const u8, len: usize, products: &Products),
    /// By the number of cells less one, and whether there is a `Q`.
    collect: [[Collect; 2]; GROUP],
}

/// For every processor.
pub(super) const PORTABLE: Kernels =
    Kernels { add: add_portable, add_times: add_times_portable, collect: collect::PORTABLE };

static BEST: LazyLock<Kernels> = LazyLock::new(|| fast().unwrap_or(PORTABLE));

/// The faster operations of this processor, if it has any.
#[cfg(target_arch = "x86_64")]
pub(super) fn fast() -> Option<Kernels> {
    is_x86_feature_detected!("avx2").then_some(Kernels {
        add: avx2::add,
        add_times: avx2::add_times,
        collect: collect::AVX2,
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fast() -> Option<Kernels> {
    None
}

/// `into += from`, byte by byte. Both are as long.
pub fn add(into: &Buf, from: &Buf) {
    BEST.add(into, from);
}

/// `into += factor * from`, byte by byte. Both are as long.
pub fn add_times(into: &Buf, from: &Buf, factor: u8) {
    BEST.add_times(into, from, factor);
}

/// `bytes *= factor`, byte by byte.
pub fn scale(bytes: &Buf, factor: u8) {
    // b + (f + 1) b = f b
    let same = bytes.to_vec();
    add_times(bytes, &Buf::from_vec(same), factor ^ 1);
}

/// Computes parity number `which` of the `data` of a stripe.
pub fn encode(data: &[Buf], parity: &Buf, which: usize) {
    BEST.encode(data, parity, which);
}

/// Copies the data cells of a stripe `from` memory that others may change meanwhile into private `cells`, and
/// computes the `parities` of the copies: each byte is read once. All have the same length.
pub fn copy_and_encode(from: &[Buf], cells: &[Buf], parities: &[Buf]) {
    BEST.copy_and_encode(from, cells, parities);
}

/// The factor of data cell `cell` in parity number `which`.
pub fn factor(which: usize, cell: usize) -> u8 {
    if which == 0 { 1 } else { power(cell) }
}

/// Computes the cells of a stripe that are `lost`, no more than there are parities, from the others. `cells`
/// are the data, of which there are `data`, and after them the parities.
pub fn solve(cells: &[Buf], data: usize, lost: &[usize]) {
    let (known, parity) = cells.split_at(data);
    let gone: Vec<usize> = lost.iter().copied().filter(|cell| *cell < data).collect();
    // The sum of the lost cells in a parity: the parity less the sum of the others.
    let rest = |which: usize, into: &Buf| {
        into.copy_from(&parity[which]);
        let others = known.iter().enumerate().filter(|(cell, _)| !gone.contains(cell));
        others.for_each(|(cell, bytes)| add_times(into, bytes, factor(which, cell)));
    };
    match gone[..] {
        [x] => {
            let which = usize::from(lost.contains(&data));
            rest(which, &cells[x]);
            scale(&cells[x], divide(1, factor(which, x)));
        }
        [x, y] => {
            // dx + dy, and g^x dx + g^y dy.
            let (both, mixed) = (&cells[y], &cells[x]);
            rest(0, both);
            rest(1, mixed);
            add_times(mixed, both, power(y));
            scale(mixed, divide(1, power(x) ^ power(y)));
            add(both, mixed);
        }
        _ => {}
    }
    for which in lost.iter().filter_map(|cell| cell.checked_sub(data)) {
        encode(known, &parity[which], which);
    }
}

impl Kernels {
    pub(super) fn add(&self, into: &Buf, from: &Buf) {
        // SAFETY: `each` gives runs that are valid for their length and apart.
        each(into, from, |into, from, len| unsafe { (self.add)(into, from, len) });
    }

    pub(super) fn add_times(&self, into: &Buf, from: &Buf, factor: u8) {
        match factor {
            0 => {}
            1 => self.add(into, from),
            _ => {
                let products = Products::of(factor);
                // SAFETY: as above.
                each(into, from, |into, from, len| unsafe { (self.add_times)(into, from, len, &products) });
            }
        }
    }

    pub(super) fn encode(&self, data: &[Buf], parity: &Buf, which: usize) {
        // The first one is multiplied by 1.
        parity.copy_from(&data[0]);
        for (cell, bytes) in data.iter().enumerate().skip(1) {
            self.add_times(parity, bytes, factor(which, cell));
        }
    }
}

/// Calls `f` with runs of memory that lie at the same place in both buffers.
fn each(into: &Buf, from: &Buf, mut f: impl FnMut(*mut u8, *const u8, usize)) {
    assert_eq!(into.len(), from.len());
    let (mut to, mut of) = (into.segments().iter(), from.segments().iter());
    let (mut a, mut b) = (to.next().map(|s| (s.as_ptr(), s.len())), of.next().map(|s| (s.as_ptr(), s.len())));
    while let (Some((into, n)), Some((from, m))) = (a, b) {
        let len = n.min(m);
        debug_assert!(into.addr() + len <= from.addr() || from.addr() + len <= into.addr());
        f(into, from, len);
        a = if n > len {
            Some((into.wrapping_add(len), n - len))
        } else {
            to.next().map(|s| (s.as_ptr(), s.len()))
        };
        b = if m > len {
            Some((from.wrapping_add(len), m - len))
        } else {
            of.next().map(|s| (s.as_ptr(), s.len()))
        };
    }
}

/// # Safety
/// See [`Kernels`].
unsafe fn add_portable(into: *mut u8, from: *const u8, len: usize) {
    let words = len / 8 * 8;
    for at in (0..words).step_by(8) {
        // SAFETY: `at + 8` is at most `len`.
        unsafe {
            let sum =
                into.add(at).cast::<u64>().read_unaligned() ^ from.add(at).cast::<u64>().read_unaligned();
            into.add(at).cast::<u64>().write_unaligned(sum);
        }
    }
    for at in words..len {
        // SAFETY: `at` is less than `len`.
        unsafe { *into.add(at) ^= *from.add(at) }
    }
}

/// # Safety
/// See [`Kernels`].
unsafe fn add_times_portable(into: *mut u8, from: *const u8, len: usize, products: &Products) {
    for at in 0..len {
        // SAFETY: `at` is less than `len`.
        unsafe { *into.add(at) ^= products.with(*from.add(at)) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::Products;
    use std::arch::x86_64::*;

    /// # Safety
    /// See [`super::Kernels`]; the processor has AVX2.
    pub unsafe fn add(into: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller says so.
        unsafe { add_wide(into, from, len) }
    }

    /// # Safety
    /// See [`super::Kernels`]; the processor has AVX2.
    pub unsafe fn add_times(into: *mut u8, from: *const u8, len: usize, products: &Products) {
        // SAFETY: the caller says so.
        unsafe { add_times_wide(into, from, len, products) }
    }

    /// # Safety
    /// As [`add`].
    #[target_feature(enable = "avx2")]
    unsafe fn add_wide(into: *mut u8, from: *const u8, len: usize) {
        let wide = len / 64 * 64;
        for at in (0..wide).step_by(64) {
            // SAFETY: `at + 64` is at most `len`; unaligned loads and stores are used.
            unsafe {
                let (a, b) = (into.add(at).cast::<__m256i>(), from.add(at).cast::<__m256i>());
                let first = _mm256_xor_si256(_mm256_loadu_si256(a), _mm256_loadu_si256(b));
                let second = _mm256_xor_si256(_mm256_loadu_si256(a.add(1)), _mm256_loadu_si256(b.add(1)));
                _mm256_storeu_si256(a, first);
                _mm256_storeu_si256(a.add(1), second);
            }
        }
        // SAFETY: `wide` is at most `len`.
        unsafe { super::add_portable(into.add(wide), from.add(wide), len - wide) }
    }

    /// # Safety
    /// As [`add`].
    #[target_feature(enable = "avx2")]
    unsafe fn add_times_wide(into: *mut u8, from: *const u8, len: usize, products: &Products) {
        // SAFETY: both tables have 16 bytes, at a multiple of 16.
        let (low, high) = unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_load_si128(products.low.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_load_si128(products.high.as_ptr().cast())),
            )
        };
        let four = _mm256_set1_epi8(15);
        let wide = len / 32 * 32;
        for at in (0..wide).step_by(32) {
            // SAFETY: `at + 32` is at most `len`; unaligned loads and stores are used.
            unsafe {
                let (a, b) = (into.add(at).cast::<__m256i>(), from.add(at).cast::<__m256i>());
                let bytes = _mm256_loadu_si256(b);
                let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, four));
                let of_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64(bytes, 4), four));
                let product = _mm256_xor_si256(of_low, of_high);
                _mm256_storeu_si256(a, _mm256_xor_si256(_mm256_loadu_si256(a), product));
            }
        }
        // SAFETY: `wide` is at most `len`.
        unsafe { super::add_times_portable(into.add(wide), from.add(wide), len - wide, products) }
    }
}
