"""Devices with legs: mirrors and parities over members, and what tests do to their legs."""

import mmap
import os

from common import MIB
from hierarchies import HierarchyCase, member
from rig import wait_until

MIRROR = {"type": "mirror"}
RAID5 = {"type": "parity"}
RAID6 = {"type": "parity", "parity": 2}

# Where a member's data begins.
DATA = MIB
# The unit of a parity.
UNIT = 64 * 1024

# Everything that a leg is asked for fails.
DEAD = 'rules=[{"error":"%s"}]'


def over_legs(kind, legs, spares=0, size="24MiB", below=None, direct=False, **keys):
    """The device `m` of this kind over a leg each for the letters in `legs`, the last of them spares: a `fault`, called `f`
    and the letter, over a member; if `below`, over a device of that type, called `i` and the letter, over a member."""
    devices = {}
    for name in legs:
        devices[name] = {**member(name, size), **({"direct": True} if direct else {})}
        if below:
            devices[f"i{name}"] = {"type": below, "over": name}
        devices[f"f{name}"] = {"type": "fault", "over": f"i{name}" if below else name}
    return {**devices, "m": {**kind, "over": [f"f{name}" for name in legs], "spares": spares, **keys}}


def mirrored(legs, *more, **keys):
    """A mirror."""
    return over_legs(MIRROR, legs, *more, **keys)


class Image:
    """The file of a member, read and written past the page cache, as a disk that goes wrong would."""

    PAGE = 4096

    def __init__(self, path):
        self.path = path

    def read(self):
        """All of it, in blocks of 4 KiB."""
        file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            size, blocks = os.fstat(file).st_size, []
            with mmap.mmap(-1, MIB) as buffer:
                for at in range(0, size, MIB):
                    read = os.preadv(file, [buffer], at)
                    blocks += [buffer[n:n + self.PAGE] for n in range(0, read, self.PAGE)]
            return blocks
        finally:
            os.close(file)

    def block(self, number):
        """A block."""
        return self._with(number, lambda file, buffer: bytes(buffer))

    def flip(self, number, bits=255):
        """The `bits` of a hundred bytes of a block become the other ones."""
        def change(file, buffer):
            for n in range(1100, 1200):
                buffer[n] ^= bits
            os.pwritev(file, [buffer], number * self.PAGE)
        self._with(number, change)

    def _with(self, number, do):
        file = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, self.PAGE) as buffer:
                os.preadv(file, [buffer], number * self.PAGE)
                return do(file, buffer)
        finally:
            os.close(file)


class LegsCase(HierarchyCase):
    """A test of a device with legs, called `m`."""

    def info(self):
        return self.daemon.device("m")["info"]

    def legs(self):
        """What each leg is, by its name."""
        return {leg["device"]: leg["is"] for leg in self.info()["legs"]}

    def kill(self, leg, error="media"):
        self.daemon.ctl(leg, "set", DEAD % error)

    def rejoin(self, leg):
        self.daemon.ctl(leg, "clear")
        self.daemon.ctl("m", "rejoin", leg)

    def scrub(self, device="m"):
        """Compares all that the legs hold; returns what was found."""
        self.daemon.ctl(device, "scrub")
        wait_until("the scrub to end", 30, lambda: "scrub" not in self.jobs())
        return self.info().get("found")

    def held(self, name, size):
        """What the image of a leg holds as the mirror's."""
        with open(self.rig.path(f"{name}.img"), "rb") as image:
            image.seek(DATA)
            return image.read(size)

    def stop(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
