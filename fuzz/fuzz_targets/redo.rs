//! The log of a `redo`: any bytes are a superblock, a record, a table.
//!
//! What must hold: no panic; whatever is decoded lies on store and log, and is the same when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lamina_layers::cache::redo::format::fuzz(input));
