"""Legs of mirrors and parities fail, are unplugged and are killed under clients: spares take over, and what legs lack is
copied."""

import random
import time

from common import KILLS_CHANGE, MIB, limit
from hierarchies import exported, member
from legs import MIRROR, RAID5, RAID6, LegsCase, mirrored, over_legs
from rig import Lamina, wait_until
from test_fio import clean, fio
from test_kills import EACH, Kills


class Killed(LegsCase):
    def verifying(self):
        """fio, which checks what it wrote, for some seconds."""
        return self.rig.start(
            *fio(self.daemon.uri("vm1"), "--do_verify=1", "--verify_backlog=256", "--time_based", "--runtime=4", "--thread"),
            name="fio",
        )

    def clean(self, client):
        self.assertEqual(client.wait(60), 0, client.output())
        clean(self, client.output())

    def go(self, kind, legs, lost):
        """One leg dies, the last one, a spare, gets everything, and then as many more as may die; then all come back."""
        self.create(over_legs(kind, legs, spares=1, size="48MiB"), exported("m"))
        client = self.verifying()
        first, *others, spare = (f"f{leg}" for leg in legs)
        are = {first: "in sync", **dict.fromkeys(others, "in sync"), spare: "spare"}

        def come():
            nonlocal client
            if not client.running():
                self.clean(client)
                client = self.verifying()
            return self.legs() == are

        def come_to(**changes):
            are.update(changes)
            wait_until(f"the legs to be {are}", 30, come)
        come_to()
        self.kill(first)
        come_to(**{first: "failed", spare: "in sync"})
        self.assertIn(f"\n{first}, a leg of m, is failed and ", self.daemon.tree("100ms"))
        for leg in others[:lost]:
            self.kill(leg)
            come_to(**{leg: "failed"})
        for leg in (first, *others[1:lost]):
            self.rejoin(leg)
            come_to(**{leg: "in sync"})
        self.rejoin(others[0])
        come_to(**{others[0]: "spare"})
        self.kill(spare)
        come_to(**{spare: "failed", others[0]: "in sync"})
        self.clean(client)
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (0, 0), found)
        self.stop()

    @limit(90)
    def test_legs_of_a_mirror(self):
        self.go(MIRROR, "abc", 1)
        self.assertEqual(self.held("a", 44 * MIB), self.held("b", 44 * MIB))

    @limit(90)
    def test_devices_of_a_parity(self):
        self.go(RAID5, "abcd", 1)

    @limit(90)
    def test_devices_of_a_double_parity(self):
        self.go(RAID6, "abcde", 2)


