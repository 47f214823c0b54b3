"""A store that keeps the records of its hosts, and lets the one write that they name: real daemons that are stopped, killed
and resumed. A volume is taken over without anybody's word, and nothing of a host that was followed lands on the store."""

import re
import shlex
import signal

import nbd

from clusters import may_read, times
from common import MIB, RigCase, limit
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ledger import Ledger, Writer

STORE = """\
[device.disk]
type = "file"
path = "disk.img"
size = "48MiB"

[device.far]
type = "delay"
over = "disk"
write = "5ms"

[export.disk]
device = "far"
nbd = "unix:store.sock"
vault = "vault"
"""


class StoreVault(RigCase):
    def setUp(self):
        super().setUp()
        self.rig.path("vault").mkdir()
        self.store = Lamina(self.rig, STORE, name="store")
        self.hosts = {}

    def lamina(self, *words, check=True):
        return run(lamina_binary(), *words, check=check, seconds=60, cwd=self.rig.path(""))

    def reservation(self, host):
        return {
            "remote": {"type": "nbd", "address": "unix:store.sock", "timeout": "2s"},
            "san": {"type": "reservation", "over": "remote", "volume": "vm1", "host": host, "lease": "2s",
                    "listen": f"unix:{host}-peers.sock"},
        }

    def apart(self, host):
        """That of a host which other hosts cannot connect to."""
        devices = self.reservation(host)
        del devices["san"]["listen"]
        return devices

    def plain(self, host):
        """A host without a flash, which keeps nothing."""
        return self.begun(host, self.reservation(host), "san", keeps=False)

    def cached(self, host, reservation=None, **keys):
        """A host with a flash."""
        devices = {
            **(reservation or self.reservation(host)),
            "nvme": {"type": "file", "path": f"nvme-{host}.img", "size": "24MiB"},
            "cache": {"type": "flash", "over": "nvme"},
            "vm1": {"type": "accelerate", "over": ["san", "cache"], **keys},
        }
        return self.begun(host, devices, "vm1")

    def begun(self, host, devices, top, keeps=True):
        text = written(devices, {"vm1": {"device": top, "nbd": f"unix:{host}.sock"}}, name=f"vm1-{host}")
        if not keeps:
            text = text[text.index("[device."):]
        self.hosts[host] = daemon = Lamina(self.rig, text, name=host, start=False)
        if keeps:
            self.lamina("create", daemon.file)
        return daemon.start()

    def uri(self, daemon):
        return daemon.uri("vm1", f"{daemon.name}.sock")

    def takes(self, daemon, ledger, seed, seconds=20):
        """The writer of a client that asks this host until it has the volume, and has found every write."""
        wait_until(f"{daemon.name} has the volume", seconds, lambda: may_read(self.uri(daemon)))
        writer = Writer(ledger, self.uri(daemon), seed)
        writer.check()
        return writer

    @limit(180)
    def test_a_host_that_hangs_is_followed_and_writes_nothing_any_more(self):
        """Hosts without a flash, the one that has the volume stopped in the middle of its writes, again and again."""
        a, b = self.plain("a"), self.plain("b")
        ledger = Ledger()
        for n, (here, there) in enumerate([(a, b), (b, a), (a, b)]):
            writer = self.takes(here, ledger, n)
            writer.pump_until(times(100))
            here.proc.signal(signal.SIGSTOP)
            other = self.takes(there, ledger, n + 100)
            other.pump_until(times(50))
            # What it had begun, it goes on with.
            here.proc.signal(signal.SIGCONT)
            wait_until("it is fenced", 10, lambda: here.device("san")["info"]["state"] == "fenced")
            self.assertFalse(may_read(self.uri(here)))
            other.pump_until(times(50))
            other.close()
            again = Writer(ledger, self.uri(there), n + 200)
            again.check()
            again.close()
            self.assertIn("is silent", there.log())
            here.kill()
            here.start()
        shown = self.lamina("vault", self.place()).stdout
        self.assertRegex(shown, r"(?m)^vm1 +\S+ +\d+ +-")

    @limit(120)
    def test_a_flash_that_was_stopped_answers_nothing_old(self):
        """A host with a flash that meets no other one: it goes on with a read that its flash could answer."""
        a = self.cached("a", self.apart("a"), policy="write-through")
        client = nbd.NBD()
        client.connect_uri(self.uri(a))
        client.pwrite(b"1" * 4096, 0)
        self.assertEqual(client.pread(4096, 0), b"1" * 4096)
        a.proc.signal(signal.SIGSTOP)
        # It takes the volume when it begins.
        b = self.cached("b", self.apart("b"), policy="write-through")
        other = nbd.NBD()
        other.connect_uri(self.uri(b))
        other.pwrite(b"2" * 4096, 0)
        # It comes first when the host goes on.
        late = nbd.Buffer(4096)
        cookie = client.aio_pread(late, 0)
        while client.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            client.poll(0)
        a.proc.signal(signal.SIGCONT)
        with self.assertRaises(nbd.Error):
            while not client.aio_command_completed(cookie):
                client.poll(-1)
        self.assertIn("has it now", a.log())
        self.assertEqual(other.pread(4096, 0), b"2" * 4096)

    def place(self):
        return f"nbd+unix:///disk?socket={self.rig.path('store.sock')}"

    @limit(240)
    def test_everything_dies_in_turn(self):
        """Hosts and their store, killed under writes that only a flash has, or that the store has."""
        for keys in ({"policy": "write-through"}, {"peers": 1}):
            self.hosts = {host: self.cached(host, **keys) for host in "ab"}
            a, b = self.hosts.values()
            ledger = Ledger()
            for n, (here, there) in enumerate([(a, b), (b, a), (a, b), (b, a)]):
                writer = self.takes(here, ledger, n)
                if keys.get("peers"):
                    wait_until("its writes are on two flashes", 30, lambda: here.device("vm1")["info"]["policy"] == "write-back")
                writer.pump_until(times(100))
                if n % 2:
                    self.store.kill()
                here.kill()
                if n % 2:
                    self.store.start()
                self.takes(there, ledger, n + 100).close()
                here.start()
            for daemon in (a, b):
                self.assertEqual(daemon.stop(), 0, daemon.log())
            # The next hosts begin with an empty volume.
            self.store.stop()
            for path in ("disk.img", "nvme-a.img", "nvme-b.img"):
                self.rig.path(path).unlink()
            for record in self.rig.path("vault").iterdir():
                record.unlink()
            self.store.start()

    @limit(120)
    def test_the_volume_survives_what_its_sentence_says(self):
        a, b = self.plain("a"), self.plain("b")
        self.takes(a, Ledger(), 1).close()
        promise = lambda daemon: daemon.device("san")["info"]["promise"]
        wait_until("a says so", 10, lambda: "another one takes over by itself" in promise(a))
        wait_until("b says so", 10, lambda: "or, if it is silent, by itself" in promise(b))
        a.kill()
        wait_until("b says so", 10, lambda: "this host takes over with the first read or write" in promise(b))
        wait_until("b takes over", 10, lambda: may_read(self.uri(b)))
        self.assertEqual(b.stop(), 0, b.log())

    @limit(120)
    def test_what_only_a_lost_flash_has_is_given_up(self):
        """As messages say, with the URI of the store."""
        a = self.cached("a")
        self.assertTrue(self.rig.path("a-peers.sock").is_socket(), "beside the file of the hierarchy")
        client = nbd.NBD()
        client.connect_uri(self.uri(a))
        self.store.ctl("far", "set", "write=3s")
        client.pwrite(b"1" * MIB, 0)
        a.kill()
        self.store.ctl("far", "set", "write=5ms")
        b = self.cached("b")
        self.assertFalse(may_read(self.uri(b)))
        message = wait_until("b says what is missing", 20, lambda: "that only flash" in b.log() and b.log())
        self.assertIn("or the URI of a store that is the vault", message)
        words = shlex.split(re.search(r"`lamina ([^`]*)`", message).group(1).replace("VAULT", self.place()))
        self.assertEqual(words, ["vault", self.place(), "accept-loss", "vm1"])
        early = self.lamina(*words, "--force", check=False)
        self.assertIn("say that it is dead", early.stderr)
        freed = self.lamina("vault", self.place(), "host-is-dead", "a").stdout
        self.assertIn('volume "vm1" is free: only flash', freed)
        self.lamina(*words, "--force")
        wait_until("b has the volume", 20, lambda: may_read(self.uri(b)))

    @limit(60)
    def test_strangers_read_and_do_not_write(self):
        a = self.plain("a")
        writer = self.takes(a, Ledger(), 1)
        writer.pump_until(times(20))
        client = nbd.NBD()
        client.connect_uri(self.place())
        client.pread(4096, 0)
        client.flush()
        for write in (lambda: client.pwrite(b"9" * 4096, 0), lambda: client.zero(4096, 0), lambda: client.trim(4096, 0)):
            with self.assertRaises(nbd.Error) as refused:
                write()
            self.assertEqual(refused.exception.errno, "EPERM")
        writer.close()

    @limit(60)
    def test_what_messages_advise(self):
        self.store.stop()
        self.rig.path("vault").rmdir()
        refused = self.lamina("serve", self.store.file, "--control", self.rig.path("x.ctl"), check=False)
        self.assertIn("there is no such folder: make it", refused.stderr)
        self.rig.path("vault").mkdir()
        # A store that keeps no records says what is missing, there and here.
        text = self.store.file.read_text()
        self.store.file.write_text(text.replace('vault = "vault"\n', ""))
        self.store.start()
        a = self.plain("a")
        self.assertFalse(may_read(self.uri(a)))
        self.assertIn("keeps no records of hosts: give it the key `vault` there", a.log())
        self.store.stop()
        self.store.file.write_text(text)
        self.store.start()
        wait_until("a has the volume", 20, lambda: may_read(self.uri(a)))
        other = self.rig.write("other.toml", text + '\n[export.more]\ndevice = "far"\nnbd = "unix:more.sock"\n')
        refused = self.lamina("check", other, check=False)
        self.assertIn("add read-only = true here", refused.stdout + refused.stderr)
        other.write_text(other.read_text() + "read-only = true\n")
        self.lamina("check", other)
