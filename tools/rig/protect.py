"""The page of tools/bench-protect: its results as tables, against the targets.

Sections of `found`, which the measurements filled: each is rows as the function that made them says.
"""

import datetime
import statistics

from .report import facts, first_line, mark


def table(head, rows):
    """A table: the first column to the left, the others to the right."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def targets(found):
    """Rows of (what, target, measured, met)."""
    rows = []

    def add(what, limit, values, more=""):
        """`values` by load: the worst counts."""
        worst = min(values, key=values.get)
        short = sum(value < limit for value in values.values())
        said = f"{values[worst]:.2f} at worst ({worst})" if len(values) > 1 else f"{values[worst]:.2f}"
        missed = f"; {short} of {len(values)} miss it" if short and len(values) > 1 else ""
        rows.append((what, f"≥ {limit:.3g}", said + missed + more, mark(not short)))

    for column, legs in ((4, 2), (5, 3)):
        # What the disk of one leg can do, as often as there are legs.
        add(f"`mirror`, devices of their own: reads of {legs} legs over one leg's", 0.95 * legs,
            {f"{row[0]}, {row[1]}": row[column] for row in found["mirrors"] if row[2] == "100/0"})
        add(f"`mirror`, devices of their own: writes to {legs} legs over one leg's", 0.95,
            {f"{row[0]}, {row[1]}": row[column] for row in found["mirrors"] if row[2] == "0/100"})
    for what in ("mirror", "parity"):
        add(f"`{what}`, one disk: {'writes' if what == 'mirror' else 'whole stripes'} over the same writes without it", 0.95,
            {row[0]: row[1] for row in found["same"] if row[0].startswith(what)})
    for begins, said in (("whole", "whole stripes over what the devices can do"), ("reads", "reads over what the devices can do"),
                         ("writes", "small writes over what two reads and two writes (three and three) allow")):
        add(f"`parity`, devices of their own: {said}", 0.95,
            {f"parity = {row[0]}, {row[1]}": row[4] for row in found["parities"] if row[1].startswith(begins)})
    for parity, (reads, writes) in found["counted"].items():
        limit = 1 + parity
        rows.append((f"`parity = {parity}`: what a write of 4 KiB is for the devices", f"{limit} reads, {limit} writes",
                     f"{reads:.2f} reads, {writes:.2f} writes", mark(max(reads, writes) < limit + 0.05)))
    for name, (alone, _) in sums(found).items():
        rows.append((f"`{name}`: seconds of the processor for a gigabyte of whole stripes, and for the sums alone", "stated",
                     f"{found['cpu'][name]:.3f}, {1 / alone:.3f}", "yes"))
    for name in ("integrity", "fingerprint"):
        middle = statistics.median(of[name] for _, _, of, _ in found["files"])
        rows.append((f"`{name}` over a bare file on one disk, the median of all loads", "stated", f"{middle:.2f}", "yes"))
    for line in found["bare crypt"].splitlines()[1:]:
        size, _, direction, _, _, ratio, limit = line.split()
        add(f"`crypt` over aws-lc by itself: {size} KiB, {direction}", float(limit), {"": float(ratio)})
    add("`crypt` over qemu-storage-daemon's LUKS, both over NBD", 1.3, {row[0]: row[3] for row in found["luks"]})
    return rows


def sums(found):
    """The benchmark of the sums on this processor, in GB/s: each of `parity` and `parity = 2` by name, the exclusive
    or (or the sums of RAID 6) alone, and with the copy."""
    _, _, p, both, copy_p, copy_both = found["bare parity"].splitlines()[-1].split()
    return {"parity": (float(p), float(copy_p)), "parity = 2": (float(both), float(copy_both))}


def text_of_cpu(found):
    """CPU seconds for a gigabyte of whole stripes, and the arithmetic alone."""
    spent = found["cpu"]
    rows = [("stripe of 4, which moves nothing", f"{spent['stripe of 4']:.3f}", "", "")]
    for name, (alone, copied) in sums(found).items():
        rows.append((f"`{name}`", f"{spent[name]:.3f}", f"{1 / copied:.3f}", f"{1 / alone:.3f}"))
    return table(("whole stripes of 1 MiB", "s/GB", "copy and sums, in the caches", "the sums alone, in the caches"), rows)


def report(found, rounds, seconds, took):
    names = ("again", "mirror", "parity", "parity = 2", "integrity", "fingerprint", "crypt")
    heads = ("load", "bare file, MB/s", "second file", *(f"`{name}`" for name in names[1:]))
    rates = [(load, f"{speed:,.0f}", *(f"{of[name]:.2f}" for name in names)) for load, speed, of, _ in found["files"]]
    cpus = [(load, *(f"{of[name]:.1f}" for name in names)) for load, _, _, of in found["files"] if "70/30" not in load]
    middle = ("median of the 24", "", *(f"{statistics.median(of[name] for _, _, of, _ in found['files']):.2f}" for name in names))
    mirrors = [(f"{order}, {size}, {mix}", f"{one:,.0f}", f"{two:.2f}", f"{three:.2f}") for order, size, mix, one, two, three in found["mirrors"]]
    parities = [(f"parity = {p}, {what}", f"{bound:,.0f}", f"{got:,.0f}", f"{ratio:.2f}") for p, what, bound, got, ratio in found["parities"]]
    luks = [(load, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}") for load, ours, theirs, ratio in found["luks"]]
    marks = [(name, *(f"{ratio:.2f}, {cpu * 1e9:.2f}" for ratio, cpu in row)) for name, row in found["digests"].items()]
    return f"""\
