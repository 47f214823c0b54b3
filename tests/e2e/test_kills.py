"""kill -9 at random moments while a persistent hierarchy changes: what is left is assembled, right, and goes on.

A client writes stamped blocks all the time. After each kill the daemon is started with the file that the members carry:
the one before, the one after, or the one between them while data is moved. Then the same change is made again, whole.
"""

import json
import random
import time
import tomllib

from common import KILLS_CHANGE, MIB, limit
from hierarchies import HierarchyCase, exported, joined, member
from rig import Lamina, lamina_binary, wait_until
from rig.ledger import BLOCK, Ledger, Writer, compare, read
from rig.process import PATIENCE
from test_change import LOG, SLOW, VOLUME
from test_fio import FRONT, clean, fio
from test_guest import VERIFY, GuestCase

# Seconds that a kill takes with all that follows, at most.
EACH = 15


def shape(devices):
    """Devices apart from where they are found."""
    return {name: {key: of for key, of in keys.items() if key != "path"} for name, keys in devices.items()}


class Killed(HierarchyCase):
    """A hierarchy whose daemon is killed during commands."""

    def setUp(self):
        super().setUp()
        self.chance = random.Random(self.id())
        self.unfinished = 0
        self.times = {}
        # Other keys of [hierarchy].
        self.more = {}

    def change(self, devices, exports):
        """The words of a command that makes the hierarchy so."""
        self.write(devices, exports, **self.more)
        return "apply", self.daemon.file, "--force"

    def start(self, *words):
        """Starts `lamina` with these words and the daemon's socket."""
        return self.rig.start(lamina_binary(), words[0], "--control", self.daemon.control, *words[1:], name="command")

    def command(self, *words, meanwhile=lambda: time.sleep(0.001)):
        """A command; its failure is one of the test."""
        begin = time.monotonic()
        child = self.start(*words)
        while child.running():
            meanwhile()
        self.assertEqual(child.exit_code(), 0, child.output())
        self.took(words, time.monotonic() - begin)

    def killed(self, *words, meanwhile=lambda: time.sleep(0.001)):
        """As `command`, and the daemon is killed at a random moment of it, by how long it took before."""
        seconds = self.took(words) * self.chance.random() * 1.2
        child = self.start(*words)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            meanwhile()
        self.unfinished += child.running()
        self.daemon.kill()
        child.wait()

    def took(self, words, seconds=0.02):
        """The seconds that this command took when it had all of its work to do: the first time."""
        what = self.daemon.file.read_text() if words[0] == "apply" else words[:3]
        return self.times.setdefault(what, seconds)

    def serve_what_is_there(self):
        """Starts the daemon with what the members carry; returns the devices."""
        found = self.assemble()
        self.daemon.file.write_text(found)
        self.daemon.start()
        return shape(tomllib.loads(found)["device"])

    def between(self, found, before, after):
        """Expects one of two hierarchies, or what lies between them while data is moved."""
        if not any("leaving" in keys for keys in found.values()):
            self.assertIn(found, [shape(before), shape(after)])

    def ended(self):
        """The last act of a test: an orderly end. If there were many kills, some have met a command under way."""
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        kills = self.daemon.starts - 1
        self.assertGreaterEqual(self.unfinished, kills // 20)
        print(f"        {kills} kills, {self.unfinished} of them before the command had ended")


class Kills(Killed):
    """It has a client, too, which writes all the time."""

    def setUp(self):
        super().setUp()
        self.seeds = iter(range(1 << 30))

    def begin(self, devices, exports, ledger=None):
        self.create(devices, exports, **self.more)
        self.ledger = ledger or Ledger()
        self.attach()

    def attach(self, check=True):
        self.writer = Writer(self.ledger, self.daemon.uri("vm1"), next(self.seeds))
        if check:
            self.writer.check()

    def command(self, *words):
        super().command(*words, meanwhile=self.writer.pump)

    def killed(self, *words):
        super().killed(*words, meanwhile=self.writer.pump)

    def pump(self, seconds):
        end = time.monotonic() + seconds
        self.writer.pump_until(lambda: time.monotonic() > end)

    def again(self, check=True):
        """As `serve_what_is_there`, and checks all blocks."""
        found = self.serve_what_is_there()
        self.attach(check)
        return found

    def ended(self):
        self.writer.close()
        super().ended()

    def kill_under_fio(self, devices, kills):
        """kill -9 while fio writes and compares checksums, through a second daemon that reconnects."""
        lamina = self.create(devices, exported())
        front = Lamina(self.rig, FRONT, name="front")
        load = self.rig.start(*fio(
            front.uri("front", "front.sock"), "--bsrange=512-32k", "--blockalign=512", "--verify_backlog=256",
            "--time_based", f"--runtime={kills + 5}", size="10M",
        ), name="fio")
        for _ in range(kills):
            time.sleep(0.5)
            self.assertTrue(load.running(), load.output())
            lamina.restart()
        self.assertEqual(load.wait(kills + 60), 0, load.output())
        clean(self, load.output())
        self.assertEqual(front.stop(), 0, front.log())
        self.assertEqual(lamina.stop(), 0, lamina.log())

    def go_round(self, *steps):
        """Kills the daemon in each of the steps (devices and exports each) in turn, which begin and end with the first."""
        for step in (*steps[1:], steps[0]):
            self.command(*self.change(*step))
        before = steps[0]
        for n in range(KILLS_CHANGE):
            step = steps[(n + 1) % len(steps)]
            self.killed(*self.change(*step))
            self.between(self.again(), before[0], step[0])
            self.command(*self.change(*step))
            before = step
        self.ended()


class Apply(Kills):
    @limit(60 + EACH * KILLS_CHANGE)
    def test_layers_come_and_go(self):
        base = joined()
        self.begin(base, exported())
        self.go_round(
            (base, exported()), ({**base, **SLOW}, exported()), ({**base, **LOG}, exported("log")),
            ({**base, **SLOW, **LOG}, exported("log")),
        )

    @limit(60 + EACH * KILLS_CHANGE)
    def test_a_member_is_replaced(self):
        base = joined()
        self.begin(base, exported())
        self.go_round((base, exported()), (joined(("c", "b")), exported()))

    @limit(60 + EACH * KILLS_CHANGE)
    def test_a_device_migrates_and_its_layer_comes_and_goes(self):
        def on(name, moves):
            under = {"moves": {"type": "migrate", "over": name}} if moves else {}
            return {name: member(name, "24MiB"), **under, "vm1": {"type": "linear", "over": "moves" if moves else name}}
        steps = (on("a", True), on("b", True), on("b", False), on("b", True))
        self.begin(steps[0], exported())
        self.go_round(*((step, exported()) for step in steps))

    @limit(60 + EACH * KILLS_CHANGE)
    def test_a_device_migrates_at_a_set_speed(self):
        """The daemon is killed while bytes move; they go on moving from where they were."""
        def on(name):
            moves = {"type": "migrate", "over": name, "limit": "16MiB"}
            return {name: member(name, "24MiB"), "moves": moves, "vm1": {"type": "linear", "over": "moves"}}

        def moved():
            return next((job["done"] for job in self.daemon.get("/v1/jobs") if job["name"] == "move"), None)
        self.begin(on("a"), exported())
        resumed = 0
        for n in range(KILLS_CHANGE):
            before, after = on("ab"[n % 2]), on("ba"[n % 2])
            command = self.start(*self.change(after, exported()))
            self.writer.pump_until(lambda: moved() is not None)
            self.pump(1.3 * self.chance.random())
            done = moved()
            self.unfinished += done is not None
            self.daemon.kill()
            command.wait()
            found = self.again()
            self.between(found, before, after)
            if done:
                # Nothing but the last pieces is moved again.
                self.assertGreaterEqual(moved() or self.size(), done)
                resumed += moved() is not None
            self.command(*self.change(after, exported()))
        print(f"        {self.unfinished} of {KILLS_CHANGE} kills while bytes moved; {resumed} moves went on afterwards")
        self.assertGreaterEqual(self.unfinished, KILLS_CHANGE * 3 // 5)
        self.ended()

    @limit(60 + EACH * KILLS_CHANGE)
    def test_a_member_joins_and_is_removed(self):
        base, grown = joined(), joined(("a", "b", "c"))
        self.begin(base, exported())
        small = self.size()
        for n in range(KILLS_CHANGE + 1):
            act = self.killed if n > 0 else self.command
            act(*self.change(grown, exported()))
            if n > 0:
                self.assertIn(self.again(), [shape(base), shape(grown)])
                self.command(*self.change(grown, exported()))
            act("ctl", "disk", "resize", f"size={small}", "force=true")
            if n > 0:
                self.assertEqual(self.again(), shape(grown))
                self.assertIn(self.size(), (small, small // 2 * 3))
                self.command("ctl", "disk", "resize", f"size={small}", "force=true")
            # What is left after the resize may lie on the new member, so that data has to be moved.
            act(*self.change(base, exported()))
            if n > 0:
                self.between(self.again(), grown, base)
                self.command(*self.change(base, exported()))
            self.assertEqual(self.size(), small)
        self.ended()


PARTS = {
    "parts": {"type": "partition", "over": "disk", "partitions": [{"name": "root", "size": "16MiB"}]},
    "vm1": {"type": "view", "over": "parts", "name": "root"},
}


class Partitions(Kills):
    """A partition under load grows and shrinks while others come and go; what is new is zeroes, whatever lay there."""

    def parts(self):
        listed = json.loads(self.daemon.ctl("parts", "list"))["partitions"]
        return {part["name"]: part["size"] // MIB for part in listed}

    def dirty(self, export, begin):
        """Expects zeroes in a partition from `begin` on, and fills it."""
        handle = self.client(export)
        for at in range(begin, handle.get_size(), MIB):
            self.assertEqual(handle.pread(MIB, at), bytes(MIB), f"{export} at {at}")
            handle.pwrite(b"\xa5" * MIB, at)
        handle.flush()
        handle.shutdown()

    @limit(60 + EACH * KILLS_CHANGE)
    def test_partitions_are_made_resized_and_deleted(self):
        base = {**joined(), **PARTS}
        more = {**base, "home": {"type": "view", "over": "parts", "name": "home"}}
        both = {**exported(), "home": {"device": "home", "nbd": "unix:nbd.sock"}}
        self.begin(base, exported())

        def home():
            self.apply(more, both)
            self.dirty("home", 0)
            self.apply(base, exported())
        steps = [
            (("create", "name=home", "size=12MiB"), {"root": 16, "home": 12}, home),
            (("resize", "name=root", "size=24MiB"), {"root": 24, "home": 12}, lambda: self.dirty("vm1", 16 * MIB)),
            (("rename", "name=home", "to=away"), {"root": 24, "away": 12}, None),
            (("resize", "name=root", "size=16MiB", "force=true"), {"root": 16, "away": 12}, None),
            (("resize", "name=root", "size=32MiB"), {"root": 32, "away": 12}, lambda: self.dirty("vm1", 16 * MIB)),
            (("delete", "name=away"), {"root": 32}, None),
            (("resize", "name=root", "size=16MiB", "force=true"), {"root": 16}, None),
        ]
        before = self.parts()
        for n in range(3 * KILLS_CHANGE):
            words, after, then = steps[n % len(steps)]
            self.killed("ctl", "parts", *words)
            self.assertEqual(self.again(), shape(base))
            found = self.parts()
            self.assertIn(found, (before, after))
            if found != after:
                self.command("ctl", "parts", *words)
            self.assertEqual(self.parts(), before := after)
            if then:
                self.writer.quiet()
                then()
        self.ended()


class Snapshots(Kills):
    """Snapshots of a volume under load are taken, gone back to and deleted. What one holds never changes."""

    def snapshots(self):
        return [snapshot["name"] for snapshot in json.loads(self.daemon.ctl("vol", "list"))]

    def look(self, name):
        """The numbers of the writes that a snapshot holds, through a view of its own."""
        seen = {**self.base, "seen": {"type": "view", "over": "vol", "name": name}}
        self.apply(seen, {**exported("vol"), "seen": {"device": "seen", "nbd": "unix:nbd.sock"}}, **self.more)
        handle = self.client("seen")
        numbers = read(handle, self.ledger.blocks)
        handle.shutdown()
        self.apply(self.base, exported("vol"), **self.more)
        return numbers

    def take(self, name, begin=None):
        """A snapshot by the command `begin`; returns what it holds."""
        least = self.ledger.least()
        (begin or self.command)("ctl", "vol", "snapshot", f"name={name}")
        most = self.ledger.most()
        if begin:
            self.again()
            if name not in self.snapshots():
                return self.take(name)
        numbers = self.look(name)
        compare(numbers, least, most)
        return numbers

    def roll_back(self, name, to):
        self.writer.quiet()
        before = self.writer.read()
        Killed.killed(self, "ctl", "vol", "rollback", f"name={name}", "--force")
        self.again(check=False)
        found = self.writer.read()
        self.assertIn(found, (before, to))
        if found != to:
            self.daemon.ctl("vol", "rollback", f"name={name}", "--force")
        self.assertEqual(self.writer.read(), to)
        self.ledger.settle(to)

    def delete(self, name):
        self.killed("ctl", "vol", "delete", f"name={name}")
        self.again()
        if name in self.snapshots():
            self.command("ctl", "vol", "delete", f"name={name}")

    def go_through(self, level):
        self.base = {**joined(), "vol": {"type": "snapshot", "over": "disk"}}
        del self.base["vm1"]
        self.more = {"consistency": level}
        self.begin(self.base, exported("vol"), Ledger(acknowledged=level != "atomic", moment=level == "atomic"))
        self.pump(0.3)
        first = self.take("first")
        for n in range(KILLS_CHANGE):
            self.pump(0.1)
            held = self.take(f"s{n}", self.killed)
            self.pump(0.1)
            self.roll_back(f"s{n}", held)
            self.pump(0.1)
            self.assertEqual(self.look(f"s{n}"), held)
            self.delete(f"s{n}")
            self.assertEqual(self.snapshots(), ["first"])
        self.assertEqual(self.look("first"), first)
        self.command("ctl", "vol", "delete", "name=first")
        self.writer.quiet()
        self.reclaimed()
        self.ended()

    def reclaimed(self):
        """Waits until no more is taken than what the volume holds."""
        def used():
            info = self.daemon.device("vol")["info"]
            return info["extents"] - info["free"]
        extents = self.ledger.blocks * BLOCK // (32 * 1024)
        wait_until("all space to be reclaimed", 20, lambda: used() <= extents)

    @limit(60 + 3 * EACH * KILLS_CHANGE)
    def test_at_lazy(self):
        self.go_through("lazy")

    @limit(60 + 3 * EACH * KILLS_CHANGE)
    def test_at_shadow(self):
        self.go_through("shadow")

    @limit(60 + 3 * EACH * KILLS_CHANGE)
    def test_at_atomic(self):
        self.go_through("atomic")


class UnderAGuest(GuestCase, Killed):
    """As the above, with a guest that verifies and notices nothing."""

    @limit(240 + 20 * KILLS_CHANGE)
    def test_a_guest_notices_nothing_but_the_size(self):
        """Layers come and go, a snapshot among them; a member is replaced; the disk grows by one, and shrinks again."""
        queue = {"vhost-user": "vm1.sock"}
        base, replaced, grown = (joined(members, "48MiB") for members in ("ab", "ac", "acd"))
        exports = exported(**queue)
        changes = [
            ({**base, **SLOW}, exports), ({**base, **LOG}, exported("log", **queue)), ({**base, **VOLUME}, exports),
            ({**replaced, **VOLUME}, exports), (replaced, exports), (grown, exports), (base, exports),
        ]
        # All of them at least once, and once before without a kill, to see how long they take.
        kills = max(KILLS_CHANGE, len(changes))
        self.create(base, exports)
        smaller = ("ctl", "disk", "resize", f"size={self.size()}", "force=true")
        guest = self.boot(self.daemon)
        guest.background("fio", VERIFY.format(file="/dev/vda", size="64M", seconds=int((4 * kills + 20) * PATIENCE)))
        before = base
        for n in range(len(changes) + kills):
            change = changes[n % len(changes)]
            if before is grown:
                self.daemon.ctl(*smaller[1:])
            if n >= len(changes):
                self.killed(*self.change(*change))
                self.between(self.serve_what_is_there(), before, change[0])
                self.writes(guest)
            self.command(*self.change(*change))
            self.writes(guest)
            size = self.size() // 512
            wait_until("the guest to see the size", 20, lambda: int(guest.run("cat /sys/block/vda/size")) == size)
            before = change[0]
        self.assert_healthy(guest, guest.result("fio", 4 * kills + 120))
        self.assertEqual(guest.power_off(), 0)
        self.ended()

    def writes(self, guest):
        """Waits for the guest to go on."""
        before = self.daemon.counter("a", "write")

        def more():
            self.assert_busy(guest)
            return self.daemon.counter("a", "write") > before + 50
        wait_until("writes of the guest", 30, more)

    @limit(180 + 20 * KILLS_CHANGE)
    def test_a_guest_on_a_volume_with_snapshots_does_not_notice(self):
        queue = {"vhost-user": "vm1.sock"}
        base = {**joined(size="96MiB"), "vm1": {"type": "snapshot", "over": "disk"}}
        self.create(base, exported(**queue))
        guest = self.boot(self.daemon)
        guest.background("fio", VERIFY.format(file="/dev/vda", size="32M", seconds=int((5 * KILLS_CHANGE + 6) * PATIENCE)))
        self.writes(guest)
        for n in range(KILLS_CHANGE):
            for words in (("snapshot", f"name=s{n}"), ("delete", f"name=s{n}")):
                self.killed("ctl", "vm1", *words)
                self.assertEqual(self.serve_what_is_there(), shape(base))
                self.writes(guest)
                there = [snapshot["name"] for snapshot in json.loads(self.daemon.ctl("vm1", "list"))]
                if (f"s{n}" in there) != (words[0] == "snapshot"):
                    self.command("ctl", "vm1", *words)
                self.writes(guest)
        self.assert_healthy(guest, guest.result("fio", 4 * KILLS_CHANGE + 120))
        self.assertEqual(guest.power_off(), 0)
        self.ended()
