"""ext4, xfs and btrfs of this machine's kernel on a Lamina disk: NBD, nbdfuse, a loop device. Needs root."""

import os
import unittest

from common import RigCase, limit
from rig import Lamina, run
from rig.mount import attached, mounted

HIERARCHY = """\
[device.left]
type = "file"
path = "left.img"
size = "256MiB"

[device.right]
type = "file"
path = "right.img"
size = "256MiB"

[device.vm1]
type = "stripe"
over = ["left", "right"]

[export.vm1]
device = "vm1"
nbd = "unix:nbd.sock"
"""


@unittest.skipUnless(os.geteuid() == 0, "loop devices and mounts need root")
class Filesystems(RigCase):
    def file_system(self, make, check):
        lamina = Lamina(self.rig, HIERARCHY)
        with attached(self.rig, lamina.uri("vm1")) as loop:
            run(*make, loop, seconds=60)
            with mounted(self.rig, loop) as folder:
                self.work(folder)
            flushed, discarded = lamina.counter("vm1", "flush"), lamina.counter("vm1", "discard")
        self.assertGreater(flushed, 0, "the file system's flushes arrive")
        self.assertGreater(discarded, 0, "fstrim's discards arrive")
        # Another daemon, another mount: what was written is there, and the checker finds nothing.
        self.assertEqual(lamina.stop(), 0, lamina.log())
        lamina.start()
        with attached(self.rig, lamina.uri("vm1")) as loop:
            run(*check, loop, seconds=60)
            with mounted(self.rig, loop) as folder:
                run("sha256sum", "--check", "--quiet", "sums", cwd=folder, seconds=60)

    def work(self, folder):
        report = run(
            "fio", "--name=verify", f"--directory={folder}", "--numjobs=2", "--size=24M", "--rw=randwrite", "--bs=4k",
            "--ioengine=psync", "--fsync=64", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--verify_backlog=512", seconds=90,
        ).stdout
        self.assertNotRegex(report, r"err= *[1-9]")
        for number in range(100):
            (folder / f"file{number}").write_bytes(os.urandom(10_000 + 1000 * number))
        for number in range(0, 100, 3):
            (folder / f"file{number}").unlink()
        run("sh", "-c", "sha256sum file* >sums && sync -f sums && fstrim .", cwd=folder, seconds=60)

    @limit(180)
    def test_ext4(self):
        self.file_system(["mkfs.ext4", "-q"], ["e2fsck", "-fn"])

    @limit(180)
    def test_xfs(self):
        self.file_system(["mkfs.xfs", "-q"], ["xfs_repair", "-n"])

    @limit(180)
    def test_btrfs(self):
        self.file_system(["mkfs.btrfs", "-q"], ["btrfs", "check"])
