"""Hosts whose writes are on the flash of a peer before they are acknowledged: a host that dies or stops is followed by its peer,
and no write is lost."""

import json
import os
import signal
import socket
import ssl
import time
import unittest

import nbd

from common import KILLS, MIB, RigCase, limit
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.certificates import Authority
from rig.ledger import Ledger, Writer
from rig.network import Network

LEASE = 2
STORE = """\
[device.disk]
type = "file"
path = "disk.img"
size = "48MiB"

[device.far]
type = "delay"
over = "disk"
read = "2ms"
write = "5ms"

[export.disk]
device = "far"
nbd = "unix:store.sock"
"""


def hierarchy(host, address="127.0.0.1", tls=None, vhost=False, protocol=None, **keys):
    """The volume as a host serves it, with another one as a peer; over vhost-user as well, if so, and with no newer protocol
    than this one."""
    devices = {
        "remote": {"type": "nbd", "address": "unix:store.sock"},
        "san": {
            "type": "reservation", "over": "remote", "vault": "vault", "volume": "vm1", "host": host,
            "lease": f"{LEASE}s", "listen": f"tcp:{address}:0", "settles": "1s", **({"tls": tls} if tls else {}),
            **({"protocol": protocol} if protocol else {}),
        },
        "nvme": {"type": "file", "path": f"nvme-{host}.img", "size": "64MiB"},
        "cache": {"type": "flash", "over": "nvme"},
        "vm1": {"type": "accelerate", "over": ["san", "cache"], "peers": 1, **keys},
    }
    export = {"device": "vm1", "nbd": f"unix:{host}.sock"} | ({"vhost-user": f"{host}.vhost"} if vhost else {})
    return written(devices, {"vm1": export}, name=f"vm1-{host}")


class Peers(RigCase):
    def setUp(self):
        super().setUp()
        self.store = Lamina(self.rig, STORE, name="store")
        self.hosts = {host: self.host(host) for host in ("a", "b")}

    def host(self, host):
        daemon = Lamina(self.rig, hierarchy(host), name=host, start=False)
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    def start(self):
        """Both, of which the first one has the volume."""
        for daemon in self.hosts.values():
            daemon.start()
        return self.hosts["a"], self.hosts["b"]

    def uri(self, daemon):
        return daemon.uri("vm1", f"{daemon.name}.sock")

    def client(self, daemon):
        client = nbd.NBD()
        client.connect_uri(self.uri(daemon))
        return client

    def info(self, daemon):
        return daemon.device("vm1")["info"]

    def paired(self, daemon):
        wait_until(f"{daemon.name} has a peer", 30, lambda: self.info(daemon)["policy"] == "write-back")

    def vault(self, *words):
        return run(lamina_binary(), "vault", "vault", *words, cwd=self.rig.path("")).stdout


