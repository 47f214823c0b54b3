"""What the demo, the end-to-end tests and the benchmarks stand on: processes that never outlive their parent, a
scratch folder, `lamina serve` and its peers, and a small Linux guest.

Python's standard library only. Whatever a `Rig` starts or makes, it ends and removes when its `with` block is left,
also when that happens by an error or a signal, and nothing in here waits without a limit.
"""

from .files import CACHE, ROOT, TOOLS_PATH
from .guest import Guest, GuestError
from .process import Proc, Rig, Timeout, run, wait_until
from .serve import Lamina, lamina_binary

__all__ = [
    "CACHE", "ROOT", "TOOLS_PATH", "Guest", "GuestError", "Lamina", "Proc", "Rig", "Timeout", "lamina_binary", "run",
    "wait_until",
]
