"""A daemon that somebody troubles, and the neighbour on the same core, who is served meanwhile."""

import os
import resource
import threading
import time

import nbd

from common import RigCase
from front_end import FrontEnd
from hierarchies import member, written
from rig import Lamina, lamina_binary, run

GIB = 1 << 30
# The longest that the neighbour may wait for a block, in seconds, at PATIENCE 1.
LONGEST = 1.0


class Neighbour(threading.Thread):
    """Reads a block every millisecond."""

    def __init__(self, uri):
        super().__init__(daemon=True)
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)
        self.longest, self.failed, self.ended = 0.0, None, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.001):
            begun = time.monotonic()
            try:
                self.handle.pread(4096, 0)
            except nbd.Error as error:
                self.failed = error
                return
            self.longest = max(self.longest, time.monotonic() - begun)


class NeighbourCase(RigCase):
    """The daemon has one core and may not have more than 1 GiB of data (RLIMIT_DATA: what it shares with guests is not in it)."""

    alone = "a neighbour may wait for no block longer than a second"

    def serve(self, devices, persistent=False, **export):
        """Serves `greedy` and its neighbour, under the limit."""
        devices = {"calm": member("calm", "16MiB"), **devices}
        exports = {
            "greedy": {"device": "greedy", **export},
            "calm": {"device": "calm", "nbd": "unix:calm.sock"},
        }
        text = written(devices, exports, name="greed")
        if persistent:
            run(lamina_binary(), "create", self.rig.write("lamina.toml", text))
        else:
            text = text.split("\n", 2)[2]
        self.lamina = Lamina(self.rig, text, arguments=["--cores", "1"])
        resource.prlimit(self.lamina.proc.pid, resource.RLIMIT_DATA, (GIB, GIB))
        self.neighbour = Neighbour(self.lamina.uri("calm", "calm.sock"))

    def end(self):
        """The neighbour was served in time, and the daemon ends in order."""
        self.neighbour.ended.set()
        self.neighbour.join(20)
        self.assertIsNone(self.neighbour.failed)
        self.assertLess(self.neighbour.longest, LONGEST * float(os.environ.get("LAMINA_PATIENCE", "1")))
        begun = time.monotonic()
        self.assertEqual(self.lamina.stop(), 0, self.lamina.log())
        self.assertLess(time.monotonic() - begun, 20, "no client was worth waiting for")

    def guest(self, entries):
        guest = FrontEnd(self.lamina.socket("greedy.sock"), entries)
        self.addCleanup(guest.close)
        return guest
