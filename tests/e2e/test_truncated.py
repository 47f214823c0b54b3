"""Files that are cut short, while they are served and while they are not, and get their size back: what lay behind the cut
comes from the others, or is an error, and is never zeroes."""

import os
import random

import nbd

from common import MIB, limit
from hierarchies import exported, member
from legs import MIRROR, RAID5, RAID6, LegsCase, over_legs
from rig import Lamina, wait_until

SIZE = 24 * MIB


class Cut(LegsCase):
    def fill(self):
        """Random bytes everywhere, which stay known."""
        client = self.client()
        self.bytes = bytearray(random.Random(5).randbytes(client.get_size()))
        for at in range(0, len(self.bytes), MIB):
            client.pwrite(self.bytes[at:at + MIB], at)
        client.flush()
        client.shutdown()

    def write_at(self, client, at):
        new = random.Random(at).randbytes(4096)
        client.pwrite(new, at)
        self.bytes[at:at + 4096] = new

    def verify(self, what):
        client = self.client()
        wrong = [at for at in range(0, len(self.bytes), 4096)
                 if client.pread(min(4096, len(self.bytes) - at), at) != self.bytes[at:at + 4096]]
        client.shutdown()
        self.assertEqual(wrong, [], f"{len(wrong)} wrong blocks {what}")

    def cut(self, name, size):
        os.truncate(self.rig.path(f"{name}.img"), size)

    def are_whole(self, legs):
        """All legs get everything, a scrub finds nothing, and every byte is right without any of them."""
        wait_until("all legs to be in sync", 30, lambda: set(self.legs().values()) == {"in sync"})
        self.verify("when all are in sync")
        found = self.scrub()
        self.assertEqual((found["different"], found["lost"]), (0, 0), found)
        for leg in legs:
            self.daemon.ctl("m", "fail", f"f{leg}")
            self.verify(f"without {leg}")
            self.daemon.ctl("m", "rejoin", f"f{leg}")
            wait_until("the leg to be in sync", 30, lambda: set(self.legs().values()) == {"in sync"})


