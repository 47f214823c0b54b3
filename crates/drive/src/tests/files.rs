//! Model files: round trips, errors, and the page that describes them.

use super::*;
use crate::*;
use lamina_block::Bytes;

const PAGE: &str = include_str!("../../../../docs/formats/drive-model.md");

/// One model of each mechanism in which every key is there.
fn full() -> Vec<Model> {
    let cache = Some(Cache { segments: 3, segment_sectors: 400, prefetch_sectors: 5 });
    let points = Quantiles(vec![[0.0, 0.1], [0.3, 0.1 + 0.2], [1.0, 1e3 / 3.0]]);
    let model = |name: &str, mechanism| Model { name: name.into(), size: Bytes(1_000_000_512), mechanism };
    let linear =
        Linear { constant_ms: 1.0 / 3.0, slope_ms: 5.25, hit_ms: 0.25, spread_ms: 4.0, cache: cache.clone() };
    let zone = Zone {
        first_lbn: 0,
        sectors_per_track: 334.7,
        angle: 0.1,
        track_skew: 0.2,
        cylinder_skew: 0.3,
        spare_sectors: 4,
        first_cylinder: Some(1),
    };
    let rotational = Rotational {
        rotation_ms: 5.97182,
        heads: 2,
        band_cylinders: 3,
        head_order: HeadOrder::Ascending,
        overhead_ms: 0.1,
        completion_ms: 0.2,
        read_sector_ms: 0.05,
        head_switch_ms: 0.3,
        write_settle_ms: 0.4,
        arrival_spread_ms: 0.5,
        hit_ms: 0.6,
        bus_rate: Some(Bytes(160_000_000)),
        depth: 8,
        order: Order::Shortest,
        age_limit_ms: 100.0,
        corrections: vec![(0, 0.1), (7, 0.1 + 0.2)],
        seek: Seek::Points(vec![[1.0, 0.5], [3000.0, 9.7]]),
        cache,
        whole_tracks: true,
        write_buffer: Some(WriteBuffer { size: Bytes(1 << 20), hit_ms: Some(0.7) }),
        residuals: Residuals {
            read_ms: points.clone(),
            read_by_wait_ms: vec![points.clone(), points.clone()],
            write_by_wait_ms: vec![points.clone()],
            write_ms: points.clone(),
            hit_ms: points.clone(),
            buffered_ms: points.clone(),
        },
        zones: vec![zone.clone(), Zone { first_lbn: 1_000_000, first_cylinder: Some(5000), ..zone }],
    };
    let curve = Seek::Curve(Curve { alpha_ms: 0.5, beta_ms: 0.01, gamma_ms: 1e-5 });
    let curved = Rotational {
        seek: curve,
        band_cylinders: 1,
        head_order: HeadOrder::Serpentine,
        ..rotational.clone()
    };
    let ssd = Ssd {
        command_us: 0.7,
        suspend_us: Some(20.0),
        protected: true,
        garbage: Some(Garbage {
            block: Bytes(1 << 20),
            erase_ms: 5.0,
            over_provisioning: 0.07,
            valid_fraction: 0.5,
            erased_fraction: 0.1,
        }),
        block_map: Some(BlockMap { block: Bytes(1 << 19), log_blocks: 8, erase_ms: 1.5 }),
        residuals: [ResidualOp::Read, ResidualOp::Write, ResidualOp::Flush]
            .map(|op| Residual { op, up_to: Bytes(4096), quantiles_us: points.clone() })
            .to_vec(),
        latencies: [1, 4]
            .map(|depth| DepthLatency {
                op: ResidualOp::Read,
                length: Bytes(4096),
                depth,
                quantiles_us: points.clone(),
            })
            .to_vec(),
        ..Ssd::default()
    };
    let read = Latency::Lognormal(Lognormal { median_us: 450.0, sigma: 0.3 });
    let remote =
        Remote { depth: 9, iops: 1e4, rate: Bytes(1 << 30), read, write: Latency::QuantilesUs(points) };
    vec![
        model("linear", Mechanism::Linear(linear)),
        model("rotational", Mechanism::Rotational(Box::new(rotational))),
        model("curved", Mechanism::Rotational(Box::new(curved))),
        model("ssd", Mechanism::Ssd(Box::new(ssd))),
        model("remote", Mechanism::Remote(remote)),
    ]
}

#[test]
fn a_file_reads_back_to_the_same_model() {
    let named = Model::NAMES
        .into_iter()
        .map(|name| Model::named(name).unwrap_or_else(|| panic!("{name} does not parse")));
    for model in full().into_iter().chain(named) {
        let text = model.to_toml();
        assert_eq!(Model::parse(&text), Ok(model), "{text}");
    }
}

#[test]
fn the_page_names_every_key_and_every_model() {
    fn keys(value: &toml::Value, found: &mut Vec<String>) {
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            }),
            toml::Value::Array(array) => array.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }
    let mut found: Vec<String> = Model::NAMES.into_iter().map(str::to_owned).collect();
    full().iter().for_each(|model| keys(&toml::from_str(&model.to_toml()).expect("TOML"), &mut found));
    assert!(found.len() > 80, "{found:?}");
    for key in found {
        assert!(PAGE.contains(&format!("`{key}`")), "docs/formats/drive-model.md lacks `{key}`");
    }
}

