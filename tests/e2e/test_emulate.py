"""An emulated hard disk over NBD, measured with fio: never faster than its model, and the run says if it is valid."""

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
    """No request is faster than the model, whatever else the machine does; how much slower is for benchmarks to say."""

    def served(self, k):
        return Lamina(self.rig, HIERARCHY.format(k=k))

    def mean_ms(self, lamina, gib, seconds, depth=1):
        """The mean time of random reads in the first `gib` GiB."""
        text = run(
            "fio", "--name=load", "--ioengine=nbd", f"--uri={lamina.uri('hdd')}", "--rw=randread", "--bs=4k",
            f"--size={gib}g", f"--iodepth={depth}", "--norandommap", "--time_based", f"--runtime={seconds}",
            "--output-format=json",
        ).stdout
        mean = json.loads(text[text.index("{"):])["jobs"][0]["read"]["clat_ns"]["mean"] / 1e6
        print(f"        {gib} GiB, depth {depth}: {mean:.3f} ms")
        return mean

    def assert_says_whether_it_is_late(self, lamina):
        info = lamina.device("hdd")["info"]
        self.assertEqual(info["valid"], info["lateness"]["p99"] <= 100e-6, info)
        self.assertEqual(info["late"], 0, info)

    @limit(120)
    def test_reads_take_the_time_of_the_model(self):
        for k, seconds in (1, 5), (4, 6):
            with self.subTest(k=k):
                lamina = self.served(k)
                try:
                    near, far = (self.mean_ms(lamina, gib, seconds) for gib in (2, 68))
                    self.assertGreater(near, 0.95 * k * expected_ms(2 * GIB))
                    self.assertGreater(far, 0.95 * k * expected_ms(68 * GIB))
                    self.assertLess(near, far, "near seeks are shorter")
                    self.assert_says_whether_it_is_late(lamina)
                finally:
                    lamina.stop()

    def test_requests_in_flight_share_the_drive(self):
        lamina = self.served(0.5)
        one, four = self.mean_ms(lamina, 68, 2), self.mean_ms(lamina, 68, 2, depth=4)
        self.assertGreater(one, 0.9 * 0.5 * expected_ms(68 * GIB))
        self.assertGreater(four, 0.9 * 4 * 0.5 * expected_ms(68 * GIB))
        self.assert_says_whether_it_is_late(lamina)

    def test_k_is_fixed_and_changed_while_it_is_served(self):
        lamina = self.served(0.1)
        self.assertGreater(self.mean_ms(lamina, 68, 1), 0.9 * 0.1 * expected_ms(68 * GIB))
        lamina.ctl("hdd", "set", "k=0.4")
        self.assertGreater(self.mean_ms(lamina, 68, 2), 0.9 * 0.4 * expected_ms(68 * GIB))
        self.assertEqual(lamina.device("hdd")["info"]["k"], 0.4)
