"""`lamina why`: causes of slowness that are staged, and that are named first."""

import json
import re

import nbd

from clusters import ClusterCase, times
from common import MIB, RigCase, limit
from legs import DEAD
from rig import Lamina, lamina_binary, run, wait_until
from rig.hierarchy import device, exported, written
from rig.ledger import Ledger

# gdb prints the arguments of the probe whenever a request ends in a device.
TRACER = """
handle all nostop noprint pass
break -probe-stap lamina:request
commands
silent
printf "op=%ld bytes=%ld ns=%ld failed=%ld\\n", $_probe_arg2, $_probe_arg3, $_probe_arg4, $_probe_arg5
continue
end
echo goes on\\n
continue
"""

# What a slow device takes besides.
SLOW = "20ms"


def slow(name, over, **keys):
    return device(name, "delay", over, **(keys or {"read": SLOW, "write": SLOW}))


def memory(name, size="64MiB"):
    return device(name, "memory", size=size)


class Why(RigCase):
    def serve(self, *devices, top, keeps=False, arguments=()):
        path = written(self.rig, "disk", exported("disk", *devices, top=top, keeps=keeps))
        self.daemon = Lamina(self.rig, path.read_text(), name="disk", arguments=arguments)

    def load(self, rw="write", depth=8, size="4KiB", seconds=2, span=None):
        span = ["--size", span] if span else []
        run(lamina_binary(), "bench", self.daemon.uri("vm1", "disk.sock"), "--force", "--rw", rw, "--block-size", size, "--depth",
            str(depth), "--time", f"{seconds}s", *span, seconds=seconds + 60)

    def why(self, export="vm1"):
        return json.loads(run(lamina_binary(), "why", export, "--control", self.daemon.control, "--json").stdout)

    def told(self):
        return run(lamina_binary(), "why", "vm1", "--control", self.daemon.control).stdout

    def first(self, operation, where, cause):
        """What takes most of the time, on average and of the slowest, is named first, and is nearly all of it."""
        times = self.why()["operations"][operation]
        for shares in (times["mean"], times["slow"]):
            self.assertEqual((shares[0]["device"], shares[0]["cause"]), (where, cause), times)
        of_all = times["mean"][0]["us"] / sum(share["us"] for share in times["mean"])
        self.assertGreater(of_all, 0.6, times)

    def test_a_tracer_from_outside_sees_the_end_of_each_request(self):
        """gdb, as bpftrace and perf would, attaches to the static probe, and raises the counter that switches it on."""
        self.serve(memory("disk"), slow("far", "disk"), top="far")
        commands = self.rig.write("tracer", TRACER)
        tracer = self.rig.start(
            "stdbuf", "-oL", "gdb", "-q", "-batch", "-nx", "-p", str(self.daemon.proc.pid), "-x", commands, name="gdb"
        )
        wait_until("the tracer to be there", 60, lambda: "goes on" in tracer.output() or not tracer.running())
        if "ptrace: " in tracer.output():
            self.skipTest("no process may be traced here (ptrace)")
        handle = nbd.NBD()
        handle.connect_uri(self.daemon.uri("vm1", "disk.sock"))
        handle.pwrite(bytes(8192), 0)
        handle.pread(4096, 0)
        seen = lambda: re.findall(r"op=(\d+) bytes=(\d+) ns=(\d+) failed=0", tracer.output())
        wait_until("two requests", 30, lambda: any(found[0] == "0" for found in seen()))
        handle.shutdown()
        # The time of the device that is slow, and of the export over it.
        for op, size in (("1", "8192"), ("0", "4096")):
            slow_ones = [int(ns) for kind, bytes_, ns in seen() if (kind, bytes_) == (op, size) and int(ns) > 15_000_000]
            self.assertGreaterEqual(len(slow_ones), 2, tracer.output())

    def test_a_slow_disk(self):
        self.serve(memory("disk"), slow("far", "disk"), top="far")
        self.load()
        self.first("write", "far", "itself")
        self.assertIn("is in far (delay)", self.told())
        path = self.rig.path("slow.json")
        run(lamina_binary(), "why", "vm1", "--control", self.daemon.control, "--trace", path)
        spans = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
        longest = max((event for event in spans if event["name"] == "far"), key=lambda event: event["dur"])
        self.assertGreater(longest["dur"], 15_000)

    def test_one_slow_leg_of_a_mirror(self):
        self.serve(
            device("a", "file", path="a.img", size="64MiB"), device("b", "file", path="b.img", size="64MiB"), slow("far", "b"),
            device("raid", "mirror", ["a", "far"]), top="raid", keeps=True)
        # One at a time: those that meet at a range wait for each other.
        self.load(depth=1)
        self.first("write", "far", "itself")

    def test_one_slow_column_of_a_parity(self):
        names = ("a", "b", "c")
        files = [device(name, "file", path=f"{name}.img", size="64MiB") for name in names]
        self.serve(*files, slow("far", "c"), device("raid", "parity", ["a", "b", "far"]), top="raid", keeps=True)
        self.load(depth=1)
        self.first("write", "far", "itself")

    def test_more_requests_than_a_device_is_given_at_a_time(self):
        self.serve(memory("disk"), slow("far", "disk"), device("turns", "schedule", "far", policy="noop", depth=1), top="turns")
        self.load(depth=16)
        self.first("write", "turns", "queue")
        self.assertIn("waits in turns (schedule) for its turn", self.told())

    def test_requests_for_the_same_bytes(self):
        self.serve(
            device("a", "file", path="a.img", size="64MiB"), slow("far", "a"), device("b", "file", path="b.img", size="64MiB"),
            device("raid", "mirror", ["far", "b"]), top="raid", keeps=True)
        client = nbd.NBD()
        client.connect_uri(self.daemon.uri("vm1", "disk.sock"))
        for _ in range(8):
            for _ in range(16):
                client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(4096)), 0)
            while client.aio_in_flight():
                client.poll(-1)
        self.first("write", "raid", "lock")

    def cached(self, store, policy="write-back", flash="32MiB"):
        """A flash in front of a store that takes its time."""
        self.serve(
            device("disk", "file", path="disk.img", size="256MiB"), store, device("nvme", "file", path="nvme.img", size=flash),
            device("cache", "flash", "nvme"), device("fast", "accelerate", ["far", "cache"], policy=policy), top="fast", keeps=True)

    def test_a_store_behind_writes_that_wait_for_it(self):
        self.cached(slow("far", "disk"), policy="write-through")
        self.load()
        self.first("write", "far", "itself")

    @limit(180)
    def test_a_flash_that_is_full(self):
        self.cached(slow("far", "disk", write=SLOW, parallel=1), flash="24MiB")
        self.load(size="64KiB", depth=16, seconds=6)
        times = self.why()["operations"]["write"]
        self.assertEqual(times["slow"][0]["device"], "fast", times)
        self.assertIn(times["slow"][0]["cause"], ("room", "flow-control"), times)
        self.assertIn("More is written than what is below takes", self.told())

    @limit(180)
    def test_writes_that_are_held_back_to_the_speed_of_the_store(self):
        self.cached(slow("far", "disk", write=SLOW, parallel=1), flash="24MiB")
        # One after the other: each is held back before the flash is full.
        self.load(size="64KiB", depth=1, seconds=6)
        self.first("write", "fast", "flow-control")
        self.assertIn("More is written than what is below takes", self.told())

    def test_a_slow_flash(self):
        self.serve(
            device("disk", "file", path="disk.img", size="256MiB"), device("nvme", "file", path="nvme.img", size="64MiB"),
            slow("worn", "nvme", write=SLOW), device("cache", "flash", "worn"), device("fast", "accelerate", ["disk", "cache"]),
            top="fast", keeps=True)
        self.load(depth=2)
        self.first("write", "worn", "itself")

    def test_a_scrub_is_named_while_it_uses_the_same_devices(self):
        self.mirrored()
        self.daemon.ctl("raid", "scrub")
        self.daemon.ctl("raid", "job", "scrub", "limit=4MiB")
        self.load("read", depth=2)
        self.assert_job("scrub")
        self.daemon.ctl("raid", "job", "scrub", "cancel")
        wait_until("the scrub to end", 30, lambda: not self.why()["jobs"])
        self.assertNotIn("meanwhile", self.told())

    def test_a_rebuild_is_named_while_it_uses_the_same_devices(self):
        self.mirrored()
        self.daemon.ctl("shaky", "set", DEAD % "media")
        self.load(depth=8, size="256KiB")
        self.daemon.ctl("shaky", "clear")
        self.daemon.ctl("raid", "rejoin", "shaky")
        self.daemon.ctl("raid", "job", "rebuild", "limit=1MiB")
        self.load(depth=2)
        self.assert_job("rebuild")

    def mirrored(self):
        """A mirror, of which a leg can fail, over disks that do one thing at a time."""
        disks = [device(name, "file", path=f"{name}.img", size="64MiB") for name in "ab"]
        legs = [slow("near", "a", read="5ms", write="5ms", parallel=1), slow("far", "b", read="5ms", write="5ms", parallel=1)]
        self.serve(*disks, *legs, device("shaky", "fault", "far"), device("raid", "mirror", ["near", "shaky"]), top="raid", keeps=True)

    def assert_job(self, name):
        self.assertEqual([(job["device"], job["name"]) for job in self.why()["jobs"]], [("raid", name)], self.told())
        first, advice = self.told().splitlines()[0], f"`lamina ctl raid job {name} limit=RATE` slows it down"
        self.assertTrue(first.startswith(f"meanwhile the job {name} of raid uses the same devices: ") and advice in first, first)

    def told_first(self):
        """The first line about writes below their times."""
        lines = self.told().splitlines()
        return lines[next(number for number, line in enumerate(lines) if line.startswith("write: ")) + 1]

    @limit(120)
    def test_first_writes_after_a_snapshot(self):
        self.serve(
            device("a", "file", path="a.img", size="256MiB"), slow("far", "a", read="1ms", write="1ms"),
            device("thin", "snapshot", "far", size="128MiB"), top="thin", keeps=True)
        client = nbd.NBD()
        client.connect_uri(self.daemon.uri("vm1", "disk.sock"))
        for at in range(64):
            client.pwrite(bytes([at + 1]) * MIB, at * MIB)
        self.daemon.ctl("thin", "snapshot", "monday")
        self.load(depth=2, seconds=1, span="64MiB")
        times = self.why()["operations"]["write"]
        self.assertEqual((times["mean"][0]["device"], times["mean"][0]["cause"]), ("thin", "metadata"), times)
        self.assertIn("A first write to a place is recorded before it completes, such as after a snapshot", self.told())
        # Each copies an extent, but for those that have filled the volume.
        [reads] = times["reads"]
        self.assertEqual(reads["device"], "thin")
        self.assertGreater(reads["count"], 0.5)
        self.assertIn("the first write to an extent after a snapshot copies the rest", reads["why"])

    def test_small_writes(self):
        """Tiny ones, anywhere: a parity has to read what it does not get."""
        names = "abc"
        files = [device(name, "file", path=f"{name}.img", size="64MiB") for name in names]
        legs = [slow(f"slow-{name}", name, read="2ms", write="2ms") for name in names]
        self.serve(*files, *legs, device("raid", "parity", [f"slow-{name}" for name in names]), top="raid", keeps=True)
        self.load(size="512B", depth=4)
        self.assertIn("by raid (parity): a write of less than a row of stripes reads old data", self.told_first())

    def test_one_request_at_a_time(self):
        self.serve(memory("disk"), device("quick", "delay", "disk", write="100us"), top="quick")
        self.load(depth=1)
        self.assertIn("the client has one request under way at a time", self.told_first())
        self.assertLess(self.why()["operations"]["write"]["depth"], 1.1)
        self.load(depth=8)
        self.assertNotIn("the client has one request", self.told())

    def test_a_core_that_has_no_time(self):
        """The core encrypts all the time: nothing of what is below is slow."""
        self.rig.write("key", "correct horse battery staple").chmod(0o600)
        # A cipher that takes so long that no disk is slower.
        keys = {"key-file": "key", "cipher": "3des", "allow-legacy": True, "kdf-memory": "64KiB"}
        self.serve(
            device("disk", "file", path="disk.img", size="64MiB"), device("enc", "crypt", "disk", **keys), top="enc", keeps=True)
        self.load(size="64KiB", depth=32)
        first = self.told().splitlines()[0]
        self.assertRegex(first, r"^core 0 works (9\d|100)% of the time, where enc computes with each byte: requests wait for it")

    def test_the_account_adds_up_and_is_bounded(self):
        self.serve(memory("disk"), slow("far", "disk"), top="far")
        self.assertIn("no request has waited", self.told())
        self.load()
        why = self.why()
        self.assertEqual((why["export"], why["device"], why["samples"]), ("vm1", "far", 100))
        times = why["operations"]["write"]
        self.assertLessEqual(times["median_us"], times["p99_us"])
        self.assertLessEqual(times["requests"], 512)
        for slow_one in why["slowest"]:
            self.assertAlmostEqual(slow_one["us"], sum(part["us"] for part in slow_one["parts"]), delta=1)
        self.assertLessEqual(len(why["slowest"]), 8)
        failed = run(lamina_binary(), "why", "far", "--control", self.daemon.control, check=False)
        self.assertEqual(failed.returncode, 5)
        self.assertIn('there is no export "far"', failed.stderr)

    def test_it_can_be_off(self):
        self.serve(memory("disk"), slow("far", "disk"), top="far", arguments=["--samples", "0"])
        self.load()
        self.assertEqual(self.why()["operations"], {})
        self.assertIn("`--samples 0`", self.told())


class Peers(ClusterCase):
    @limit(120)
    def test_the_network_of_a_peer(self):
        """The flashes are quick, and what is sent to one of them is not."""
        a, _b = self.start(peers=1)
        writer = self.writer(a, Ledger())
        self.paired(a)
        self.network.slow_down("b", "8mbit")
        writer.pump_until(times(300))
        why = json.loads(run(lamina_binary(), "why", "vm1", "--control", a.control, "--json").stdout)
        self.assertEqual(why["operations"]["write"]["slow"][0]["cause"], "hosts", why["operations"])
        told = run(lamina_binary(), "why", "vm1", "--control", a.control).stdout
        self.assertIn("waits in vm1 (accelerate) for other hosts", told)
        self.assertIn("`lamina cluster` shows what other hosts do", told)
        writer.close()
