//! Records of a vault: any bytes are one, with the checksum made good if the first byte says so.
//!
//! What must hold: no panic; a record that is taken is written again and read as the same one, and says nothing
//! impossible; whether a host may have the volume is answered.

#![no_main]

use lamina_cluster::takeover::{May, may_have};
use lamina_cluster::vault::{Holder, Record};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let sealed =
        || [format!("lamina-vault 1 {:08x}\n", crc32c::crc32c(rest)).as_bytes(), rest, b"\n"].concat();
    let bytes = if first % 2 == 0 { rest.to_vec() } else { sealed() };
    let Ok(record) = Record::decode(&bytes) else { return };
    assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
    let me = Holder { host: "me".into(), flash: record.mode.members().first().copied() };
    for silent in [0, 10] {
        if let May::Have(taken) = may_have(&record, &me, Duration::from_secs(silent), Duration::from_secs(5))
        {
            assert!(taken.generation > record.generation);
            taken.check().expect("it is a record");
        }
    }
});
