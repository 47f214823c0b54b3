//! Copying the data of a stripe and summing it, in one pass over the memory.
//!
//! Up to four cells are loaded, stored and added to the sums at once, in blocks whose sums stay in the
//! nearest cache while more cells are added. `Q` is summed from the last cell to the first one, doubled
//! before each: that takes no table. Invariant: each byte is loaded once, so that the sums are those of the
//! copy, whatever others do to the source meanwhile.

use super::{Kernels, POLYNOMIAL, times};
use lamina_block::Buf;

/// The most cells of one [`Pass`]: the cells and their sums fit into the registers of a processor.
pub(super) const GROUP: usize = 4;
/// So many bytes of each cell are done before the next ones: their sums stay in the nearest cache for all
/// groups.
const BLOCK: usize = 8 << 10;

/// Cells that follow each other in a stripe, which are copied and added to the stripe's sums.
pub(super) struct Pass {
    from: [*const u8; GROUP],
    to: [*mut u8; GROUP],
    p: *mut u8,
    /// Null if there is none.
    q: *mut u8,
    /// The sums have those of the cells after these; otherwise nothing yet.
    is_begun: bool,
}

/// Does a pass over `len` bytes. The pointers are valid for them; written memory does not overlap any other.
pub(super) type Collect = unsafe fn(pass: &Pass, len: usize);

/// For every processor.
pub(super) const PORTABLE: [[Collect; 2]; GROUP] = [
    [collect_portable::<1, false>, collect_portable::<1, true>],
    [collect_portable::<2, false>, collect_portable::<2, true>],
    [collect_portable::<3, false>, collect_portable::<3, true>],
    [collect_portable::<4, false>, collect_portable::<4, true>],
];

/// For processors with AVX2.
#[cfg(target_arch = "x86_64")]
pub(super) const AVX2: [[Collect; 2]; GROUP] = [
    [avx2::collect::<1, false>, avx2::collect::<1, true>],
    [avx2::collect::<2, false>, avx2::collect::<2, true>],
    [avx2::collect::<3, false>, avx2::collect::<3, true>],
    [avx2::collect::<4, false>, avx2::collect::<4, true>],
];

impl Kernels {
    /// See [`super::copy_and_encode`].
    pub fn copy_and_encode(&self, from: &[Buf], cells: &[Buf], parities: &[Buf]) {
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

/// Calls `f` with the beginnings of runs of memory at the same place in all the buffers, and their length, at
/// most [`BLOCK`]. The buffers have the same length.
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

/// # Safety
/// See [`Collect`]; `pass` has `CELLS` cells, and a `Q` if `BOTH`.
unsafe fn collect_portable<const CELLS: usize, const BOTH: bool>(pass: &Pass, len: usize) {
    let wide = len / 32 * 32;
    for at in (0..wide).step_by(32) {
        // SAFETY: `at + 32` is at most `len`.
        unsafe { collect_words::<CELLS, BOTH, 4>(pass, at) }
    }
    // SAFETY: `wide` is at most `len`.
    unsafe { collect_rest::<CELLS, BOTH>(pass, wide, len) }
}

/// The bytes from `at` on, which are fewer than a full step.
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
    use super::{POLYNOMIAL, Pass};
    use std::arch::x86_64::*;

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
            for half in [0, 1] {
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
}
