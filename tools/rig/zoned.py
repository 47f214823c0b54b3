"""Zoned block devices in a guest: the kernel's `null_blk` with its data in memory, and what stands on one.

The guest runs Lamina itself, which nothing outside could do for it: the calls of a zoned device go to the kernel that has
the device.
"""

import json
import re
import struct
import zlib

from .guest import Guest
from .hierarchy import device, export
from .inside import put, stripped
from .process import wait_until

MIB = 1 << 20
BLOCK = 4096
MODULES = ("null_blk", "dm-zoned")
# Sequential zones that dm-zoned keeps for collecting: the default of `dmzadm`.
RESERVED = 16
# A daemon whose device is the export of another one, which it reaches again after that was killed.
FRONT = device("remote", "nbd", address="unix:/tmp/zoned.sock", export="zoned") + export("front", "remote", "/tmp/front.sock")


class Shape:
    """A zoned device: its zones' size in MiB, how many are conventional and sequential, and how many may be open."""

    def __init__(self, zone=1, conventional=4, sequential=40, open_max=8):
        self.zone, self.conventional, self.sequential, self.open_max = zone, conventional, sequential, open_max

    @property
    def zones(self):
        return self.conventional + self.sequential

    @property
    def mib(self):
        return self.zone * self.zones


def boot(rig, tools=()):
    """A guest with Lamina in it, and no disk but that of its tools."""
    guest = Guest(rig, [], modules=MODULES, tools=(str(stripped()), "blkzone", *tools), memory="1G").wait_ready()
    guest.run("mount -t configfs none /sys/kernel/config; rmmod null_blk; insmod /modules/null_blk.ko nr_devices=0")
    return guest


def add(guest, name, shape, latency_us=0):
    """Makes a zoned device in the guest; its path. With a latency, each request takes so long."""
    keys = {
        "size": shape.mib, "blocksize": BLOCK, "memory_backed": 1, "zoned": 1, "zone_size": shape.zone,
        "zone_nr_conv": shape.conventional, "zone_max_open": shape.open_max, "zone_max_active": shape.open_max,
        # A timer ends requests, or the caller itself.
        "irqmode": 2 if latency_us else 0, "completion_nsec": latency_us * 1000, "power": 1,
    }
    writes = "\n".join(f"echo {value} >{key}" for key, value in keys.items())
    # Kernels differ in the name of the device.
    return guest.run(f"set -e; mkdir /sys/kernel/config/nullb/{name}; cd /sys/kernel/config/nullb/{name}\n{writes}\n"
                     f"if [ -e /sys/block/{name} ]; then echo /dev/{name}; else echo /dev/nullb$(cat index); fi")


def remove(guest, name):
    """Takes a device away."""
    guest.run(f"cd /sys/kernel/config/nullb; echo 0 >{name}/power; rmdir {name}")


def pointers(guest, disk):
    """The write pointers of the sequential zones as the kernel has them: bytes from the beginning of each zone."""
    zones = re.findall(r"cap 0x(\w+), wptr 0x(\w+) .*SEQ_WRITE_REQUIRED", guest.run(f"blkzone report {disk}"))
    return [512 * min(int(capacity, 16), int(at, 16)) for capacity, at in zones]


def info(guest, name):
    """What the daemon says of a device."""
    return json.loads(guest.run(f"lamina ctl --control /tmp/zoned.ctl {name} info"))["info"]


def compared(guest, disk):
    """At a moment at which no zone is being written: what the daemon says of them, and the pointers of the kernel."""
    def at_rest():
        zones = lambda: info(guest, "disk")["zones"]
        # What the kernel has done the daemon may still have to hear.
        first, before, known, after = zones(), pointers(guest, disk), zones(), pointers(guest, disk)
        return (known, after) if (first, before) == (known, after) else None
    # A log tidies after its last user is gone: up to eight blocks for each that was written, by an emulated processor.
    return wait_until("zones that are not being written", 150, at_rest)


def hierarchy(disk):
    """The log on a zoned device."""
    return (
        '[hierarchy]\nname = "zoned"\n\n' + device("disk", "zoned", path=disk) + device("vm1", "sequentialize", "disk")
        + export("zoned", "vm1", "/tmp/zoned.sock")
    )


def alone(kind, disk, **keys):
    """A device by itself."""
    return device("disk", kind, path=disk, **keys) + export("zoned", "disk", "/tmp/zoned.sock")


def create(guest, disk):
    put(guest, "/tmp/zoned.toml", hierarchy(disk))
    guest.run("lamina create /tmp/zoned.toml")


def dm_zoned(shape, seed=b"lamina"):
    """An empty device for Linux's dm-zoned: the bytes that it begins with, and its chunks.

    The layout is that of `drivers/md/dm-zoned-metadata.c`, version 2: a superblock, the map of chunks, and a block of
    bits for each zone, twice, each in conventional zones of its own. Debian has no `dmzadm`, which writes the same.
    """
    blocks = shape.zone * MIB // BLOCK
    bitmaps = shape.zones
    sets = -(-(1 + 1 + bitmaps) // blocks)
    chunks = shape.zones - 2 * sets - RESERVED
    assert chunks <= 512 and 2 * sets < shape.conventional, "a block of the map, and a zone that is left"
    meta = 2 + bitmaps
    image = bytearray()
    for number in range(2):
        start = number * sets * blocks
        image.extend(bytes(start * BLOCK - len(image)))
        fields = struct.pack("<4sIQQIIIII", b"DBZD", 2, 1, start, meta, RESERVED, chunks, 1, bitmaps)
        names = struct.pack("<32s16s16s", b"dmz-lamina", seed.ljust(16, b"z"), seed.ljust(16, b"d"))
        block = bytearray((fields + bytes(4) + names).ljust(BLOCK, b"\0"))
        # The kernel's checksum begins with the generation, and neither end is inverted.
        crc = ~zlib.crc32(block, ~1 & 0xFFFFFFFF) & 0xFFFFFFFF
        struct.pack_into("<I", block, 44, crc)
        image.extend(block + b"\xff" * BLOCK)
    return bytes(image), chunks


def start_dm_zoned(guest, disk, shape):
    """Makes a device of dm-zoned on a new zoned device; its path."""
    image, chunks = dm_zoned(shape)
    put(guest, "/tmp/zoned.meta", image)
    sectors = chunks * shape.zone * MIB // 512
    guest.run(f"dd if=/tmp/zoned.meta of={disk} bs=4k conv=fsync oflag=direct 2>/dev/null; "
              f"dmsetup create --noudevsync zoned --table '0 {sectors} zoned {disk}'; dmsetup mknodes", seconds=60)
    return "/dev/mapper/zoned"


def end_dm_zoned(guest):
    """Takes that away."""
    guest.run("dmsetup remove --noudevsync zoned", seconds=120)
