"""Single measurements: one client, one server, one load; each returns plain numbers. And how they are compared.

Server CPU is taken from /proc over the whole run of the client, connecting included, and divided by the requests that
the client counted.
"""

import json
import re
import statistics
import time

from . import files
from .process import run
from .serve import lamina_binary

# Mixes of reads and writes as they are called, and the arguments that ask for them.
MIXES = {"100/0": ("read", 100), "0/100": ("write", 0), "70/30": ("mixed", 70)}


class Measured(dict):
    """`iops`, `bytes_per_second`, `latency_us` (mean), `cpu_us` (of the server, per request), as far as known."""


def fio(server, seconds, depth, rw, *, uri=None, path=None, block="4k", span="256M"):
    """fio's NBD engine on `uri`, or its io_uring engine with O_DIRECT on `path`."""
    where = ["--ioengine=nbd", f"--uri={uri}"] if uri else ["--ioengine=io_uring", "--direct=1", f"--filename={path}"]

    before = server.cpu_seconds() if server else 0
    text = run(
        "fio", "--name=load", *where, f"--rw={rw}", f"--bs={block}", f"--iodepth={depth}", f"--size={span}",
        "--time_based", f"--runtime={seconds}", "--norandommap", "--randrepeat=1", "--output-format=json",
        seconds=seconds + 30,
    ).stdout
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side = job["write" if "write" in rw else "read"]
    found = Measured(iops=side["iops"], bytes_per_second=side["bw_bytes"], latency_us=side["lat_ns"]["mean"] / 1000)
    if server:
        # A server that forks for each client is charged for its children when they have ended.
        time.sleep(0.05)
        found["cpu_us"] = (server.cpu_seconds() - before) * 1e6 / max(side["total_ios"], 1)
    return found


def lamina_bench(uri, seconds, depth, rw, *, block="4KiB", sequential=False, span="256MiB"):
    """`lamina bench`: our own client, which sends and receives in batches, against any NBD server."""
    text = run(
        lamina_binary(), "bench", uri, "--force", "--rw", rw, "--depth", depth, "--block-size", block, "--time", f"{seconds}s",
        "--size", span, "--json", *(["--sequential"] if sequential else []), seconds=seconds + 30,
    ).stdout
    report = json.loads(text)
    assert not report["errors"], report
    return Measured(
        iops=report["iops"], bytes_per_second=report["bytes_per_second"], latency_us=report[rw]["mean_ns"] / 1000,
    )


def in_process(file, seconds, rw, reads, size, sequential=False, *, device=None, depth=16, span="1GiB", ramp=0.1,
               more=()):
    """The report of a load on a hierarchy inside one process: no protocol blurs the costs of a layer.

    Sizes are those of `lamina bench`, or bytes. The first `ramp` seconds are not counted.
    """
    text = run(
        lamina_binary(), "bench", file, "--force", "--rw", rw, "--reads", reads, "--block-size", size, "--depth", depth,
        "--time", f"{round(seconds * 1000)}ms", "--ramp", f"{round(ramp * 1000)}ms", "--size", span, "--json",
        *(["--sequential"] if sequential else []), *(["--device", device] if device else []), *more,
        seconds=seconds + 60,
    ).stdout
    report = json.loads(text)
    assert not report["errors"], report
    return report


def contest(subjects, rounds, measure):
    """Measures each of `subjects` (name: argument of `measure`) one after the other, several rounds, each in another
    order. Returns for each name the results of `measure`, by round: a slow minute of the machine hits all of them."""
    found = {name: [] for name in subjects}
    names = list(subjects)
    for number in range(rounds):
        for name in names[number % len(names):] + names[:number % len(names)]:
            found[name].append(measure(subjects[name]))
    return found


def paired(ones, others):
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(ones, others))


_DRIVE = re.compile(r"depth\s+\d+:\s+([\d.]+) /s\s+server ([\d.]+) us/request")


def drive(server, sock, seconds, depth, rw="read", span=256 << 20):
    """The virtio driver of crates/vhost-user/examples/drive.rs: a vhost-user socket without a virtual machine."""
    text = run(
        files.example("drive", "lamina-vhost-user"), sock, "--pid", server.pid, "--depth", depth, "--seconds", seconds,
        "--region", span, "--event-index", *(["--write"] if rw == "write" else []), seconds=seconds + 30,
    ).stdout
    iops, cpu = map(float, _DRIVE.search(text).groups())
    return Measured(iops=iops, cpu_us=cpu, latency_us=depth * 1e6 / iops, bytes_per_second=iops * 4096)
