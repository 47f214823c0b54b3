"""Members grow, and with them everything that stands on them, while it is used and while the daemon is killed."""

import random

from common import KILLS_CHANGE, MIB, limit
from hierarchies import exported, member
from legs import MIRROR, RAID5, LegsCase
from rig import wait_until
from test_fio import clean, fio
from test_kills import EACH, Kills

# Bytes of a member at first, and what it becomes larger by.
SIZE, MORE = 48 * MIB, 16 * MIB


def vault(kind, legs):
    """The device `vault`: a crypt over `m` of this kind, over a member for each of the letters in `legs`. It reads as zeroes
    where nothing was written."""
    return {
        **{name: member(name, f"{SIZE // MIB}MiB") for name in legs},
        "m": {**kind, "over": list(legs)},
        "vault": {
            "type": "crypt", "over": "m", "key-file": "key", "kdf-memory": "32MiB", "header-size": "1MiB", "discard": True,
        },
    }


class Growth(LegsCase):
    def setUp(self):
        super().setUp()
        self.rig.path("key").write_bytes(b"a key")

    def rested(self):
        """Waits until all legs hold the same."""
        wait_until("all legs to be the same", 30, lambda: not self.jobs() and self.info()["needs_resync_bytes"] == 0)

    def zeroes(self, begin):
        """Expects zeroes from byte `begin` to the end."""
        handle = self.client()
        for at in range(begin, handle.get_size(), MIB):
            length = min(MIB, handle.get_size() - at)
            self.assertEqual(handle.pread(length, at), bytes(length), at)
        handle.shutdown()

    def sound(self):
        """Expects that nothing differs."""
        self.rested()
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (0, 0), found)


class UnderLoad(Growth):
    def go(self, kind, legs, data):
        """fio verifies what it writes to the first 32 MiB; the rest is compared with what was written there."""
        self.create(vault(kind, legs), exported("vault"))
        client = self.rig.start(
            *fio(self.daemon.uri("vm1"), "--do_verify=1", "--verify_backlog=256", "--time_based", "--runtime=6", "--thread"),
            name="fio",
        )
        chance, there = random.Random(3), {}
        for _ in range(2):
            handle, size = self.client(), self.size()
            for at in range(32 * MIB, size - MIB + 1, MIB):
                if at not in there:
                    there[at] = chance.randbytes(MIB)
                    handle.pwrite(there[at], at)
            handle.shutdown()
            for leg in legs:
                self.daemon.ctl("m", "grow")
                self.assertEqual(self.size(), size)
                now = self.daemon.device(leg)["geometry"]["size"]
                self.daemon.ctl(leg, "resize", f"size={self.rig.path(f'{leg}.img').stat().st_size + MORE}")
                self.assertEqual(self.daemon.device(leg)["geometry"]["size"], now + MORE)
            self.daemon.ctl("m", "grow")
            self.assertEqual(self.size(), size + MORE * data)
            self.zeroes(size)
        self.assertEqual(client.wait(60), 0, client.output())
        clean(self, client.output())
        self.sound()
        self.stop()
        self.daemon.start()
        self.assertEqual(self.size(), size + MORE * data)
        self.daemon.ctl("m", "fail", legs[0])
        handle = self.client()
        for at, block in there.items():
            self.assertTrue(handle.pread(MIB, at) == block, f"{at}")
        handle.shutdown()
        refused = self.lamina("ctl", "--control", self.daemon.control, "m", "grow", check=False).stderr
        self.assertIn(f"{legs[0]} has failed: let it rejoin", refused)
        self.stop()

    @limit(90)
    def test_a_mirror(self):
        self.go(MIRROR, "ab", 1)

    @limit(90)
    def test_a_parity(self):
        self.go(RAID5, "abc", 2)


class Exchanged(Growth):
    @limit(60)
    def test_legs_with_checksums_are_exchanged_by_larger_ones(self):
        """A table of checksums has no room for more: larger devices take the place of the legs, one after the other."""
        def over(*legs):
            devices = {}
            for name, size in legs:
                devices |= {name: member(name, size), f"i{name}": {"type": "integrity", "over": name}}
            return {**devices, "m": {**MIRROR, "over": [f"i{name}" for name, _ in legs]}}
        a, b, c, d = ("a", "24MiB"), ("b", "24MiB"), ("c", "40MiB"), ("d", "40MiB")
        self.create(over(a, b), exported("m"))
        handle, size = self.client(), self.size()
        block = random.Random(5).randbytes(MIB)
        handle.pwrite(block, size - MIB)
        self.daemon.ctl("a", "resize", f"size={40 * MIB}")
        self.assertEqual(self.daemon.device("ia")["info"]["unused_bytes"], 16 * MIB)
        self.daemon.ctl("m", "grow")
        self.assertEqual(self.size(), size)
        for legs in ((a, c), (d, c)):
            self.apply(over(*legs), exported("m"))
            self.rested()
        self.daemon.ctl("m", "grow")
        self.assertGreater(self.size(), size + 15 * MIB)
        self.assertEqual(handle.pread(MIB, size - MIB), block)
        self.zeroes(size)
        handle.shutdown()
        self.sound()
        self.stop()


class KilledAtIt(Growth, Kills):
    def go(self, kind, legs, data):
        self.begin(vault(kind, legs), exported("vault"))
        self.daemon.ctl("m", "grow")
        for n in range(KILLS_CHANGE):
            small = self.size()
            for number, leg in enumerate(legs):
                resize = "ctl", leg, "resize", f"size={SIZE + (n + 1) * MORE}"
                if number == n % len(legs):
                    self.killed(*resize)
                    self.again()
                self.command(*resize)
            self.killed("ctl", "m", "grow")
            self.again()
            self.assertIn(self.size(), (small, small + MORE * data))
            self.command("ctl", "m", "grow")
            self.assertEqual(self.size(), small + MORE * data)
            self.zeroes(small)
            # What is new is written, and is there after the next kill.
            handle = self.client()
            if n > 0:
                self.assertEqual(handle.pread(MIB, small - MIB), bytes([n]) * MIB)
            handle.pwrite(bytes([n + 1]) * MIB, self.size() - MIB)
            handle.shutdown()
        self.writer.quiet()
        self.sound()
        self.ended()

    @limit(60 + EACH * KILLS_CHANGE)
    def test_of_a_mirror(self):
        self.go(MIRROR, "ab", 1)

    @limit(60 + EACH * KILLS_CHANGE)
    def test_of_a_parity(self):
        self.go(RAID5, "abc", 2)
