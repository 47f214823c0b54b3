"""A volume far larger than what is written to it: 16 TiB, thin, on sparse files."""

import os
import random
import time

from common import MIB, limit
from hierarchies import HierarchyCase, member
from rig.process import PATIENCE

TIB = 1 << 40
# Scattered writes of 4 KiB; each takes an extent of 32 KiB on the disk of the test.
WRITES = int(os.environ.get("LAMINA_THIN_WRITES", "10000"))
MEMBERS = ("a", "b", "c", "d", "e")
DEPTH = 64


def places(seed, count):
    """Where to write, each place once, all over the volume."""
    chance = random.Random(seed)
    return [block * 4096 for block in chance.sample(range(16 * TIB // 4096), count)]


def content(at):
    return at.to_bytes(8, "little") * 512


class Thin(HierarchyCase):
    def scatter(self, places):
        """Writes all places; returns writes a second."""
        handle, todo, busy = self.client(), places[::-1], []
        begin = time.monotonic()
        while todo or busy:
            while todo and len(busy) < DEPTH:
                at = todo.pop()
                busy.append(handle.aio_pwrite(content(at), at))
            handle.poll(100)
            busy = [cookie for cookie in busy if not handle.aio_command_completed(cookie)]
        handle.flush()
        handle.shutdown()
        return len(places) / (time.monotonic() - begin)

    def first_request(self, at):
        """Starts the daemon; returns the seconds until it has answered a request."""
        begin = time.monotonic()
        self.daemon.start()
        handle = self.client()
        self.assertEqual(handle.pread(4096, at), content(at))
        seconds = time.monotonic() - begin
        handle.shutdown()
        return seconds

    @limit(120 + WRITES // 100)
    def test_16_tib(self):
        devices = {
            **{name: member(name, "3300GiB") for name in MEMBERS},
            "pool": {"type": "concat", "over": list(MEMBERS)},
            "vm1": {"type": "snapshot", "over": "pool", "size": "16TiB", "memory": "16MiB"},
        }
        exports = {"vm1": {"device": "vm1", "nbd": "unix:nbd.sock"}}
        begin = time.monotonic()
        daemon = self.create(devices, exports)
        made = time.monotonic() - begin
        self.assertEqual(self.size(), 16 * TIB)
        before, after = places(1, WRITES), places(2, WRITES // 10)
        rate = self.scatter(before)
        daemon.ctl("vm1", "snapshot", "name=monday")
        self.scatter(after)
        info = daemon.device("vm1")["info"]
        resident = daemon.proc.resident_kib() // 1024
        daemon.kill()
        killed = self.first_request(before[0])
        self.assertEqual(daemon.stop(), 0, daemon.log())
        stopped = self.first_request(after[0])
        handle = self.client()
        for at in before[::max(WRITES // 2000, 1)] + after:
            self.assertEqual(handle.pread(4096, at), content(at), at)
        handle.shutdown()
        resident = max(resident, daemon.proc.resident_kib() // 1024)
        taken = sum(self.rig.path(f"{name}.img").stat().st_blocks * 512 for name in MEMBERS) // MIB
        print(f"        made and served in {made:.1f} s; {rate:.0f} writes a second; first request {killed:.2f} s after "
              f"the start that followed a kill, {stopped:.2f} s after an orderly one; map {info['map_bytes'] // MIB} MiB, "
              f"{info['memory'] // MIB} MiB of it in memory; {resident} MiB resident; {taken} MiB on disk")
        self.assertLess(max(killed, stopped), 2 * PATIENCE)
        self.assertLess(info["memory"], 32 * MIB)
        self.assertLess(resident, 128)
        self.assertEqual(daemon.stop(), 0, daemon.log())
