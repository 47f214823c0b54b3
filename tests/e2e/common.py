"""What the test files share."""

import os
import unittest

from rig import Rig

MIB = 1 << 20

# How often the daemon is killed: over NBD, under a guest, and during each kind of change.
KILLS_NBD, KILLS_GUEST, KILLS_CHANGE = (int(n) for n in os.environ.get("LAMINA_KILLS", "50,20,4").split(","))
# Under layers whose kills take long: those of an ordinary run, at most.
KILLS = KILLS_NBD if KILLS_NBD > 50 else min(KILLS_NBD, 10)


def limit(seconds):
    """The test may take so long."""
    def mark(function):
        function.limit = seconds
        return function
    return mark


class RigCase(unittest.TestCase):
    """A test with a rig of its own, which ends everything it started."""

    def setUp(self):
        self.rig = self.enterContext(Rig())


def memory(size="64MiB", keys=""):
    """A hierarchy of one memory device `m`, exported as `m` on nbd.sock."""
    return f"""\
[device.m]
type = "memory"
size = "{size}"

[export.m]
device = "m"
description = "a device in memory"
nbd = "unix:nbd.sock"
{keys}
"""


def striped(size="128MiB", vhost=False):
    """The disk `vm1`: a linear over a stripe over two files; exported on nbd.sock, and on vm1.sock if `vhost`."""
    exports = 'vhost-user = "vm1.sock"\n' if vhost else ""
    return f"""\
[device.left]
type = "file"
path = "left.img"
size = "{size}"

[device.right]
type = "file"
path = "right.img"
size = "{size}"

[device.pair]
type = "stripe"
over = ["left", "right"]
unit = "64KiB"

[device.vm1]
type = "linear"
over = "pair"
offset = "1MiB"

[export.vm1]
device = "vm1"
nbd = "unix:nbd.sock"
{exports}"""
