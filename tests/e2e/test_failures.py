"""Whatever fails in a cluster (SYSTEMS C7), a named test for each cell: nothing that was acknowledged is lost, nothing
old is read, a loss that cannot be avoided is an error that names its places, and all goes on by itself once the cause
has ended.

Names without a file are of this one; `links.` is `test_failures_links.py`, `together.` is `test_failures_together.py`.

flash
    write-through       Flash.test_write_through_goes_on_uncached
    write-back          Flash.test_write_back_stops_and_names_what_would_be_lost; given up: test_hosts.Hosts.
                        test_a_lost_flash_is_given_up
    with peers          Flash.test_peers_replay_and_the_volume_goes_on_uncached, Flash.test_a_peer_is_replaced,
                        Flash.test_its_device_dies_with_the_records_of_the_hierarchy
host
    write-through       Host.test_write_through_has_nothing_to_recover; one that was stopped: test_hosts.Hosts.
                        test_a_silent_host_is_fenced_when_a_person_says_that_it_is_dead; by a program: Fenced
    write-back          Host.test_write_back_is_replayed_when_the_host_returns; also test_hosts.Hosts.
                        test_a_host_dies_with_writes_that_only_its_flash_has
    with peers          test_peers.Hosts.test_a_killed_host_is_followed_by_its_peer; stopped for longer than the lease:
                        test_peers.Hosts.test_a_host_that_was_stopped_finds_that_another_one_has_the_volume
network
    without peers       nothing is sent
    with peers          test_peers.Links.test_a_link_that_is_cut_stops_nobody, links.Network.
                        test_what_is_lost_in_one_direction_stops_nobody, links.NewPeers.test_another_peer_is_chosen
store, some hosts
    write-through       links.Store.test_write_through_waits_and_goes_on
    write-back          links.Store.test_write_back_goes_on_until_the_flash_is_full
    with peers          links.Store.test_a_peer_replays_what_the_primary_cannot_bring, links.Store.
                        test_a_peer_without_the_store_refuses_copies, links.NewPeersForTheStore.
                        test_another_peer_reaches_the_store; nobody reaches it: links.Store.
                        test_peers_stay_while_nobody_reaches_the_store
several at once
    write-through       nothing to recover
    write-back          together.Together.test_write_back_is_replayed_by_the_host_itself, together.Surrogate.
                        test_write_back
    with peers          together.Together.test_a_primary_and_its_peer_die_and_either_replays, together.Surrogate.
                        test_with_peers_that_all_died, together.Three.test_two_of_three_hosts_die, together.Three.
                        test_a_host_dies_and_the_flash_of_another_one_fails; one too many: together.Three.
                        test_a_loss_that_cannot_be_avoided_is_named
at random               together.Killed.test_at_random
how long it takes       Figures
"""

import os
import signal
import time

import nbd

from clusters import ClusterCase, times
from common import MIB, limit
from rig import lamina_binary, run, wait_until
from rig.ledger import BLOCK, Ledger, Writer
from rig.mount import served_file


