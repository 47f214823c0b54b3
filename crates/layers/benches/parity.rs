//! The price of parity: what the exclusive or, and the sums of RAID 6, take on this core, against copying the
//! same bytes.
//!
//! `cargo bench -p lamina-layers --bench parity` prints gigabytes of data per second, for stripes of four
//! units of 64 KiB: one copy of the data, `P`, and `P` and `Q`, and both together as whole stripes are
//! written, as every processor can do it and as this one can. All of it lies in the caches; every figure is
//! the best of several, taken in turn.

// The very file that the layer is made of, of which not everything is measured.
#[allow(dead_code)]
#[path = "../redundancy/src/parity/galois/mod.rs"]
mod galois;

use galois::Kernels;
use lamina_block::Buf;
use std::time::Instant;

const CELLS: usize = 4;
const UNIT: usize = 64 << 10;
/// Bytes of data of one measurement, and how many are made.
const BYTES: usize = 512 << 20;
const TIMES: usize = 7;

/// Gigabytes of data per second, where `work` does one stripe.
fn rate(mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    for _ in 0..BYTES / (CELLS * UNIT) {
        work();
    }
    BYTES as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let cell = |number: usize| Buf::from_vec((0..UNIT).map(|at| (at * 7 + number * 13) as u8).collect());
    let data: Vec<Buf> = (0..CELLS).map(cell).collect();
    let copies: Vec<Buf> = (0..CELLS).map(cell).collect();
    let parities: Vec<Buf> = (0..2).map(cell).collect();
    let encode = |kernels: &Kernels, count: usize| {
        parities[..count].iter().enumerate().for_each(|(which, parity)| kernels.encode(&data, parity, which));
    };
    let collect =
        |kernels: &Kernels, count: usize| kernels.copy_and_encode(&data, &copies, &parities[..count]);
    let kinds = [("portable", Some(galois::PORTABLE)), ("AVX2", galois::fast())];
    let mut best = [[0.0f64; 5]; 2];
    for _ in 0..TIMES {
        for (row, (_, kernels)) in best.iter_mut().zip(&kinds) {
            let Some(kernels) = kernels else { continue };
            row[0] = row[0].max(rate(|| copies.iter().zip(&data).for_each(|(to, from)| to.copy_from(from))));
            row[1] = row[1].max(rate(|| encode(kernels, 1)));
            row[2] = row[2].max(rate(|| encode(kernels, 2)));
            row[3] = row[3].max(rate(|| collect(kernels, 1)));
            row[4] = row[4].max(rate(|| collect(kernels, 2)));
        }
    }
    println!("way        copy GB/s     P GB/s   P and Q GB/s   copy with P GB/s   copy with P and Q GB/s");
    for (row, (name, _)) in best.iter().zip(&kinds).filter(|(row, _)| row[0] > 0.0) {
        let [copy, p, both, with_p, with_both] = row;
        println!("{name:8} {copy:11.1} {p:10.1} {both:14.1} {with_p:18.1} {with_both:24.1}");
    }
}