class Hosts(Peers):
    @limit(300)
    def test_a_killed_host_is_followed_by_its_peer(self):
        """Killed under load, again and again: the peer answers within seconds, with every acknowledged write."""
        here, there = self.start()
        ledger = Ledger()
        Writer(ledger, self.uri(here)).check()
        for n in range(KILLS):
            self.paired(here)
            writer = Writer(ledger, self.uri(here), n)
            writer.pump_until(iter([False] * 200 + [True]).__next__)
            self.assertGreater(self.info(here)["dirty_bytes"], 0)
            here.kill()
            killed = time.monotonic()
            follower = Writer(ledger, self.uri(there), n)
            follower.check()
            self.assertLess(time.monotonic() - killed, 2 * LEASE + 1)
            here.start()
            follower.pump_until(iter([False] * 50 + [True]).__next__)
            follower.close()
            here, there = there, here
        self.paired(here)
        self.assertEqual(here.stop(), 0, here.log())
        # The store has everything.
        Writer(ledger, self.uri(there)).check()

    @limit(120)
    def test_a_host_that_was_stopped_finds_that_another_one_has_the_volume(self):
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        self.paired(a)
        client.pwrite(b"2" * MIB, 0)
        self.assertIn("survives the loss of 1 flash or 1 host", self.info(a)["promise"])
        a.proc.signal(signal.SIGSTOP)
        other = self.client(b)
        self.assertEqual(other.pread(MIB, 0), b"2" * MIB)
        other.pwrite(b"3" * MIB, 0)
        other.flush()
        a.proc.signal(signal.SIGCONT)
        wait_until("it is fenced", 10, lambda: a.device("san")["info"]["state"] == "fenced")
        for request in (lambda: client.pread(4096, 0), lambda: client.pwrite(b"9" * 4096, 0)):
            with self.assertRaises(nbd.Error):
                request()
        self.assertEqual(other.pread(MIB, 0), b"3" * MIB)
        # Its process may bring something to the store as long as it lives.
        self.assertGreater(self.info(b)["quarantine_bytes"], 0)
        self.assertIn("late writes", self.info(b)["peers"]["waits"])
        a.kill()
        a.start()
        self.paired(b)
        self.assertEqual(self.info(b)["quarantine_bytes"], 0)
        self.assertEqual(b.stop(), 0, b.log())
        self.assertEqual(self.client(a).pread(MIB, 0), b"3" * MIB)

    @limit(120)
    def test_a_stopped_host_is_dead_if_a_person_says_so(self):
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        self.paired(a)
        client.pwrite(b"2" * MIB, 0)
        a.kill()
        other = self.client(b)
        self.assertEqual(other.pread(MIB, 0), b"2" * MIB)
        self.assertGreater(self.info(b)["quarantine_bytes"], 0)
        self.assertIn("vm1", self.vault("host-is-dead", "a"))
        wait_until("nothing is kept back", 20, lambda: self.info(b)["dirty_bytes"] == 0)
        self.assertEqual(self.info(b)["quarantine_bytes"], 0)

    @limit(120)
    def test_keys_change_while_peers_are_there(self):
        a, b = self.start()
        ledger = Ledger()
        writer = Writer(ledger, self.uri(a))
        writer.check()
        self.paired(a)
        for daemon in (a, b):
            for keys in ({"share": 50}, {"peers": 1}):
                daemon.file.write_text(hierarchy(daemon.name, **keys))
                child = self.rig.start(lamina_binary(), "apply", daemon.file, "--control", daemon.control, name="apply")
                writer.pump_until(lambda: child.exit_code() is not None, 30)
                self.assertEqual(child.exit_code(), 0, child.output())
                writer.pump_until(lambda: self.info(a)["policy"] == "write-back", 30)
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        a.kill()
        Writer(ledger, self.uri(b)).check()

    @limit(120)
    def test_a_lost_peer_holds_nobody_up_for_long(self):
        """Writes go on within two seconds, wait for the store then, and the peer joins again when it is back."""
        a, b = self.start()
        ledger = Ledger()
        writer = Writer(ledger, self.uri(a))
        writer.check()
        self.paired(a)
        for lose, find in ((b.kill, b.start), (self.stop(b), self.go_on(b))):
            writer.pump_until(iter([False] * 100 + [True]).__next__)
            lose()
            writer.pump_until(lambda: self.info(a)["policy"] == "write-through", 2)
            answered = sum(ledger.answered)
            writer.pump_until(lambda: sum(ledger.answered) > answered, 2)
            find()
            writer.pump_until(lambda: self.info(a)["policy"] == "write-back", 30)
        self.assertEqual(self.info(a)["peers"]["connected"][0]["host"], "b")
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        a.kill()
        Writer(ledger, self.uri(b)).check()

    def stop(self, daemon):
        return lambda: daemon.proc.signal(signal.SIGSTOP)

    def go_on(self, daemon):
        return lambda: daemon.proc.signal(signal.SIGCONT)

    @limit(120)
    def test_a_peer_that_lacks_writes_does_not_take_over(self):
        """It was away when the last of them were made: only the host that has them serves the volume."""
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        self.paired(a)
        self.store.proc.signal(signal.SIGSTOP)
        client.pwrite(b"2" * MIB, 0)
        b.kill()
        wait_until("the vault names a alone", 10, lambda: self.info(a)["peers"]["there"] == 0)
        a.kill()
        self.store.proc.signal(signal.SIGCONT)
        b.start()
        with self.assertRaises(nbd.Error):
            self.client(b).pread(4096, 0)
        self.assertIn("only flash", b.log())
        a.start()
        self.assertEqual(self.client(a).pread(MIB, 0), b"2" * MIB)
        self.paired(a)


