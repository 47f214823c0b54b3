"""Several hosts as people see them: `lamina cluster`, the sentence about what a volume survives, metrics and the log, while hosts
die, are cut off, and while everything hangs; and the alerts for Prometheus."""

import json
import os
import signal
import time
import unittest

import nbd
import yaml

import test_peers
from common import MIB, limit
from rig import Lamina, lamina_binary, run, wait_until
from rig.certificates import Authority
from rig.files import CACHE, ROOT
from rig.network import Network
from test_peers import LEASE, hierarchy

# An answer from memory takes milliseconds; machines that run tests are busy.
AT_ONCE = 2


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Clusters(test_peers.Peers):
    def host(self, host):
        if not hasattr(self, "network"):
            self.network = self.enterContext(Network(["a", "b"]))
            self.authority = Authority(self.rig)
        address, tls = self.network.addresses[host], self.authority.issue(host).keys(host)
        daemon = Lamina(self.rig, hierarchy(host, address, tls), name=host, start=False, at=self.network.at(host))
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    def told(self, daemon, *words):
        return run(lamina_binary(), "cluster", "--control", daemon.control, *words).stdout

    def cluster(self, daemon):
        """The answer, and the volume and the other host in it."""
        began = time.monotonic()
        answer = json.loads(self.told(daemon, "--json"))
        self.assertLess(time.monotonic() - began, AT_ONCE)
        volume, = answer["volumes"]
        others = [host for host in answer["hosts"] if not host["here"]]
        return volume, others[0] if others else {"state": None}

    def both(self):
        """Both hosts, of which the first one has the volume with the other one as its peer, and has heard it."""
        a, b = self.start()
        self.client(a).pwrite(b"1" * MIB, 0)
        self.paired(a)
        for daemon in (a, b):
            wait_until("they have heard each other", 20, lambda: self.cluster(daemon)[1]["state"] == "alive")
        return a, b

    @limit(120)
    def test_both_hosts_tell_what_the_volume_survives(self):
        a, b = self.both()
        here, other = self.cluster(a)
        self.assertEqual((here["host"], here["role"], here["mode"], here["generation"]), ("a", "primary", "back", 1))
        self.assertEqual([(m["host"], m["state"]) for m in here["members"]], [("a", "primary"), ("b", "following")])
        self.assertEqual((here["survives"], here["takeover"], here["command"]), (1, "automatic", None))
        self.assertEqual(here["unprotected_bytes"], 0)
        self.assertIn("survives the loss of 1 flash or 1 host; another host takes over by itself", here["promise"])
        self.assertEqual((other["name"], other["address"].rpartition(":")[0]), ("b", f"tcp:{self.network.addresses['b']}"))
        # It looks twice in a lease.
        wait_until("b has seen it", LEASE, lambda: self.cluster(b)[0]["survives"] == 1)
        there, _ = self.cluster(b)
        self.assertEqual((there["host"], there["role"], there["takeover"]), ("a", "standby", "automatic"))
        self.assertIn("this host takes over by itself", there["promise"])
        # One sentence everywhere.
        self.assertIn(f"vm1: {here['promise']}\n", a.tree())
        self.assertEqual(json.loads(a.ctl("vm1", "info"))["info"]["promise"], here["promise"])
        text = self.told(a)
        for line in (r"(?m)^a +tcp:10\.99\.0\.1:\d+ +this host +-$", r"(?m)^b +tcp:10\.99\.0\.2:\d+ +alive +\d+s ago$",
                     r"(?m)^vm1 +a +back +primary +1 +2 ", r"(?m)^vm1 +b +following +[0-9a-f-]{36} +\d+$"):
            self.assertRegex(text, line)
        self.assertIn(f"vm1: {here['promise']}\n", text)

    @limit(120)
    def test_a_takeover_is_told_and_counted_and_logged(self):
        a, b = self.both()
        a.kill()
        wait_until("a is silent", 20, lambda: self.cluster(b)[1]["state"] == "silent")
        there, _ = self.cluster(b)
        self.assertIn("host a is silent; without it every acknowledged write is on one flash", there["promise"])
        self.assertIn('lamina_reservation_hosts_silent{device="san"} 1\n', b.get("/metrics"))
        self.assertEqual(self.client(b).pread(MIB, 0), b"1" * MIB)
        there, _ = self.cluster(b)
        self.assertEqual((there["host"], there["role"], there["generation"]), ("b", "primary", 2))
        metrics = b.get("/metrics")
        for line in ('lamina_reservation_takeovers_total{device="san"} 1\n', 'lamina_reservation_generation{device="san"} 2\n',
                     'lamina_accelerate_peers{device="vm1"} 0\n', 'lamina_accelerate_peers_wanted{device="vm1"} 1\n'):
            self.assertIn(line, metrics)
        self.assertRegex(b.log(), r"this host has the volume now.*a \(flash [0-9a-f-]{36}\) is silent")
        self.assertIn("another host is silent", b.log())
        a.start()
        self.paired(b)
        # Its past is over when its store has settled.
        wait_until("a takes over", 20, lambda: self.cluster(a)[0]["takeover"] == "automatic" and self.cluster(a)[0]["survives"])
        self.assertIn("this host takes over by itself", self.cluster(a)[0]["promise"])
        wait_until("b says so", LEASE, lambda: "another host beats again" in b.log())

    @limit(120)
    def test_a_host_that_is_cut_off_is_alive_and_out_of_reach(self):
        a, b = self.both()
        self.network.cut("b")
        wait_until("b is unreachable", 30, lambda: self.cluster(a)[1]["state"] == "unreachable")
        wait_until("the store has everything", 20, lambda: self.cluster(a)[0]["mode"] == "through")
        here, other = self.cluster(a)
        self.assertTrue(other["why"], other)
        self.assertIn("1 peer wanted: ", here["promise"])
        self.assertEqual(here["takeover"], "confirmed")
        self.assertIn("host-is-dead a", here["command"])
        self.assertIn('lamina_reservation_hosts_unreachable{device="san"} 1\n', a.get("/metrics"))
        for words in ("a peer is lost", "writes wait for the store from now on", "the vault names a lost peer no more",
                      "no peer counts any more"):
            self.assertIn(words, a.log())
        self.network.join("b")
        self.paired(a)
        wait_until("b is alive", 20, lambda: self.cluster(a)[1]["state"] == "alive")

    @limit(120)
    def test_the_answer_is_there_while_store_and_vault_and_peer_hang(self):
        a, b = self.both()
        uuid, = {path.name.split(".")[1] for path in self.rig.path("vault").glob("a.*.beat")}
        # Whoever opens this for reading waits: the next look at the beats of all hosts does not end.
        pipe = self.rig.path(f"vault/hangs.{uuid}.beat")
        os.mkfifo(pipe)
        try:
            wait_until("the vault hangs", 20, lambda: self.cluster(a)[0]["vault_seconds"] > LEASE)
            self.store.proc.signal(signal.SIGSTOP)
            b.proc.signal(signal.SIGSTOP)
            client = self.client(a)
            cookie = client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"2" * MIB)), 0)
            wait_until("the peer is lost", 20, lambda: self.cluster(a)[0]["members"][1]["state"] == "lost")
            for _ in range(20):
                here, other = self.cluster(a)
                self.assertEqual((here["host"], here["role"], here["survives"]), ("a", "primary", 0))
                self.assertIn("the vault does not answer", here["promise"])
                self.assertEqual(other["state"], "unknown")
                self.assertIn("vm1: ", self.told(a))
                client.poll(10)
            self.assertFalse(client.aio_command_completed(cookie), "nobody acknowledges what only this host has")
        finally:
            for daemon in (b, self.store):
                daemon.proc.signal(signal.SIGCONT)
            # Whoever waits for the pipe finds its end.
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            pipe.unlink()
            os.close(end)

        def completed():
            client.poll(10)
            return client.aio_command_completed(cookie)

        wait_until("the write is acknowledged", 30, completed)
        wait_until("the vault answers", 20, lambda: self.cluster(a)[0]["vault_seconds"] < LEASE)


class Alerts(unittest.TestCase):
    """The alerts that come with Lamina; `cargo test -p lamina alerts` compares their metrics with the program's."""

    PATH = ROOT / "docs/alerts/lamina.yml"

    def test_each_says_what_helps(self):
        group, = yaml.safe_load(self.PATH.read_text())["groups"]
        names = [rule["alert"] for rule in group["rules"]]
        self.assertEqual(len(names), len(set(names)))
        for rule in group["rules"]:
            with self.subTest(rule["alert"]):
                self.assertIn(rule["labels"]["severity"], ("info", "warning", "critical"))
                self.assertEqual(set(rule["annotations"]), {"summary", "description"})
                self.assertRegex(rule["annotations"]["description"], "`lamina [a-z]+")

    def test_prometheus_takes_them(self):
        promtool = CACHE / "prometheus/usr/bin/promtool"
        self.assertIn("SUCCESS", run(promtool, "check", "rules", self.PATH).stdout)
