"""Mirrors: legs fail and are killed under clients, spares take over, and what legs hold is copied, compared, healed."""

import random

from common import KILLS_CHANGE, MIB, limit
from hierarchies import HierarchyCase, exported, member
from rig import Lamina, wait_until
from rig.process import PATIENCE
from test_fio import clean, fio
from test_kills import EACH, Kills

# Where a member's data begins, and what `mirror` remembers of a leg that is away: 64 KiB at a time.
DATA = MIB
GRAIN = 64 * 1024

# Everything that a leg is asked for fails.
DEAD = 'rules=[{"error":"%s"}]'


def mirrored(legs, spares=0, size="24MiB", **keys):
    """The mirror `m` over a leg each for the letters in `legs`: a `fault`, called `f` and the letter, over a member."""
    devices = {}
    for name in legs:
        devices |= {name: member(name, size), f"f{name}": {"type": "fault", "over": name}}
    return {**devices, "m": {"type": "mirror", "over": [f"f{name}" for name in legs], "spares": spares, **keys}}


class LegsCase(HierarchyCase):
    def info(self):
        return self.daemon.device("m")["info"]

    def legs(self):
        """What each leg is, by its name."""
        return {leg["device"]: leg["is"] for leg in self.info()["legs"]}

    def kill(self, leg, error="media"):
        self.daemon.ctl(leg, "set", DEAD % error)

    def rejoin(self, leg):
        self.daemon.ctl(leg, "clear")
        self.daemon.ctl("m", "rejoin", leg)

    def scrub(self):
        """Compares all that the legs hold; returns what was found."""
        self.daemon.ctl("m", "scrub")
        wait_until("the scrub to end", 30, lambda: not self.daemon.get("/v1/jobs"))
        return self.info()["found"]

    def held(self, name, size):
        """What the image of a leg holds as the mirror's."""
        with open(self.rig.path(f"{name}.img"), "rb") as image:
            image.seek(DATA)
            return image.read(size)

    def stop(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())