class Certificates(Peers):
    """Hosts that encrypt what they say, and know each other by certificates."""

    def setUp(self):
        self.tls = {}
        super().setUp()

    def host(self, host):
        if not self.tls:
            self.ours, self.others = Authority(self.rig), Authority(self.rig, "others")
            for authority in (self.ours, self.others):
                for name in "abc":
                    authority.issue(name)
        self.tls[host] = self.ours.keys(host)
        daemon = Lamina(self.rig, hierarchy(host, tls=self.tls[host]), name=host, start=False)
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    def restart(self, daemon, tls):
        """It ends, and begins with these files."""
        self.assertEqual(daemon.stop(), 0, daemon.log())
        daemon.file.write_text(hierarchy(daemon.name, tls=tls))
        daemon.start()

    def address(self, host):
        """Where it takes the writes of others, as the vault says."""
        beat, = self.rig.path("vault").glob(f"{host}.*.beat")
        text = beat.read_text(errors="replace")
        address = json.loads(text[text.index("{"):text.rindex("}") + 1])["address"]
        name, _, port = address.removeprefix("tcp:").rpartition(":")
        return name, int(port)

    @limit(120)
    def test_a_killed_host_is_followed_by_its_peer(self):
        here, there = self.start()
        ledger = Ledger()
        Writer(ledger, self.uri(here)).check()
        for n in range(2):
            self.paired(here)
            writer = Writer(ledger, self.uri(here), n)
            writer.pump_until(iter([False] * 200 + [True]).__next__)
            here.kill()
            follower = Writer(ledger, self.uri(there), n)
            follower.check()
            here.start()
            follower.pump_until(iter([False] * 50 + [True]).__next__)
            follower.close()
            here, there = there, here
        self.paired(here)
        self.assertEqual(here.stop(), 0, here.log())
        Writer(ledger, self.uri(there)).check()

    @limit(240)
    def test_a_host_with_a_wrong_certificate_is_no_peer(self):
        """The volume goes on without it, both hosts say why, and the right certificate makes it a peer again."""
        a, b = self.start()
        ledger = Ledger()
        writer = Writer(ledger, self.uri(a))
        writer.check()
        self.paired(a)
        ours, others, right = self.ours, self.others, self.tls["b"]
        for what, tls, here, there in (
            ("of another authority", others.keys("b", trusts=ours), "invalid peer certificate",
             "does not take the certificate"),
            ("that trusts another authority", ours.keys("b", trusts=others), "does not take the certificate",
             "invalid peer certificate"),
            ("of another host", ours.keys("c"), 'not valid for name "b"', "other hosts do not take this certificate"),
            ("without certificates", None, "ended during the TLS handshake", "the other host encrypts what it says"),
        ):
            with self.subTest(what):
                self.restart(b, tls)
                writer.pump_until(lambda: here in str(self.info(a)["peers"]["waits"]), 20)
                self.assertIn("host b: ", self.info(a)["peers"]["waits"])
                writer.pump_until(lambda: there in b.log(), 10)
                writer.pump_until(lambda: here in a.log(), 10)
                self.assertEqual(self.info(a)["policy"], "write-through")
                answered = sum(ledger.answered)
                writer.pump_until(lambda: sum(ledger.answered) > answered, 5)
        self.restart(b, right)
        writer.pump_until(lambda: self.info(a)["policy"] == "write-back", 30)
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        a.kill()
        Writer(ledger, self.uri(b)).check()

    @limit(120)
    def test_a_host_that_cannot_show_that_it_has_the_volume_is_refused(self):
        """It is one of ours, with the certificate of another one, or it does not encrypt: its peer forgets nothing for it."""
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        self.paired(a)
        for what, tls, here, there in (
            ("of another host", self.ours.keys("c"), "host a has the volume, and this is another one",
             "host a has the volume, and this is another one"),
            ("without certificates", "off", "the other host encrypts what it says", "sends no TLS"),
        ):
            with self.subTest(what):
                self.restart(a, tls)
                client = self.client(a)
                client.pwrite(b"2" * MIB, 0)
                wait_until("it says why it has no peer", 20, lambda: here in str(self.info(a)["peers"]["waits"]))
                wait_until("its peer says so, too", 10, lambda: there in b.log())
                self.assertEqual(client.pread(MIB, 0), b"2" * MIB)
        self.restart(a, self.tls["a"])
        self.assertEqual(self.client(a).pread(MIB, 0), b"2" * MIB)
        self.paired(a)

    @limit(120)
    def test_strangers_at_the_port_disturb_nobody(self):
        a, b = self.start()
        ledger = Ledger()
        writer = Writer(ledger, self.uri(a))
        writer.check()
        self.paired(a)
        address = self.address("b")
        # Nothing, nonsense, and the begin of a handshake.
        for begin in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\x40\x00"):
            with socket.create_connection(address, 5) as stranger:
                stranger.sendall(begin)
                began = time.monotonic()
                stranger.setblocking(False)

                def has_ended():
                    try:
                        return stranger.recv(1024) == b""
                    except BlockingIOError:
                        return False
                    except ConnectionError:
                        return True

                writer.pump_until(has_ended, 10)
                self.assertLess(time.monotonic() - began, 8)
        # One that encrypts, and shows no certificate, or one of another authority.
        for authority in (None, self.others):
            context = ssl.create_default_context(cafile=self.rig.path("pki/ca-cert.pem"))
            if authority:
                files = authority.keys("a")
                context.load_cert_chain(self.rig.path(files["certificate"]), self.rig.path(files["key"]))
            with socket.create_connection(address, 5) as stranger:
                with self.assertRaises(OSError), context.wrap_socket(stranger, server_hostname="b") as tls:
                    self.assertNotEqual(tls.recv(1024), b"", "it is told")
        for words in ("it says nothing", "sends no TLS", "sent no certificates", "invalid peer certificate"):
            self.assertIn(words, b.log())
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        info = self.info(a)
        self.assertEqual((info["policy"], info["peers"]["there"]), ("write-back", 1))
        self.assertNotIn("a peer is lost", a.log())
        a.kill()
        Writer(ledger, self.uri(b)).check()

    @limit(60)
    def test_files_that_cannot_be_used_are_named(self):
        daemon = self.hosts["a"]
        for tls, words in (
            ({**self.tls["a"], "key": "none.pem"}, "none.pem: "),
            ({**self.tls["a"], "key": "pki/b-key.pem"}, "pki/b-key.pem"),
            ({**self.tls["a"], "ca": "pki/a-key.pem"}, "there is no certificate in this file"),
        ):
            daemon.file.write_text(hierarchy("a", tls=tls))
            done = run(lamina_binary(), "serve", daemon.file, "--control", daemon.control, check=False, cwd=self.rig.path(""))
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertIn(words, done.stdout + done.stderr)
        reached = hierarchy("a", "10.99.0.1")
        done = run(lamina_binary(), "check", self.rig.write("open.toml", reached), check=False)
        self.assertEqual(done.returncode, 2, done.stdout)
        for words in ('key "listen": other machines reach tcp:10.99.0.1:0', 'tls = "off"'):
            self.assertIn(words, done.stderr)
        run(lamina_binary(), "check", self.rig.write("off.toml", hierarchy("a", "10.99.0.1", "off")))


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Links(Peers):
    def host(self, host):
        if not hasattr(self, "network"):
            self.network = self.enterContext(Network(["a", "b"]))
            self.authority = Authority(self.rig)
        address, tls = self.network.addresses[host], self.authority.issue(host).keys(host)
        daemon = Lamina(self.rig, hierarchy(host, address, tls), name=host, start=False, at=self.network.at(host))
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    @limit(120)
    def test_a_link_that_is_cut_stops_nobody(self):
        """The host goes on without its peer, and with it when the link is there again."""
        a, b = self.start()
        ledger = Ledger()
        writer = Writer(ledger, self.uri(a))
        writer.check()
        self.paired(a)
        for host in ("a", "b"):
            writer.pump_until(iter([False] * 100 + [True]).__next__)
            self.network.cut(host)
            writer.pump_until(lambda: self.info(a)["policy"] == "write-through", 3)
            writer.pump_until(iter([False] * 100 + [True]).__next__)
            # The peer lacks what was written since, and the host lives.
            with self.assertRaises(nbd.Error):
                self.client(b).pread(4096, 0)
            self.network.join(host)
            writer.pump_until(lambda: self.info(a)["policy"] == "write-back", 30)
        writer.pump_until(iter([False] * 100 + [True]).__next__)
        a.kill()
        Writer(ledger, self.uri(b)).check()
