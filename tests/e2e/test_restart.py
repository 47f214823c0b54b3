"""A daemon that is started again as a service manager does it: with the words that it was started with the first time,
whatever `lamina apply` has made of its hierarchy meanwhile, and in the middle of that. It always serves, and every byte."""

import random
import time

from common import KILLS_CHANGE, MIB, limit
from hierarchies import HierarchyCase, exported, joined, member, written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ledger import Ledger, Writer
from test_change import LOG, SLOW

# How many kills may come to meet one change before its end.
MORE_KILLS = KILLS_CHANGE + 40


def legs(*names, kind="mirror"):
    """The disk `vm1`: a mirror, or another device with legs."""
    return {**{name: member(name, "24MiB") for name in names}, "vm1": {"type": kind, "over": list(names)}}


def on(name):
    """The disk `vm1` on one member, which can be exchanged for another; bytes are moved at a set speed."""
    moves = {"type": "migrate", "over": name, "limit": "32MiB"}
    return {name: member(name, "24MiB"), "moves": moves, "vm1": {"type": "linear", "over": "moves"}}


class Restarted(HierarchyCase):
    def setUp(self):
        super().setUp()
        self.chance = random.Random(self.id())

    def change(self, devices, *words, exports=None):
        """Begins to make the hierarchy so; the file is another one than the unit's."""
        self.other = self.rig.write("other.toml", written(devices, exports or exported()))
        return self.rig.start(
            lamina_binary(), "apply", self.other, "--control", self.daemon.control, "--force", *words, name="apply")

    def changed(self, devices, *words):
        """The same to its end; returns what was said."""
        child = self.change(devices, *words)
        self.assertEqual(child.wait(60), 0, child.output())
        return child.output()

    def devices(self):
        """The devices that are served, and what they stand on."""
        return {d["name"]: d["over"] for d in self.daemon.get("/v1/hierarchy")["hierarchies"][0]["devices"]}

    def settled(self, devices):
        """Waits until the hierarchy has these devices, and nothing else."""
        wait_until("the change to be done", 60, lambda: self.devices().keys() == devices.keys())

    def go_round(self, *steps, words=("--write",)):
        """Kills the daemon while it makes each of the steps in turn, and starts it with its own file."""
        self.create(steps[0], exported())
        ledger, met = Ledger(), 0
        writer = Writer(ledger, self.daemon.uri("vm1"), 0)
        took = {}
        for n in range(len(steps) * 2 + MORE_KILLS):
            if n >= len(steps) * 2 + KILLS_CHANGE and met:
                break
            after = steps[(n + 1) % len(steps)]
            begin, child = time.monotonic(), self.change(after, *words)
            # Each step first without a kill, to see how long it takes.
            end = begin + (took[n % len(steps)] * self.chance.random() if n >= len(steps) else 60)
            while child.running() and time.monotonic() < end:
                writer.pump()
            # A kill that comes too late makes the next ones come earlier: the first change takes longer than those
            # after it, on some machines several times as long.
            if n < len(steps) or not child.running():
                took[n % len(steps)] = time.monotonic() - begin
            met += child.running()
            self.daemon.kill()
            child.wait(20)
            self.daemon.start()
            writer = Writer(ledger, self.daemon.uri("vm1"), n + 1)
            writer.check()
            self.changed(after, *words)
            self.settled(after)
            writer.pump_until(lambda end=time.monotonic() + 0.05: time.monotonic() > end)
        writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.assertGreaterEqual(met, 1)
        print(f"        {self.daemon.starts - 1} kills, {met} of them before the command had ended")


class Killed(Restarted):
    """kill -9 at any moment of a change."""

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_a_leg_is_exchanged(self):
        self.go_round(legs("a", "b"), legs("a", "c"))

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_a_leg_is_exchanged_and_the_file_stays(self):
        self.go_round(legs("a", "b"), legs("a", "c"), words=())

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_a_device_of_a_parity_is_exchanged(self):
        self.go_round(legs("a", "b", "c", kind="parity"), legs("a", "d", "c", kind="parity"))

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_a_disk_migrates(self):
        self.go_round(on("a"), on("b"))

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_a_disk_migrates_and_the_file_stays(self):
        self.go_round(on("a"), on("b"), words=())

    @limit(180 + 15 * KILLS_CHANGE)
    def test_while_layers_come_and_go(self):
        base = joined()
        self.go_round(base, {**base, **SLOW}, {**base, **LOG}, joined(("a", "c")))

    @limit(120)
    def test_both_files_lead_through_a_change_and_it_goes_on_by_itself(self):
        slow = {"a": member("a", "24MiB"), "slow": {"type": "delay", "over": "a", "read": "50ms"}}
        before, after = {**joined(("slow", "b")), **slow}, joined(("c", "b"))
        self.create(before, exported())
        handle = self.client()
        data = random.Random(7).randbytes(40 * MIB)
        for at in range(0, len(data), MIB):
            handle.pwrite(data[at:at + MIB], at)
        handle.flush()
        handle.shutdown()
        child = self.change(after)
        wait_until("data to be moved", 20, lambda: self.jobs())
        self.daemon.kill()
        child.wait(20)
        for file in (self.daemon.file, self.other):
            other = Lamina(self.rig, file.read_text(), name=f"by-{file.stem}")
            self.daemon = other
            self.assertIn("the change goes on", other.log())
            self.assertIn("leaving", self.assemble())
            other.kill()
        # What the members carry is served as well; and a file that never described this is refused.
        self.assertIn("differs", self.refused("serve", self.rig.write("x.toml", written(joined(("a", "b")), exported()))))
        self.daemon.start()
        self.settled(after)
        handle = self.client()
        for at in range(0, len(data), MIB):
            self.assertEqual(bytes(handle.pread(MIB, at)), data[at:at + MIB])
        handle.shutdown()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.assertIn("the change that was interrupted is done", self.daemon.log())


