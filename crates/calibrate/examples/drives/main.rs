//! Exploration.
use lamina_calibrate::{passive, trace};
fn main() {
    for path in std::env::args().skip(1) {
        let text = String::from_utf8(std::process::Command::new("zcat").arg(&path).output().unwrap().stdout).unwrap();
        let records = trace::parse(&text).unwrap();
        for think in [trace::Think::Before, trace::Think::After] {
            let samples = trace::samples(&records[..records.len() / 2], think);
            let t = std::time::Instant::now();
            println!("{path} {think:?} {:?} {:?}", passive::explore(&samples), t.elapsed());
        }
    }
}
