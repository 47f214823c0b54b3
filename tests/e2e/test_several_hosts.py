"""The guide docs/several-hosts.md: its commands, as they stand there but for addresses and folders."""

import os
import re
import unittest

from clusters import may_read, times
from common import RigCase, limit
from rig import lamina_binary, run, wait_until
from rig.ceph import Ceph
from rig.etcd import Etcd
from rig.files import ROOT
from rig.ledger import Ledger, Writer
from rig.network import Network

GUIDE = (ROOT / "docs/several-hosts.md").read_text()
ETCD = "10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
NAMES = "abc"


def blocks(kind):
    """The blocks of the guide that are marked for this, in their order."""
    return re.findall(rf"<!-- {kind} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Guide(RigCase):
    def setUp(self):
        super().setUp()
        self.network = self.enterContext(Network([*NAMES, "ceph"]))
        self.ceph = Ceph(self.rig, self.network.addresses["ceph"], self.network.at("ceph"))
        self.etcd = Etcd(self.rig, [(self.network.addresses[host], self.network.at(host)) for host in NAMES])
        for folder in ("bin", "etc", *NAMES):
            self.rig.path(folder).mkdir()
        self.rig.path("bin/lamina").symlink_to(lamina_binary())
        self.daemons = {}

    def adapted(self, text, host):
        """A text of the guide for a host of this test."""
        folder = self.rig.path(host) if host in NAMES else self.rig.path("etc")
        for old, new in [
            ("/etc/lamina/vm1.toml", folder / "vm1.toml"),
            ("/etc/lamina", self.rig.path("etc")),
            ("/var/lib/lamina", folder),
            ("/run/lamina", folder),
            ("/etc/ceph", self.rig.path("ceph")),
            (ETCD, self.etcd.vault.removeprefix("etcd:")),
            ("100G", "48M"),
            ("200GiB", "64MiB"),
        ]:
            text = text.replace(old, str(new))
        return text

    def sh(self, text, host):
        """Runs commands on a host; what they print."""
        at = self.network.at(host) if host in (*NAMES, "ceph") else []
        text = f"PATH={self.rig.path('bin')}:$PATH\n{self.adapted(text, host)}"
        return run(*at, "sh", "-ec", text, env={"CEPH_CONF": str(self.ceph.conf)}, cwd=self.rig.path("")).stdout

    def serve(self, host):
        """Starts the daemon of a host as the guide does."""
        command = blocks("run: a b c")[0].splitlines()[-1]
        program = self.adapted(command, host).split()
        self.assertEqual(program[:2], ["lamina", "serve"])
        program[0] = lamina_binary()
        self.daemons[host] = self.rig.start(*self.network.at(host), *program, name=f"lamina-{host}")
        self.daemons[host].wait_for("ready", 60)

    def uri(self, host):
        return f"nbd+unix:///vm1?socket={self.rig.path(host)}/vm1.nbd"

    def writer(self, host, ledger, seed):
        writer = Writer(ledger, self.uri(host), seed)
        writer.check()
        return writer

    def cluster(self, host):
        """What `lamina cluster` prints there, as in the guide."""
        command, _vault = blocks("run: a")[0].splitlines()
        return self.sh(command, host)

    @limit(600)
    def test_its_commands(self):
        [ceph], [certificates], [file] = blocks("run: ceph"), blocks("run: anywhere"), blocks("file: vm1.toml")
        self.sh(ceph, "ceph")
        # The library finds the key of a client by its configuration.
        with open(self.ceph.conf, "a") as conf:
            conf.write(f"[client.lamina]\nkeyring = {self.ceph.folder}/ceph.client.lamina.keyring\n")
        self.sh(certificates, "anywhere")
        for host in NAMES:
            own = self.adapted(file, host)
            for old, new in [
                ('host = "a"', f'host = "{host}"'),
                ('"rack1"', f'"rack-{host}"'),
                ("tcp:10.0.0.1:7001", f"tcp:{self.network.addresses[host]}:7001"),
                ("/a-cert.pem", f"/{host}-cert.pem"),
                ("/a-key.pem", f"/{host}-key.pem"),
            ]:
                self.assertIn(old, own)
                own = own.replace(old, new)
            self.rig.write(f"{host}/vm1.toml", own)
            *first, _serve = blocks("run: a b c")[0].splitlines()
            self.sh("\n".join(first), host)
            self.serve(host)
        ledger = Ledger()
        writer = self.writer("a", ledger, 1)
        wait_until("a peer has each write", 90, lambda: "survives the loss of 1 flash or 1 host" in self.cluster("a"))
        writer.pump_until(times(100))
        shown = self.sh(blocks("run: a")[0], "a")
        self.assertRegex(shown, r"(?m)^vm1 +a ")
        # A host dies.
        self.daemons["a"].kill()
        peer = wait_until("a peer has the volume", 60, lambda: next((host for host in "bc" if may_read(self.uri(host))), None))
        writer = self.writer(peer, ledger, 2)
        writer.pump_until(times(50))
        [dead] = blocks("run: b")
        self.assertRegex(self.sh(dead, peer), f'volume "vm1": {peer} .*waits for no late writes any more')
        # It comes back, and the machine moves there.
        self.serve("a")
        moves = blocks("run: a")[1].replace("host=b", "host=a")
        self.sh(moves, peer)
        moved = self.writer("a", ledger, 3)
        moved.pump_until(times(50))
        moved.close()