# Benchmarks of layers that protect data

Made by `tools/bench-protect` on {datetime.date.today()} in {took / 60:.0f} minutes; do not edit. {rounds} {'rounds' if rounds > 1 else 'round'} of {seconds} s for each figure; ratios are
medians of the rounds' ratios. The machine is small, shared and virtual. `lamina bench` in one process, where nothing else
is said; MB are millions of bytes.

{facts({"qemu-storage-daemon": first_line("qemu-storage-daemon", "--version")})}

## Targets

A row's target holds for the worst of its loads, each of which is in a table below.

| what | target | measured | met |
|---|---|---|---|
{chr(10).join(f"| {' | '.join(row)} |" for row in targets(found))}

## Legs that are devices of their own

This machine has one disk: two files on it are not faster than one. So these legs are made of `delay`: each takes four
requests at a time, each of them for 400 us and the time of its bytes at 400 MB/s, about as an SSD on SATA does,
whatever the others do. The data goes to a `null`, so that the processor works for the layer alone. 16 requests in
flight for mirrors; for parities 16 or 32 whole stripes, and 128 small requests. Requests per second.

{table(("load", "one leg, /s", "two legs", "three legs"), mirrors)}

Parities of four units of data in a stripe, units of 64 KiB. The devices' limit is the rate of one of them alone in the
same round, times their number, over the number of requests that one write or read is for them: in a whole stripe one
for each device, in a small write two reads and two writes, with two parities three and three.

{table(("load", "devices, /s", "measured, /s", "ratio"), parities)}

## The same writes without the layer

Files with O_DIRECT on the one disk, 16 requests in flight. A `stripe` that is asked for one unit on each of its files
at once makes the same writes as a mirror, or a whole stripe of a parity. Its rate is the limit of this disk for them;
CPU time is that of the whole process.

{table(("writes", "rate over that of the stripe", "CPU time over that of the stripe"), [(what, f"{ratio:.2f}", f"{cpu:.2f}") for what, ratio, cpu in found["same"]])}

## Over one file, or several, on one disk

Requests per second over those of a bare file, all with O_DIRECT, 16 in flight. *Second file* is another bare file: its
distance from 1 is how far this machine's figures can be trusted. `mirror` has two legs, so each write is two; `parity` has
four units of data in a stripe, units of 64 KiB, so each small write is four requests, and with two parities six. `crypt`
has sectors of 512 bytes for requests of 512, otherwise of 4096. `integrity` and `fingerprint` have blocks of 4096: a write
of 512 reads one first.

{table(heads, [*rates, middle])}

The processor's time for each request over that of a bare file's:

{table(("load", "second file", *heads[3:]), cpus)}

## What digests cost

Each digest's rate over a bare file's, and the seconds of the processor that it takes more for each gigabyte.

{table(("layer", "reads of 4 KiB, random", "writes of 4 KiB, random", "reads of 1 MiB, in order", "writes of 1 MiB, in order"), marks)}

## What parity costs

The seconds of the processor for each gigabyte of data, over legs that do nothing, everything of the process included. A
parity copies the data of a write, since a guest may change it meanwhile, and sums the copy, in one pass over the
memory.

{text_of_cpu(found)}

The sums alone, a copy of the data, and both in one pass (`cargo bench -p lamina-layers --bench parity`):

```text
{found["bare parity"]}
```

## `crypt`

Over a device that does nothing, against aws-lc by itself on the same core, sectors of 4096 bytes
(`cargo bench -p lamina-layers --bench crypt`):

```text
{found["bare crypt"]}
```

Over NBD against qemu-storage-daemon's LUKS, both over files in a tmpfs, then both over files on the disk, without O_DIRECT, random,
depth 16, MB/s:

{table(("load", "`crypt`", "qemu", "ratio"), luks)}
"""
