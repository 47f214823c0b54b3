"""Our NBD client against our NBD server, each in a process of its own."""

import signal
import threading
import time

import nbd

from common import MIB, RigCase, limit
from rig import Lamina, lamina_binary, run, wait_until

NEAR = """\
[device.remote]
type = "nbd"
address = "unix:far.sock"
connections = 2
timeout = "1s"

[device.front]
type = "linear"
over = "remote"
offset = "1MiB"

[export.front]
device = "front"
nbd = "unix:front.sock"
"""

FAR = """\
[device.disk]
type = "file"
path = "disk.img"
size = "64MiB"

[export.disk]
device = "disk"
nbd = "unix:far.sock"
"""


class TwoLaminas(RigCase):
    def setUp(self):
        super().setUp()
        self.far = Lamina(self.rig, FAR, name="far")
        self.near = Lamina(self.rig, NEAR, name="near")
        self.uri = self.near.uri("front", "front.sock")

    def size(self):
        return int(run("nbdinfo", "--size", self.uri).stdout)

    @limit(60)
    def test_a_resize_travels_up(self):
        """The file grows under one Lamina, the sink in the other one asks again, and its clients see it."""
        self.assertEqual(self.size(), 63 * MIB)
        client = nbd.NBD()
        client.connect_uri(self.uri)
        self.far.ctl("disk", "resize", "size=96MiB")
        self.near.ctl("remote", "refresh")
        self.assertEqual(self.size(), 95 * MIB)
        run("qemu-io", "-f", "raw", "-c", "write -P 7 94M 1M", "-c", "read -P 7 94M 1M", self.uri)
        # Who was connected before may use the new size too, if he knows of it some other way.
        client.set_strict_mode(0)
        self.assertEqual(client.pread(4096, 94 * MIB), b"\7" * 4096)
        with open(self.rig.path("disk.img"), "rb") as file:
            file.seek(95 * MIB)
            self.assertEqual(file.read(4096), b"\7" * 4096)

    @limit(120)
    def test_a_stalled_server_does_no_old_writes_later(self):
        """The server stops with a write on its way, is given up, and goes on: what is written then stays."""
        client = nbd.NBD()
        client.connect_uri(self.uri)
        self.assertTrue(self.near.device("remote")["info"]["fenced"])
        for round_ in range(3):
            self.far.proc.signal(signal.SIGSTOP)
            wrong = []

            def write():
                try:
                    client.pwrite(bytes([2 * round_ + 1]) * 65536, 0)
                except nbd.Error as e:
                    wrong.append(str(e))
            writer = threading.Thread(target=write)
            writer.start()
            time.sleep(2.5)
            self.far.proc.signal(signal.SIGCONT)
            writer.join(60)
            self.assertEqual((wrong, writer.is_alive()), ([], False), self.near.log())
            newer = bytes([2 * round_ + 2]) * 65536
            client.pwrite(newer, 0)
            time.sleep(0.5)
            self.assertEqual(client.pread(65536, 0), newer)
        connections = self.near.device("remote")["info"]["connections"]
        self.assertGreater(sum(c["reconnects"] for c in connections), 0)


class RemoteLeg(RigCase):
    @limit(60)
    def test_data_on_another_machine_is_not_formatted_over(self):
        """A mirror is made of a file and a device of another Lamina, which has a file system."""
        disk = self.rig.file("disk.img", 64 * MIB)
        run("mkfs.ext4", "-q", disk)
        before = disk.read_bytes()
        Lamina(self.rig, FAR, name="far")
        file = self.rig.write("raid.toml", (
            '[hierarchy]\nname = "raid"\n\n[device.here]\ntype = "file"\npath = "here.img"\nsize = "66MiB"\n\n'
            '[device.there]\ntype = "nbd"\naddress = "unix:far.sock"\n\n'
            '[device.raid]\ntype = "mirror"\nover = ["here", "there"]\n\n'
            '[export.raid]\ndevice = "raid"\nnbd = "unix:raid.sock"\n'
        ))
        refused = run(lamina_binary(), "create", file, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertRegex(refused.stderr, r"there: carries ext2/3/4 at 1080.*: --force overwrites it, and the data there is lost")
        self.assertIn("nothing was written", refused.stderr)
        self.assertEqual(disk.read_bytes(), before)
        self.assertFalse(self.rig.path("here.img").exists())
        run(lamina_binary(), "create", "--force", file)
        self.assertNotEqual(disk.read_bytes()[:MIB], before[:MIB])
        # Made again, nothing known is there.
        self.rig.path("here.img").unlink()
        run(lamina_binary(), "create", file)

    @limit(60)
    def test_a_leg_with_data_on_another_machine_joins_with_force_alone(self):
        """A mirror gets another leg while it is served: a device of another Lamina, which has a file system. A device that
        shows such data, and writes to none, is no leg."""
        disk = self.rig.file("disk.img", 64 * MIB)
        run("mkfs.ext4", "-q", disk)
        before = disk.read_bytes()
        Lamina(self.rig, FAR, name="far")
        here = '[hierarchy]\nname = "raid"\n\n[device.here]\ntype = "file"\npath = "here.img"\nsize = "48MiB"\n\n'
        there = '[device.there]\ntype = "nbd"\naddress = "unix:far.sock"\n\n'
        mirror = '[device.raid]\ntype = "mirror"\nover = [{}]\n\n[export.raid]\ndevice = "raid"\nnbd = "unix:raid.sock"\n'
        shows = '\n[device.front]\ntype = "linear"\nover = "there"\n\n[export.front]\ndevice = "front"\nnbd = "unix:raid.sock"\n'
        file = self.rig.write("raid.toml", here + mirror.format('"here"'))
        run(lamina_binary(), "create", file)
        daemon = self.rig.start(lamina_binary(), "serve", file, "--control", self.rig.path("ctl.sock"), name="raid")
        daemon.wait_for("ready\n", 20)

        def applied(text, *words):
            other = self.rig.write("other.toml", text)
            return run(lamina_binary(), "apply", "--control", self.rig.path("ctl.sock"), *words, other, check=False)

        applied_ = applied(here + there + mirror.format('"here"') + shows)
        self.assertEqual(applied_.returncode, 0, applied_.stderr)
        self.assertEqual(applied(here + mirror.format('"here"')).returncode, 0)
        two = here + there + mirror.format('"here", "there"')
        for words in ((), ("--plan",)):
            refused = applied(two, *words)
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stderr, r'device "there": it carries ext2/3/4 at 1080')
            self.assertIn("nothing was written; --force overwrites it", refused.stderr)
        self.assertEqual(disk.read_bytes(), before)
        joined = applied(two, "--force")
        self.assertEqual(joined.returncode, 0, joined.stderr)
        wait_until("the leg to be written", 20, lambda: disk.read_bytes()[:MIB] != before[:MIB])
