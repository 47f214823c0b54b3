"""fio's NBD engine with checksums, and kill -9 of the daemon under it."""

import time

from common import KILLS_NBD, RigCase, limit, memory, striped
from rig import Lamina, run
from rig.files import ROOT

# A second daemon whose device is the first one's export: a client that reconnects and replays.
FRONT = """\
[device.remote]
type = "nbd"
address = "unix:nbd.sock"
export = "vm1"

[export.front]
device = "remote"
nbd = "unix:front.sock"
"""


def fio(uri, *options, size="32M"):
    return [
        "fio", "--name=verify", "--ioengine=nbd", f"--uri={uri}", f"--size={size}", "--rw=randwrite", "--bs=4k",
        "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--group_reporting", *options,
    ]


def clean(test, report):
    test.assertRegex(report, r"err= 0")
    test.assertNotRegex(report.lower(), r"verify: bad|crc32c: verify failed|i/o error")


class Fio(RigCase):
    def test_random_writes_verify(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        clean(self, run(*fio(lamina.uri("m"), "--do_verify=1")).stdout)

    def test_mixed_sizes_and_trims_verify(self):
        lamina = Lamina(self.rig, striped())
        # A trim and the write that follows it are not ordered unless one waits for the other: depth 1.
        trims = ["--rw=randtrimwrite", "--iodepth=1"]
        for more in (["--bsrange=512-256k", "--blockalign=512"], trims, ["--rw=randrw"]):
            with self.subTest(more):
                clean(self, run(*fio(lamina.uri("vm1"), "--verify_backlog=64", *more)).stdout)

    def test_deep_queue(self):
        lamina = Lamina(self.rig, striped())
        clean(self, run(*fio(lamina.uri("vm1"), "--iodepth=512", size="64M")).stdout)


class Kills(RigCase):
    """kill -9 while a client writes and verifies through a second daemon that reconnects."""

    def under(self, lamina, load, kills, pause):
        for _ in range(kills):
            time.sleep(pause)
            self.assertTrue(load.running(), load.output())
            lamina.restart()

    @limit(300)
    def test_fio_over_a_client_that_reconnects(self):
        lamina = Lamina(self.rig, striped())
        front = Lamina(self.rig, FRONT, name="front")
        load = self.rig.start(*fio(
            front.uri("front", "front.sock"), "--verify_backlog=256", "--time_based", f"--runtime={KILLS_NBD + 5}",
        ), name="fio")
        self.under(lamina, load, KILLS_NBD, 0.5)
        self.assertEqual(load.wait(KILLS_NBD + 60), 0, load.output())
        clean(self, load.output())
        self.assertEqual(lamina.starts, KILLS_NBD + 1)

    @limit(180)
    def test_stamped_blocks_over_a_client_that_reconnects(self):
        """As above with blocks that tell an old content from the newest: no acknowledged write may be lost."""
        kills = max(KILLS_NBD // 5, 2)
        lamina = Lamina(self.rig, striped())
        front = Lamina(self.rig, FRONT, name="front")
        uri = front.uri("front", "front.sock")
        load = self.rig.start("python3", ROOT / "tools/rig/stamps.py", uri, kills * 1.0 + 3, name="stamps")
        self.under(lamina, load, kills, 0.5)
        self.assertEqual(load.wait(kills + 60), 0, load.output())

    @limit(180)
    def test_qemu_as_the_client_that_reconnects(self):
        kills = max(KILLS_NBD // 5, 2)
        lamina = Lamina(self.rig, striped())
        sock = self.rig.path("qsd.sock")
        self.rig.listen(
            sock, "qemu-storage-daemon",
            "--blockdev", f"nbd,node-name=n,server.type=unix,server.path={lamina.socket('nbd.sock')},export=vm1,reconnect-delay=30",
            "--nbd-server", f"addr.type=unix,addr.path={sock}",
            "--export", "nbd,id=e,node-name=n,name=front,writable=on",
        )
        load = self.rig.start("python3", ROOT / "tools/rig/stamps.py", f"nbd+unix:///front?socket={sock}", kills * 1.5 + 4, name="stamps")
        self.under(lamina, load, kills, 1)
        self.assertEqual(load.wait(kills + 90), 0, load.output())
