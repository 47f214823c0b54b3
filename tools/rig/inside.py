"""A daemon of Lamina in a guest, beside what only a kernel of its own can do."""

import base64
import gzip

from . import files
from .process import run
from .serve import lamina_binary

# The daemon in the guest: started, and killed. Its answer is awaited.
SERVE = "(lamina serve /tmp/{name}.toml --control /tmp/{name}.ctl >>/tmp/{name}.log 2>&1 & echo $! >/tmp/{name}.pid); " \
    "for i in $(seq 300); do [ -S /tmp/{name}.sock ] && grep -q '^ready$' /tmp/{name}.log && exit 0; " \
    "kill -0 $(cat /tmp/{name}.pid) || break; sleep 0.1; done; cat /tmp/{name}.log; exit 1"


def stripped():
    """The program without what debuggers need: a guest has little memory to cache it in."""
    binary = lamina_binary()
    path = files.CACHE / "guest" / "lamina"
    if not path.exists() or path.stat().st_mtime < binary.stat().st_mtime:
        path.parent.mkdir(parents=True, exist_ok=True)
        run("strip", "-o", path, binary)
    return path


def put(guest, path, text):
    """A file in the guest."""
    packed = base64.b64encode(gzip.compress(text.encode() if isinstance(text, str) else text)).decode()
    guest.run(f"echo {packed} | base64 -d | gunzip >{path}")


def serve(guest, name):
    """Starts a daemon of the guest with the file of this name, and waits for it."""
    guest.run(f"rm -f /tmp/{name}.sock; >/tmp/{name}.log; " + SERVE.format(name=name), seconds=60)


def end(guest, name, signal="TERM"):
    """Ends a daemon of the guest, and waits for that: its first thread may be gone while others keep its sockets."""
    guest.run(f"pid=$(cat /tmp/{name}.pid); kill -{signal} $pid; "
              "while [ -n \"$(grep -L '^State:.*Z' /proc/$pid/task/*/status 2>/dev/null)\" ]; do sleep 0.05; done")