class Flash(ClusterCase):
    """The flash of a host fails, and works again later."""

    def owing(self, host, ledger):
        """The writer of a host whose store lacks what its flash and that of its peer have."""
        writer = self.writer(host, ledger)
        self.paired(host)
        self.slow_store()
        writer.pump_until(times(100))
        self.assertGreater(self.dirty(host), 0)
        return writer

    def goes_on_uncached(self, host, writer):
        """The store takes writes again, and gets from the peer what the flash had: every write is there."""
        self.fast_store()
        writer.pump_until(lambda: self.info(host)["policy"] == "uncached", 60)
        writer.pump_until(times(100))
        writer.quiet()
        self.assertEqual(sum(writer.read()), sum(writer.ledger.answered))

    @limit(120)
    def test_write_through_goes_on_uncached(self):
        a, b = self.start(policy="write-through")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        writer.pump_until(times(100))
        self.flash_fails(a)
        writer.pump_until(lambda: self.info(a)["policy"] == "uncached", 20)
        writer.pump_until(times(100))
        writer.close()
        self.flash_works(a)
        # The flash is there again, with blocks that are older than the store.
        self.assertEqual(a.stop(), 0, a.log())
        a.start()
        writer = self.writer(a, ledger)
        writer.pump_until(times(50))
        writer.close()
        self.moves_to(b, ledger).close()

    @limit(120)
    def test_write_back_stops_and_names_what_would_be_lost(self):
        a, b = self.start(timeout="30s")
        client = self.client(a)
        client.pwrite(b"1" * MIB, 0)
        client.flush()
        a.ctl("vm1", "drain")
        self.slow_store()
        lost = [(at * 4 * BLOCK, BLOCK) for at in range(8)]
        for at, size in lost:
            client.pwrite(b"2" * size, at)
        self.flash_fails(a)
        with self.assertRaises(nbd.Error):
            client.pread(4096, 0)
        with self.assertRaises(nbd.Error):
            client.pwrite(b"3" * 4096, 20 * MIB)
        ranges = [(one["start"], one["len"]) for one in self.info(a)["lost"]["ranges"]]
        self.assertEqual(ranges, lost)
        self.assertIn(f"{8 * BLOCK} bytes at 0..{BLOCK}, {4 * BLOCK}..{5 * BLOCK}, ", a.log())
        # What the store has is read on, and nobody gets the rest in an older version.
        self.assertEqual(client.pread(BLOCK, BLOCK), b"1" * BLOCK)
        for at, size in lost:
            with self.assertRaises(nbd.Error):
                client.pread(size, at)
        self.assertIn("the flash has failed", self.refused(b))
        self.flash_works(a)
        self.fast_store()
        wait_until("it goes on", 30, lambda: self.info(a)["lost"] is None)
        for at, size in lost:
            self.assertEqual(client.pread(size, at), b"2" * size)
        client.pwrite(b"3" * 4096, 20 * MIB)
        client.shutdown()
        wait_until("b has the volume", 30, lambda: self.may_read(b))
        other = self.client(b)
        for at, size in lost:
            self.assertEqual(other.pread(size, at), b"2" * size)
        self.assertEqual(other.pread(4096, 20 * MIB), b"3" * 4096)

    @limit(120)
    def test_peers_replay_and_the_volume_goes_on_uncached(self):
        """No request fails, though the store lacks what was on the flash: its peer has that."""
        a, b = self.start(peers=1, timeout="30s")
        ledger = Ledger()
        writer = self.owing(a, ledger)
        self.flash_fails(a)
        self.goes_on_uncached(a, writer)
        self.assertRegex(self.vault(), r"(?m)^vm1 +a +1 +- +-$")
        a.kill()
        self.vault("host-is-dead", "a")
        self.moves_to(b, ledger).close()
        a.start()
        self.paired(b, "a")

    @limit(180)
    def test_its_device_dies_with_the_records_of_the_hierarchy(self):
        """No other device has them: the vault says instead that what is there does not count."""
        self.instead["a"] = {"nvme": {"type": "file", "path": "device/disk"}}
        with open(self.rig.path("nvme-a.img"), "wb") as image:
            image.truncate(24 * MIB)
        device = self.enterContext(served_file(self.rig, "device", "nvme-a.img"))
        a, b = self.start(peers=1, timeout="30s")
        ledger = Ledger()
        writer = self.owing(a, ledger)
        device.kill()
        self.goes_on_uncached(a, writer)
        self.assertIn("the vault says that the flash does not count", a.log())
        # The device is there again when the host is, with blocks that are older than the store.
        a.kill()
        self.enterContext(served_file(self.rig, "device", "nvme-a.img"))
        a.start()
        writer = self.moves_to(a, ledger, 1)
        self.paired(a)
        writer.pump_until(times(50))
        writer.close()
        a.kill()
        self.moves_to(b, ledger, 2).close()

    @limit(120)
    def test_nobody_gives_up_what_a_peer_has(self):
        """The peer does not answer when the flash fails: the device stops, and says whose flash has everything."""
        a, b = self.start(peers=1, timeout="30s")
        ledger = Ledger()
        writer = self.owing(a, ledger)
        writer.quiet()
        self.stop(b)
        self.flash_fails(a)
        wait_until("it stops", 30, lambda: self.info(a)["alerts"]["stopped"])
        refused = run(lamina_binary(), "ctl", "--control", a.control, "vm1", "accept-loss", check=False)
        self.assertIn("stop this host, and another one takes over", refused.stderr)
        self.assertIn(f"`lamina vault {self.rig.path('vault')} accept-loss vm1` gives it up", refused.stderr)
        self.go_on(b)
        self.fast_store()
        a.stop()
        self.moves_to(b, ledger, 1).close()

    @limit(120)
    def test_a_peer_is_replaced(self):
        """The flash of the peer fails: writes wait for the store until it works again."""
        a, b = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        writer.pump_until(times(100))
        self.flash_fails(b)
        writer.pump_until(lambda: not self.peers(a), 20)
        writer.pump_until(times(100))
        self.flash_works(b)
        writer.pump_until(lambda: self.peers(a) == {"b"}, 60)
        writer.pump_until(times(100))
        a.kill()
        self.moves_to(b, ledger).close()


