"""Our NBD client against servers that others wrote: nbdkit with its plugins and filters, and qemu-nbd."""

import os
import time

from common import MIB, RigCase, limit
from rig import Lamina, run
from rig.files import ROOT

HIERARCHY = """\
[device.remote]
type = "nbd"
address = "unix:peer.sock"
export = "{export}"

[export.front]
device = "remote"
nbd = "unix:front.sock"
"""


class Peers(RigCase):
    def nbdkit(self, *arguments):
        sock = self.rig.path("peer.sock")
        return self.rig.listen(sock, "nbdkit", "-f", "-U", sock, *arguments)

    def front(self, export=""):
        self.lamina = Lamina(self.rig, HIERARCHY.format(export=export))
        return self.lamina.uri("front", "front.sock")

    def copied_both_ways(self, uri, size):
        source = self.rig.file("source", size, os.urandom)
        run("nbdcopy", "--flush", source, uri)
        run("nbdcopy", uri, self.rig.path("back"))
        run("cmp", source, self.rig.path("back"))

    def test_nbdkit_memory(self):
        self.nbdkit("memory", "64M")
        self.copied_both_ways(self.front(), 64 * MIB)

    def test_nbdkit_file(self):
        image = self.rig.file("image", 64 * MIB)
        self.nbdkit("file", image)
        uri = self.front()
        self.copied_both_ways(uri, 64 * MIB)
        run("cmp", self.rig.path("source"), image)
        # Zeroes and trims pass through as such.
        run("qemu-io", "-f", "raw", "-c", "write -z -u 0 32M", "-c", "read -P 0 0 32M", uri)
        self.assertEqual(bytes(4096), open(image, "rb").read(4096))

    def test_plain_server(self):
        """No structured replies, block status or zeroes: what is missing is made up for."""
        self.nbdkit("--no-sr", "--filter=noextents", "--filter=nozero", "memory", "64M")
        self.copied_both_ways(self.front(), 64 * MIB)
        run("qemu-io", "-f", "raw", "-c", "write -z 0 1M", "-c", "read -P 0 0 1M", self.lamina.uri("front", "front.sock"))

    def test_read_only_server(self):
        self.nbdkit("-r", "pattern", "64M")
        uri = self.front()
        run("nbdcopy", uri, self.rig.path("back"))
        self.assertEqual(open(self.rig.path("back"), "rb").read()[8:16], (8).to_bytes(8, "big"))
        done = run("qemu-io", "-f", "raw", "-c", "write 0 4k", uri, check=False)
        self.assertNotEqual(done.returncode, 0)

    def test_errors_of_the_server_reach_the_client(self):
        self.nbdkit("--filter=error", "memory", "64M", "error-pread=EIO", "error-pread-rate=100%")
        done = run("qemu-io", "-f", "raw", "-c", "write 0 4k", "-c", "read 0 4k", self.front(), check=False)
        self.assertIn("Input/output error", done.stdout + done.stderr)

    def test_slow_server_with_many_requests(self):
        self.nbdkit("--filter=delay", "-t", "32", "memory", "64M", "rdelay=5ms", "wdelay=5ms")
        uri = self.front()
        report = run(
            "fio", "--name=verify", "--ioengine=nbd", f"--uri={uri}", "--size=8M", "--rw=randwrite", "--bs=4k",
            "--iodepth=64", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--do_verify=1",
        ).stdout
        self.assertIn("err= 0", report)

    def test_qemu_nbd(self):
        image = self.rig.path("image.qcow2")
        run("qemu-img", "create", "-f", "qcow2", image, "64M")
        sock = self.rig.path("peer.sock")
        self.rig.listen(sock, "qemu-nbd", "-t", "-f", "qcow2", "-k", sock, "-x", "disk", "--discard=unmap", image)
        self.copied_both_ways(self.front("disk"), 64 * MIB)
        self.assertEqual(self.lamina.stop(), 0)

    @limit(180)
    def test_nbdkit_killed_and_started_again(self):
        image = self.rig.file("image", 64 * MIB)
        server = self.nbdkit("file", image)
        uri = self.front()
        load = self.rig.start("python3", ROOT / "tools/rig/stamps.py", uri, 10, name="stamps")
        for _ in range(5):
            time.sleep(1.2)
            self.assertTrue(load.running(), load.output())
            server.kill()
            time.sleep(0.3)
            server = self.nbdkit("file", image)
        self.assertEqual(load.wait(60), 0, load.output())

    def test_server_gone_for_good_is_an_error_in_bounded_time(self):
        server = self.nbdkit("memory", "64M")
        self.lamina = Lamina(self.rig, HIERARCHY.format(export="").replace(
            'address = "unix:peer.sock"', 'address = "unix:peer.sock"\nreconnect = "2s"'))
        uri = self.lamina.uri("front", "front.sock")
        server.kill()
        # It takes as long as the hierarchy file says and no longer; `run` has a limit of its own.
        done = run("qemu-io", "-f", "raw", "-c", "read 0 4k", uri, check=False, seconds=20)
        self.assertRegex((done.stdout + done.stderr).lower(), "error|timed out")

    def test_a_silent_server_does_not_keep_the_daemon(self):
        """Requests that a server does not answer are given up when the daemon ends. It owes nothing: nobody was told of them."""
        self.nbdkit("--filter=delay", "memory", "64M", "rdelay=100", "wdelay=100")
        load = self.rig.start("qemu-io", "-f", "raw", "-c", "write 0 4k", self.front(), name="write")
        time.sleep(1)
        self.assertTrue(load.running(), load.output())
        began = time.monotonic()
        self.assertEqual(self.lamina.stop(), 0)
        self.assertLess(time.monotonic() - began, 10)
        self.assertNotEqual(load.wait(20), 0)
