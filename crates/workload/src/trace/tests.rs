use super::*;
use std::path::PathBuf;

fn read_with(bytes: &[u8], options: Options) -> (Vec<Record>, Option<TraceError>) {
    let mut records = Vec::new();
    match Trace::read("t", std::io::Cursor::new(bytes.to_vec()), options) {
        Err(e) => return (records, Some(e)),
        Ok(trace) => {
            for record in trace {
                match record {
                    Ok(record) => records.push(record),
                    Err(e) => return (records, Some(e)),
                }
            }
        }
    }
    (records, None)
}

/// Everything in a trace, as (microseconds, unit, operation, sector, sectors).
fn read(text: &str) -> Vec<(u64, u32, Op, u64, u32)> {
    let (records, wrong) = read_with(text.as_bytes(), Options::default());
    assert_eq!(wrong, None, "{text}");
    let row = |r: &Record| (r.at.0 / 1000, r.unit, r.request.op, r.request.lbn, r.request.sectors);
    records.iter().map(row).collect()
}

use Op::{Discard, Flush, Read as R, Write as W};

#[test]
fn csv() {
    let text =
        "t_us,op,dev,offset_bytes,size_bytes\n0,W,5,512,4096\n# a remark\n\n10.5,R,disk,100,1\n11,r,5,0,0\n";
    // Half sectors are rounded outwards, and a read of nothing is none.
    assert_eq!(read(text), [(0, 0, W, 1, 8), (10, 1, R, 0, 1)]);
    assert_eq!(
        read("3,R,0,0,512\n4,F,0,0,0\n5,D,0,1024,512"),
        [(3, 0, R, 0, 1), (4, 0, Flush, 0, 0), (5, 0, Discard, 2, 1)]
    );
}

#[test]
fn spc() {
    let text = "0,20941264,8192,W,0.551706\n2,100,512,r,0.554041,more\n";
    assert_eq!(read(text), [(551_706, 0, W, 20_941_264, 16), (554_041, 1, R, 100, 1)]);
}

#[test]
fn msr() {
    let text = "128166372003061629,web,0,Read,1024,512,100\n128166372003061639,web,1,Write,0,1024,5\n";
    let base = 12_816_637_200_306_162;
    assert_eq!(read(text), [(base, 0, R, 2, 1), (base + 1, 1, W, 0, 2)]);
}

#[test]
fn blkparse() {
    let text = "\
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        5     0.000009429   697  D   W 223490 + 8 [kjournald]
  8,0    3        6     0.000010000   697  P   N [kjournald]
  8,16   1        1     0.002000000   700  Q  RA 64 + 256 [cat]
  8,0    1        2     0.003000000   700  Q FWS [flush]
  8,0    1        3     0.004000000   700  Q FWFS 8 + 8 [jbd2]
  8,0    1        4     0.005000000   700  Q  DS 16 + 8 [fstrim]
  8,0    3        7     0.009000000     0  C   W 223490 + 8 [0]
CPU0 (8,0):
 Reads Queued:           1,      128KiB	 Writes Queued:           1,        4KiB
";
    let queued = [
        (0, 0, W, 223_490, 8),
        (2000, 1, R, 64, 256),
        (3000, 0, Flush, 0, 0),
        (4000, 0, W, 8, 8),
        (5000, 0, Discard, 16, 8),
    ];
    assert_eq!(read(text), queued);
    let dispatched = Options { event: Event::Dispatched, ..Options::default() };
    let (records, wrong) = read_with(text.as_bytes(), dispatched);
    assert_eq!((records.len(), records[0].at, wrong), (1, Time(9429), None));
}

/// A record of blktrace, as the kernel lays it out.
fn event(big: bool, time: u64, sector: u64, bytes: u32, action: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let words = |values: &[u32], out: &mut Vec<u8>| {
        for value in values {
            out.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
        }
    };
    words(&[0x6561_7407, 1], &mut out);
    for value in [time, sector] {
        out.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
    }
    words(&[bytes, action, 42, (8 << 20) | 16, 0], &mut out);
    for value in [0, payload.len() as u16] {
        out.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
    }
    out.extend(payload);
    out
}