class Host(ClusterCase):
    """A host dies."""

    @limit(120)
    def test_write_through_has_nothing_to_recover(self):
        a, b = self.start(policy="write-through")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        writer.pump_until(times(100))
        a.kill()
        self.assertIn("host-is-dead a", self.refused(b))
        self.vault("host-is-dead", "a")
        follower = self.writer(b, ledger)
        self.assertEqual(self.info(b)["replaying"], None)
        follower.pump_until(times(50))
        follower.close()
        a.start()
        self.moves_to(a, ledger).close()

    @limit(120)
    def test_write_back_is_replayed_when_the_host_returns(self):
        """Another host that opens the volume earlier is refused, in words that name what has the writes."""
        a, b = self.start(timeout="30s")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.slow_store()
        writer.pump_until(times(100))
        a.kill()
        for _ in range(2):
            said = self.refused(b)
            self.assertIn("only flash", said)
            self.assertIn("Start that host", said)
        self.fast_store()
        a.start()
        writer = self.writer(a, ledger)
        writer.pump_until(times(50))
        writer.close()
        self.moves_to(b, ledger).close()


class Fenced(ClusterCase):
    """A program switches off a host that is silent: nobody has to say that it is dead."""

    def setUp(self):
        super().setUp()
        # It fails the first time, as a management controller that is out of reach.
        program = self.rig.write("fence", (
            "#!/bin/sh\n"
            'cd "$(dirname "$0")"\n'
            'echo "$LAMINA_FENCE_HOST" >> asked\n'
            '[ "$(wc -l < asked)" -gt 1 ] || exit 7\n'
            'kill -9 "$(cat "$LAMINA_FENCE_HOST.pid")"\n'
        ))
        program.chmod(0o755)
        self.options = ("--fence", program)

    def stops(self, daemon):
        """The host hangs, and may go on at any time."""
        self.rig.write(f"{daemon.name}.pid", str(daemon.proc.pid))
        daemon.proc.signal(signal.SIGSTOP)

    def asked(self):
        return self.rig.path("asked").read_text().split()

    @limit(120)
    def test_write_through_is_taken_when_the_host_is_off(self):
        a, b = self.start(policy="write-through")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        writer.pump_until(times(100))
        self.stops(a)
        said = self.refused(b)
        self.assertIn("fence has not fenced host a: exit status: 7", said)
        self.assertIn("host-is-dead a", said)
        self.assertTrue(a.proc.running())
        follower = self.moves_to(b, ledger)
        self.assertFalse(a.proc.running())
        self.assertEqual(self.asked(), ["a", "a"])
        follower.pump_until(times(50))
        follower.close()
        a.start()
        self.moves_to(a, ledger).close()
        self.assertEqual(self.asked(), ["a", "a"])

    @limit(120)
    def test_late_writes_with_peers_end_when_the_host_is_off(self):
        a, b = self.start(peers=1, timeout="30s")
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        self.slow_store()
        writer.pump_until(times(100))
        self.stops(a)
        # The volume is there before the host is fenced, which has time to say itself that it has ended.
        self.assertTrue(self.has(b, 30))
        self.assertFalse(self.rig.path("asked").exists())
        self.assertGreater(self.info(b)["quarantine_bytes"], 0)
        self.fast_store()
        follower = self.writer(b, ledger)
        follower.pump_until(lambda: self.info(b)["quarantine_bytes"] == 0, 60)
        self.assertFalse(a.proc.running())
        self.assertEqual(self.asked(), ["a", "a"])
        follower.close()


