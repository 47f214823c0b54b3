"""Hosts of which one speaks an older protocol than the other one: they work together, and are upgraded in either order."""

from clusters import may_read, times
from common import limit
from rig import wait_until
from rig.ledger import Ledger, Writer
from test_peers import Peers, hierarchy


class Versions(Peers):
    def speaks(self, daemon, protocol=None):
        """From its next start on it speaks no newer protocol than this one, or all that it knows."""
        daemon.file.write_text(hierarchy(daemon.name, protocol=protocol))

    def spoken(self, daemon):
        self.paired(daemon)
        return self.info(daemon)["peers"]["connected"][0]["protocol"]

    def begins(self, *protocols):
        """Both hosts with what they speak; the first one has the volume."""
        for daemon, protocol in zip(self.hosts.values(), protocols):
            self.speaks(daemon, protocol)
            daemon.start()
        self.ledger, self.seed = Ledger(), 0
        return self.hosts["a"], self.hosts["b"]

    def writer(self, daemon):
        self.seed += 1
        writer = Writer(self.ledger, self.uri(daemon), self.seed)
        writer.check()
        return writer

    def upgrade_peer(self, primary, peer):
        """While clients write."""
        writer = self.writer(primary)
        self.paired(primary)
        writer.pump_until(times(100))
        self.speaks(peer)
        peer.kill()
        peer.start()
        writer.pump_until(lambda: self.info(primary)["policy"] == "write-back", 40)
        writer.pump_until(times(100))
        writer.close()

    def upgrade_primary(self, primary, peer):
        """While clients write, who find the volume at the peer then."""
        writer = self.writer(primary)
        self.paired(primary)
        writer.pump_until(times(100))
        self.speaks(primary)
        primary.kill()
        follower = self.writer(peer)
        primary.start()
        follower.pump_until(lambda: self.info(peer)["policy"] == "write-back", 40)
        follower.pump_until(times(100))
        follower.close()

    def moves(self, to):
        """Whether a host gets the volume by asking for it."""
        return may_read(self.uri(to))

    @limit(240)
    def test_the_peer_is_upgraded_first(self):
        a, b = self.begins(1, 1)
        self.writer(a).close()
        self.assertEqual(self.spoken(a), 1)
        self.assertFalse(self.moves(b), "version 1 gives no volume away")
        self.upgrade_peer(a, b)
        self.assertEqual(self.spoken(a), 1)
        self.assertFalse(self.moves(b), "nor does it to a host of version 2")
        self.assertIn("one of version 1 gives no volume away", b.log())
        self.upgrade_primary(a, b)
        self.assertEqual(self.spoken(b), 2)
        wait_until("the volume moves", 20, lambda: self.moves(a))
        self.writer(a).close()

    @limit(240)
    def test_the_primary_is_upgraded_first(self):
        a, b = self.begins(1, 1)
        self.upgrade_primary(a, b)
        self.assertEqual(self.spoken(b), 1)
        self.assertFalse(self.moves(a), "version 1 gives no volume away")
        # The host of version 1 has the volume now, and the other one becomes its peer: upgraded last.
        self.upgrade_primary(b, a)
        self.assertEqual(self.spoken(a), 2)
        wait_until("the volume moves", 20, lambda: self.moves(b))
        self.writer(b).close()

    @limit(240)
    def test_a_host_goes_back_to_the_older_version(self):
        a, b = self.begins(None, None)
        self.writer(a).close()
        self.assertEqual(self.spoken(a), 2)
        writer = self.writer(a)
        b.kill()
        self.speaks(b, 1)
        b.start()
        writer.pump_until(lambda: self.info(a)["policy"] == "write-back", 40)
        self.assertEqual(self.spoken(a), 1)
        writer.pump_until(times(100))
        a.kill()
        self.writer(b).close()