class Absent(LegsCase):
    def go(self, kind, legs):
        """A leg is away during ten seconds of small random writes everywhere: it gets what was written."""
        self.create(over_legs(kind, legs, size="192MiB"), exported("m"))
        chance, client = random.Random(2), self.client()
        data = bytearray(b"".join(chance.randbytes(MIB) for _ in range(client.get_size() // MIB)))
        for at in range(0, len(data), MIB):
            client.pwrite(data[at:at + MIB], at)
        # What was written before a flush began may still lack at a leg that vanishes before the next one.
        client.flush()
        client.flush()
        self.kill("fb", "offline")
        writes, end = set(), time.monotonic() + 10
        while time.monotonic() < end:
            at = chance.randrange(len(data) // 4096) * 4096
            data[at:at + 4096] = chance.randbytes(4096)
            client.pwrite(data[at:at + 4096], at)
            writes.add(at)
            time.sleep(0.01)
        self.assertEqual(self.legs()["fb"], "away")
        lacks = next(leg["out_of_sync_bytes"] for leg in self.info()["legs"] if leg["device"] == "fb")
        self.daemon.ctl("fb", "clear")
        wait_until("the leg to have all again", 20, lambda: self.legs()["fb"] == "in sync")
        info = self.info()
        self.assertEqual(info["copied"], lacks)
        print(f"        {len(writes)} writes of 4 KiB meanwhile: {lacks // 1024} of {info['size'] // 1024} KiB copied")
        # What it got is what counts now.
        self.kill("fa", "offline")
        for at in range(0, len(data), MIB):
            self.assertTrue(client.pread(MIB, at) == data[at:at + MIB], at)
        client.shutdown()
        return writes, lacks

    @limit(60)
    def test_a_leg_of_a_mirror(self):
        writes, copied = self.go(MIRROR, "ab")
        self.assertEqual(copied, len(writes) * 4096)

    @limit(60)
    def test_a_device_of_a_parity(self):
        """It misses what is written to it, and the parity of what is written elsewhere: half of all small writes."""
        writes, copied = self.go(RAID5, "abcd")
        self.assertLess(copied, len(writes) * 4096 * 0.7)
        self.assertGreater(copied, len(writes) * 4096 * 0.3)


class Alone(LegsCase):
    @limit(60)
    def test_a_leg_that_is_unplugged_and_comes_back(self):
        """The file of a leg is away at a start: refused, served degraded, and taken in again by `apply`."""
        devices = mirrored("ab")
        self.create(devices, exported("m"))
        client = self.client()
        client.pwrite(b"1" * MIB, 0)
        client.shutdown()
        self.stop()
        image, away = self.rig.path("b.img"), self.rig.path("away")
        image.rename(away)
        said = self.refused("serve", self.daemon.file)
        self.assertIn('`lamina serve --degraded` goes on without "b"', said)
        self.daemon.arguments = ["--degraded"]
        self.daemon.start()
        self.assertEqual(self.legs(), {"fa": "in sync", "fb": "away"})
        self.assertIn("b is absent", self.daemon.tree("100ms"))
        client = self.client()
        client.pwrite(b"2" * MIB, MIB)
        away.rename(image)
        self.assertIn("taken in again", self.apply(devices, exported("m")))
        wait_until("the leg to have all", 20, lambda: self.legs()["fb"] == "in sync")
        self.kill("fa")
        self.assertEqual(client.pread(2 * MIB, 0), b"1" * MIB + b"2" * MIB)
        client.shutdown()


FAR = """\
[device.disk]
type = "file"
path = "{name}-far.img"
size = "24MiB"

[export.disk]
device = "disk"
nbd = "unix:{name}.sock"
"""


class Remote(LegsCase, Kills):
    @limit(90)
    def test_servers_of_legs_are_killed(self):
        """Two legs are exports of other daemons, which die with requests under way; the spare is here."""
        far = {name: Lamina(self.rig, FAR.format(name=name), name=f"far-{name}") for name in "ab"}
        soon = {"timeout": "1s", "reconnect": "300ms"}
        legs = {name: {"type": "nbd", "address": f"unix:{name}.sock", "export": "disk", **soon} for name in far}
        mirror = {"type": "mirror", "over": ["a", "b", "here"], "spares": 1, "leg-timeout": "1s"}
        self.begin({**legs, "here": member("here", "24MiB"), "m": mirror}, exported("m"))

        def come_to(**legs):
            self.writer.pump_until(lambda: self.legs() == legs, seconds=30)
            self.pump(0.2)
        come_to(a="in sync", b="in sync", here="spare")
        far["a"].kill()
        come_to(a="failed", b="in sync", here="in sync")
        far["b"].kill()
        come_to(a="failed", b="away", here="in sync")
        # It comes back by itself, with what it had, and gets what it missed.
        far["b"].start()
        come_to(a="failed", b="in sync", here="in sync")
        far["a"].start()
        self.daemon.ctl("m", "rejoin", "a")
        come_to(a="spare", b="in sync", here="in sync")
        self.daemon.ctl("m", "fail", "here")
        come_to(a="in sync", b="in sync", here="failed")
        self.writer.quiet()
        self.ledger.check(self.writer.read())
        self.writer.close()
        self.stop()


    @limit(60)
    def test_a_server_that_is_not_there_at_the_start(self):
        """As any leg that is away: the mirror is served without it, and gets it back by `apply`."""
        far = Lamina(self.rig, FAR.format(name="a"), name="far")
        leg = {"type": "nbd", "address": "unix:a.sock", "export": "disk", "timeout": "1s", "reconnect": "300ms"}
        devices = {"a": leg, "here": member("here", "24MiB"), "m": {"type": "mirror", "over": ["a", "here"]}}
        self.create(devices, exported("m"))
        client = self.client()
        client.pwrite(b"1" * MIB, 0)
        client.shutdown()
        self.stop()
        far.kill()
        self.daemon.start()
        self.assertEqual(self.legs(), {"a": "away", "here": "in sync"})
        self.assertIn("a is absent", self.daemon.tree("100ms"))
        client = self.client()
        client.pwrite(b"2" * MIB, MIB)
        # It is not there yet.
        self.assertIn("cannot connect", self.apply(devices, exported("m"), check=False))
        self.assertEqual(self.legs()["a"], "away")
        far.start()
        self.apply(devices, exported("m"))
        wait_until("the leg to have all", 20, lambda: self.legs()["a"] == "in sync")
        self.daemon.ctl("m", "fail", "here")
        self.assertEqual(client.pread(2 * MIB, 0), b"1" * MIB + b"2" * MIB)
        client.shutdown()
        self.stop()

    @limit(60)
    def test_a_dead_leg_is_replaced_by_another_device(self):
        """The file names another device in its place, while clients work; the dead one is not asked for anything."""
        self.begin(mirrored("ab"), exported("m"))
        self.pump(0.2)
        self.kill("fb")
        self.writer.pump_until(lambda: self.legs()["fb"] == "failed")
        self.command(*self.change(mirrored("ac"), exported("m")))
        self.writer.pump_until(lambda: self.legs() == {"fa": "in sync", "fc": "in sync"})
        self.kill("fa")
        self.writer.pump_until(lambda: self.legs() == {"fa": "failed", "fc": "in sync"})
        self.writer.quiet()
        self.ledger.check(self.writer.read())
        self.writer.close()


class KilledAtWork(LegsCase, Kills):
    def go(self, kind, legs):
        """A leg fails, the spare gets everything while all is compared, and the daemon is killed somewhere in that."""
        devices = over_legs(kind, legs, spares=1, size="12MiB", limit="8MiB")
        for leg in legs:
            # A scrub of so little takes its time.
            devices[f"f{leg}"] = {"type": "delay", "over": leg, "read": "10ms"}
        self.begin(devices, exported("m"))
        self.pump(0.2)
        met = {"rebuild": 0, "scrub": 0, "either": 0}
        for n in range(KILLS_CHANGE):
            leg = f"f{legs[n % len(legs)]}"
            if self.legs()[leg] == "spare":
                leg = f"f{legs[n % len(legs) - 1]}"
            self.daemon.ctl("m", "fail", leg)
            self.writer.pump_until(lambda: "rebuild" in self.jobs())
            self.daemon.ctl("m", "scrub")
            self.pump(1.2 * self.chance.random())
            jobs = self.jobs()
            met = {job: count + (job in jobs or job == "either" and bool(jobs)) for job, count in met.items()}
            self.daemon.kill()
            self.again()
            whole = sorted(["failed", *["in sync"] * (len(legs) - 1)])
            self.writer.pump_until(lambda: sorted(self.legs().values()) == whole)
            self.daemon.ctl("m", "rejoin", leg)
            self.assertEqual(self.legs()[leg], "spare")
            self.writer.pump_until(lambda: not self.jobs())
        self.writer.quiet()
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (0, 0), found)
        # One that ends when the daemon is killed may be done once more.
        self.assertGreaterEqual(self.daemon.log().count("a scrub has ended"), KILLS_CHANGE + 1)
        self.unfinished = met.pop("either")
        print(f"        {KILLS_CHANGE} kills, {met['rebuild']} of them during a rebuild, {met['scrub']} during a scrub")
        self.assertGreaterEqual(min(met.values()), KILLS_CHANGE * 3 // 5)
        self.ended()

    @limit(60 + EACH * KILLS_CHANGE)
    def test_of_a_mirror(self):
        self.go(MIRROR, "abc")

    @limit(60 + EACH * KILLS_CHANGE)
    def test_of_a_parity(self):
        self.go(RAID5, "abcd")

    @limit(60 + EACH * KILLS_CHANGE)
    def test_of_a_double_parity(self):
        self.go(RAID6, "abcde")