class Figures(ClusterCase):
    """How long it takes until a host goes on."""

    alone = "it measures how long a virtual machine waits"
    repetitions = int(os.environ.get("LAMINA_TAKEOVERS", "1"))

    def longest(self, writer, ledger, done, seconds=30):
        """The longest time without an answered write until `done`."""
        last, longest, answered = time.monotonic(), 0.0, sum(ledger.answered)

        def look():
            nonlocal last, longest, answered
            now, count = time.monotonic(), sum(ledger.answered)
            if count > answered:
                last, answered = now, count
            longest = max(longest, now - last)
            return done()
        writer.pump_until(look, seconds)
        return longest

    @limit(60 + 40 * repetitions)
    def test_a_peer_answers_within_ten_seconds_with_a_lease_of_five(self):
        self.lease, ledger, took = 5, Ledger(), []
        here, there = self.start(peers=1)
        self.writer(here, ledger).close()
        for n in range(self.repetitions):
            self.paired(here)
            writer = Writer(ledger, self.uri(here), n)
            writer.pump_until(times(100))
            here.kill()
            killed = time.monotonic()
            wait_until("the peer answers", 20, lambda: self.may_read(there))
            took.append(time.monotonic() - killed)
            follower = self.writer(there, ledger, n)
            here.start()
            follower.pump_until(times(50))
            follower.close()
            here, there = there, here
        print(f"        from the kill to the first answer: {', '.join(f'{seconds:.1f}' for seconds in took)} s")
        self.assertLess(max(took), 10)

    @limit(120)
    def test_writes_wait_for_a_lost_peer_no_longer_than_two_seconds(self):
        a, b = self.start(peers=1)
        ledger = Ledger()
        writer = self.writer(a, ledger)
        self.paired(a)
        part = lambda: self.network.part("a", "b")
        meet = lambda: self.network.meet("a", "b")
        waits = {}
        for how, lose, find in (
            ("killed", b.kill, b.start),
            ("stopped", lambda: self.stop(b), lambda: self.go_on(b)),
            ("cut off", part, meet),
        ):
            writer.pump_until(times(100))
            lose()
            end = time.monotonic() + 4
            waits[how] = self.longest(writer, ledger, lambda: not self.peers(a) and time.monotonic() > end)
            find()
            writer.pump_until(lambda: self.peers(a), 40)
        writer.close()
        print(f"        {', '.join(f'{how}: {seconds:.2f} s' for how, seconds in waits.items())}")
        self.assertLess(max(waits.values()), 2)

    @limit(120)
    def test_a_peer_that_is_back_gets_what_it_missed_alone(self):
        """That is nothing but what is written from then on, as the store has the rest."""
        a, b = self.start(peers=1)
        client = self.client(a)
        client.pread(4096, 0)
        self.paired(a)
        for at in range(6):
            client.pwrite(b"1" * MIB, at * MIB)
        b.kill()
        wait_until("it is lost", 20, lambda: not self.peers(a))
        for at in range(4):
            client.pwrite(b"2" * MIB, at * MIB)
        b.start()
        self.paired(a)
        written = lambda: b.counter("nvme", "write", "bytes")
        # Superblocks, and that nothing counts that was there.
        before = written()
        self.assertLess(before, MIB)
        client.pwrite(b"3" * MIB, 2 * MIB)
        client.flush()
        self.assertLess(written() - before, MIB + MIB // 2)
        self.assertGreaterEqual(written() - before, MIB)
        self.assertLessEqual(self.info(b)["dirty_bytes"], MIB)
        a.kill()
        wait_until("b has the volume", 30, lambda: self.may_read(b))
        found = self.client(b).pread(6 * MIB, 0)
        self.assertEqual(found, b"2" * (2 * MIB) + b"3" * MIB + b"2" * MIB + b"1" * (2 * MIB))