#[test]
fn blktrace() {
    let (read, write, flush, discard) = (1 << 16, 2 << 16, 4 << 16, 1 << 29);
    for big in [false, true] {
        let events = [
            // The name of a process, which is no request.
            event(big, 0, 0, 0, 1 << 26, b"fio\0"),
            event(big, 1000, 64, 4096, read | 1, b""),
            event(big, 2000, 72, 4096, write | 1, b"xyz"),
            event(big, 2500, 72, 4096, write | 7, b""),
            event(big, 3000, 0, 0, write | flush | 1, b""),
            event(big, 4000, 80, 512, write | discard | 1, b""),
            event(big, 5000, 64, 4096, read | 8, b""),
        ];
        let (records, wrong) = read_with(&events.concat(), Options::default());
        assert_eq!(wrong, None);
        let rows: Vec<_> = records
            .iter()
            .map(|r| (r.at.0, r.unit, r.request.op, r.request.lbn, r.request.sectors))
            .collect();
        assert_eq!(
            rows,
            [(1000, 0, R, 64, 8), (2000, 0, W, 72, 8), (3000, 0, Flush, 0, 0), (4000, 0, Discard, 80, 1)]
        );
        let dispatched = Options { event: Event::Dispatched, ..Options::default() };
        assert_eq!(read_with(&events.concat(), dispatched).0.len(), 1);
        // Cut off inside of the third event, and behind its head.
        let bytes = events.concat();
        for (cut, says) in
            [(52 + 48 + 20, "t:100: expected 28 bytes more"), (52 + 48 + 49, "t:100: expected 2 bytes more")]
        {
            let (_, wrong) = read_with(&bytes[..cut], Options::default());
            assert_eq!(wrong.expect("cut off").to_string(), says);
        }
    }
    let mut broken = event(false, 0, 0, 512, read | 1, b"");
    broken.extend([0; 48]);
    let wrong = read_with(&broken, Options::default()).1.expect("no magic");
    assert_eq!(wrong.to_string(), "t:48: expected the magic number 0x65617407, not 0x00000000");
}

#[test]
fn fio() {
    let version_2 = "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a write 0 4096\n/dev/a wait 1500 0\n\
                     /dev/a read 4096 512\n/dev/a sync 0 0\n/dev/a close\n";
    assert_eq!(read(version_2), [(0, 0, W, 0, 8), (1500, 0, R, 8, 1), (1500, 0, Flush, 0, 0)]);
    let version_3 =
        "fio version 3 iolog\n2 b add\n872 b open\n878 b write 0 16384\n10001677 b trim 512 512\n9 b close\n";
    assert_eq!(read(version_3), [(878, 0, W, 0, 32), (10_001_677, 0, Discard, 1, 1)]);
}

#[test]
fn lis() {
    assert_eq!(read("1000 3 0 0\n2000 1 0 1\n"), [(0, 0, R, 1000, 3), (0, 0, R, 2000, 1)]);
}

#[test]
fn compressed_traces_are_read() {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"t_us,op,dev,offset_bytes,size_bytes\n5,R,0,0,512\n").expect("compressed");
    let bytes = gzip.finish().expect("compressed");
    assert_eq!(read_with(&bytes, Options::default()).0.len(), 1);
    let (_, wrong) = read_with(&bytes[..bytes.len() - 9], Options::default());
    assert!(wrong.expect("cut off").to_string().contains("cannot be read"));
}

