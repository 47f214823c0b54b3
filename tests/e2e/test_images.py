"""Members that a former Lamina wrote, with keys under their old names, are opened: `images/old.toml` says what is on them, and
`written` below which blocks."""

import nbd

import images
from common import RigCase
from rig import Lamina, lamina_binary, run, wait_until
from rig.files import ROOT

BLOCK = images.BLOCK
FOLDER = ROOT / "tests/e2e/images"

# Old names of keys, in the file and in what its members carry.
NAMES = {"patience": "leg-timeout", "bypass": "sequential-cutoff"}


def block(name, number):
    """What was written to a block, under this name."""
    line = b"%6s %08d\n" % (name.encode(), number)
    return (line * (BLOCK // len(line) + 1))[:BLOCK]


def written():
    """The blocks of both exports: those of `all` were written, a snapshot was made, and every other one was written again or
    zeroed."""
    all_ = {n: block("all", n) for n in [*range(64), 1000, 1023, *range(1024, 1040)]}
    snapshot = {n: all_[n] for n in range(64)}
    all_ |= {n: block("later", n) for n in range(0, 64, 2)}
    all_ |= {n: bytes(BLOCK) for n in range(40, 48)}
    all_ |= {n: block("last", n) for n in (1, 3, 5)}
    return {"all": all_, "second": {n: block("second", n) for n in range(40)}}, snapshot


class Images(RigCase):
    def setUp(self):
        super().setUp()
        images.unpack((FOLDER / "old.txt").read_text(), self.rig.path(""))
        self.text = (FOLDER / "old.toml").read_text()

    def lamina(self, *words):
        return run(lamina_binary(), *words, seconds=60, cwd=self.rig.path(""))

    def holds(self, daemon, export, blocks):
        handle = nbd.NBD()
        handle.connect_uri(daemon.uri(export))
        for number, bytes_ in blocks.items():
            self.assertEqual(bytes(handle.pread(BLOCK, number * BLOCK)), bytes_, f"{export}: block {number}")
        handle.shutdown()

    def opens(self, text, name):
        """Everything is there, all layers agree, and it is closed well."""
        daemon = Lamina(self.rig, text, name=name)
        exports, snapshot = written()
        for export, blocks in exports.items():
            self.holds(daemon, export, blocks)
        for device in ("both", "five", "summed"):
            self.lamina("ctl", "--control", daemon.control, device, "scrub")
        wait_until("the scrubs to end", 30, lambda: not daemon.get("/v1/jobs"))
        info = {device: daemon.device(device)["info"] for device in ("both", "five", "disk", "fast")}
        self.assertEqual({leg["is"] for device in ("both", "five") for leg in info[device]["legs"]}, {"in sync"})
        self.assertEqual([of["name"] for of in info["disk"]["snapshots"]], ["before"])
        self.assertEqual(daemon.stop(), 0, daemon.log())
        return daemon

    def test_members_with_old_names_are_opened(self):
        daemon = self.opens(self.text, "old")
        for old, new in NAMES.items():
            self.assertIn(f'key "{old}": is called {new} now; the old name is still taken', daemon.log())
        self.opens(self.text, "old")

    def test_the_file_may_have_the_new_names_first(self):
        text = self.text
        for old, new in NAMES.items():
            text = text.replace(f"{old} = ", f"{new} = ")
        self.assertNotIn("is called", self.opens(text, "old").log())

    def test_what_assemble_prints_of_them_is_served(self):
        """Sockets are where they were: here they are wanted in the folder of the test."""
        printed = self.lamina("assemble", self.rig.path("a.img")).stdout
        self.assertIn("unix:/srv/lamina/nbd.sock", printed)
        self.opens(printed.replace("unix:/srv/lamina/", "unix:"), "found")
