//! The arithmetic of parity: bytes are elements of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 and the generator 2,
//! as in H. P. Anvin's "The mathematics of RAID-6".
//!
//! A stripe with the data `d0`, `d1`, … has `P = d0 + d1 + …` and `Q = g^0 d0 + g^1 d1 + …`, where a sum is an exclusive or.
//! Everything is made of three operations on runs of bytes: [`add`] and [`add_times`], and for what is written,
//! [`copy_and_encode`], which goes through the memory once. They do 32 bytes at a time where the processor has AVX2, which is
//! looked up once, otherwise 8 at a time, or one.

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

/// The most cells of one [`Pass`]: they and their sums fit into the registers of a processor.
const GROUP: usize = 4;
/// So many bytes of each cell are done before the next ones: their sums stay in the nearest cache for all groups.
const BLOCK: usize = 8 << 10;

/// Cells that follow each other in a stripe, which are copied and added to the stripe's sums. `Q` is summed from the last
/// cell to the first one, doubled before each: that takes no table.
struct Pass {
    from: [*const u8; GROUP],
    to: [*mut u8; GROUP],
    p: *mut u8,
    /// Null if there is none.
    q: *mut u8,
    /// The sums hold what cells behind these came to; otherwise nothing yet.
    is_begun: bool,
}

/// The operations as a kind of processor does them. The pointers are valid for `len` bytes, those `into` and `to` which
/// something is written for writes; what is written overlaps nothing else.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    add: unsafe fn(into: *mut u8, from: *const u8, len: usize),
    add_times: unsafe fn(into: *mut u8, from: *const u8, len: usize, products: &Products),
    /// By the number of cells less one, and whether there is a `Q`.
    collect: [[Collect; 2]; GROUP],
}

type Collect = unsafe fn(pass: &Pass, len: usize);

/// What every processor can do.
pub(super) const PORTABLE: Kernels = Kernels {
    add: add_portable,
    add_times: add_times_portable,
    collect: [
        [collect_portable::<1, false>, collect_portable::<1, true>],
        [collect_portable::<2, false>, collect_portable::<2, true>],
        [collect_portable::<3, false>, collect_portable::<3, true>],
        [collect_portable::<4, false>, collect_portable::<4, true>],
    ],
};

static BEST: LazyLock<Kernels> = LazyLock::new(|| fast().unwrap_or(PORTABLE));

