//! The arithmetic against a slow reference.

use crate::parity::galois::{self, *};
use crate::testing::*;

/// Multiplies as on paper.
fn slow_times(a: u8, b: u8) -> u8 {
    let mut product = 0u16;
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= u16::from(a) << bit;
        }
    }
    for bit in (8..15).rev() {
        if product >> bit & 1 == 1 {
            product ^= 0x11D << (bit - 8);
        }
    }
    product as u8
}

fn random_bytes(len: usize, random: &mut impl FnMut() -> u64) -> Vec<u8> {
    (0..len).map(|_| random() as u8).collect()
}

/// The bytes in segments of odd lengths.
fn in_pieces(bytes: &[u8], random: &mut impl FnMut() -> u64) -> Buf {
    let (mut buf, mut rest) = (Buf::empty(), bytes);
    while !rest.is_empty() {
        let (part, tail) = rest.split_at((random() as usize % 97 + 1).min(rest.len()));
        buf.append(Buf::from_vec(part.to_vec()));
        rest = tail;
    }
    buf
}

#[test]
fn elements_multiply_and_divide() {
    for (a, b) in (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b))) {
        assert_eq!(times(a, b), slow_times(a, b));
        if b != 0 {
            assert_eq!(times(divide(a, b), b), a);
        }
    }
    assert!((0..255).all(|i| log(power(i)) == i));
}

#[test]
fn every_kernel_is_what_the_reference_is() {
    let mut random = xorshift(3);
    for kernels in [Some(galois::PORTABLE), galois::fast()].into_iter().flatten() {
        for _ in 0..300 {
            let len = random() as usize % 400;
            let (a, b) = (random_bytes(len, &mut random), random_bytes(len, &mut random));
            let factor = random() as u8;
            let (into, from) = (in_pieces(&a, &mut random), in_pieces(&b, &mut random));
            kernels.add_times(&into, &from, factor);
            let product: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ slow_times(*b, factor)).collect();
            assert_eq!(into.to_vec(), product);
            kernels.add(&into, &from);
            assert_eq!(into.to_vec(), product.iter().zip(&b).map(|(a, b)| a ^ b).collect::<Vec<_>>());
        }
    }
}

#[test]
fn copies_are_summed_in_one_go() {
    let mut random = xorshift(5);
    for kernels in [Some(galois::PORTABLE), galois::fast()].into_iter().flatten() {
        for (data, count) in (1..=2).flat_map(|count| (1..=11).map(move |data| (data, count))) {
            // More than is done at a time, and odd pieces.
            let len = random() as usize % 600 + if data % 3 == 0 { 20_000 } else { 1 };
            let bytes: Vec<Vec<u8>> = (0..data).map(|_| random_bytes(len, &mut random)).collect();
            let from: Vec<Buf> = bytes.iter().map(|bytes| in_pieces(bytes, &mut random)).collect();
            let blank = vec![0xA5; len];
            let cells: Vec<Buf> = (0..data).map(|_| in_pieces(&blank, &mut random)).collect();
            let parities: Vec<Buf> = (0..count).map(|_| Buf::from_vec(blank.clone())).collect();
            kernels.copy_and_encode(&from, &cells, &parities);
            assert!(cells.iter().chain(&from).map(Buf::to_vec).eq(bytes.iter().chain(&bytes).cloned()));
            for (which, parity) in parities.iter().enumerate() {
                let expected = Buf::zeroed(len);
                galois::PORTABLE.encode(&cells, &expected, which);
                assert_eq!(parity.to_vec(), expected.to_vec(), "{data} cells, parity {which}");
            }
        }
    }
}

#[test]
fn any_one_or_two_cells_are_found_again() {
    let mut random = xorshift(9);
    for (data, parity) in (1..=2).flat_map(|parity| [1, 2, 3, 7, 30].map(|data| (data, parity))) {
        let len = 100 + random() as usize % 100;
        let cells: Vec<Vec<u8>> = (0..data).map(|_| random_bytes(len, &mut random)).collect();
        let mut all: Vec<Buf> = cells.iter().map(|cell| Buf::from_vec(cell.clone())).collect();
        for which in 0..parity {
            let into = Buf::zeroed(len);
            encode(&all[..data], &into, which);
            let sum = |at: usize| {
                let of = |(i, cell): (usize, &Vec<u8>)| {
                    slow_times(cell[at], if which == 0 { 1 } else { power(i) })
                };
                cells.iter().enumerate().map(of).fold(0, |a, b| a ^ b)
            };
            assert_eq!(into.to_vec(), (0..len).map(sum).collect::<Vec<_>>());
            all.push(into);
        }
        let right: Vec<Vec<u8>> = all.iter().map(Buf::to_vec).collect();
        for (x, y) in (0..all.len()).flat_map(|x| (x..all.len()).map(move |y| (x, y))) {
            if x != y && parity == 1 {
                continue;
            }
            let lost = if x == y { vec![x] } else { vec![x, y] };
            lost.iter().for_each(|cell| all[*cell].fill(0xA5));
            solve(&all, data, &lost);
            assert!(
                all.iter().map(Buf::to_vec).eq(right.iter().cloned()),
                "{data}+{parity} without {lost:?}"
            );
        }
    }
}
