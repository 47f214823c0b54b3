"""A tier through its commands: what its monitor knows is drawn, and is known after a restart; a write budget changes live."""

import json

from common import MIB
from hierarchies import HierarchyCase, exported, member

EXTENT = 256 * 1024
# Extents that are read, out of order.
READ = [3, 17, 40]


def tiers(**more):
    """The disk `vm1`: a file, and a flash on another one."""
    return {
        "slow": member("slow", "24MiB"),
        "fast": member("fast", "16MiB"),
        "flash": {"type": "flash", "over": "fast"},
        "vm1": {"type": "tier", "over": ["slow", "flash"], **more},
    }


class Tier(HierarchyCase):
    def read(self, extents):
        client = self.client()
        for extent in extents:
            client.pread(8192, extent * EXTENT)
        client.shutdown()

    def heat(self):
        """The heat map, a cell for each extent, and the extents that have been read."""
        answer = json.loads(self.daemon.ctl("vm1", "heat-map", "512"))
        self.assertEqual(answer["cell_bytes"], EXTENT)
        return answer, [n for n, cell in enumerate(answer["cells"]) if cell["reads"] > 0]

    def test_the_heat_is_drawn_and_known_after_a_restart(self):
        self.create(tiers(), exported())
        self.read(READ)
        answer, hot = self.heat()
        self.assertEqual(hot, READ)
        text = self.daemon.ctl("vm1", "heat-map", "--draw")
        figures = sorted(answer["cells"][0].keys() - {"offset"})
        self.assertEqual([line.split()[0] for line in text.splitlines()[:-1]], figures)
        picture = self.rig.path("heat.svg")
        self.assertEqual(self.daemon.ctl("vm1", "heat-map", f"--draw={picture}"), "")
        self.assertIn("</svg>", picture.read_text())
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.daemon.start()
        self.assertEqual(self.heat()[1], READ)
        # A crash forgets some minutes at most, and never more than what is known.
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.heat()[1], READ)

    def test_a_write_budget_changes_live(self):
        self.create(tiers(**{"write-budget": "1GiB"}), exported())
        budget = lambda: self.daemon.device("vm1")["info"]["write_budget"]
        self.assertEqual(budget()["bytes"], 1024 * MIB)
        self.daemon.ctl("vm1", "set-write-budget", "2GiB")
        self.assertEqual(budget()["bytes"], 2048 * MIB)
        self.read(READ)
        self.assertGreater(budget()["copied_bytes"], 0)
        self.daemon.ctl("vm1", "set-write-budget")
        self.assertIsNone(budget()["bytes"])
        refused = self.refused("ctl", "--control", self.daemon.control, "vm1", "set-write-budget", "1MiB")
        self.assertIn("512MiB to 1024TiB", refused)
