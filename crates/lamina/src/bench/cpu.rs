//! CPU time, of this process and of a server beside it.

use std::fs;

/// CPU time that process `pid` has used, in nanoseconds; `None` if that is unknown.
///
/// The scheduler's own counts of its threads are exact (`/proc/PID/task/TID/schedstat`, first field); a kernel
/// without them has counts in ticks of 10 ms (proc(5), "/proc/pid/stat", fields 14 and 15).
pub fn of_process(pid: u32) -> Option<u64> {
    scheduled(pid).or_else(|| ticks(pid))
}

fn scheduled(pid: u32) -> Option<u64> {
    let mut total = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that has ended meanwhile has taken its count with it.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        total += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    (total > 0).then_some(total)
}

fn ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the fields after it are numbers.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |n: usize| fields.get(n)?.parse::<u64>().ok();
    let per_second = rustix::param::clock_ticks_per_second();
    Some((field(11)? + field(12)?) * (1_000_000_000 / per_second.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_asked_for_its_time() {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {}
        assert!(of_process(std::process::id()).is_some_and(|ns| ns > 1_000_000));
        assert!(ticks(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX), None);
    }
}