class WhileNotServed(Cut):
    def go(self, kind, legs, name, size):
        """What is said is done, word by word."""
        self.create(over_legs(kind, legs), exported("m"))
        self.fill()
        self.stop()
        self.cut(name, size)
        said = self.refused("serve", self.daemon.file)
        self.assertIn("has shrunk", said)
        self.assertIn("give the device its size back", said)
        self.cut(name, SIZE)
        self.daemon.start()
        self.assertIn("its end is gone: the device was cut short. The others send it all data", self.daemon.log())
        self.verify("at once")
        self.are_whole(legs)
        self.stop()
        self.daemon.start()
        self.assertEqual(set(self.legs().values()), {"in sync"})
        self.verify("when it is served again")
        self.stop()

    @limit(120)
    def test_legs_of_a_mirror(self):
        for name, size in (("a", SIZE // 2), ("b", 0x10000), ("a", SIZE - 4096)):
            with self.subTest(name=name, size=size):
                self.go(MIRROR, "ab", name, size)
                self.assertEqual(self.held("a", len(self.bytes)), self.bytes)
                self.assertEqual(self.held("b", len(self.bytes)), self.bytes)
                for leg in "ab":
                    self.rig.path(f"{leg}.img").unlink()

    @limit(120)
    def test_a_device_of_a_parity(self):
        self.go(RAID5, "abc", "a", SIZE // 2)

    @limit(120)
    def test_two_devices_of_a_double_parity(self):
        self.create(over_legs(RAID6, "abcd"), exported("m"))
        self.fill()
        self.stop()
        for name in "ac":
            self.cut(name, SIZE // 3)
            self.cut(name, SIZE)
        self.daemon.start()
        self.verify("at once")
        self.are_whole("abcd")
        self.stop()

    @limit(60)
    def test_the_others_are_served_meanwhile(self):
        """The other thing that is said: `--degraded`. The leg gets everything when it has its size back."""
        devices = over_legs(MIRROR, "ab")
        self.create(devices, exported("m"))
        self.fill()
        self.stop()
        self.cut("a", SIZE // 2)
        self.assertIn('`lamina serve --degraded` goes on without "a"', self.refused("serve", self.daemon.file))
        self.daemon.arguments = ["--degraded"]
        self.daemon.start()
        self.verify("without a")
        self.cut("a", SIZE)
        self.assertIn("taken in again", self.apply(devices, exported("m")))
        self.are_whole("ab")
        self.stop()

    @limit(60)
    def test_more_than_can_be_done_without(self):
        """Nothing is written; what says so is what helps."""
        self.create(over_legs(RAID5, "abc"), exported("m"))
        self.fill()
        self.stop()
        whole = {name: self.rig.path(f"{name}.img").read_bytes() for name in "ab"}
        for name in "ab":
            self.cut(name, SIZE // 2)
            self.cut(name, SIZE)
        cut = {name: self.rig.path(f"{name}.img").read_bytes() for name in "ab"}
        said = self.refused("serve", self.daemon.file)
        self.assertIn("its end is gone: the second copy of its superblock is not there", said)
        self.assertIn("restore the device from a backup", said)
        # What a parity believes of them would be wrong.
        self.assertIn("nothing was written", self.refused("repair", self.daemon.file))
        self.assertEqual({name: self.rig.path(f"{name}.img").read_bytes() for name in "ab"}, cut)
        self.rig.path("a.img").write_bytes(whole["a"])
        self.daemon.start()
        self.verify("with one from a backup")
        self.are_whole("abc")
        self.stop()

    @limit(60)
    def test_a_member_that_nothing_can_be_done_without(self):
        """Refused; with the file from a backup all is there, and `repair` takes it as it is."""
        devices = {"a": member("a", "24MiB"), "b": member("b", "24MiB"), "m": {"type": "concat", "over": ["a", "b"]}}
        self.create(devices, exported("m"))
        self.fill()
        self.stop()
        whole = self.rig.path("b.img").read_bytes()
        self.cut("b", SIZE // 2)
        self.assertIn("give the device its size back", self.refused("serve", self.daemon.file))
        self.cut("b", SIZE)
        said = self.refused("serve", self.daemon.file)
        self.assertIn("`lamina repair` accepts the device, with zeroes for the lost data", said)
        self.assertNotIn("--degraded", said)
        cut = self.rig.path("b.img").read_bytes()
        self.rig.path("b.img").write_bytes(whole)
        self.daemon.start()
        self.verify("with a backup")
        self.stop()
        self.rig.path("b.img").write_bytes(cut)
        self.lamina("repair", self.daemon.file)
        self.daemon.start()
        self.stop()


class WhileServed(Cut):
    def go(self, kind, legs, name, request):
        """The leg is away as soon as anything meets the cut, and gets everything when it is there again."""
        devices = over_legs(kind, legs)
        self.create(devices, exported("m"))
        self.fill()
        self.cut(name, SIZE // 2)
        client = self.client()
        request(client)
        wait_until("the leg to be away", 10, lambda: self.legs()[f"f{name}"] == "away")
        self.verify("without it")
        self.write_at(client, 8192)
        client.flush()
        self.assertIn("was cut short while in use", self.daemon.log())
        return devices, client

    def near_the_end(self, client):
        self.write_at(client, len(self.bytes) - 4096)

    def everywhere(self, client):
        for at in range(0, len(self.bytes), MIB):
            self.assertEqual(client.pread(4096, at), self.bytes[at:at + 4096])

    @limit(60)
    def test_a_leg_of_a_mirror_that_is_written_to(self):
        devices, client = self.go(MIRROR, "ab", "b", self.near_the_end)
        client.shutdown()
        self.cut("b", SIZE)
        self.assertIn("taken in again", self.apply(devices, exported("m")))
        self.are_whole("ab")
        self.stop()

    @limit(60)
    def test_a_leg_of_a_mirror_when_the_daemon_is_killed_then(self):
        _, client = self.go(MIRROR, "ab", "a", lambda client: client.flush())
        self.daemon.kill()
        self.cut("a", SIZE)
        self.daemon.start()
        self.verify("at once")
        self.are_whole("ab")
        self.stop()

    @limit(60)
    def test_a_device_of_a_parity(self):
        devices, client = self.go(RAID5, "abc", "b", self.everywhere)
        client.shutdown()
        self.stop()
        self.cut("b", SIZE)
        self.daemon.start()
        self.verify("at once")
        self.are_whole("abc")
        self.stop()

    def plain(self):
        image = self.rig.path("disk.img")
        image.write_bytes(b"\x55" * 8 * MIB)
        text = '[device.m]\ntype = "file"\npath = "disk.img"\n\n[export.vm1]\ndevice = "m"\nnbd = "unix:nbd.sock"\n'
        self.daemon = Lamina(self.rig, text, name="plain")
        return image, self.client()

    def fails(self, what, *arguments):
        with self.assertRaises(nbd.Error, msg=what.__name__):
            what(*arguments)

    def test_a_plain_file(self):
        """Nothing is read and nothing is written any more, whatever the size is then; and it is no hole."""
        firsts = (
            lambda client: self.fails(client.pread, 4096, 6 * MIB),
            lambda client: self.fails(client.pwrite, b"1" * 4096, 6 * MIB),
            lambda client: self.fails(client.pwrite, b"1" * 4096, 8 * MIB - 4096),
            lambda client: self.fails(client.flush),
        )
        for first in firsts:
            image, client = self.plain()
            os.truncate(image, 4 * MIB)
            first(client)
            os.truncate(image, 8 * MIB)
            for at in (0, 2 * MIB, 5 * MIB, 7 * MIB):
                self.fails(client.pread, 4096, at)
                self.fails(client.pwrite, b"1" * 4096, at)
            self.fails(client.flush)
            self.assertIn("was cut short while in use", self.daemon.log())
            self.daemon.kill()
            # What was before the cut is as it was.
            self.assertEqual(image.read_bytes()[:4 * MIB], b"\x55" * 4 * MIB)
