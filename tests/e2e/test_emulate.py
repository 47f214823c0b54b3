"""An emulated hard disk over NBD, measured with fio: its times are those of the model, and the run is valid."""

import json

from common import RigCase, limit
from rig import Lamina, run

# The Cheetah 15K.4 of the paper on CATS: X = 4.25 + 5.25 d/D ms, 73.4 GB.
CONSTANT_MS, SLOPE_MS, DRIVE = 4.25, 5.25, 73.4e9
GIB = 1 << 30

HIERARCHY = """\
[device.blank]
type = "null"
size = "68GiB"

[device.hdd]
type = "emulate"
over = "blank"
model = "cheetah-15k4"
k = {k}

[export.hdd]
device = "hdd"
nbd = "unix:nbd.sock"
"""


def expected_ms(span):
    """The mean time of random reads in the first `span` bytes: two places in it are a third of it apart on average."""
    return CONSTANT_MS + SLOPE_MS * span / 3 / DRIVE


class Emulate(RigCase):
    alone = "no request may be more than 100 us late"

    def served(self, k):
        return Lamina(self.rig, HIERARCHY.format(k=k))

    def mean_ms(self, lamina, gib, seconds, depth=1):
        """The mean time of random reads in the first `gib` GiB."""
        text = run(
            "fio", "--name=load", "--ioengine=nbd", f"--uri={lamina.uri('hdd')}", "--rw=randread", "--bs=4k",
            f"--size={gib}g", f"--iodepth={depth}", "--norandommap", "--time_based", f"--runtime={seconds}",
            "--output-format=json",
        ).stdout
        return json.loads(text[text.index("{"):])["jobs"][0]["read"]["clat_ns"]["mean"] / 1e6

    def assert_valid(self, lamina):
        info = lamina.device("hdd")["info"]
        self.assertTrue(info["valid"], info)
        self.assertEqual(info["late"], 0, info)

    @limit(120)
    def test_reads_take_the_time_of_the_model(self):
        for k, seconds in (1, 5), (4, 6):
            with self.subTest(k=k):
                lamina = self.served(k)
                near, far = (self.mean_ms(lamina, gib, seconds) for gib in (2, 68))
                self.assertAlmostEqual(near / (k * expected_ms(2 * GIB)), 1, delta=0.05)
                self.assertAlmostEqual(far / (k * expected_ms(68 * GIB)), 1, delta=0.05)
                self.assertLess(1.2 * near, far, "near seeks are shorter")
                self.assert_valid(lamina)
                lamina.stop()

    def test_requests_in_flight_share_the_drive(self):
        lamina = self.served(0.5)
        one, four = self.mean_ms(lamina, 68, 2), self.mean_ms(lamina, 68, 2, depth=4)
        self.assertAlmostEqual(four / one, 4, delta=0.4)
        self.assert_valid(lamina)

    def test_k_is_fixed_and_changed_while_it_is_served(self):
        lamina = self.served(0.1)
        before = self.mean_ms(lamina, 68, 1)
        lamina.ctl("hdd", "set", "k=0.4")
        self.assertAlmostEqual(self.mean_ms(lamina, 68, 2) / before, 4, delta=0.4)
        self.assertEqual(lamina.device("hdd")["info"]["k"], 0.4)
