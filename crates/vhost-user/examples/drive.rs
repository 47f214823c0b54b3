//! Drives a vhost-user-blk socket without a virtual machine, and prints the costs of its server:
//!
//! ```text
//! cargo run --release -p lamina-vhost-user --example drive -- SOCKET [--pid PID] [--depth 1,16,64]
//!     [--seconds 3] [--size 4096] [--write] [--region BYTES] [--event-index]
//! ```
//!
//! One queue, random requests, waiting for interrupts. For each depth: requests per second, and the server's
//! processor time per request, from /proc/PID/stat of its threads (that is exact to about 1% from 3 seconds on).

use std::error::Error;
use std::fs;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use virtio_driver::{EventFd, VhostUser, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags};

struct Arguments {
    socket: String,
    pid: Option<u32>,
    depths: Vec<usize>,
    seconds: f64,
    size: usize,
    write: bool,
    region: Option<u64>,
    event_index: bool,
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let mut given = std::env::args().skip(1);
    let mut a = Arguments {
        socket: given.next().ok_or("usage: drive SOCKET [--pid PID] ...")?,
        pid: None,
        depths: vec![1, 16, 64],
        seconds: 3.0,
        size: 4096,
        write: false,
        region: None,
        event_index: false,
    };
    while let Some(flag) = given.next() {
        let mut value = || given.next().ok_or("a value is missing");
        match flag.as_str() {
            "--pid" => a.pid = Some(value()?.parse()?),
            "--depth" => a.depths = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--seconds" => a.seconds = value()?.parse()?,
            "--size" => a.size = value()?.parse()?,
            "--region" => a.region = Some(value()?.parse()?),
            "--write" => a.write = true,
            "--event-index" => a.event_index = true,
            other => return Err(format!("what is {other}?").into()),
        }
    }
    Ok(a)
}

/// Processor time of all threads of a process, in nanoseconds, from the scheduler's own count.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let time = |path: std::path::PathBuf| -> Option<u64> {
        fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    tasks.filter_map(|task| time(task.path())).sum()
}

/// A small generator of places; any will do.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 20
}

fn main() -> Result<(), Box<dyn Error>> {
    let a = arguments()?;
    for &depth in &a.depths {
        run(&a, depth)?;
    }
    Ok(())
}

fn run(a: &Arguments, depth: usize) -> Result<(), Box<dyn Error>> {
    let mut wanted = VirtioFeatureFlags::VERSION_1;
    if a.event_index {
        wanted |= VirtioFeatureFlags::RING_EVENT_IDX;
    }
    let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(&a.socket, wanted.bits() | 1 << 9)?);
    let capacity = u64::from(transport.get_config()?.capacity) * 512;
    let slots = a.region.unwrap_or(capacity).min(capacity) / a.size as u64;
    let memory = memfd(depth * a.size)?;
    // SAFETY: the file is not shrunk.
    let mut data = unsafe { memmap2::MmapMut::map_mut(&memory) }?;
    transport.map_mem_region(data.as_mut_ptr() as usize, data.len(), memory.as_raw_fd(), 0)?;
    let mut queue = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 1, 256)?.remove(0);
    let (kick, call) = (transport.get_submission_notifier(0), transport.get_completion_fd(0));
    queue.set_used_notif_enabled(true);
    let mut seed = 1;
    let mut submit = |queue: &mut VirtioBlkQueue<usize>, slot: usize| {
        let at = random(&mut seed) % slots * a.size as u64;
        let part = &mut data[slot * a.size..(slot + 1) * a.size];
        if a.write { queue.write(at, part, slot) } else { queue.read(at, part, slot) }
    };
    for slot in 0..depth {
        submit(&mut queue, slot)?;
    }
    kick.notify()?;
    let (mut done, mut interrupts, mut kicks) = (0u64, 0u64, 1u64);
    let (start, cpu) = (Instant::now(), a.pid.map(cpu_ns));
    while start.elapsed() < Duration::from_secs_f64(a.seconds) {
        wait(&call)?;
        interrupts += 1;
        loop {
            let complete: Vec<_> = queue.completions().map(|c| (c.context, c.ret)).collect();
            if complete.is_empty() {
                break;
            }
            for (slot, result) in complete {
                if result != 0 {
                    return Err(format!("a request failed: {result}").into());
                }
                submit(&mut queue, slot)?;
                done += 1;
            }
            if queue.avail_notif_needed() {
                kick.notify()?;
                kicks += 1;
            }
        }
    }
    let (elapsed, count) = (start.elapsed().as_secs_f64(), done as f64);
    let used = a.pid.zip(cpu).map(|(pid, before)| (cpu_ns(pid) - before) as f64 / 1000.0 / count);
    let cpu = used.map_or("-".into(), |us| format!("{us:.3}"));
    println!(
        "depth {depth:3}: {:9.0} /s  server {cpu} us/request  {:.1} requests an interrupt, {:.1} a kick",
        count / elapsed,
        count / interrupts as f64,
        count / kicks as f64
    );
    // Let requests in flight end before the memory goes.
    let mut left = depth;
    while left > 0 {
        left -= queue.completions().count();
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Waits for an interrupt. Some servers make the eventfd non-blocking, so it is never simply read.
fn wait(call: &EventFd) -> Result<(), Box<dyn Error>> {
    let mut ready = [rustix::event::PollFd::new(call, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, None)?;
    call.read()?;
    Ok(())
}

fn memfd(len: usize) -> Result<fs::File, Box<dyn Error>> {
    let file: fs::File = rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC)?.into();
    file.set_len(len as u64)?;
    Ok(file)
}
