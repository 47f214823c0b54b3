"""The program as an operator meets it: start, a second start, look, stop."""

import socket
import stat
import time

import nbd

from common import MIB, RigCase, limit, memory, striped
from rig import Lamina, lamina_binary, run
from rig.files import ROOT


class Program(RigCase):
    def test_sockets_are_private_and_gone_after_a_stop(self):
        lamina = Lamina(self.rig, striped(vhost=True))
        sockets = [lamina.control, lamina.socket("nbd.sock"), lamina.socket("vm1.sock")]
        for path in sockets:
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600, path)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        for path in sockets:
            self.assertFalse(path.exists(), path)

    def test_a_second_daemon_on_the_same_device_is_refused(self):
        lamina = Lamina(self.rig, striped())
        other = self.rig.write("other.toml", striped().replace("nbd.sock", "other.sock"))
        done = run(lamina_binary(), "serve", other, check=False, seconds=20)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("left.img", done.stderr)
        # The first one is well.
        run("nbdinfo", lamina.uri("vm1"))

    def test_a_live_socket_is_not_taken(self):
        lamina = Lamina(self.rig, memory())
        other = self.rig.write("other.toml", memory())
        done = run(lamina_binary(), "serve", other, check=False, seconds=20)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nbd.sock", done.stderr)
        run("nbdinfo", lamina.uri("m"))

    def test_show_and_metrics_agree_with_what_was_done(self):
        lamina = Lamina(self.rig, striped())
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri("vm1"))
        # What is opened is flushed before it is read.
        flushes = lamina.counter("left", "flush")
        for number in range(10):
            handle.pwrite(bytes([number]) * 65536, number * MIB)
        handle.flush()
        self.assertEqual(lamina.counter("vm1", "write"), 10)
        self.assertEqual(lamina.counter("vm1", "write", "bytes"), 10 * 65536)
        self.assertEqual(lamina.counter("left", "flush"), flushes + 1)
        names = {device["name"] for device in lamina.show()["devices"]}
        self.assertEqual(names, {"left", "right", "pair", "vm1"})
        self.assertIn("└─ pair", lamina.tree("50ms"))
        self.assertIn("vm1", lamina.get("/metrics"))

    @limit(60)
    def test_stop_under_load_loses_nothing_that_was_answered(self):
        lamina = Lamina(self.rig, striped())
        load = self.rig.start("python3", ROOT / "tools/rig/stamps.py", lamina.uri("vm1"), 20, name="stamps")
        time.sleep(1.5)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        # The client is sent away: with an error, never with wrong bytes.
        self.assertNotEqual(load.wait(30), 0)
        self.assertNotIn("found the bytes of", load.output())

    def test_nonsense_instead_of_nbd_harms_nobody(self):
        lamina = Lamina(self.rig, memory())
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri("m"))
        for nonsense in (b"", b"\0" * 5000, b"GET / HTTP/1.0\r\n\r\n", b"IHAVEOPT" * 500, b"\xff" * 70000):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                peer.connect(str(lamina.socket("nbd.sock")))
                try:
                    peer.sendall(nonsense)
                    peer.recv(100)
                except OSError:
                    pass
        handle.pwrite(b"x" * 512, 0)
        self.assertEqual(handle.pread(512, 0), b"x" * 512)
