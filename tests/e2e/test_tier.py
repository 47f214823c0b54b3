"""A tier through its commands: what its monitor knows is drawn, and is known after a restart; a write budget changes live.
Its daemon is killed under load, and its devices fail."""

import errno
import json

import nbd

from common import KILLS, MIB, limit
from hierarchies import HierarchyCase, exported, member
from rig import wait_until
from rig.ledger import Ledger
from test_kills import Kills

BLOCK = 4096
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


class Killed(Kills):
    """kill -9 under load, fast and slow device on files without the page cache: no byte is ever wrong."""

    def devices(self):
        """More is written than the fast device holds: blocks move all the time."""
        devices = tiers()
        for name in ("slow", "fast"):
            devices[name]["direct"] = True
        return devices

    @limit(60 + 5 * KILLS)
    def test_stamped_blocks(self):
        self.begin(self.devices(), exported(), ledger=Ledger(1024))
        moved = 0
        for _ in range(KILLS):
            self.pump(self.chance.random() * 0.8)
            moved += self.daemon.device("vm1")["info"]["destaged_bytes"]
            self.daemon.kill()
            self.daemon.start()
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.assertGreater(moved, 0)
        print(f"        {KILLS} kills, {moved >> 20} MiB written home between them")

    @limit(120 + 2 * KILLS)
    def test_under_fio(self):
        self.kill_under_fio(self.devices(), KILLS)


class Failing(HierarchyCase):
    """Its fast device vanishes, its slow device is full: what can be read is, the rest is an error, and nothing is lost."""

    def setUp(self):
        super().setUp()
        devices = tiers(**{"store-timeout": "1s"})
        for name, over in (("slow", "slow-file"), ("fast", "fast-file")):
            devices[over] = devices[name] | {"path": f"{over}.img"}
            devices[name] = {"type": "fault", "over": over}
        self.create(devices, exported())
        self.blocks = self.client()
        self.expected = {}

    def rule(self, device, **keys):
        self.daemon.ctl(device, "set", f"rules={json.dumps([keys])}")

    def put(self, block, value):
        self.blocks.pwrite(bytes([value]) * BLOCK, block * BLOCK)
        self.expected[block] = value

    def compare(self, blocks):
        for block in blocks:
            self.assertEqual(self.blocks.pread(BLOCK, block * BLOCK), bytes([self.expected[block]]) * BLOCK, block)

    def info(self):
        return self.daemon.device("vm1")["info"]

    def ends(self):
        self.blocks.shutdown()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.daemon.start()
        self.blocks = self.client()
        self.compare(self.expected)
        self.blocks.shutdown()

    def test_the_fast_device_vanishes(self):
        clean, dirty = range(0, 64), [*range(64, 68), *range(80, 82)]
        for block in clean:
            self.put(block, block % 250 + 1)
        self.daemon.ctl("vm1", "drain")
        for block in dirty:
            self.put(block, block)
        self.rule("fast", error="offline")
        with self.assertRaises(nbd.Error):
            self.blocks.pread(BLOCK, dirty[0] * BLOCK)
        self.compare(clean)
        for block in dirty:
            with self.assertRaises(nbd.Error):
                self.blocks.pread(BLOCK, block * BLOCK)
        with self.assertRaises(nbd.Error):
            self.blocks.pwrite(bytes(BLOCK), clean[0] * BLOCK)
        ranges = [{"start": 64 * BLOCK, "len": 4 * BLOCK}, {"start": 80 * BLOCK, "len": 2 * BLOCK}]
        self.assertEqual(self.info()["lost"]["ranges"], ranges)
        self.assertIn("lamina ctl vm1 accept-loss", self.daemon.log())
        self.daemon.ctl("fast", "clear")
        wait_until("the tier to go on", 30, lambda: self.info()["lost"] is None)
        self.compare(self.expected)
        self.put(0, 200)
        self.ends()

    @limit(120)
    def test_the_slow_device_is_full(self):
        self.rule("slow", op=["write", "zero"], error="no-space")
        # More than the fast device holds.
        with self.assertRaises(nbd.Error) as raised:
            for block in range(22 * MIB // BLOCK):
                self.put(block, block % 250 + 1)
        self.assertEqual(raised.exception.errnum, errno.ENOSPC, raised.exception)
        self.compare(self.expected)
        self.daemon.ctl("slow", "clear")
        self.daemon.ctl("vm1", "drain")
        self.assertEqual(self.info()["dirty_bytes"], 0)
        self.put(1, 7)
        self.compare(self.expected)
        self.ends()