#[test]
fn the_page_s_example_is_a_model() {
    let example =
        PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    assert_eq!(Model::parse(example).map(|model| model.depth()), Ok(1));
}

/// What the error of a wrong file says.
fn says(text: &str) -> String {
    Model::parse(text).expect_err(text).to_string()
}

#[test]
fn errors_name_the_line_the_key_and_the_range() {
    let head = "name = \"x\"\nsize = \"1GiB\"\n";
    let disk = "[rotational]\nrotation-ms = 4\nseek.points = [[1, 1]]\n";
    let zone = "[[rotational.zones]]\nfirst-lbn = 0\nsectors-per-track = 100\n";
    let flash = "[ssd]\ndepth = 1\ndies = 1\npage = 4096\nread-overhead-us = 1\nwrite-overhead-us = 1\n\
                 read-us = 1\nprogram-us = 1\n";
    let flash = &format!("{flash}bus-rate = 4096\nbuffer = 4096\n");
    let entry = "[[ssd.latencies]]\nop = \"read\"\nlength = 4096\ndepth = 1\nquantiles-us = [[0, 1]]\n";
    for (text, expected) in [
        (
            format!("{head}[linear]\nconstant-ms = -1\nslope-ms = 1\nhit-ms = 1"),
            "line 4: linear.constant-ms: -1 is outside 0..=10000",
        ),
        (
            format!("{head}[linear]\nconstant-ms = nan\nslope-ms = 1\nhit-ms = 1"),
            "line 4: linear.constant-ms: NaN is outside 0..=10000",
        ),
        (
            format!("{head}[linear]\nconstant-ms = 1\nslope-ms = inf\nhit-ms = 1"),
            "line 5: linear.slope-ms: inf is outside 0..=10000",
        ),
        (format!("{head}[linear]\nconstant-ms = 1\nhit-ms = 1"), "line 3: linear: missing field `slope-ms`"),
        (
            format!("{head}[linear]\nconstant-ms = 1\nslope-ms = \"x\"\nhit-ms = 1"),
            "line 5: linear.slope-ms: invalid type: string \"x\", expected f64",
        ),
        (
            format!("{head}{disk}{zone}sectors-per-trak = 1"),
            "line 9: rotational.zones[0].sectors-per-trak: unknown field \
            `sectors-per-trak`, expected one of `first-lbn`, `sectors-per-track`, `angle`, `track-skew`, \
            `cylinder-skew`, `spare-sectors`, `first-cylinder`",
        ),
        (
            format!("{head}{disk}{zone}[[rotational.zones]]\nfirst-lbn = 9\nsectors-per-track = 0"),
            "line 11: rotational.zones[1].sectors-per-track: 0 is outside 1..=100000",
        ),
        (
            format!("{head}{disk}{zone}[[rotational.zones]]\nfirst-lbn = 0\nsectors-per-track = 5"),
            "line 10: rotational.zones[1].first-lbn: 0 is not more than 0, the entry before: entries ascend",
        ),
        (
            format!("{head}{disk}{zone}[[rotational.zones]]\nfirst-lbn = 99999999\nsectors-per-track = 5"),
            "line 10: rotational.zones[1].first-lbn: 99999999 is outside 0..=2097151",
        ),
        (
            format!("{head}{disk}[[rotational.zones]]\nfirst-lbn = 1\nsectors-per-track = 5"),
            "line 7: rotational.zones[0].first-lbn: 1 is outside 0..=0",
        ),
        (
            format!("{head}{disk}band-cylinders = 2\nhead-order = \"serpentine\"\n{zone}"),
            "line 7: rotational.head-order: serpentine is for band-cylinders of 1, not 2",
        ),
        (format!("{head}{disk}zones = []"), "line 6: rotational.zones: 0 entries: 1..=4096 are allowed"),
        (
            format!(
                "{head}[rotational]\nrotation-ms = 4\n\
                 seek.curve = {{ alpha-ms = 1, beta-ms = -1, gamma-ms = 0 }}\n{zone}"
            ),
            "line 5: rotational.seek.curve at 20972 cylinders: -143.81712605904042 is outside 0..=10000",
        ),
        (
            format!("{head}[rotational]\nrotation-ms = 4\nseek.points = [[1, 2], [2, 1]]\n{zone}"),
            "line 5: rotational.seek.points[1][1]: 1 is outside 2..=10000",
        ),
        (
            format!("{head}[linear]\nconstant-ms = 1\nslope-ms = 1\nhit-ms = 1\n[ssd]\n"),
            "line 7: ssd: missing field `depth`",
        ),
        (
            format!("{head}{flash}{entry}{entry}"),
            "line 20: ssd.latencies[1].length: entries of an operation ascend: by length, and then by depth",
        ),
        (
            format!(
                "{head}{flash}[[ssd.latencies]]\nop = \"read\"\nlength = 4096\ndepth = 0\nquantiles-us = [[0, 1]]"
            ),
            "line 16: ssd.latencies[0].depth: 0 is outside 1..=65536",
        ),
        (
            format!(
                "{head}{flash}[[ssd.latencies]]\nop = \"read\"\nlength = 4096\ndepth = 1\nquantiles-us = []"
            ),
            "line 17: ssd.latencies[0].quantiles-us: 0 entries: 1..=1000 are allowed",
        ),
        (head.to_owned(), "a model has one of the tables linear, rotational, ssd, remote"),
        (
            "name = \"x\"\nsize = \"1QB\"".to_owned(),
            "line 2: size: \"1QB\" is no size: write a number of bytes or, for example, \"64MiB\", \
             \"1.5GiB\", \"10GB\"",
        ),
        (
            String::from("name = \"x\"\nsize = 4097\n[linear]\nconstant-ms = 1\nslope-ms = 1\nhit-ms = 1"),
            "line 2: size: 4097B is no multiple of 512 bytes",
        ),
        (
            String::from("name = \"\"\nsize = 4096\n[linear]\nconstant-ms = 1\nslope-ms = 1\nhit-ms = 1"),
            "line 1: name: the number of characters, 0 is outside 1..=200",
        ),
    ] {
        assert_eq!(says(&text), expected);
    }
}

