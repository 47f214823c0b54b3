"""`lamina serve` as the tests and the demo use it: write a hierarchy, serve it, look at it, kill it, start it again."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import socket

from . import files
from .process import run, wait_until


def lamina_binary():
    """The program under test: LAMINA_BIN, or the release build (the debug build only if there is no other)."""
    if "LAMINA_BIN" in os.environ:
        return pathlib.Path(os.environ["LAMINA_BIN"])
    for profile in ("release", "debug"):
        path = files.TARGET / profile / "lamina"
        if path.exists():
            return path
    raise FileNotFoundError(f"no lamina under {files.TARGET}: run cargo build --release")


class Lamina:
    """A daemon serving one hierarchy file that lies in the rig's folder. `at` is what its command begins with, if it is to run
    in another place (see `Network.at`)."""

    def __init__(self, rig, hierarchy, name="lamina", arguments=(), start=True, at=()):
        self._rig = rig
        self._at = at
        self.name = name
        self.file = rig.write(f"{name}.toml", hierarchy)
        self.control = rig.path(f"{name}.ctl")
        self.arguments = list(arguments)
        self.proc = None
        self.starts = 0
        if start:
            self.start()

    def start(self, seconds=20):
        """Starts the daemon and waits until it says that all exports are up."""
        self.proc = self._rig.start(
            *self._at, lamina_binary(), "serve", self.file, "--control", self.control, *self.arguments, name=self.name,
        )
        self.starts += 1
        self.proc.wait_for("\nready\n" if self._has_exports() else "ready\n", seconds)
        return self

    def _has_exports(self):
        return "[export." in self.file.read_text()

    def kill(self):
        """kill -9."""
        self.proc.kill()

    def restart(self, busy=None):
        """kill -9 and a new start; if a device is named, at a moment when it has requests under way."""
        if busy:
            wait_until(f"requests at {busy}", 20, lambda: self.device(busy)["in_flight"], every=0.001)
        self.kill()
        return self.start()

    def stop(self, seconds=40):
        """SIGTERM: drains, flushes, closes. Returns the exit code."""
        return self.proc.stop(seconds)

    def log(self):
        """All it has logged, every start."""
        return self.proc.log.read_text(errors="replace")

    def requests_taken_over(self):
        """How many requests in flight a start found in the guest's record and did again, for each that found some."""
        return [int(n) for n in re.findall(r"repeats (\d+) requests in flight", self.log())]

    def socket(self, name):
        """The path of a socket that the hierarchy file names."""
        return self._rig.path(name)

    def uri(self, export, sock="nbd.sock"):
        """The NBD address of an export on the Unix socket `sock`."""
        return f"nbd+unix:///{export}?socket={self._rig.path(sock)}"

    def get(self, path):
        """An answer of the control API (`/v1/hierarchy`, say), as plain data."""
        connection = http.client.HTTPConnection("localhost", timeout=20)
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.settimeout(20)
            connection.sock.connect(str(self.control))
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200, f"GET {path}: {answer.status} {body}"
            return json.loads(body) if "json" in answer.headers.get("content-type", "") else body

    def device(self, name):
        """The control API's data about a device."""
        for hierarchy in self.get("/v1/hierarchy")["hierarchies"]:
            for device in hierarchy["devices"]:
                if device["name"] == name:
                    return device
        raise KeyError(name)

    def counter(self, name, operation, what="completed"):
        """How many requests of a kind a device has completed since the daemon's start."""
        return self.device(name)["operations"].get(operation, {}).get(what, 0)

    def show(self, interval="200ms"):
        """The data of `lamina show --json` about the devices."""
        return json.loads(run(lamina_binary(), "show", "--control", self.control, "--json", "--interval", interval).stdout)

    def tree(self, interval="1s"):
        """The output of `lamina show`."""
        return run(lamina_binary(), "show", "--control", self.control, "--interval", interval).stdout

    def ctl(self, device, command, *arguments, seconds=60):
        """`lamina ctl DEVICE COMMAND ...`; returns its output."""
        return run(lamina_binary(), "ctl", "--control", self.control, device, command, *arguments, seconds=seconds).stdout