/// What this processor can do beyond that.
#[cfg(target_arch = "x86_64")]
pub(super) fn fast() -> Option<Kernels> {
    is_x86_feature_detected!("avx2").then_some(Kernels {
        add: avx2::add,
        add_times: avx2::add_times,
        collect: [
            [avx2::collect::<1, false>, avx2::collect::<1, true>],
            [avx2::collect::<2, false>, avx2::collect::<2, true>],
            [avx2::collect::<3, false>, avx2::collect::<3, true>],
            [avx2::collect::<4, false>, avx2::collect::<4, true>],
        ],
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

/// Copies what the data cells of a stripe get `from` memory that others may change meanwhile into private `cells`, and
/// computes the `parities` of what was copied: each byte is read once. All are as long.
pub fn copy_and_encode(from: &[Buf], cells: &[Buf], parities: &[Buf]) {
    BEST.copy_and_encode(from, cells, parities);
}

/// What data cell `cell` is multiplied by in parity number `which`.
pub fn factor(which: usize, cell: usize) -> u8 {
    if which == 0 { 1 } else { power(cell) }
}

/// Computes the cells of a stripe that are `lost`, no more than there are parities, from the others. `cells` are the
/// data, of which there are `data`, and behind them the parities.
pub fn solve(cells: &[Buf], data: usize, lost: &[usize]) {
    let (known, parity) = cells.split_at(data);
    let gone: Vec<usize> = lost.iter().copied().filter(|cell| *cell < data).collect();
    // What the lost cells add to a parity: the parity less what the others add.
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

    pub(super) fn copy_and_encode(&self, from: &[Buf], cells: &[Buf], parities: &[Buf]) {
        let (data, null) = (from.len(), std::ptr::null_mut());
        assert!(data > 0 && cells.len() == data && (1..=2).contains(&parities.len()));
        runs(from.iter().chain(cells).chain(parities), |start, len| {
            let (p, q) = (start[2 * data], start.get(2 * data + 1).copied().unwrap_or(null));
            let mut is_begun = false;
            for first in (0..data).step_by(GROUP).rev() {
                let cells = (data - first).min(GROUP);
                let collect = self.collect[cells - 1][usize::from(!q.is_null())];
                let place =
                    |of: usize, cell: usize| if cell < cells { start[of + first + cell] } else { null };
                let from = std::array::from_fn(|cell| place(0, cell).cast_const());
                let to = std::array::from_fn(|cell| place(data, cell));
                // SAFETY: `runs` gives memory of `len` bytes of each; cells and parities are private, each by itself.
                unsafe { collect(&Pass { from, to, p, q, is_begun }, len) }
                is_begun = true;
            }
        });
    }
}

/// Calls `f` with where runs of memory begin that lie at the same place in all the buffers, and their length, at most
/// [`BLOCK`]. The buffers are as long.
fn runs<'a>(bufs: impl Iterator<Item = &'a Buf>, mut f: impl FnMut(&[*mut u8], usize)) {
    let mut rests: Vec<_> = bufs.map(|buf| (buf.segments().iter(), 0)).collect();
    let mut starts = vec![std::ptr::null_mut::<u8>(); rests.len()];
    loop {
        let mut len = BLOCK;
        for ((segments, left), start) in rests.iter_mut().zip(&mut starts) {
            if *left == 0 {
                let Some(segment) = segments.next() else { return };
                (*start, *left) = (segment.as_ptr(), segment.len());
            }
            len = len.min(*left);
        }
        f(&starts, len);
        for ((_, left), start) in rests.iter_mut().zip(&mut starts) {
            *left -= len;
            *start = start.wrapping_add(len);
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

/// # Safety
/// See [`Kernels`]; `pass` has `CELLS` cells, and a `Q` if `BOTH`.
unsafe fn collect_portable<const CELLS: usize, const BOTH: bool>(pass: &Pass, len: usize) {
    let wide = len / 32 * 32;
    for at in (0..wide).step_by(32) {
        // SAFETY: `at + 32` is at most `len`.
        unsafe { collect_words::<CELLS, BOTH, 4>(pass, at) }
    }
    // SAFETY: `wide` is at most `len`.
    unsafe { collect_rest::<CELLS, BOTH>(pass, wide, len) }
}

/// The bytes from `at` on, which are fewer than are done at a time.
///
/// # Safety
/// As [`collect_portable`]; `at` is at most `len`.
#[inline(never)]
unsafe fn collect_rest<const CELLS: usize, const BOTH: bool>(pass: &Pass, mut at: usize, len: usize) {
    while at + 8 <= len {
        // SAFETY: as the condition says.
        unsafe { collect_words::<CELLS, BOTH, 1>(pass, at) }
        at += 8;
    }
    for at in at..len {
        // SAFETY: `at` is less than `len`.
        unsafe {
            let (mut p, mut q) = match pass.is_begun {
                true => (*pass.p.add(at), if BOTH { *pass.q.add(at) } else { 0 }),
                false => (0, 0),
            };
            for cell in (0..CELLS).rev() {
                let byte = *pass.from[cell].add(at);
                *pass.to[cell].add(at) = byte;
                p ^= byte;
                q = times(2, q) ^ byte;
            }
            *pass.p.add(at) = p;
            if BOTH {
                *pass.q.add(at) = q;
            }
        }
    }
}

/// Eight times `WORDS` bytes from byte `at` on.
///
/// # Safety
/// As [`collect_portable`]; they end at `len` at most.
#[inline(always)]
unsafe fn collect_words<const CELLS: usize, const BOTH: bool, const WORDS: usize>(pass: &Pass, at: usize) {
    // SAFETY: as this function asks for; nothing has to be aligned.
    let load = |from: *const u8| unsafe { from.add(at).cast::<[u64; WORDS]>().read_unaligned() };
    // SAFETY: as above.
    let store =
        |to: *mut u8, of: [u64; WORDS]| unsafe { to.add(at).cast::<[u64; WORDS]>().write_unaligned(of) };
    let mut p = if pass.is_begun { load(pass.p) } else { [0; WORDS] };
    let mut q = if BOTH && pass.is_begun { load(pass.q) } else { [0; WORDS] };
    let data: [_; CELLS] = std::array::from_fn(|cell| load(pass.from[cell]));
    for cell in (0..CELLS).rev() {
        store(pass.to[cell], data[cell]);
        p = std::array::from_fn(|word| p[word] ^ data[cell][word]);
        if BOTH {
            q = std::array::from_fn(|word| twice(q[word]) ^ data[cell][word]);
        }
    }
    store(pass.p, p);
    if BOTH {
        store(pass.q, q);
    }
}

/// Eight elements doubled.
fn twice(word: u64) -> u64 {
    let high = (word >> 7) & 0x0101_0101_0101_0101;
    // All bits of a byte whose highest one is set.
    let all = (high << 8).wrapping_sub(high);
    ((word << 1) & 0xFEFE_FEFE_FEFE_FEFE) ^ (all & (u64::from(POLYNOMIAL) * 0x0101_0101_0101_0101))
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{POLYNOMIAL, Pass, Products};
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

    /// All cells are loaded before anything is stored: memory that is a multiple of 4 KiB apart looks the same to the
    /// processor for a while, and a load would wait for a store to it.
    ///
    /// # Safety
    /// As [`super::collect_portable`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn collect<const CELLS: usize, const BOTH: bool>(pass: &Pass, len: usize) {
        let (zero, polynomial) = (_mm256_setzero_si256(), _mm256_set1_epi8(POLYNOMIAL as i8));
        // SAFETY: what is loaded and stored, 32 bytes unaligned, ends at `len` at most.
        let load = |from: *const u8, at: usize| unsafe { _mm256_loadu_si256(from.add(at).cast()) };
        // SAFETY: as above.
        let store =
            |to: *mut u8, at: usize, of: __m256i| unsafe { _mm256_storeu_si256(to.add(at).cast(), of) };
        let wide = len / 64 * 64;
        for at in (0..wide).step_by(64) {
            let data: [[__m256i; 2]; CELLS] =
                std::array::from_fn(|cell| [load(pass.from[cell], at), load(pass.from[cell], at + 32)]);
            for half in 0..2 {
                let at = at + half * 32;
                let begun = |sum: *mut u8| if pass.is_begun { load(sum, at) } else { zero };
                let mut p = begun(pass.p);
                let mut q = if BOTH { begun(pass.q) } else { zero };
                for cell in (0..CELLS).rev() {
                    p = _mm256_xor_si256(p, data[cell][half]);
                    if BOTH {
                        let high = _mm256_and_si256(_mm256_cmpgt_epi8(zero, q), polynomial);
                        q = _mm256_xor_si256(_mm256_xor_si256(_mm256_add_epi8(q, q), high), data[cell][half]);
                    }
                }
                (0..CELLS).for_each(|cell| store(pass.to[cell], at, data[cell][half]));
                store(pass.p, at, p);
                if BOTH {
                    store(pass.q, at, q);
                }
            }
        }
        // SAFETY: `wide` is at most `len`.
        unsafe { super::collect_rest::<CELLS, BOTH>(pass, wide, len) }
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
