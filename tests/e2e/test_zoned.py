"""A zoned device in a guest, and Lamina beside it there: random writes with checksums, kill -9, and refused writes."""

import time

from common import MIB, RigCase, limit
from rig import inside, zoned

KILLS = 3
VERIFY = (
    "fio --name=verify --ioengine=nbd --uri='nbd+unix:///{name}?socket=/tmp/{name}.sock' --rw=randwrite --bs=4k "
    "--iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --clocksource=clock_gettime {more}"
)
# One request after the other, at a place.
REQUESTS = (
    "fio --name=requests --ioengine=nbd --uri='nbd+unix:///zoned?socket=/tmp/zoned.sock' --rw={rw} --bs=4k "
    "--offset={at} --size={size} 2>&1"
)


class Zoned(RigCase):
    has_guest = True

    def boot(self, shape):
        """A guest with a zoned device."""
        self.guest = zoned.boot(self.rig)
        self.disk = zoned.add(self.guest, "disk", shape)
        self.shape = shape

    def assert_verified(self, report):
        self.assertIn("err= 0", report)
        self.assertNotIn("verify: bad", report)

    def verify(self, more):
        self.assert_verified(self.guest.run(VERIFY.format(name="zoned", more=more), seconds=120))

    def assert_agreed(self):
        """The daemon knows of each zone what the kernel says, and the limit is kept."""
        known, kernel = zoned.compared(self.guest, self.disk)
        self.assertEqual(known["written_bytes"], sum(kernel))
        self.assertEqual(known["open"], self.in_part(kernel))
        self.assertEqual(known["open_max"], self.shape.open_max)
        self.assertEqual((known["sequential"], len(kernel)), (self.shape.sequential, self.shape.sequential))

    def in_part(self, kernel):
        """Zones that are written in part, which are no more than the device allows."""
        count = sum(0 < at < self.shape.zone * MIB for at in kernel)
        self.assertLessEqual(count, self.shape.open_max)
        return count

    @limit(600)
    def test_random_writes_and_kill_9(self):
        self.boot(zoned.Shape())
        guest = self.guest
        self.assertEqual(guest.run(f"cat /sys/block/{self.disk[5:]}/queue/zoned"), "host-managed")
        zoned.create(guest, self.disk)
        inside.serve(guest, "zoned")
        with self.subTest("more than the device holds, with collection"):
            for turn in range(2):
                self.verify(f"--size=28M --verify_backlog=128 --randseed={turn}")
            self.assertGreater(zoned.info(guest, "vm1")["collected_segments"], 0)
            self.assert_agreed()
        with self.subTest("kill -9 under fio"):
            inside.put(guest, "/tmp/front.toml", zoned.FRONT)
            inside.serve(guest, "front")
            # fio has enough to do on the slowest machine, and is told to end after the last kill: 128.
            more = "--size=16M --verify_backlog=128 --time_based --runtime=200"
            guest.background("fio", f"{VERIFY.format(name='front', more=more)}; test $? -eq 128")
            for _ in range(KILLS):
                time.sleep(3)
                self.assertFalse(guest.finished("fio"), guest.run("cat /tmp/fio.out"))
                inside.end(guest, "zoned", signal="KILL")
                self.in_part(zoned.pointers(guest, self.disk))
                inside.serve(guest, "zoned")
            guest.end_fio()
            self.assert_verified(guest.result("fio", 120))
            inside.end(guest, "front")
            self.assert_agreed()
        for seed, signal in enumerate(("KILL", "TERM")):
            with self.subTest(f"what was written before {signal} is there after it"):
                self.verify(f"--size=8M --do_verify=0 --randseed={seed}")
                inside.end(guest, "zoned", signal=signal)
                inside.serve(guest, "zoned")
                self.verify(f"--size=8M --verify_only --randseed={seed}")
                self.assert_agreed()
        inside.end(guest, "zoned")
        self.assertEqual(guest.complaints(), "")
        self.assertEqual(guest.power_off(), 0)

    @limit(120)
    def test_rules_and_pointers(self):
        """Writes to the zones themselves: in order, beside the pointer, and while another program writes as well."""
        # The kernel's device has no limit that is not below the number of its zones.
        self.boot(zoned.Shape(sequential=4, open_max=3))
        guest = self.guest
        inside.put(guest, "/tmp/zoned.toml", zoned.alone("zoned", self.disk))
        inside.serve(guest, "zoned")
        # The sink shows the end of the conventional zones elsewhere.
        place, block = self.shape.conventional * MIB, 4096
        shown = place - (64 << 10)

        def requests(rw, at, size=block):
            return guest.run(REQUESTS.format(rw=rw, at=shown + at, size=size), check=False)

        self.assertIn("Invalid argument", requests("write", 2 * block))
        self.assertEqual(zoned.pointers(guest, self.disk), [0] * 4)
        self.assertIn("err= 0", requests("write", 0, 16 * block))
        self.assertEqual(zoned.pointers(guest, self.disk), [16 * block, 0, 0, 0])
        guest.run(f"dd if=/dev/zero of={self.disk} bs=4k count=1 seek={place // block + 16} conv=notrunc oflag=direct")
        with self.subTest("where a write has failed, the device is asked"):
            self.assertIn("Input/output error", requests("write", 16 * block))
            self.assertIn("err= 0", requests("write", 17 * block))
            self.assert_agreed()
        with self.subTest("the end of a zone, what is behind a pointer, and beyond"):
            self.assertIn("err= 0", requests("write", 18 * block, MIB - 18 * block))
            self.assertIn("No space left", requests("write", 0))
            self.assertIn("err= 0", requests("read", 0, 2 * MIB))
            self.assertIn("err= 0", requests("trim", 0, MIB))
            self.assert_agreed()
        self.assertEqual(guest.power_off(), 0)

    @limit(120)
    def test_what_cannot_be_used_is_refused(self):
        guest = zoned.boot(self.rig)
        refusals = {
            "none": (zoned.Shape(conventional=0), "a conventional zone is missing"),
            "few": (zoned.Shape(open_max=2), "limit of 2 open zones"),
            "small": (zoned.Shape(sequential=10), "too few for a log"),
        }

        def refused(path):
            inside.put(guest, "/tmp/zoned.toml", zoned.hierarchy(path))
            return guest.run("lamina create /tmp/zoned.toml 2>&1; test $? -ne 0")

        for name, (shape, says) in refusals.items():
            with self.subTest(name):
                self.assertIn(says, refused(zoned.add(guest, name, shape)))
                zoned.remove(guest, name)
        with self.subTest("a file"):
            guest.run("truncate -s 8M /tmp/plain.img")
            self.assertIn("is no zoned block device", refused("/tmp/plain.img"))
        self.assertEqual(guest.power_off(), 0)
