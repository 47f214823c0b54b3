"""The pages that benchmarks write: their options, the machine they speak of, and where they go."""

import argparse
import os
import pathlib
import platform

from . import files
from .process import run
from .serve import lamina_binary

MIB = 1 << 20


def options(doc, rounds, seconds, more=lambda parser: None):
    """The command line of a benchmark; `more` adds options. `--quick` is one round, and no page."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each is measured (default {rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"the length of each run (default {seconds})")
    parser.add_argument("--quick", action="store_true", help="each once, and write to standard output")
    parser.add_argument("--output", type=pathlib.Path, help="where the page goes, instead of to docs/")
    more(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


def publish(text, arguments, name):
    """Writes the page to docs/`name`, or where the command line says."""
    output = arguments.output or (None if arguments.quick else files.ROOT / "docs" / name)
    if output:
        output.write_text(text)
        print(f"written: {output}")
    else:
        print(text)


def mark(met):
    """In a table: whether a target was met."""
    return "yes" if met else "**no**"


def first_line(*argv):
    return run(*argv).stdout.splitlines()[0].strip()


def machine():
    """The measured program and the machine: name and value."""
    model = next((line for line in open("/proc/cpuinfo") if line.startswith("model name")), None)
    model = model.split(":", 1)[1].strip() if model else platform.processor()
    memory = int(next(line for line in open("/proc/meminfo") if line.startswith("MemTotal")).split()[1])
    commit = first_line("git", "-C", files.ROOT, "rev-parse", "--short", "HEAD")
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory / MIB:.0f} GiB",
        "kernel": platform.release(),
        "lamina": f"{first_line(lamina_binary(), '--version')}, commit {commit}",
    }


def facts(more=()):
    """The machine as a list in a page."""
    return "\n".join(f"- {name}: {value}" for name, value in {**machine(), **dict(more)}.items())