class Legs(LegsCase):
    @limit(90)
    def test_legs_are_killed_one_after_the_other_under_fio(self):
        """Of two legs one dies, the spare gets everything, and the other one dies; then both come back."""
        self.create(mirrored("abc", spares=1, size="48MiB"), exported("m"))
        client = self.rig.start(
            *fio(self.daemon.uri("vm1"), "--do_verify=1", "--verify_backlog=256", "--time_based",
                 f"--runtime={6 * PATIENCE}", "--thread"), name="fio",
        )

        def come_to(**legs):
            wait_until(f"the legs to be {legs}", 30, lambda: self.legs() == legs)
            self.assertTrue(client.running(), client.output())
        come_to(fa="in sync", fb="in sync", fc="spare")
        self.kill("fa")
        come_to(fa="failed", fb="in sync", fc="in sync")
        self.assertIn("\nfa, a leg of m, is failed and lacks ", self.daemon.tree("100ms"))
        self.kill("fb")
        come_to(fa="failed", fb="failed", fc="in sync")
        self.rejoin("fa")
        come_to(fa="in sync", fb="failed", fc="in sync")
        self.rejoin("fb")
        come_to(fa="in sync", fb="spare", fc="in sync")
        self.kill("fc")
        come_to(fa="in sync", fb="in sync", fc="failed")
        self.assertEqual(client.wait(60), 0, client.output())
        clean(self, client.output())
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (0, 0), found)
        size = self.size()
        self.stop()
        self.assertEqual(self.held("a", size), self.held("b", size))

    @limit(60)
    def test_a_short_absence_costs_what_was_written(self):
        self.create(mirrored("ab"), exported("m"))
        chance, client = random.Random(2), self.client()
        client.pwrite(chance.randbytes(16 * MIB), 0)
        # What was written before a flush began may still lack at a leg that vanishes before the next one.
        client.flush()
        client.flush()
        self.kill("fb", "offline")
        places = {chance.randrange(16 * MIB // GRAIN) for _ in range(40)}
        for place in places:
            client.pwrite(chance.randbytes(4096), place * GRAIN + 8192)
        self.assertEqual(self.legs(), {"fa": "in sync", "fb": "away"})
        self.daemon.ctl("fb", "clear")
        wait_until("the leg to have all again", 20, lambda: self.legs()["fb"] == "in sync")
        self.assertEqual(self.info()["copied"], len(places) * GRAIN)
        copied, size = len(places) * GRAIN // 1024, self.size() // 1024
        print(f"        {len(places)} places were written to meanwhile: {copied} of {size} KiB copied")
        client.shutdown()
        self.stop()
        self.assertEqual(self.held("a", 16 * MIB), self.held("b", 16 * MIB))

    @limit(60)
    def test_silent_corruption_is_named_and_healed_where_it_is_known_what_is_right(self):
        two = mirrored("ab")
        self.create(two, exported("m"))
        data, client = random.Random(3).randbytes(8 * MIB), self.client()
        client.pwrite(data, 0)
        client.flush()
        client.shutdown()

        def flip(name, at):
            with open(self.rig.path(f"{name}.img"), "r+b") as image:
                image.seek(DATA + at)
                image.write(bytes(255 - byte for byte in data[at:at + 100]))
        flip("b", 3 * MIB + 5000)
        # Of two copies none is known to be right: both stay as they are.
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (1, 0), found)
        place = found["places"][0]
        self.assertLessEqual(place["start"], 3 * MIB + 5000)
        self.assertGreater(place["end"], 3 * MIB + 5000)
        self.assertNotEqual(self.held("b", 8 * MIB), data)
        self.assertEqual(self.held("a", 8 * MIB), data)
        # Unless somebody says so.
        self.daemon.ctl("m", "scrub", "trust=fa")
        wait_until("the scrub to end", 30, lambda: not self.daemon.get("/v1/jobs"))
        self.assertEqual(self.info()["found"]["healed"], 1)
        self.assertEqual(self.held("b", 8 * MIB), data)
        # Of three copies the majority is right.
        self.apply(mirrored("abc"), exported("m"))
        wait_until("the new leg to have all", 30, lambda: set(self.legs().values()) == {"in sync"})
        flip("a", 6 * MIB)
        found = self.scrub()
        self.assertEqual(found["healed"], 1 if found["different"] == 0 else 2, found)
        self.assertEqual(found["places"][-1]["leg"], "fa")
        self.stop()
        for name in "abc":
            self.assertEqual(self.held(name, 8 * MIB), data)

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
        mirror = {"type": "mirror", "over": ["a", "b", "here"], "spares": 1, "patience": "1s"}
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


class KilledLegs(LegsCase, Kills):
    @limit(60 + EACH * KILLS_CHANGE)
    def test_rebuilds_and_scrubs_go_on_after_kill_9(self):
        """A leg fails, the spare gets everything while all is compared, and the daemon is killed somewhere in that."""
        devices = mirrored("abc", spares=1, limit="24MiB")
        for leg in "abc":
            # A scrub of so little takes its time.
            devices[f"f{leg}"] = {"type": "delay", "over": leg, "read": "10ms"}
        self.begin(devices, exported("m"))
        self.pump(0.2)
        met = [0, 0]
        for n in range(KILLS_CHANGE):
            leg = ("fa", "fb", "fc")[n % 3]
            self.daemon.ctl("m", "fail", leg)
            self.daemon.ctl("m", "scrub")
            self.pump(0.8 + 1.5 * self.chance.random())
            jobs = [job["name"] for job in self.daemon.get("/v1/jobs")]
            met = [met[0] + ("rebuild" in jobs), met[1] + ("scrub" in jobs)]
            self.unfinished += bool(jobs)
            self.daemon.kill()
            self.again()
            self.writer.pump_until(lambda: sorted(self.legs().values()) == ["failed", "in sync", "in sync"])
            self.daemon.ctl("m", "rejoin", leg)
            self.assertEqual(self.legs()[leg], "spare")
            self.writer.pump_until(lambda: not self.daemon.get("/v1/jobs"))
        self.writer.quiet()
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (0, 0), found)
        self.assertEqual(self.daemon.log().count("a scrub has ended"), KILLS_CHANGE + 1)
        print(f"        {KILLS_CHANGE} kills, {met[0]} of them during a rebuild, {met[1]} during a scrub")
        self.ended()
