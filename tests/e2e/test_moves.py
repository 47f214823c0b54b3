"""A volume that moves from one host to another with its virtual machine, while both hosts are alive."""

import itertools
import time

import nbd

from common import MIB, limit
from rig import Guest, Lamina, lamina_binary, run, wait_until
from rig.certificates import Authority
from rig.guest import disk_arguments
from rig.ledger import Ledger, Writer
from rig.network import Network
from test_guest import VERIFY, GuestCase
from test_peers import LEASE, STORE, Peers, hierarchy

class Clients(Peers):
    """Clients of one host after the other."""

    @limit(180)
    def test_a_volume_follows_its_client(self):
        """Written on one host, then on the other, again and again: every write is there, and no lease passes."""
        here, there = self.start()
        ledger = Ledger()
        Writer(ledger, self.uri(here)).check()
        for n in range(10):
            if n % 2:
                self.paired(here)
            writer = Writer(ledger, self.uri(here), n)
            writer.pump_until(iter([False] * 100 + [True]).__next__)
            writer.close()
            began = time.monotonic()
            self.client(there).pread(4096, 0)
            self.assertLess(time.monotonic() - began, LEASE)
            Writer(ledger, self.uri(there), n).check()
            here, there = there, here

    @limit(60)
    def test_a_client_keeps_its_volume_until_a_host_is_expected(self):
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        self.paired(a)
        client.pwrite(b"2" * MIB, 0)
        with self.assertRaises(nbd.Error):
            self.client(b).pread(4096, 0)
        self.assertIn("a client uses it there", b.log())
        # As its words say.
        self.assertIn("expect b", b.log())
        a.ctl("vm1", "expect", "b")
        began = time.monotonic()
        other = self.client(b)
        self.assertEqual(other.pread(MIB, 0), b"2" * MIB)
        self.assertLess(time.monotonic() - began, 1)
        # The client that is still connected to the first one has no volume any more, and gets it back when it is free.
        with self.assertRaises(nbd.Error):
            client.pread(4096, 0)
        other.pwrite(b"3" * MIB, 0)
        other.shutdown()
        wait_until("the volume is free", 10, lambda: client.pread(MIB, 0) == b"3" * MIB)


class Alone(Peers):
    """Hosts without peers."""

    def host(self, host):
        daemon = Lamina(self.rig, hierarchy(host, peers=0), name=host, start=False)
        run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
        return daemon

    @limit(60)
    def test_what_was_read_is_read_from_the_flash_that_the_volume_came_from(self):
        """Without peers: the store, far away, is asked once for each block, wherever its client is."""
        a, b = self.start()
        client = self.client(a)
        client.pwrite(bytes(range(256)) * 4096, 0)
        # In pieces that are no long stream.
        for at in range(0, 4 * MIB, 16384):
            client.pread(16384, at)
        client.pwrite(b"2" * 4096, 512 * 1024)
        client.shutdown()
        other = self.client(b)
        other.pwrite(b"3" * 4096, 256 * 1024)
        store = lambda: self.store.counter("far", "read", "bytes")
        # It is connected to a moment after the volume has been taken.
        places = itertools.count(3 * MIB, 4096)
        wait_until("the other flash is asked", 10, lambda: other.pread(4096, next(places)) and self.info(b)["remote_bytes"])
        before = store()
        expected = bytearray(bytes(range(256)) * 4096)
        expected[512 * 1024:512 * 1024 + 4096] = b"2" * 4096
        expected[256 * 1024:256 * 1024 + 4096] = b"3" * 4096
        for at in range(0, 4 * MIB, 16384):
            found = other.pread(16384, at)
            self.assertEqual(found, bytes(expected[at:at + 16384]).ljust(16384, b"\0"), at)
        self.assertGreater(self.info(b)["remote_bytes"], 3 * MIB)
        # The 64 KiB in which something was written since.
        self.assertLessEqual(store() - before, 64 * 1024)
        # The host before dies: nobody waits for it.
        a.kill()
        self.assertEqual(other.pread(4096, 256 * 1024), b"3" * 4096)


class Machines(GuestCase):
    @limit(400)
    def test_live_migration_between_two_hosts_under_fio_with_verify(self):
        """There and back, with the volume on the flash of both, in network namespaces of their own."""
        network = self.enterContext(Network(["a", "b"]))
        Lamina(self.rig, STORE, name="store")
        hosts, authority = {}, Authority(self.rig)
        for host, address in network.addresses.items():
            file = hierarchy(host, address, authority.issue(host).keys(host), vhost=True)
            daemon = Lamina(self.rig, file, name=host, start=False, at=network.at(host))
            run(lamina_binary(), "create", daemon.file, cwd=self.rig.path(""))
            hosts[host] = daemon.start()
        info = lambda host: hosts[host].device("vm1")["info"]
        disk = lambda host: disk_arguments(hosts[host].socket(f"{host}.vhost"))
        guest = Guest(self.rig, disk("a")).wait_ready()
        guest.background("fio", VERIFY.format(file="/dev/vda", size="40M", seconds=45))
        for turn, (here, there) in enumerate([("a", "b"), ("b", "a")]):
            wait_until("the peer", 60, lambda: info(here)["policy"] == "write-back")
            address = f"unix:{self.rig.path(f'migration-{turn}.sock')}"
            target = Guest(self.rig, disk(there), name=f"target-{turn}", incoming=address)
            account = guest.migrate_to(target, address)
            guest.proc.kill()
            guest = target
            self.assert_busy(guest)
            wait_until("its volume has moved", 10, lambda: info(here)["policy"] == "standby")
            print(f"        {here} to {there}: cut-over {account['downtime']} ms")
        self.assert_healthy(guest, guest.result("fio", 120))
        self.assert_healthy(guest, guest.run(VERIFY.format(file="/dev/vda", size="16M", seconds=2), seconds=60))
        self.assertEqual(guest.power_off(), 0)
