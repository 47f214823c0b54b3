"""Commands that change what is below others, and what is lost with them."""

import os
import pty
import subprocess

import nbd

from common import MIB, limit
from hierarchies import HierarchyCase
from rig import Lamina, lamina_binary, run

FILE = """
[hierarchy]
name = "below"

[device.a]
type = "file"
path = "a.img"
size = "64MiB"

[device.b]
type = "file"
path = "b.img"
size = "16MiB"

[device.vol]
type = "snapshot"
over = "a"
size = "32MiB"

[device.cache]
type = "flash"
over = "b"

[device.slow]
type = "delay"
over = "vol"
write = "20ms"
write-iops = 50

[device.disk]
type = "accelerate"
over = ["slow", "cache"]

[export.disk]
device = "disk"
nbd = "unix:nbd.sock"
"""

BLOCK = 4096


class Below(HierarchyCase):
    def serve(self, text=FILE):
        self.lamina("create", self.rig.write("below.toml", text))
        self.daemon = Lamina(self.rig, text, name="below")
        self.attach()

    def attach(self):
        self.nbd = nbd.NBD()
        self.nbd.connect_uri(self.daemon.uri("disk"))

    def write(self, value, blocks):
        for block in blocks:
            self.nbd.pwrite(bytes([value]) * BLOCK, block * BLOCK)

    def read(self, blocks):
        return [self.nbd.pread(BLOCK, block * BLOCK)[0] for block in blocks]

    def dirty(self):
        return self.daemon.device("disk")["info"]["dirty_bytes"]

    def refused(self, *words, code=1):
        """What is said to a command that is refused: with 1 if it needs --force and does not have it."""
        ended = run(lamina_binary(), "ctl", "--control", self.daemon.control, *words, check=False)
        self.assertEqual(ended.returncode, code, ended.stdout)
        return ended.stderr

    def answered(self, answer, *words):
        """The exit code of a command that asks at a terminal, and gets this answer."""
        terminal, theirs = pty.openpty()
        try:
            child = subprocess.Popen(
                [lamina_binary(), "ctl", "--control", self.daemon.control, *words], stdin=theirs, stderr=theirs,
                stdout=subprocess.DEVNULL)
            os.write(terminal, answer)
            return child.wait(30)
        finally:
            os.close(terminal)
            os.close(theirs)

    @limit(120)
    def test_a_volume_goes_back_under_a_cache(self):
        self.serve()
        many = range(0, 400)
        self.write(1, many)
        self.nbd.flush()
        self.assertGreater(self.dirty(), 0)
        # What was flushed above is in the snapshot, though the store did not have it.
        self.daemon.ctl("vol", "snapshot", "monday")
        self.write(2, many)
        self.nbd.flush()
        self.assertGreater(self.dirty(), 0)
        self.daemon.ctl("vol", "rollback", "monday", "--force")
        self.assertEqual(set(self.read(many)), {1})
        # Once more, when all that is cached is clean, and once more after a kill.
        self.write(3, many)
        self.daemon.ctl("disk", "drain")
        self.assertEqual(set(self.read(many)), {3})
        self.daemon.ctl("vol", "rollback", "monday", "--force")
        self.assertEqual(set(self.read(many)), {1})
        self.daemon.kill()
        self.daemon.start()
        self.attach()
        self.assertEqual(set(self.read(many)), {1})
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.lamina("check", "--metadata", "below.toml")

    @limit(120)
    def test_what_is_cut_off_does_not_come_back(self):
        self.serve()
        self.write(7, [10, 5000])
        self.daemon.ctl("vol", "resize", "16MiB", "--force")
        self.attach()
        self.assertEqual(self.nbd.get_size(), 16 * MIB)
        self.daemon.ctl("vol", "resize", "32MiB")
        self.attach()
        self.assertEqual((self.nbd.get_size(), self.read([10, 5000])), (32 * MIB, [7, 0]))
        self.daemon.restart()
        self.attach()
        self.assertEqual(self.read([10, 5000]), [7, 0])
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    @limit(120)
    def test_what_is_lost_is_asked_back(self):
        self.serve()
        self.write(1, [1])
        self.daemon.ctl("vol", "snapshot", "monday")
        self.write(2, [1])
        said = self.refused("vol", "rollback", "monday")
        self.assertIn("rollback loses the present state of the volume", said)
        self.assertIn("nothing was done: say --force", said)
        self.assertNotIn("size becomes", said)
        self.assertIn("the data beyond 16MiB, of the 32MiB", self.refused("vol", "resize", "16MiB"))
        self.daemon.ctl("vol", "resize", "40MiB")
        self.assertIn("its size becomes 32MiB instead of 40MiB", self.refused("vol", "rollback", "monday"))
        self.assertEqual(self.answered(b"\n", "vol", "rollback", "monday"), 1)
        self.assertEqual(self.read([1]), [2])
        self.assertEqual(self.answered(b"y\n", "vol", "rollback", "monday"), 0)
        self.attach()
        self.assertEqual((self.nbd.get_size(), self.read([1])), (32 * MIB, [1]))
        self.write(2, [1])
        # The argument of the API is the same.
        self.daemon.ctl("vol", "rollback", "monday", "force=true")
        self.attach()
        self.assertEqual(self.read([1]), [1])
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        before = self.rig.path("a.img").read_bytes()
        bench = [lamina_binary(), "bench", "below.toml", "--rw", "write", "--size", "64KiB",
                 "--time", "50ms", "--ramp", "0s"]
        ended = run(*bench, check=False, cwd=self.rig.dir)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("the device belongs to a persistent hierarchy; nothing was done: say --force", ended.stderr)
        self.assertEqual(self.rig.path("a.img").read_bytes()[MIB:-MIB], before[MIB:-MIB])
        run(*bench, "--force", cwd=self.rig.dir)

    @limit(120)
    def test_who_remembers_what_is_below_refuses(self):
        """Nothing has happened then, at once and after a kill."""
        part = '[device.%s]\ntype = "linear"\nover = "%s"\nsize = "8MiB"\n'
        vol = '[device.vol]\ntype = "snapshot"\nover = "a"\nsize = "8MiB"\n'
        legs = part % ("x", "b") + '[device.c]\ntype = "file"\npath = "c.img"\nsize = "16MiB"\n' + part % ("y", "c")
        above = {
            "parity": (legs, '["vol", "x", "y"]'), "mirror": (legs, '["vol", "x", "y"]'), "integrity": ("", '"vol"'),
            "fingerprint": ("", '"vol"'), "snapshot": ("", '"vol"'),
        }
        for kind, (more, over) in above.items():
            with self.subTest(kind):
                disk = f'[device.disk]\ntype = "{kind}"\nover = {over}\n[export.disk]\ndevice = "disk"\nnbd = "unix:nbd.sock"\n'
                self.serve(FILE[:FILE.index("[device.vol]")] + vol + more + disk)
                self.write(1, [1])
                self.daemon.ctl("vol", "snapshot", "monday")
                self.write(2, [1])
                for words in (("rollback", "monday"), ("resize", "4MiB")):
                    self.assertIn(f'not under "disk", of type "{kind}"', self.refused("vol", *words, "--force", code=2))
                self.assertEqual(self.read([1] * 4), [2] * 4)
                self.daemon.restart()
                self.attach()
                self.assertEqual(self.read([1] * 4), [2] * 4)
                self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
                for image in self.rig.dir.glob("*.img"):
                    image.unlink()

    @limit(120)
    def test_a_leg_does_not_change_alone(self):
        legs = "".join(
            f'[device.{leg}]\ntype = "snapshot"\nover = "{file}"\nsize = "8MiB"\n' for leg, file in (("vol", "a"), ("wol", "b")))
        files = FILE[:FILE.index("[device.vol]")]
        disk = '[device.disk]\ntype = "mirror"\nover = ["vol", "wol"]\n[export.disk]\ndevice = "disk"\nnbd = "unix:nbd.sock"\n'
        self.serve(files + legs + disk)
        self.write(1, [1])
        self.daemon.ctl("vol", "snapshot", "monday")
        self.write(2, [1])
        said = self.refused("vol", "rollback", "monday", "--force", code=2)
        self.assertIn('not under "disk", of type "mirror"', said)
        self.assertEqual(self.read([1] * 8), [2] * 8)
