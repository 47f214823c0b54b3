"""`make demo`, in its three forms: what a newcomer runs first."""

import sys

from common import RigCase, limit
from rig import run
from rig.files import ROOT


class Demo(RigCase):
    has_guest = True
    alone = "its guests have the processors of a whole machine"

    def show(self, form):
        told = run(sys.executable, ROOT / "tools/demo", env={"LAMINA_DEMO": form}, seconds=400).stdout
        self.assertIn("the demo is done, and nothing of it is left behind", told)
        self.assertIn("checked: ", told)

    @limit(400)
    def test_a_guest(self):
        self.show("")

    @limit(400)
    def test_without_a_guest(self):
        self.show("nbd")

    @limit(400)
    def test_two_hosts(self):
        self.show("cluster")
