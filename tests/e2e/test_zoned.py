"""A zoned device in a guest, and Lamina beside it there: random writes with checksums, kill -9, and refused writes."""

import time

from common import RigCase, limit
from rig import zoned

KILLS = 6
FIO = (
    "fio --name=verify --ioengine=nbd --uri='nbd+unix:///{export}?socket=/tmp/{sock}.sock' --size=16M --rw=randwrite "
    "--bs=4k --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=128 "
    "--clocksource=clock_gettime --group_reporting {more}"
)


class Zoned(RigCase):
    def assert_clean(self, report):
        self.assertIn("err= 0", report)
        self.assertNotIn("verify: bad", report)

    @limit(600)
    def test_random_writes_and_kill_9_on_zones(self):
        shape = zoned.Shape()
        guest = zoned.boot(self.rig)
        disk = zoned.add(guest, "disk", shape)
        self.assertEqual(guest.run(f"cat /sys/block/{disk[5:]}/queue/zoned"), "host-managed")
        zoned.create(guest, disk)
        zoned.serve(guest)

        with self.subTest("more than the device holds, with collection"):
            for turn in range(3):
                more = f"--size=20M --do_verify=1 --randseed={turn}"
                self.assert_clean(guest.run(FIO.format(export="vm1", sock="zoned", more=more), seconds=180))
            info = guest.run("lamina show --control /tmp/zoned.ctl --json")
            self.assertIn('"open_max"', info)

        with self.subTest("kill -9 under fio"):
            zoned.put(guest, "/tmp/front.toml", zoned.FRONT)
            zoned.serve(guest, "front")
            guest.background("fio", FIO.format(export="front", sock="front", more="--time_based --runtime=60"))
            for _ in range(KILLS):
                time.sleep(3)
                self.assertFalse(guest.finished("fio"), guest.run("cat /tmp/fio.out"))
                zoned.end(guest, signal="KILL")
                zoned.serve(guest)
            self.assert_clean(guest.result("fio", 240))
            zoned.end(guest, "front")

        with self.subTest("after an orderly end everything is there"):
            guest.run("lamina bench 'nbd+unix:///vm1?socket=/tmp/zoned.sock' --force --rw write --depth 4 --time 2s", seconds=60)
            zoned.end(guest)
            zoned.serve(guest)
            zoned.end(guest)
        self.assertEqual(guest.complaints(), "")
        self.assertEqual(guest.power_off(), 0)

    @limit(240)
    def test_what_cannot_be_used_is_refused(self):
        guest = zoned.boot(self.rig)
        refusals = {
            "none": (zoned.Shape(conventional=0), "a conventional zone is missing"),
            "few": (zoned.Shape(open_max=2), "limit of 2 open zones"),
            "small": (zoned.Shape(sequential=10), "too few for a log"),
        }
        for name, (shape, says) in refusals.items():
            with self.subTest(name):
                zoned.put(guest, "/tmp/zoned.toml", zoned.hierarchy(zoned.add(guest, name, shape)))
                said = guest.run("lamina create /tmp/zoned.toml 2>&1; test $? -ne 0")
                self.assertIn(says, said)
                zoned.remove(guest, name)
        with self.subTest("a file"):
            zoned.put(guest, "/tmp/zoned.toml", zoned.hierarchy("/tmp/plain.img"))
            said = guest.run("dd if=/dev/zero of=/tmp/plain.img bs=1M count=8 2>/dev/null; "
                             "lamina create /tmp/zoned.toml 2>&1; test $? -ne 0")
            self.assertIn("is no zoned block device", said)
        self.assertEqual(guest.power_off(), 0)
