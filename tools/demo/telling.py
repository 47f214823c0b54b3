"""The output of the demo: its steps with the time, the output of programs indented, its checks."""

import difflib
import sys
import time

BEGIN = time.monotonic()


def title(text):
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def say(text):
    print(f"{time.monotonic() - BEGIN:6.1f} s  {text}", flush=True)


def show(text):
    print("\n" + "\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines()) + "\n", flush=True)


def show_difference(before, after):
    """Shows the lines of a file that go and come."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    show("\n".join(f"{line[0]} {line[1:]}" for line in lines if line[1:].strip() and line[:2] not in ("--", "++", "@@")))


def require(what, truth, more=""):
    """Says that something holds; ends the demo if it does not."""
    if not truth:
        sys.exit(f"the demo failed: {what}\n{more}")
    say(f"checked: {what}")
