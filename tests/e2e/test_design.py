"""What `lamina design` proposes is made, served, and large enough."""

import os

from common import MIB
from hierarchies import HierarchyCase
from rig import Lamina, run

SIZE = 96 * MIB


class Design(HierarchyCase):
    def proposed(self, devices, *wishes):
        names = [f"d{number}.img" for number in range(devices)]
        return self.lamina("design", "--devices", ",".join(names), "--size", "96MiB", *wishes).stdout

    def served(self, text):
        """Bytes of the disk that is served as `text` says."""
        self.rig.path("vm1.key").write_bytes(os.urandom(64))
        self.lamina("create", self.rig.write("vm1.toml", text))
        daemon = Lamina(self.rig, text, name="vm1")
        size = int(run("nbdinfo", "--size", daemon.uri("vm1", "vm1-nbd.sock")).stdout)
        daemon.stop()
        for image in self.rig.dir.glob("*.img"):
            image.unlink()
        return size

    def test_what_is_proposed_can_be_served(self):
        for devices, *wishes in (
            (1,),
            (2, "--encrypt"),
            (2, "--survive", "1", "--checksums"),
            (3, "--survive", "1", "--encrypt", "--snapshots", "--checksums"),
            (4, "--survive", "1", "--prefer", "speed", "--snapshots"),
            (4, "--survive", "2", "--checksums"),
        ):
            size = self.served(self.proposed(devices, *wishes))
            self.assertGreaterEqual(size, SIZE, (devices, wishes))

    def test_what_cannot_be_is_said(self):
        said = self.refused("design", "--devices", "a.img", "--survive", "1", "--size", "1GiB")
        self.assertIn("needs at least 2 devices", said)