#[test]
fn a_broken_line_is_named_with_what_was_expected() {
    let csv = "t_us,op,dev,offset_bytes,size_bytes\n0,R,0,0,512\n";
    let long = "x".repeat(5000);
    for (text, says) in [
        (format!("{csv}1,R,0,0\n"), "t:3: expected t_us,op,dev,offset_bytes,size_bytes"),
        (format!("{csv}1,X,0,0,512\n"), "t:3: expected op R, W, F or D, not \"X\""),
        (format!("{csv}\n-1,R,0,0,512\n"), "t:4: expected t_us as a number, not \"-1\""),
        (format!("{csv}1,R,0,0x10,512\n"), "t:3: expected offset_bytes as a number, not \"0x10\""),
        (format!("{csv}1,R,0,0,9999999999999\n"), "t:3: expected a size below 2 TiB"),
        (format!("{csv}1,R,0,18446744073709551615,512\n"), "t:3: expected offset + size below 16 EiB"),
        (format!("{csv}1,R,{long},0,512\n"), "t:3: expected a line of at most 4096 bytes"),
        ("0,20941264,8192,W,0.5\n0,1,2\n".into(), "t:2: expected asu,lba,size,op,time"),
        ("0,99999999999999999,8192,W,0.5\n".into(), "t:1: expected an lba below 2^55"),
        ("1,h,0,Read,0,512,1\n1,h,0,Trim,0,512,1\n".into(), "t:2: expected type Read or Write, not \"Trim\""),
        ("8,0 1 1 0.1 1 Q W 5 - 8\n".into(), "t:1: expected SECTOR + SECTORS behind the flags"),
        ("fio version 2 iolog\na fly 0 1\n".into(), "t:2: expected an action (read, write"),
        ("fio version 3 iolog\nx a read 0 1\n".into(), "t:2: expected MICROSECONDS FILE ACTION"),
        ("fio version 3 iolog\n1 a read 0\n".into(), "t:2: expected OFFSET LENGTH"),
        ("1 2 3 4\n1 2 3\n".into(), "t:2: expected start blocks ignored number"),
        ("hello\n".into(), "t: no trace of a known format (csv, spc"),
        (String::new(), "t: no trace of a known format"),
    ] {
        let wrong = read_with(text.as_bytes(), Options::default()).1.expect("it is broken").to_string();
        assert!(wrong.starts_with(says), "{wrong}");
    }
    let forced = Options { format: Some(Format::Blktrace), ..Options::default() };
    assert!(read_with(b"1 2 3 4\n", forced).1.is_some());
}

#[test]
fn units_are_bounded() {
    let text: String = (0..65_537).map(|unit| format!("0,R,{unit},0,512\n")).collect();
    let (records, wrong) = read_with(text.as_bytes(), Options::default());
    assert_eq!(records.len(), 65_536);
    assert_eq!(wrong.expect("too many").to_string(), "t:65537: expected at most 65536 different units");
}

/// The folder with the published traces.
fn published() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("LAMINA_TRACES").map_or_else(beside, PathBuf::from);
    folder.is_dir().then_some(folder)
}

#[test]
fn published_traces_are_read_whole() {
    let Some(folder) = published() else {
        return println!("skipped: LAMINA_TRACES does not name the folder of the traces");
    };
    for (name, format, count, reads_percent, units) in [
        ("cloudphysics-vm-hour1.csv.gz", Format::Csv, 55_918, 41.0, 1),
        ("spc-financial1-10k.csv.gz", Format::Csv, 10_000, 40.8, 22),
        ("ycsb-ext4.csv.gz", Format::Csv, 9886, 91.0, 1),
        ("ycsb-f2fs.csv.gz", Format::Csv, 5727, 83.0, 1),
        ("fiu-mail-10k.csv.gz", Format::Csv, 9997, 89.0, 1),
        ("msr-hm0-1k.csv", Format::Msr, 1000, 51.0, 1),
    ] {
        let mut trace = Trace::open(&folder.join(name), Options::default()).expect("a trace");
        assert_eq!(trace.format(), format, "{name}");
        let records: Vec<Record> = trace.by_ref().collect::<Result<_, _>>().expect("whole");
        assert_eq!(records.len(), count, "{name}");
        let reads = records.iter().filter(|record| record.request.op == Op::Read).count();
        let percent = reads as f64 * 100.0 / count as f64;
        assert!((percent - reads_percent).abs() < 1.2, "{name}: {percent}% reads");
        let seen = records.iter().map(|record| record.unit).max().expect("one") + 1;
        assert_eq!(seen, units, "{name}");
    }
}

/// The ARC paper's traces are packed with zstd, which only its program here can undo.
#[test]
fn the_traces_of_the_arc_paper_are_read_whole() {
    let unpack = |path: &Path| std::process::Command::new("zstd").arg("-dcq").arg(path).output();
    let Some(folder) = published() else {
        return println!("skipped: LAMINA_TRACES does not name the folder of the traces");
    };
    for (name, count) in [("arc-oltp", 914_145), ("arc-p3", 238_578), ("arc-p6", 519_711)] {
        let Ok(output) = unpack(&folder.join(format!("{name}.lis.zst"))) else {
            return println!("skipped: there is no zstd");
        };
        let trace =
            Trace::read(name, std::io::Cursor::new(output.stdout), Options::default()).expect("a trace");
        assert!(trace.format() == Format::Lis && !trace.has_times());
        assert_eq!(trace.filter(|record| record.is_ok()).count(), count, "{name}");
    }
}
