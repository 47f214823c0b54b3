"""Hosts that lose each other, or the store, in one direction or in both: cells of the table in `test_failures.py`."""

import time

import nbd

from clusters import ClusterCase, times
from common import MIB, limit
from rig import wait_until
from rig.ledger import Ledger


class Network(ClusterCase):
    """Hosts lose each other, and reach the store."""

    @limit(120)
    def test_what_is_lost_in_one_direction_stops_nobody(self):
        a, b = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        for here, there in (("a", "b"), ("b", "a")):
            writer.pump_until(times(100))
            self.network.lose(here, there)
            writer.pump_until(lambda: not self.peers(a), 10)
            writer.pump_until(times(100))
            # It lacks what was written since, and the host with the volume lives.
            self.assertRegex(self.refused(b), "only flash|is alive")
            self.network.find(here, there)
            writer.pump_until(lambda: self.peers(a), 40)
        writer.pump_until(times(100))
        a.kill()
        self.moves_to(b, ledger).close()


class NewPeers(ClusterCase):
    names = "abc"

    @limit(120)
    def test_another_peer_is_chosen(self):
        """The store gets everything, writes wait for it, and for flash alone again when another host has them."""
        daemons = dict(zip(self.names, self.start(peers=1)))
        a = daemons["a"]
        ledger = Ledger()
        writer = self.writer(a, ledger)
        before, = self.paired(a)
        after, = {"b", "c"} - {before}
        writer.pump_until(times(100))
        self.network.part("a", before)
        writer.pump_until(lambda: self.peers(a) == {after}, 40)
        writer.pump_until(times(100))
        a.kill()
        self.assertIn("only flash", self.refused(daemons[before]))
        writer = self.moves_to(daemons[after], ledger)
        self.network.meet("a", before)
        a.start()
        writer.pump_until(lambda: self.peers(daemons[after]), 40)
        writer.close()


class Store(ClusterCase):
    """One host does not reach the store, and others do."""

    def waits(self, writer, ledger, seconds=2):
        """Nothing is answered for some time, and nothing fails."""
        writer.pump_until(times(50))
        answered, end = sum(ledger.answered), time.monotonic() + seconds
        writer.pump_until(lambda: time.monotonic() > end)
        self.assertEqual(sum(ledger.answered), answered)

    def on_flash(self, daemon, ledger):
        """A writer of which no read has to ask the store: all blocks have been written."""
        writer = self.writer(daemon, ledger)
        self.paired(daemon)
        writer.pump_until(lambda: all(ledger.answered))
        return writer

    @limit(120)
    def test_write_through_waits_and_goes_on(self):
        a, b = self.start(policy="write-through")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        writer.pump_until(times(100))
        self.network.part("a", "store")
        self.waits(writer, ledger)
        self.assertIn("is alive", self.refused(b))
        self.network.meet("a", "store")
        answered = sum(ledger.answered)
        writer.pump_until(lambda: sum(ledger.answered) > answered, 30)
        writer.pump_until(times(100))
        writer.close()
        self.moves_to(b, ledger).close()

    @limit(120)
    def test_write_back_goes_on_until_the_flash_is_full(self):
        a, b = self.start()
        client = self.client(a)
        client.pwrite(b"0" * MIB, 0)
        client.flush()
        self.network.part("a", "store")
        written = 0

        def is_done(cookie, seconds):
            end = time.monotonic() + seconds
            while not client.aio_command_completed(cookie):
                if time.monotonic() > end:
                    return False
                client.poll(20)
            return True

        # From flash, durably, and then one waits: nothing fails, and nothing is forgotten.
        while is_done(waits := client.aio_pwrite(bytes([written + 1]) * MIB, written * MIB), 3):
            written += 1
            if written <= 2:
                client.flush()
        self.assertGreater(written, 4)
        self.assertLess(written, 24)
        reads = bytearray(4096)
        missed = client.aio_pread(reads, 40 * MIB)
        self.assertFalse(is_done(missed, 1))
        self.network.meet("a", "store")
        self.assertTrue(is_done(missed, 30) and is_done(waits, 60))
        for at in range(written + 1):
            self.assertEqual(client.pread(MIB, at * MIB), bytes([at + 1]) * MIB)
        client.shutdown()
        wait_until("b has the volume", 40, lambda: self.may_read(b))
        other = self.client(b)
        for at in range(written + 1):
            self.assertEqual(other.pread(MIB, at * MIB), bytes([at + 1]) * MIB)

    @limit(120)
    def test_a_peer_replays_what_the_primary_cannot_bring(self):
        """Writes are acknowledged from both flashes meanwhile; the host that takes over brings them to the store."""
        a, b = self.start(peers=1)
        ledger = Ledger(64)
        writer = self.on_flash(a, ledger)
        self.network.part("a", "store")
        answered, end = sum(ledger.answered), time.monotonic() + 3
        writer.pump_until(lambda: time.monotonic() > end)
        self.assertGreater(sum(ledger.answered), answered)
        self.assertEqual(self.peers(a), {"b"})
        self.assertGreater(self.dirty(a), 0)
        dirty, brought = self.dirty(a), lambda: self.store.counter("far", "write", "bytes")
        before = brought()
        a.kill()
        writer = self.moves_to(b, ledger)
        writer.pump_until(lambda: brought() >= before + dirty, 30)
        self.network.meet("a", "store")
        a.start()
        writer.pump_until(lambda: self.peers(b) == {"a"}, 40)
        writer.close()
        wait_until("the store has everything", 30, lambda: self.dirty(b) == 0)

    @limit(120)
    def test_a_peer_without_the_store_refuses_copies(self):
        """Writes wait for the store, as a peer that could not bring them there is none."""
        a, b = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        self.network.part("b", "store")
        writer.pump_until(lambda: not self.peers(a), 30)
        answered = sum(ledger.answered)
        writer.pump_until(lambda: "store" in str(self.info(a)["peers"]["waits"]), 10)
        writer.pump_until(lambda: sum(ledger.answered) > answered, 10)
        self.network.meet("b", "store")
        writer.pump_until(lambda: self.peers(a) == {"b"}, 40)
        writer.pump_until(times(50))
        a.kill()
        self.moves_to(b, ledger).close()

    @limit(120)
    def test_peers_stay_while_nobody_reaches_the_store(self):
        a, b = self.start(peers=1)
        ledger = Ledger(64)
        writer = self.on_flash(a, ledger)
        self.stop(self.store)
        end = time.monotonic() + 4 * self.lease
        writer.pump_until(lambda: time.monotonic() > end)
        self.assertEqual(self.peers(a), {"b"})
        self.assertEqual(self.info(a)["peers"]["connected"][0]["reaches_store"], False)
        answered = sum(ledger.answered)
        writer.pump_until(lambda: sum(ledger.answered) > answered, 5)
        a.kill()
        self.go_on(self.store)
        self.moves_to(b, ledger).close()


class NewPeersForTheStore(ClusterCase):
    names = "abc"

    @limit(120)
    def test_another_peer_reaches_the_store(self):
        daemons = dict(zip(self.names, self.start(peers=1)))
        a = daemons["a"]
        ledger = Ledger()
        writer = self.writer(a, ledger)
        before, = self.paired(a)
        after, = {"b", "c"} - {before}
        self.network.part(before, "store")
        writer.pump_until(lambda: self.peers(a) == {after}, 40)
        writer.pump_until(times(50))
        a.kill()
        self.moves_to(daemons[after], ledger).close()
