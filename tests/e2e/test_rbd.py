"""Images of a real Ceph cluster: bytes that Ceph's own tools find, daemons and OSDs that are killed, locks, and hosts that
share an image."""

import signal
import time

import nbd

from common import MIB, RigCase, limit
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ceph import Ceph
from rig.hierarchy import device, export
from rig.ledger import Ledger, Writer
from test_fio import clean, fio

SIZE = 64 * MIB


CONF = "ceph/ceph.conf"


def served(image, sock="nbd.sock", **keys):
    """An image, and nothing else."""
    return device("image", "rbd", image=image, **{"conf": CONF, **keys}) + export("image", "image", sock)


class Images(RigCase):
    def setUp(self):
        super().setUp()
        self.ceph = Ceph(self.rig)
        self.name = self.ceph.image("vm1", SIZE // MIB)

    def used(self):
        """The bytes of the image that are allocated, in whole objects."""
        objects = self.ceph.run("rados", "-p", "vms", "ls").split()
        return sum(4 * MIB for name in objects if name.startswith("rbd_data."))

    def exported(self):
        """The bytes of the image, as Ceph has them."""
        path = self.rig.path("exported")
        path.unlink(missing_ok=True)
        self.ceph.run("rbd", "export", "--no-progress", self.name, path)
        return path.read_bytes()

    @limit(180)
    def test_what_is_written_is_in_the_image(self):
        lamina = Lamina(self.rig, served(self.name))
        uri = lamina.uri("image")
        clean(self, run(*fio(uri, "--do_verify=1", "--bsrange=512-256k", "--blockalign=512")).stdout)
        client = nbd.NBD()
        client.add_meta_context("base:allocation")
        client.connect_uri(uri)
        self.assertEqual(client.get_size(), SIZE)
        pattern = bytes(range(256)) * 4096
        client.pwrite(pattern, 40 * MIB + 512)
        client.pwrite(pattern, SIZE - MIB, nbd.CMD_FLAG_FUA)
        client.zero(MIB, 0)
        client.zero(MIB, MIB, nbd.CMD_FLAG_NO_HOLE)
        client.flush()
        found = self.exported()
        self.assertEqual(found, b"".join(bytes(client.pread(8 * MIB, at)) for at in range(0, SIZE, 8 * MIB)))
        self.assertEqual(found[:2 * MIB], bytes(2 * MIB))
        self.assertEqual(found[40 * MIB + 512:][:MIB], pattern)
        self.assertEqual(found[-MIB:], pattern)
        # Discarded objects are gone, and known as holes.
        before = self.used()
        client.trim(32 * MIB, 8 * MIB)
        self.assertLessEqual(self.used(), before - 24 * MIB)
        extents = []
        client.block_status(SIZE, 0, lambda _context, _at, entries, _error: extents.extend(entries))
        runs, at = [], 0
        for length, flags in zip(extents[::2], extents[1::2]):
            runs += [(at, length)] if flags & nbd.STATE_HOLE else []
            at += length
        self.assertTrue(any(at <= 8 * MIB and at + length >= 40 * MIB for at, length in runs), runs)
        # It grows with the image.
        self.ceph.run("rbd", "resize", "--no-progress", "--size", str(SIZE // MIB + 64), self.name)
        lamina.ctl("image", "resize")
        self.assertEqual(int(run("nbdinfo", "--size", uri).stdout), SIZE + 64 * MIB)
        self.assertEqual(lamina.stop(), 0, lamina.log())

    @limit(300)
    def test_a_killed_daemon_and_a_killed_osd_lose_nothing(self):
        lamina = Lamina(self.rig, served(self.name))
        ledger = Ledger()
        writer = Writer(ledger, lamina.uri("image"), 1)
        writer.check()
        writer.pump_until(iter([False] * 200 + [True]).__next__)
        lamina.kill()
        # Ceph believes for half a minute that the client still has its lock.
        lamina.start(seconds=60)
        writer = Writer(ledger, lamina.uri("image"), 2)
        writer.check()
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        self.ceph.kill("osd")
        began = time.monotonic()
        writer.pump_until(lambda: time.monotonic() - began > 2)
        # The daemon answers what needs no cluster, however long that is away.
        self.assertGreater(lamina.device("image")["in_flight"], 0)
        self.ceph.start("osd")
        writer.pump_until(iter([False] * 300 + [True]).__next__, seconds=60)
        writer.close()
        Writer(ledger, lamina.uri("image"), 3).check()
        self.assertEqual(lamina.stop(), 0, lamina.log())

    @limit(240)
    def test_an_image_in_use_is_refused_and_so_is_nonsense(self):
        Lamina(self.rig, served(self.name), name="first")
        for name, keys, says in [
            (self.name, {}, "is in use by another client of Ceph"),
            ("vms/none", {}, "there is none: rbd create --size 10G vms/none"),
            ("none/vm1", {}, "the pool none"),
            (self.name, {"user": "nobody"}, "does not let client.nobody in"),
            (self.name, {"conf": "none.conf"}, "none.conf cannot be read"),
        ]:
            with self.subTest(name=name, **keys):
                file = self.rig.write("wrong.toml", served(name, "second.sock", **keys))
                refused = run(lamina_binary(), "serve", file, "--control", self.rig.path("wrong.ctl"), check=False, seconds=90)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(says, refused.stdout + refused.stderr)
        # Advice is followed.
        self.ceph.run("rbd", "create", "--size", "10G", "vms/none")
        Lamina(self.rig, served("vms/none", "second.sock"), name="second")


class Hosts(RigCase):
    """Two hosts with a flash each in front of one image."""

    def host(self, name):
        devices = {
            "image": {"type": "rbd", "image": "vms/vm1", "conf": CONF, "shared": True},
            "san": {
                "type": "reservation", "over": "image", "vault": "vault", "volume": "vm1", "host": name, "lease": "2s",
                "listen": "tcp:127.0.0.1:0", "settles": "1s",
            },
            "nvme": {"type": "file", "path": f"nvme-{name}.img", "size": "64MiB"},
            "cache": {"type": "flash", "over": "nvme"},
            "vm1": {"type": "accelerate", "over": ["san", "cache"], "peers": 1},
        }
        exports = {"vm1": {"device": "vm1", "nbd": f"unix:{name}.sock"}}
        daemon = Lamina(self.rig, written(devices, exports, name=f"vm1-{name}"), name=name, start=False)
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    def uri(self, daemon):
        return daemon.uri("vm1", f"{daemon.name}.sock")

    @limit(300)
    def test_a_killed_host_is_followed_by_its_peer(self):
        self.ceph = Ceph(self.rig)
        self.ceph.image("vm1", 48)
        here, there = (self.host(name) for name in ("a", "b"))
        uri = self.uri
        here.start()
        there.start()
        ledger = Ledger()
        Writer(ledger, uri(here)).check()
        for n in range(3):
            wait_until("a peer", 60, lambda: here.device("vm1")["info"]["policy"] == "write-back")
            writer = Writer(ledger, uri(here), n)
            writer.pump_until(iter([False] * 100 + [True]).__next__)
            here.kill()
            follower = Writer(ledger, uri(there), n)
            follower.check()
            here.start()
            follower.pump_until(iter([False] * 50 + [True]).__next__)
            follower.close()
            here, there = there, here
        wait_until("a peer", 60, lambda: here.device("vm1")["info"]["policy"] == "write-back")
        self.assertEqual(here.stop(), 0, here.log())
        self.assertEqual(there.stop(), 0, there.log())
        # The image has everything.
        alone = Lamina(self.rig, served("vms/vm1", "alone.sock"), name="alone", start=False).start(seconds=60)
        Writer(ledger, alone.uri("image", "alone.sock")).check()

    @limit(180)
    def test_hosts_go_on_together_while_neither_reaches_the_cluster(self):
        """The host that has the volume has the image's lock and object map: librbd knows without the cluster that the first
        block was never written."""
        self.ceph = Ceph(self.rig)
        name = self.ceph.image("vm1", 48, "--image-feature", "exclusive-lock,object-map")
        here, _there = (self.host(name).start() for name in ("a", "b"))
        client = nbd.NBD()
        client.connect_uri(self.uri(here))
        # It takes the volume.
        self.assertEqual(client.pread(4096, 0), bytes(4096))
        info = lambda: here.device("vm1")["info"]
        wait_until("a peer", 60, lambda: info()["policy"] == "write-back")
        client.pwrite(b"1" * MIB, 8 * MIB)
        wait_until("the store has everything", 30, lambda: info()["dirty_bytes"] == 0)
        self.assertIn("client.", self.ceph.run("rbd", "lock", "ls", name))
        peers = lambda: [peer["reaches_store"] for peer in info()["peers"]["connected"]]
        self.assertEqual(peers(), [True])
        self.ceph.signal("osd", signal.SIGSTOP)
        wait_until("the peer does not reach the cluster", 20, lambda: peers() == [False])
        # For some leases, and so does this one.
        end = time.monotonic() + 8
        while time.monotonic() < end:
            self.assertEqual(peers(), [False])
            time.sleep(0.1)
        client.pwrite(b"2" * 4096, 8 * MIB)
        self.ceph.signal("osd", signal.SIGCONT)
        wait_until("the peer reaches the cluster again", 30, lambda: peers() == [True])
        wait_until("the store has everything", 30, lambda: info()["dirty_bytes"] == 0)
        self.assertEqual(client.pread(4096, 8 * MIB), b"2" * 4096)
        client.shutdown()
        self.assertEqual(here.stop(), 0, here.log())
