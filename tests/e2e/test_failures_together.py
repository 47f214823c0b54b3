"""Several failures at once: cells of the table in `test_failures.py`, and kills at random."""

import random
import shutil
import time

import nbd

from clusters import ClusterCase, times
from common import KILLS, MIB, limit
from rig import Lamina, wait_until
from rig.ledger import Ledger


class Surrogate(ClusterCase):
    """A host dies for good, and its flash is built into another one, which has none of its own."""

    spares = "c"

    def given_to(self, daemon, host="c", **keys):
        """Another host, with the flash of `daemon`."""
        shutil.move(self.rig.path(f"nvme-{daemon.name}.img"), self.rig.path("moved.img"))
        text = self.hierarchy(host, flash=daemon.name, **keys).replace(f"nvme-{daemon.name}.img", "moved.img")
        return Lamina(self.rig, text, name=host, at=self.network.at(host))

    @limit(120)
    def test_write_back(self):
        a, b = self.start()
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.slow_store()
        writer.pump_until(times(100))
        a.kill()
        self.assertIn("only flash", self.refused(b))
        self.fast_store()
        surrogate = self.given_to(a)
        writer = self.moves_to(surrogate, ledger)
        self.assertGreater(self.info(surrogate)["destaged_bytes"] + self.dirty(surrogate), 0)
        writer.pump_until(times(50))
        writer.close()

    @limit(120)
    def test_with_peers_that_all_died(self):
        """The flash of the peer has what the one of the primary has."""
        a, b = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        self.slow_store()
        writer.pump_until(times(100))
        a.kill()
        b.kill()
        self.fast_store()
        surrogate = self.given_to(b, peers=1)
        writer = self.moves_to(surrogate, ledger)
        writer.pump_until(times(50))
        # The host that had the volume is there again, as a peer.
        a.start()
        writer.pump_until(lambda: self.peers(surrogate) == {"a"}, 40)
        writer.pump_until(times(50))
        surrogate.kill()
        self.moves_to(a, ledger).close()


class Together(ClusterCase):
    @limit(120)
    def test_write_back_is_replayed_by_the_host_itself(self):
        """Host and store die; both are there again."""
        a, b = self.start()
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.slow_store()
        writer.pump_until(times(100))
        a.kill()
        self.store.kill()
        self.assertIn("only flash", self.refused(b))
        self.store.start()
        a.start()
        self.moves_to(a, ledger).close()
        self.moves_to(b, ledger).close()

    @limit(120)
    def test_a_primary_and_its_peer_die_and_either_replays(self):
        here, there = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(here, ledger)
        for first in ("primary", "peer"):
            self.paired(here)
            writer.pump_until(times(100))
            self.slow_store()
            writer.pump_until(times(50))
            here.kill()
            there.kill()
            self.fast_store()
            back, other = (here, there) if first == "primary" else (there, here)
            back.start()
            writer = self.moves_to(back, ledger)
            writer.pump_until(times(50))
            other.start()
            writer.pump_until(lambda: self.peers(back), 40)
            here, there = back, other
        writer.close()


class Three(ClusterCase):
    names = "abc"

    @limit(120)
    def test_two_of_three_hosts_die(self):
        a, b, c = self.start(peers=2)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a, "b", "c")
        self.slow_store()
        writer.pump_until(times(100))
        self.assertGreater(self.dirty(a), 0)
        a.kill()
        b.kill()
        self.fast_store()
        writer = self.moves_to(c, ledger)
        writer.pump_until(times(50))
        b.start()
        a.start()
        writer.pump_until(lambda: self.peers(c) == {"a", "b"}, 60)
        writer.close()

    @limit(120)
    def test_a_host_dies_and_the_flash_of_another_one_fails(self):
        """The host with the volume goes on with what the third one has."""
        a, b, c = self.start(peers=2)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a, "b", "c")
        self.slow_store()
        writer.pump_until(times(100))
        self.assertGreater(self.dirty(a), 0)
        b.kill()
        self.flash_fails(a)
        self.fast_store()
        writer.pump_until(lambda: self.info(a)["policy"] == "uncached", 60)
        writer.pump_until(times(50))
        writer.close()
        self.moves_to(c, ledger).close()

    @limit(120)
    def test_a_loss_that_cannot_be_avoided_is_named(self):
        """One flash too many fails: what the store has is read on, the rest is an error with its places, and nothing is
        lost when they work again."""
        a, b, c = self.start(peers=1, timeout="30s")
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        peer, = self.paired(a)
        self.slow_store()
        client.pwrite(b"2" * 65536, 131072)
        self.hosts[peer].kill()
        self.flash_fails(a)
        with self.assertRaises(nbd.Error):
            client.pwrite(b"3" * 4096, 0)
        wait_until("the loss is named", 20, lambda: self.info(a)["lost"])
        self.assertEqual(self.info(a)["lost"]["ranges"], [{"start": 131072, "len": 65536}])
        self.assertIn("65536 bytes at 131072..196608", a.log())
        with self.assertRaises(nbd.Error):
            client.pread(4096, 131072)
        self.flash_works(a)
        self.fast_store()
        wait_until("it goes on", 30, lambda: self.info(a)["lost"] is None)
        self.assertEqual(client.pread(65536, 131072), b"2" * 65536)


class Killed(ClusterCase):
    """kill -9 of any daemon, or of two, at random moments: of hosts with and without the volume, and of the store."""

    names, lease = "abc", 1

    @limit(60 + 12 * KILLS)
    def test_at_random(self):
        daemons = self.start(peers=1)
        chance, ledger = random.Random(self.id()), Ledger()
        here, seeds = daemons[0], iter(range(1 << 30))
        writer = self.writer(here, ledger)
        followed = paired = 0
        for _ in range(KILLS):
            if chance.random() < 0.7:
                writer.pump_until(lambda: self.peers(here), 60)
            end = time.monotonic() + chance.random() * 0.5
            writer.pump_until(lambda: time.monotonic() > end)
            peers = [self.hosts[name] for name in self.peers(here)]
            paired += bool(peers)
            others = [daemon for daemon in [*daemons, self.store] if daemon is not here]
            two, one = chance.sample(others, 2), chance.sample(others, 1)
            victims = chance.choice(([here], [here], [here, *one], one, two))
            for victim in victims:
                victim.kill()
            # No host begins without the store.
            if self.store in victims:
                self.store.start()
            hosts = [victim for victim in victims if victim is not self.store]
            if here not in victims:
                for host in hosts:
                    host.start()
                continue
            follower = next((peer for peer in peers if peer not in victims), None)
            # A peer that was lost just then may not have it.
            if follower and chance.random() < 0.7 and self.has(follower, 5):
                here, followed = follower, followed + 1
            for host in chance.sample(hosts, len(hosts)):
                host.start()
            writer = self.moves_to(here, ledger, next(seeds), 60)
        writer.close()
        self.assertEqual(here.stop(), 0, here.log())
        print(f"        {KILLS} kills, {paired} of them with writes on two flashes; {followed} times a peer went on")
        # Half of them are, by the numbers above; with many kills no chance is left.
        self.assertGreater(paired, KILLS // 4)
