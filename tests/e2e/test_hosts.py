"""Two hosts in front of one store, each with a flash of its own: the volume is one host's at a time, and no write is lost when it
changes hands, when a host dies, or when it is taken for dead and is not."""

import re
import shlex
import signal

import nbd

from common import MIB, RigCase, limit
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ledger import Ledger, Writer, read

STORE = """\
[device.disk]
type = "file"
path = "disk.img"
size = "48MiB"

[export.disk]
device = "disk"
nbd = "unix:store.sock"
"""


def hierarchy(host, **keys):
    """The volume as a host serves it: from its flash, in front of the store."""
    devices = {
        "remote": {"type": "nbd", "address": "unix:store.sock"},
        "san": {"type": "reservation", "over": "remote", "vault": "vault", "volume": "vm1", "host": host, "lease": "2s"},
        # The store takes its time, so that only the flash has what was written last.
        "nvme": {"type": "file", "path": f"nvme-{host}.img", "size": "24MiB"},
        "cache": {"type": "flash", "over": "nvme"},
        "vm1": {"type": "accelerate", "over": ["san", "cache"], **keys},
    }
    return written(devices, {"vm1": {"device": "vm1", "nbd": f"unix:{host}.sock"}}, name=f"vm1-{host}")


class Hosts(RigCase):
    def setUp(self):
        super().setUp()
        self.store = Lamina(self.rig, STORE, name="store")
        self.hosts = {host: self.host(host) for host in ("a", "b")}

    def host(self, host, **keys):
        daemon = Lamina(self.rig, hierarchy(host, **keys), name=host, start=False)
        self.lamina("create", daemon.file)
        return daemon

    def lamina(self, *words, check=True):
        return run(lamina_binary(), *words, check=check, seconds=60, cwd=self.rig.path(""))

    def refused(self, host):
        """The message of a host that may not have the volume."""
        daemon = self.hosts[host]
        control = self.rig.path(f"{host}-refused.ctl")
        child = self.rig.start(lamina_binary(), "serve", daemon.file, "--control", control, name=f"{host}-refused")
        self.assertNotEqual(child.wait(30), 0)
        return child.output()

    def uri(self, host):
        return self.hosts[host].uri("vm1", f"{host}.sock")

    def client(self, host):
        client = nbd.NBD()
        client.connect_uri(self.uri(host))
        return client

    def advised(self, message):
        """Does what a message says, with the folder of the vault."""
        words = shlex.split(re.search(r"`lamina ([^`]*)`", message).group(1).replace("VAULT", "vault"))
        return self.lamina(*words)

    @limit(120)
    def test_the_volume_changes_hands(self):
        """One host after the other serves it under load, and finds all that the others have written."""
        ledger = Ledger()
        for n, host in enumerate("abaab"):
            self.hosts[host].start()
            writer = Writer(ledger, self.uri(host), n)
            writer.check()
            writer.pump_until(iter([False] * 300 + [True]).__next__)
            writer.close()
            if n == 0:
                message = self.refused("b")
                self.assertIn('a (flash', message)
                self.assertIn("is alive", message)
            self.assertEqual(self.hosts[host].stop(), 0, self.hosts[host].log())
        shown = self.lamina("vault", "vault").stdout
        self.assertRegex(shown, r"(?m)^vm1 +- +5 +- +b$")

    @limit(120)
    def test_a_host_dies_with_writes_that_only_its_flash_has(self):
        a = self.hosts["a"].start()
        client = self.client("a")
        client.pwrite(b"1" * MIB, 0)
        client.flush()
        wait_until("the store has it", 20, lambda: a.device("vm1")["info"]["dirty_bytes"] == 0)
        self.store.proc.signal(signal.SIGSTOP)
        client.pwrite(b"2" * MIB, 0)
        client.flush()
        a.kill()
        self.store.proc.signal(signal.SIGCONT)
        message = self.refused("b")
        self.assertIn("that only flash", message)
        self.assertRegex(message, r"last held by a \(flash [0-9a-f-]{36}\)")
        flash = re.search(r"only flash ([0-9a-f-]{36})", message).group(1)
        self.assertIn(flash, self.lamina("vault", "vault").stdout)
        # The host is back with its flash, and nothing is lost.
        a.start()
        self.assertEqual(self.client("a").pread(MIB, 0), b"2" * MIB)
        self.assertEqual(a.stop(), 0, a.log())
        self.hosts["b"].start()
        self.assertEqual(self.client("b").pread(MIB, 0), b"2" * MIB)

    @limit(120)
    def test_a_lost_flash_is_given_up(self):
        a = self.hosts["a"].start()
        client = self.client("a")
        client.pwrite(b"1" * MIB, 0)
        client.flush()
        wait_until("the store has it", 20, lambda: a.device("vm1")["info"]["dirty_bytes"] == 0)
        a.kill()
        message = self.refused("b")
        self.assertIn("only flash", message)
        refused = self.lamina("vault", "vault", "accept-loss", "vm1", "--force", check=False)
        self.assertIn("say that it is dead", refused.stderr)
        self.lamina("vault", "vault", "host-is-dead", "a")
        asked = self.lamina("vault", "vault", "accept-loss", "vm1", check=False)
        self.assertIn("say --force to confirm", asked.stderr)
        self.assertIn("only flash", self.refused("b"))
        self.lamina("vault", "vault", "accept-loss", "vm1", "--force")
        self.assertIn("nothing is lost", self.lamina("vault", "vault", "accept-loss", "vm1").stdout)
        unknown = self.lamina("vault", "vault", "accept-loss", "vm2", "--force", check=False)
        self.assertIn('has no volume "vm2"', unknown.stderr)
        self.hosts["b"].start()
        client = self.client("b")
        self.assertEqual(client.pread(MIB, 0), b"1" * MIB)
        client.pwrite(b"3" * MIB, 0)
        client.shutdown()
        self.assertEqual(self.hosts["b"].stop(), 0, self.hosts["b"].log())
        # What the first host's flash has is old by now.
        a.start()
        self.assertEqual(self.client("a").pread(MIB, 0), b"3" * MIB)

    @limit(120)
    def test_a_silent_host_is_fenced_when_a_person_says_that_it_is_dead(self):
        for host in "ab":
            self.hosts[host] = self.other(host)
        a = self.hosts["a"].start()
        client = self.client("a")
        client.pwrite(b"1" * MIB, 0)
        a.proc.signal(signal.SIGSTOP)
        message = self.refused("b")
        self.assertIn("is silent", message)
        self.assertIn('volume "vm1" is free: its store has everything', self.advised(message).stdout)
        b = self.hosts["b"].start()
        other = self.client("b")
        self.assertEqual(other.pread(MIB, 0), b"1" * MIB)
        other.pwrite(b"2" * MIB, 0)
        # It was not dead. What it is asked fails, and it writes nothing.
        a.proc.signal(signal.SIGCONT)
        wait_until("it is fenced", 10, lambda: a.device("san")["info"]["state"] == "fenced")
        for request in (lambda: client.pread(4096, 0), lambda: client.pwrite(b"9" * 4096, 0)):
            with self.assertRaises(nbd.Error):
                request()
        shown = self.lamina("show", "--control", a.control).stdout
        self.assertRegex(shown, r'(?m)^san is fenced: volume "vm1": b \(flash')
        self.assertNotIn("lost", shown)
        a.stop()
        self.assertEqual(other.pread(MIB, 0), b"2" * MIB)
        other.flush()
        self.assertEqual(b.stop(), 0, b.log())
        a.start()
        self.assertEqual(self.client("a").pread(MIB, 0), b"2" * MIB)

    def other(self, host):
        """The same host, whose writes wait for the store."""
        daemon = self.hosts[host]
        daemon.file.write_text(hierarchy(host, policy="write-through"))
        self.lamina("create", "--force", daemon.file)
        return daemon
