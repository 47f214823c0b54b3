"""The hierarchy of the paper's Figure 11 on real files: encrypted disks, a partition of each, striped, versioned."""

import os
import random

from common import limit
from hierarchies import HierarchyCase
from rig import Lamina, run
from rig.files import ROOT

LEGACY = 'cipher = "blowfish"\nallow-legacy = true\n'


class Figure11(HierarchyCase):
    def serve(self, more=""):
        """The example, a thousandth as large, and with passphrases that are tried quickly."""
        text = (ROOT / "examples/figure11.toml").read_text().replace("GiB", "MiB")
        text = text.replace('type = "crypt"\n', f'type = "crypt"\nkdf-memory = "32MiB"\n{more}')
        self.rig.path("figure11.key").write_bytes(os.urandom(64))
        self.lamina("create", self.rig.write("figure11.toml", text))
        self.daemon = Lamina(self.rig, text, name="figure11")

    def uri(self):
        return self.daemon.uri("disk", "figure11.sock")

    def file_system(self, content):
        """An ext4 with a file of these bytes, as large as the disk."""
        folder, image = self.rig.path("folder"), self.rig.path("ext4")
        folder.mkdir(exist_ok=True)
        (folder / "file").write_bytes(content)
        image.unlink(missing_ok=True)
        size = int(run("nbdinfo", "--size", self.uri()).stdout)
        run("mkfs.ext4", "-q", "-d", folder, image, f"{size // 1024}k")
        return image

    def holds(self, content):
        """Expects the file system with this file on the disk."""
        image, file = self.rig.path("found"), self.rig.path("file")
        run("nbdcopy", self.uri(), image)
        run("e2fsck", "-fn", image)
        run("debugfs", "-R", f"dump /file {file}", image)
        self.assertEqual(file.read_bytes(), content)

    def goes_back(self, more=""):
        self.serve(more)
        before, after = (random.Random(n).randbytes(5_000_000) for n in range(2))
        run("nbdcopy", "--flush", self.file_system(before), self.uri())
        self.daemon.ctl("disk", "snapshot", "monday")
        run("nbdcopy", "--flush", self.file_system(after), self.uri())
        self.holds(after)
        self.daemon.restart()
        self.holds(after)
        self.daemon.ctl("disk", "rollback", "monday", "--force")
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.lamina("check", "--metadata", "figure11.toml")
        self.daemon.start()
        self.holds(before)
        # Nothing of it can be read on the disks.
        for disk in ("left.img", "right.img"):
            self.assertNotIn(before[:512], self.rig.path(disk).read_bytes())

    @limit(120)
    def test_a_file_system_goes_back_to_a_snapshot(self):
        self.goes_back()

    @limit(120)
    def test_with_the_cipher_of_the_paper(self):
        self.goes_back(LEGACY)
        self.assertIn("protects nobody any more", self.daemon.log())