class Applied(Restarted):
    """A change that is done, with another file than the unit's."""

    def test_the_units_file_serves_what_the_members_carry_until_it_says_so_itself(self):
        before, after = legs("a", "b"), legs("a", "c")
        self.create(before, exported())
        old = self.daemon.file.read_text()
        said = self.changed(after)
        self.assertIn(f"was started with {self.daemon.file}", said)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.daemon.start()
        self.assertEqual(self.devices()["vm1"], ["a", "c"])
        self.assertIn("describes an earlier state of the hierarchy", self.daemon.log())
        said = self.changed(after, "--write")
        self.assertIn("everything is as the file says", said)
        self.assertEqual(self.daemon.file.read_text(), self.other.read_text())
        self.assertEqual(self.rig.path("vm1.toml.orig").read_text(), old)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        # Nobody needs the old file now, and it is known to be old.
        self.assertIn('device "b": key "path": is stale', self.refused("serve", self.rig.path("vm1.toml.orig")))
        self.daemon.start()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    def test_the_units_file_names_only_a_member_that_was_left(self):
        self.create(on("a"), exported())
        old = self.daemon.file.read_text()
        self.changed(on("b"))
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.daemon.start()
        self.assertEqual(self.devices()["moves"], ["b"])
        self.assertIn("describes an earlier state of the hierarchy", self.daemon.log())
        self.changed(on("b"), "--write")
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        # Nobody needs the old file now. What is said to do is done: the member that was left leads to the new one.
        self.assertIn("`lamina assemble` prints that file", self.refused("serve", self.rig.write("old.toml", old)))
        file = self.assemble("a.img")
        self.assertIn("[device.b]", file)
        self.assertNotIn("[device.a]", file)
        self.rig.path("vm1.toml").write_text(file)
        self.daemon.start()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    def test_without_a_file(self):
        before, after = legs("a", "b"), legs("a", "c")
        away = self.rig.path("away")
        away.mkdir()
        after["c"]["path"] = "away/c.img"
        self.create(before, exported())
        self.changed(after)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        words = ("serve", "--control", self.rig.path("ctl"), "--from-members", self.rig.path("a.img"), self.rig.path("b.img"))
        # What the members say of a socket elsewhere is not believed.
        self.assertIn(f'export "vm1": key "nbd": {self.rig.path("nbd.sock")}', run(
            lamina_binary(), *words, check=False, seconds=20, cwd="/").stderr)
        for _ in range(2):
            daemon = self.rig.start(lamina_binary(), words[0], "--trust", *words[1:], name="unit", cwd="/")
            daemon.wait_for("\nready\n", 20)
            self.assertEqual(self.size(), int(run("nbdinfo", "--size", self.daemon.uri("vm1")).stdout))
            self.assertEqual(daemon.stop(), 0)

    def test_what_is_local_to_a_host_is_the_files(self):
        """Keys and sockets have other names: the file says so, and the members agree."""
        crypt = {"a": member("a", "24MiB"), "vm1": {"type": "crypt", "over": "a", "key-file": "key"}}
        self.rig.path("key").write_bytes(b"x" * 64)
        self.rig.path("new").write_bytes(b"y" * 64)
        self.create(crypt, exported())
        self.daemon.ctl("vm1", "key-change", "key-file=new")
        self.daemon.kill()
        crypt["vm1"]["key-file"] = "new"
        self.write(crypt, exported())
        self.daemon.start()
        self.assertIn("paths or addresses of this host have changed", self.daemon.log())
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.assertIn(f'key-file = "{self.rig.path("new")}"', self.assemble())
        # A passphrase is the same as a key: how it is opened is the host's business.
        crypt["vm1"] = {"type": "crypt", "over": "a", "passphrase-file": "new"}
        self.write(crypt, {"vm1": {"device": "vm1", "nbd": "unix:other.sock"}})
        self.daemon.start()
        self.assertGreater(int(run("nbdinfo", "--size", self.daemon.uri("vm1", "other.sock")).stdout), 0)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        crypt["vm1"]["header-size"] = "32MiB"
        self.write(crypt, exported())
        self.assertIn("differs", self.refused("serve", self.daemon.file))
