//! The resources that this process uses, asked of the kernel on demand.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads, in nanoseconds.
pub fn cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(of: ClockId) -> u64 {
    let time = clock_gettime(of);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Resident memory in bytes; 0 if `/proc` does not tell (proc(5), "/proc/pid/statm": the second field, in pages).
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_something() {
        assert!(cpu_ns() > 0);
        assert!(resident_bytes() > 100_000);
    }
}
