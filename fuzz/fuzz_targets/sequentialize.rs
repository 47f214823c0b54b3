//! The log of a `sequentialize`: any bytes are a superblock, a checkpoint, a head.
//!
//! What must hold: no panic; whatever is decoded lies on the device, and is the same when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lamina_layers::cache::sequentialize::format::fuzz(input));