#[test]
fn hostile_values_are_refused_or_served() {
    let huge = "name=\"x\"\nsize=1152921504606846976\n[rotational]\nrotation-ms=0.1\nheads=256\nhead-switch-ms=10000\n\
                seek.curve={alpha-ms=10000,beta-ms=0,gamma-ms=0}\n\
                cache={segments=65536,segment-sectors=1,prefetch-sectors=16777216}\n\
                write-buffer.size=512\n[[rotational.zones]]\nfirst-lbn=0\nsectors-per-track=1\ntrack-skew=1e-9\n";
    let model = Model::parse(huge).expect("a slow disk");
    let mut drive = model.drive(1);
    for (id, lbn) in [0, u64::MAX, 1 << 50, u64::MAX - 3].into_iter().enumerate() {
        drive.submit(Time(id as u64), 1, Request { op: Op::Read, lbn, sectors: u32::MAX });
        drive.submit(Time(id as u64), 2, Request { op: Op::Write, lbn, sectors: 1 });
        drive.submit(Time(id as u64), 3, FLUSH);
    }
    assert_eq!(drain(&mut drive).len(), 12);
    let many = "[[rotational.zones]]\nfirst-lbn=0\nsectors-per-track=1\n".repeat(5000);
    assert!(
        says(&format!("name=\"x\"\nsize=4096\n[rotational]\nrotation-ms=4\nseek.points=[[1,1]]\n{many}"))
            .ends_with("rotational.zones: 5000 entries: 1..=4096 are allowed")
    );
    assert!(says(&" ".repeat(17 << 20)).contains("at most 16777216 are read"));
    assert!(says(&"[".repeat(100_000)).starts_with("line 1: "));
}

/// Text that differs from a model file by some bytes, lines or numbers.
fn mutated(text: &str, random: &mut fastrand::Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..random.usize(1..4) {
        let line = random.usize(0..lines.len());
        let values = [
            "0",
            "-1",
            "nan",
            "inf",
            "1e300",
            "1e-300",
            "9223372036854775807",
            "[]",
            "\"\"",
            "1",
            "0.5",
            "65536",
        ];
        match random.u8(0..4) {
            0 => lines.swap_remove(line).clear(),
            1 => lines.push(lines[line].clone()),
            2 => {
                let key = lines[line].split('=').next().unwrap_or_default().to_owned();
                lines[line] = format!("{key}= {}", values[random.usize(0..values.len())]);
            }
            _ => {
                let digit = random.digit(10).to_string();
                lines[line] = lines[line].replacen(['1', '2', '5'], &digit, 1);
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}

#[test]
fn files_with_mistakes_are_refused_or_make_drives_that_work() {
    let mut random = fastrand::Rng::with_seed(11);
    let texts: Vec<String> = full().iter().map(Model::to_toml).collect();
    let mut good = 0;
    for _ in 0..3000 {
        let Ok(model) = Model::parse(&mutated(&texts[random.usize(0..texts.len())], &mut random)) else {
            continue;
        };
        assert_eq!(Model::parse(&model.to_toml()).as_ref(), Ok(&model));
        good += 1;
        let (mut drive, mut tracker, mut at) = (model.drive(1), Tracker::new(&model), Time(0));
        for id in 0..20 {
            let op = [Op::Read, Op::Write, Op::Flush, Op::Discard][random.usize(0..4)];
            let request = Request {
                op,
                lbn: random.u64(..) >> random.u32(0..64),
                sectors: random.u32(..) >> random.u32(0..32),
            };
            drive.submit(at, id, request);
            tracker.dispatched(at, &request);
            tracker.cost(at, &request);
            at = drive.next().unwrap_or(at);
        }
        assert!(drain(&mut drive).iter().all(|end| end.started <= end.at));
    }
    assert!((100..2900).contains(&good), "{good}");
}
