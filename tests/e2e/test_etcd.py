"""Hosts whose vault is in an etcd of three members: members that die, most of them, a full database, certificates; and the
volume on an image of Ceph."""

import json
import os
import re
import shlex
import signal
import time
import unittest

from clusters import may_read, times
from common import MIB, RigCase, limit
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ceph import Ceph
from rig.certificates import Authority
from rig.etcd import CLIENT, Etcd
from rig.ledger import Ledger, Writer
from rig.network import Network
from test_hosts import STORE

FAR = {"type": "nbd", "address": "unix:store.sock"}


class EtcdCase(RigCase):
    """Two hosts with a flash each in front of one store."""

    def host(self, name, store=FAR, at=(), address="127.0.0.1", **reservation):
        devices = {
            "store": store,
            "san": {
                "type": "reservation", "over": "store", "vault": self.etcd.vault, "volume": "vm1", "host": name,
                "lease": "2s", "listen": f"tcp:{address}:0", "settles": "1s", "tls": "off", **reservation,
            },
            "nvme": {"type": "file", "path": f"nvme-{name}.img", "size": "64MiB"},
            "cache": {"type": "flash", "over": "nvme"},
            "vm1": {"type": "accelerate", "over": ["san", "cache"], "peers": 1},
        }
        exports = {"vm1": {"device": "vm1", "nbd": f"unix:{name}.sock"}}
        daemon = Lamina(self.rig, written(devices, exports, name=f"vm1-{name}"), name=name, start=False, at=at)
        run(*at, lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    def vault(self, *words, check=True):
        return run(lamina_binary(), "vault", self.etcd.vault, *words, cwd=self.rig.path(""), check=check)

    def writer(self, daemon, ledger, seed):
        writer = Writer(ledger, self.uri(daemon), seed)
        writer.check()
        return writer

    def uri(self, daemon):
        return daemon.uri("vm1", f"{daemon.name}.sock")

    def paired(self, daemon):
        wait_until("a peer", 60, lambda: daemon.device("vm1")["info"]["policy"] == "write-back")

    def trouble(self, daemon):
        return daemon.device("san")["info"]["vault_trouble"]


class Members(EtcdCase):
    def setUp(self):
        super().setUp()
        self.etcd = Etcd(self.rig)
        self.store = Lamina(self.rig, STORE, name="store")

    @limit(240)
    def test_any_member_may_die_and_so_may_a_host(self):
        here, there = (self.host(name) for name in "ab")
        here.start()
        there.start()
        ledger = Ledger()
        for n in range(3):
            writer = self.writer(here, ledger, n)
            self.paired(here)
            self.etcd.kill(n)
            began = time.monotonic()
            # For several leases: beats go on, and nobody is taken for dead.
            writer.pump_until(lambda: time.monotonic() - began > 5)
            self.assertIsNone(self.trouble(here))
            here.kill()
            follower = self.writer(there, ledger, n)
            follower.pump_until(times(50))
            self.etcd.start(n)
            wait_until("etcd has all members", 30, lambda: self.etcd.ctl("endpoint", "health", members=range(3)) is not None)
            here.start()
            follower.close()
            here, there = there, here
        self.assertRegex(self.vault().stdout, rf"(?m)^vm1 +{here.name} ")
        self.paired(here)
        self.assertEqual(here.stop(), 0, here.log())
        self.assertEqual(there.stop(), 0, there.log())
        self.assertRegex(self.vault().stdout, r"(?m)^vm1 +- ")

    @limit(180)
    def test_while_most_members_are_away_no_volume_changes_hands(self):
        here, there = (self.host(name) for name in "ab")
        here.start()
        there.start()
        ledger = Ledger()
        writer = self.writer(here, ledger, 1)
        self.paired(here)
        # For several leases: the host cannot know whether it has the volume, and requests wait.
        self.most(signal.SIGSTOP)
        began = time.monotonic()
        writer.pump_until(lambda: time.monotonic() - began > 8)
        self.most(signal.SIGCONT)
        writer.pump_until(times(100))
        writer.close()
        self.assertEqual(here.device("san")["info"]["generation"], 1)
        # And for longer, while nobody asks for anything.
        self.most(signal.SIGSTOP)
        words = wait_until("a host says so", 30, lambda: self.trouble(here))
        self.assertIn("no member of etcd answers", words)
        refused = self.vault(check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("no member of etcd answers", refused.stderr)
        self.assertFalse(may_read(self.uri(there)))
        self.most(signal.SIGCONT)
        wait_until("the vault answers", 30, lambda: self.trouble(here) is None)
        writer = self.writer(here, ledger, 2)
        writer.pump_until(times(50))
        writer.close()
        self.assertEqual(here.device("san")["info"]["generation"], 1)
        self.assertEqual(here.stop(), 0, here.log())
        self.writer(there, ledger, 3).close()

    def most(self, signal):
        """Sends a signal to two of three members."""
        for number in (0, 1):
            self.etcd.stop(number, signal)

    @limit(120)
    def test_all_members_begin_again_with_what_they_had(self):
        here = self.host("a").start()
        ledger = Ledger()
        writer = self.writer(here, ledger, 1)
        writer.pump_until(times(50))
        for number in range(3):
            self.etcd.kill(number)
        for number in range(3):
            self.etcd.start(number)
        wait_until("etcd to have a leader", 30, self.etcd.is_healthy)
        wait_until("the vault answers", 30, lambda: self.trouble(here) is None)
        writer.pump_until(times(50))
        here.kill()
        here.start()
        self.writer(here, ledger, 2).close()


class Full(EtcdCase):
    @limit(120)
    def test_a_full_database_is_named_and_the_advice_helps(self):
        self.etcd = Etcd(self.rig, options=["--quota-backend-bytes", str(16 * MIB)])
        self.store = Lamina(self.rig, STORE, name="store")
        here = self.host("a").start()
        ledger = Ledger()
        writer = self.writer(here, ledger, 1)
        junk = self.rig.file("junk", MIB, os.urandom)
        for _ in range(24):
            run("sh", "-c", f"base64 -w0 {junk} | {CLIENT} --endpoints {self.etcd.vault[5:]} put junk", check=False,
                env={"ETCDCTL_API": "3"})
        words = wait_until("it is full", 30, lambda: self.trouble(here))
        self.assertIn("space exceeded", words)
        writer.pump_until(times(50))
        # As the words say, in their order.
        advised = [shlex.split(command) for command in re.findall(r"`(etcdctl [^`]*)`", words)]
        self.assertEqual([words[1] for words in advised], ["compact", "defrag", "alarm"])
        status = json.loads(self.etcd.ctl("endpoint", "status", "--write-out", "json"))
        for command, *more in (words[1:] for words in advised):
            more = [str(status[0]["Status"]["header"]["revision"])] if command == "compact" else more
            self.etcd.ctl(command, *more, members=range(3) if command == "defrag" else None)
        wait_until("the vault answers", 30, lambda: self.trouble(here) is None)
        writer.pump_until(times(50))
        writer.close()
        self.assertEqual(here.stop(), 0, here.log())


class Certificates(EtcdCase):
    @limit(120)
    def test_etcd_and_hosts_show_certificates(self):
        own, stranger = (Authority(self.rig, name).issue("localhost") for name in ("own", "stranger"))
        self.etcd = Etcd(self.rig, tls=own)
        self.store = Lamina(self.rig, STORE, name="store")
        keys = own.keys("localhost")
        here = self.host("a", **{"vault-tls": keys}).start()
        ledger = Ledger()
        writer = self.writer(here, ledger, 1)
        writer.pump_until(times(50))
        writer.close()
        files = [word for key in ("ca", "certificate", "key") for word in (f"--{key}", keys[key])]
        self.assertRegex(self.vault(*files).stdout, r"(?m)^vm1 +a ")
        only_ca = {"ca": keys["ca"]}
        for tls, says in [
            (None, "no member of etcd answers"),
            (only_ca, "the other side does not take the certificate of this one"),
            (stranger.keys("localhost"), "UnknownIssuer"),
            (stranger.keys("localhost", trusts=own), "the other side does not take the certificate of this one"),
        ]:
            with self.subTest(says=says):
                words = [word for key, file in (tls or {}).items() for word in (f"--{key}", file)]
                refused = self.vault(*words, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(says, refused.stderr)
        self.assertEqual(here.stop(), 0, here.log())


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Together(EtcdCase):
    """Hosts, members of etcd and Ceph in namespaces of their own."""

    @limit(400)
    def test_ceph_holds_the_data_and_etcd_the_vault(self):
        members = [f"etcd{n}" for n in range(3)]
        network = self.enterContext(Network(["a", "b", "ceph", *members]))
        self.etcd = Etcd(self.rig, hosts=[(network.addresses[name], network.at(name)) for name in members])
        ceph = Ceph(self.rig, network.addresses["ceph"], network.at("ceph"))
        image = {"type": "rbd", "image": ceph.image("vm1", 48), "conf": "ceph/ceph.conf", "shared": True}
        here, there = (
            self.host(name, store=image, at=network.at(name), address=network.addresses[name]) for name in "ab"
        )
        here.start(seconds=60)
        there.start(seconds=60)
        ledger = Ledger()
        writer = self.writer(here, ledger, 1)
        self.paired(here)
        writer.pump_until(times(50))
        self.etcd.kill(0)
        ceph.kill("osd")
        began = time.monotonic()
        # What waits for the store waits; what the flashes take goes on.
        writer.pump_until(lambda: time.monotonic() - began > 4)
        ceph.start("osd")
        writer.pump_until(times(50), seconds=90)
        here.kill()
        follower = self.writer(there, ledger, 2)
        follower.pump_until(times(50))
        follower.close()
        # One member is back, and another one is cut off.
        self.etcd.start(0)
        network.cut("etcd1")
        here.start(seconds=60)
        self.paired(there)
        follower = self.writer(there, ledger, 3)
        follower.pump_until(times(50))
        follower.close()
        network.join("etcd1")
        self.assertEqual(there.stop(), 0, there.log())
        wait_until("the other host has it", 60, lambda: may_read(self.uri(here)))
        self.writer(here, ledger, 4).close()
        self.assertEqual(here.stop(), 0, here.log())
