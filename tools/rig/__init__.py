"""The base of the demo, the end-to-end tests and the benchmarks: processes that never outlive their parent, a
scratch folder, `lamina serve` and its peers, and a small Linux guest.

Python's standard library only. A `Rig` ends and removes all that it starts or makes at the end of its `with` block,
also after an error or a signal, and nothing in here waits without a limit.
"""

from .files import CACHE, ROOT, TOOLS_PATH
from .guest import Guest, GuestError
from .process import Proc, Rig, Timeout, run, wait_until
from .serve import Lamina, lamina_binary

__all__ = [
    "CACHE", "ROOT", "TOOLS_PATH", "Guest", "GuestError", "Lamina", "Proc", "Rig", "Timeout", "lamina_binary", "run",
    "wait_until",
]
