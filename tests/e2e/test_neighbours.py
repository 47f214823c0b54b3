"""Volumes that share a flash: what is wrong with one of them, or with a part of the flash, is the trouble of that one alone."""

import errno
import json
import random
import time

import nbd

from common import MIB, limit
from hierarchies import HierarchyCase, member
from legs import DATA
from rig import wait_until
from rig.process import PATIENCE

BLOCK = 4096
# The longest that a write to a healthy volume may take, in seconds.
LONGEST = 2 * PATIENCE
FLASH = 24 * MIB


class Neighbours(HierarchyCase):
    alone = "no write may take longer than two seconds"

    def setUp(self):
        super().setUp()
        devices = {
            "nvme": member("nvme", "24MiB"), "fast": {"type": "fault", "over": "nvme"}, "cache": {"type": "flash", "over": "fast"},
        }
        for name in ("calm", "ill"):
            devices[f"{name}-file"] = member(f"{name}-file", "64MiB")
            devices[f"{name}-store"] = {"type": "fault", "over": f"{name}-file"}
            devices[name] = {"type": "accelerate", "over": [f"{name}-store", "cache"]}
        self.create(devices, {name: {"device": name, "nbd": "unix:nbd.sock"} for name in ("calm", "ill")})
        self.calm, self.ill = self.client("calm"), self.client("ill")

    def rule(self, device, **keys):
        """From now on these requests fail."""
        self.daemon.ctl(device, "set", f"rules={json.dumps([keys])}")

    def goes_round(self, seed, size=3 * FLASH // 2):
        """The healthy volume is written to, more than the flash holds, and no write waits long; all of it can be read."""
        data = random.Random(seed).randbytes(size)
        for at in range(0, size, 65536):
            begun = time.monotonic()
            self.calm.pwrite(data[at:at + 65536], at)
            self.assertLess(time.monotonic() - begun, LONGEST, f"a write at {at}")
        self.calm.flush()
        for at in range(0, size, MIB):
            self.assertEqual(self.calm.pread(MIB, at), data[at:at + MIB])

    def store_is_in_trouble(self, **rule):
        """Writes of the volume whose store is in trouble may wait, or fail; what was answered is there afterwards."""
        self.rule("ill-store", op=["write", "zero", "flush"], **rule)
        data = random.Random(5).randbytes(2 * FLASH)
        answered = []
        for at in range(0, len(data), 65536):
            def done(error, at=at):
                if not error.value:
                    answered.append(at)
                return 1
            self.ill.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data[at:at + 65536])), at, completion=done)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            self.ill.poll(100)
        self.goes_round(1)
        # It can have its share of the flash, and no more.
        self.assertLess(self.daemon.device("ill")["info"]["dirty_bytes"], FLASH)
        self.daemon.ctl("ill-store", "clear")
        wait_until("all answers", 60, lambda: self.ill.poll(100) >= 0 and self.ill.aio_in_flight() == 0, every=0)
        self.assertTrue(answered)
        for at in answered:
            self.assertEqual(self.ill.pread(65536, at), data[at:at + 65536], at)
        self.goes_round(2)
        self.ends()

    def ends(self):
        self.calm.shutdown()
        self.ill.shutdown()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    @limit(120)
    def test_a_store_that_is_away(self):
        self.store_is_in_trouble(error="offline")

    @limit(120)
    def test_a_store_that_hangs(self):
        self.store_is_in_trouble(error="timed-out", hang="10min")

    @limit(120)
    def test_a_store_that_fails(self):
        self.store_is_in_trouble(error="media")

    @limit(120)
    def test_a_sector_that_the_store_does_not_take(self):
        self.rule("ill-store", op=["write", "zero"], offset="1MiB", size="4KiB", error="media")
        for block in range(512):
            self.ill.pwrite(bytes([block % 251 + 1]) * BLOCK, block * BLOCK)
        self.goes_round(3)
        # Only this block is not on the store.
        wait_until("the others to be on the store", 30, lambda: self.daemon.device("ill")["info"]["dirty_bytes"] <= BLOCK)
        for block in range(512):
            self.assertEqual(self.ill.pread(BLOCK, block * BLOCK), bytes([block % 251 + 1]) * BLOCK, block)
        self.daemon.ctl("ill-store", "clear")
        wait_until("the last one to be there, too", 60, lambda: self.daemon.device("ill")["info"]["dirty_bytes"] == 0)
        self.ends()

    @limit(120)
    def test_a_block_that_the_flash_cannot_read(self):
        self.rule("ill-store", op=["write", "zero"], error="offline")
        blocks = [random.Random(block).randbytes(BLOCK) for block in range(64)]
        for number, block in enumerate(blocks):
            self.ill.pwrite(block, number * BLOCK)
        self.ill.flush()
        at = self.rig.path("nvme.img").read_bytes().index(blocks[40]) - DATA
        self.rule("fast", op=["read"], offset=at, size=BLOCK, error="media")
        with self.assertRaises(nbd.Error) as failed:
            self.ill.pread(BLOCK, 40 * BLOCK)
        self.assertEqual(failed.exception.errnum, errno.EIO)
        # Not round: what is written to the same place could not be read either.
        self.goes_round(4, 4 * MIB)
        for number in set(range(64)) - {40}:
            self.assertEqual(self.ill.pread(BLOCK, number * BLOCK), blocks[number], number)
        self.daemon.ctl("ill-store", "clear")
        wait_until("the others to be on the store", 60, lambda: self.daemon.device("ill")["info"]["dirty_bytes"] <= BLOCK)
        # What is written over it counts.
        self.ill.pwrite(blocks[7], 40 * BLOCK)
        self.assertEqual(self.ill.pread(BLOCK, 40 * BLOCK), blocks[7])
        self.daemon.ctl("fast", "clear")
        wait_until("everything to be on the store", 60, lambda: self.daemon.device("ill")["info"]["dirty_bytes"] == 0)
        self.ends()

    @limit(120)
    def test_a_flash_without_space(self):
        """What it has can be read, and it goes on when there is space."""
        written = random.Random(6).randbytes(4 * MIB)
        for handle in (self.calm, self.ill):
            for at in range(0, len(written), MIB):
                handle.pwrite(written[at:at + MIB], at)
            handle.flush()
        self.rule("fast", op=["write", "zero"], error="no-space")
        for handle in (self.calm, self.ill):
            for at in range(0, len(written), 65536):
                self.assertEqual(handle.pread(65536, at), written[at:at + 65536])
        self.daemon.ctl("fast", "clear")
        self.goes_round(7)
        self.ends()

    @limit(120)
    def test_one_block_that_is_written_again_and_again(self):
        """What is to be brought to a store that is away does not grow with how often that was written."""
        self.rule("ill-store", op=["write", "zero", "flush"], error="offline")

        def resident():
            with open(f"/proc/{self.daemon.proc.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024
        for number in range(5000):
            self.ill.pwrite(number.to_bytes(8, "big") * 512, 0)
        before = resident()
        for number in range(20_000):
            self.ill.pwrite(number.to_bytes(8, "big") * 512, 0)
        self.assertLess(resident() - before, MIB)
        self.assertEqual(self.daemon.device("ill")["info"]["dirty_bytes"], BLOCK)
        self.goes_round(8)
        self.daemon.ctl("ill-store", "clear")
        self.assertEqual(self.ill.pread(BLOCK, 0), (19_999).to_bytes(8, "big") * 512)
        self.ends()

    @limit(120)
    def test_what_was_written_is_no_hole(self):
        """Also while it goes to the store, and from the flash."""
        status = nbd.NBD()
        status.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        status.connect_uri(self.daemon.uri("ill"))
        holes = []

        def told(_context, offset, entries, _error):
            for size, flags in zip(entries[::2], entries[1::2]):
                if flags & nbd.STATE_HOLE:
                    holes.append((offset, size))
                offset += size
        for number in range(0, 48):
            self.ill.pwrite(bytes([number + 1]) * MIB, number * MIB)
            status.block_status((number + 1) * MIB, 0, told)
            self.assertEqual(holes, [], number)
        status.shutdown()
        self.ends()
