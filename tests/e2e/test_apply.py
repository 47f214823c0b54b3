"""`lamina apply`: the graph changes under clients that verify what they read."""

import os
import time

import nbd

from common import MIB, RigCase, limit, striped
from rig import run
from rig.serve import Lamina, lamina_binary
from test_fio import clean, fio
from test_guest import VERIFY, GuestCase

SLOW = """
[device.slow]
type = "delay"
over = "pair"
write = "1ms"
"""

LOG = """
[device.log]
type = "record"
over = "vm1"
log = "writes.log"
"""


class Apply(RigCase):
    def setUp(self):
        super().setUp()
        self.lamina = Lamina(self.rig, striped())
        self.before = self.lamina.file.read_text()

    def apply(self, hierarchy, *more, check=True):
        self.lamina.file.write_text(hierarchy)
        return run(lamina_binary(), "apply", self.lamina.file, "--control", self.lamina.control, *more, check=check)

    def names(self):
        return {device["name"] for device in self.lamina.get("/v1/hierarchy")["hierarchies"][0]["devices"]}

    @limit(240)
    def test_layers_come_and_go_under_load(self):
        slow = self.before.replace('over = "pair"', 'over = "slow"') + SLOW
        logged = self.before.replace('device = "vm1"', 'device = "log"') + LOG
        client = self.rig.start(
            *fio(self.lamina.uri("vm1"), "--do_verify=1", "--verify_backlog=256", "--time_based", "--runtime=20"),
            name="fio",
        )
        changes, pauses = 0, []
        while client.running():
            for hierarchy in (slow, self.before, logged, self.before):
                begin = time.monotonic()
                self.apply(hierarchy)
                pauses.append(time.monotonic() - begin)
                changes += 1
                time.sleep(0.05)
        clean(self, client.log.read_text())
        self.assertGreaterEqual(changes, 20)
        self.assertEqual(self.names(), {"left", "right", "pair", "vm1"})
        print(f"{changes} changes under fio, the longest in {max(pauses) * 1000:.0f} ms")

    def test_the_plan_is_shown_and_nothing_done(self):
        slow = self.before.replace('over = "pair"', 'over = "slow"') + SLOW
        told = self.apply(slow, "--plan").stdout
        self.assertEqual(told, "create    slow: delay over pair\nexchange  vm1: over slow, before over pair\n")
        self.assertNotIn("slow", self.names())
        self.assertEqual(self.apply(slow).stdout, told)
        self.assertIn("slow", self.names())
        self.assertEqual(self.apply(slow).stdout, "everything is as the file says\n")

    def test_what_cannot_be_done_is_refused(self):
        for change, words in [
            (self.before.replace("left.img", "other.img"), "a sink keeps its own"),
            (self.before.replace("pair", "both").replace("left", "a").replace("right", "b").replace("vm1", "vm2"),
             "nothing in common with the served hierarchies"),
        ]:
            refused = self.apply(change, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)
        self.assertEqual(self.names(), {"left", "right", "pair", "vm1"})
        run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", self.lamina.uri("vm1"))

    def test_exports_come_and_go_and_one_in_use_stays(self):
        more = '\n[export.raw]\ndevice = "pair"\nnbd = "unix:nbd.sock"\nread-only = true\n'
        other = '\n[export.far]\ndevice = "pair"\nnbd = "unix:far.sock"\nread-only = true\n'
        self.apply(self.before + more + other)
        for uri in (self.lamina.uri("raw"), f"nbd+unix:///far?socket={self.rig.path('far.sock')}"):
            self.assertGreater(int(run("nbdinfo", "--size", uri).stdout), 0)
        client = nbd.NBD()
        client.connect_uri(self.lamina.uri("raw"))
        refused = self.apply(self.before + other, check=False)
        self.assertEqual(refused.returncode, 7)
        user = rf"unix:\S+ \(process {os.getpid()} \("
        self.assertRegex(refused.stderr, f'export "raw" is in use by {user}')
        self.assertRegex(self.lamina.tree(), f"client: {user}")
        self.assertEqual(len(client.pread(512, 0)), 512)
        client.shutdown()
        self.apply(self.before)
        self.assertFalse(self.rig.path("far.sock").exists())
        self.assertNotEqual(run("nbdinfo", "--size", self.lamina.uri("raw"), check=False).returncode, 0)
        run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", self.lamina.uri("vm1"))

    def test_a_disk_that_grew_by_a_member_is_seen_by_guests_and_clients(self):
        joined = self.before.replace('type = "stripe"', 'type = "concat"').replace('unit = "64KiB"\n', '')
        self.lamina.stop()
        self.lamina.file.write_text(joined)
        self.lamina.start()
        size = int(run("nbdinfo", "--size", self.lamina.uri("vm1")).stdout)
        more = joined.replace('over = ["left", "right"]', 'over = ["left", "right", "third"]')
        more += '[device.third]\ntype = "file"\npath = "third.img"\nsize = "32MiB"\n'
        self.apply(more)
        self.assertEqual(int(run("nbdinfo", "--size", self.lamina.uri("vm1")).stdout), size + 32 * MIB)


class UnderAGuest(GuestCase):
    @limit(240)
    def test_layers_come_and_the_disk_grows_under_a_guest(self):
        """fio verifies in the guest while layers are put under its disk and taken away, and a member is added."""
        before = striped("64MiB", vhost=True).replace('type = "stripe"', 'type = "concat"').replace('unit = "64KiB"\n', "")
        lamina = Lamina(self.rig, before)
        guest = self.boot(lamina)
        size = int(guest.run("cat /sys/block/vda/size"))
        guest.background("fio", VERIFY.format(file="/dev/vda", size="48M", seconds=20))
        time.sleep(2)
        slow = before.replace('over = "pair"', 'over = "slow"') + SLOW
        logged = before.replace('device = "vm1"', 'device = "log"') + LOG
        third = '[device.third]\ntype = "file"\npath = "third.img"\nsize = "32MiB"\n'
        grown = before.replace('over = ["left", "right"]', 'over = ["left", "right", "third"]') + third
        for hierarchy in (slow, before, logged, before, grown):
            self.assert_busy(guest)
            lamina.file.write_text(hierarchy)
            run(lamina_binary(), "apply", lamina.file, "--control", lamina.control)
            time.sleep(1)
        self.assert_healthy(guest, guest.result("fio", 120))
        self.assertEqual(int(guest.run("cat /sys/block/vda/size")), size + 32 * MIB // 512)
        self.assertEqual(guest.power_off(), 0)
