"""What a person and a monitor are told: `apply` before, while and after it works, at a terminal and without one; and the
troubles that `lamina status`, an alert and a metric tell."""

import errno
import json
import os
import pty
import random
import signal
import subprocess
import time

import nbd

from common import MIB, limit
from hierarchies import HierarchyCase, exported, joined, member, written
from legs import MIRROR, RAID5, Image, LegsCase, mirrored, over_legs
from rig import Lamina, lamina_binary, run, wait_until


def on(name, speed):
    """The disk `vm1` on one member, which can be exchanged for another; bytes are moved at a set speed."""
    moves = {"type": "migrate", "over": name, "limit": speed}
    return {name: member(name, "24MiB"), "moves": moves, "vm1": {"type": "linear", "over": "moves"}}


class Applying(HierarchyCase):
    def devices(self):
        return {device["name"] for device in self.daemon.get("/v1/hierarchy")["hierarchies"][0]["devices"]}

    def begin(self, devices):
        """`apply` of another file than the daemon's, in the background and without a terminal."""
        other = self.rig.write("other.toml", written(devices, exported()))
        child = self.rig.start(lamina_binary(), "apply", other, "--control", self.daemon.control, name="apply")
        wait_until("data to be moved", 20, lambda: "move" in self.jobs())
        return child

    def test_a_change_that_cannot_fit_is_refused_before_anything(self):
        self.create(joined(), exported())
        small = {**joined(("c", "b")), "c": member("c", "12MiB")}
        before = self.devices()
        for words in (["--plan"], ["--force"], ["--plan", "--force"]):
            refused = self.apply(small, exported(), *words, check=False)
            self.assertIn('device "disk": cannot be moved away from a: ', refused)
            self.assertIn("the others have ", refused)
            self.assertFalse(self.rig.path("c.img").exists(), words)
        self.assertEqual(self.devices(), before)
        # With a file that is there already, too small, and with nothing in its place.
        self.rig.file("c.img", 12 * MIB)
        self.assertIn("cannot be moved away", self.apply(joined(("c", "b")), exported(), "--plan", check=False))
        self.assertIn("cannot be moved away", self.apply(joined(("b",)), exported(), "--plan", check=False))
        self.assertEqual(self.devices(), before)
        self.rig.path("c.img").unlink()
        steps = self.apply(joined(("c", "b")), exported(), "--plan")
        self.assertIn("move      disk: away from a", steps)
        self.assertFalse(self.rig.path("c.img").exists())
        self.assertEqual(self.apply(joined(("c", "b")), exported()), steps)

    @limit(60)
    def test_a_leg_that_is_too_small_is_refused_before_anything(self):
        for kind, legs in (MIRROR, "ab"), (RAID5, "abc"):
            over = lambda names: {
                **{name: member(name, "8MiB" if name == "d" else "24MiB") for name in names}, "m": {**kind, "over": list(names)},
            }
            with self.subTest(kind["type"]):
                self.create(over(legs), exported("m"))
                before = self.devices()
                # In the place of another one, and as one more.
                for wished in (over(legs[:-1] + "d"), over(legs + "d")):
                    for words in (["--plan"], ["--force"], []):
                        said = self.apply(wished, exported("m"), *words, check=False)
                        self.assertRegex(said, r'device "m": cannot be .*: over: d has 7104KiB and [0-9]+KiB are needed')
                        self.assertFalse(self.rig.path("d.img").exists(), words)
                        self.assertEqual(self.devices(), before)
                self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
                for leg in legs:
                    self.rig.path(f"{leg}.img").unlink()

    @limit(60)
    def test_what_was_to_join_is_what_it_was_when_the_change_is_taken_back(self):
        """The next attempt needs no --force, and a file that was there holds what it held."""
        self.create(mirrored("ab"), exported("m"))
        # How large a layer between would be is not known before it is there.
        wished = {**mirrored("ab"), "d": member("d", "32MiB"), "k": {"type": "linear", "over": "d", "offset": "1MiB", "size": "4MiB"}}
        wished["m"] = {**wished["m"], "over": ["fa", "fb", "k"]}
        held = random.Random(3).randbytes(32 * MIB)
        for is_there in (False, True):
            if is_there:
                self.rig.path("d.img").write_bytes(held)
            said = self.apply(wished, exported("m"), check=False)
            self.assertIn("k has 4MiB and", said)
            if is_there:
                self.assertTrue(self.rig.path("d.img").read_bytes() == held, "what was there has changed")
            else:
                self.assertFalse(self.rig.path("d.img").exists())
        self.rig.path("d.img").unlink()
        wished["k"]["size"] = "24MiB"
        self.apply(wished, exported("m"))
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    @limit(60)
    def test_ctrl_c_ends_the_program_and_not_the_change(self):
        self.create(on("a", "1MiB"), exported())
        child = self.begin(on("b", "1MiB"))
        child.signal(signal.SIGINT)
        self.assertEqual(child.wait(10), 1)
        said = child.output()
        for words in ("interrupted: the change goes on in the daemon", "`lamina jobs`", "job move cancel", "leads back"):
            self.assertIn(words, said)
        self.assertIn("move", self.jobs())
        self.daemon.ctl("moves", "job", "move", "limit=none")
        wait_until("the change to be done", 20, lambda: "a" not in self.devices())

    @limit(60)
    def test_a_stage_that_failed_says_what_stays_and_both_ways_on_work(self):
        before, after = on("a", "1MiB"), on("b", "1MiB")
        self.create(before, exported())
        child = self.begin(after)
        self.daemon.ctl("moves", "job", "move", "cancel")
        self.assertEqual(child.wait(10), 10)
        said = child.output()
        for words in (
            "data that was moved stays in its new place", "everything is served", "the same file leads on from there",
            "The earlier file leads back",
        ):
            self.assertIn(words, said)
        self.assertEqual(self.devices(), {"a", "b", "moves", "vm1"})
        handle = self.client()
        self.assertEqual(handle.pread(MIB, 0), bytes(MIB))
        handle.shutdown()
        # On, and back.
        child = self.begin(after)
        self.daemon.ctl("moves", "job", "move", "limit=none")
        self.assertEqual(child.wait(20), 0, child.output())
        self.assertEqual(self.devices(), {"b", "moves", "vm1"})
        self.rig.path("a.img").unlink()
        child = self.begin(before)
        self.daemon.ctl("moves", "job", "move", "limit=none")
        self.assertEqual(child.wait(20), 0, child.output())
        self.assertEqual(self.devices(), {"a", "moves", "vm1"})

    @limit(60)
    def test_at_a_terminal_progress_is_told_and_the_file_is_asked_about(self):
        self.create(on("a", "4MiB"), exported())
        unit = self.daemon.file
        for answer, name, is_replaced in ((b"n\n", "b", False), (b"y\n", "c", True)):
            other = self.rig.write("other.toml", written(on(name, "4MiB"), exported()))
            before = unit.read_text()
            code, said = self.at_terminal(answer, "apply", other, "--control", self.daemon.control, "--force")
            self.assertEqual(code, 0, said)
            self.assertIn("move      moves: away from", said)
            self.assertRegex(said, r"moves +move +running +[0-9.]+% ")
            self.assertIn(f"replace {unit}, which the daemon was started with, by this file? [y/N]", said)
            self.assertEqual(unit.read_text(), other.read_text() if is_replaced else before)

    def at_terminal(self, answer, *words):
        """The exit code of a command at a terminal that answers its first question, and all that was said there."""
        terminal, theirs = pty.openpty()
        try:
            child = subprocess.Popen([lamina_binary(), *words], stdin=theirs, stdout=theirs, stderr=theirs)
            os.close(theirs)
            said, asked = "", False
            while True:
                try:
                    said += os.read(terminal, 4096).decode(errors="replace")
                except OSError as e:
                    self.assertEqual(e.errno, errno.EIO)
                    return child.wait(10), said.replace("\r\n", "\n")
                if "[y/N]" in said and not asked:
                    os.write(terminal, answer)
                    asked = True
        finally:
            os.close(terminal)


class Troubles(LegsCase):
    """Each trouble is told by `lamina status`, with its exit code, by an alert, and by the metric of the hierarchy."""

    def told(self, code, *alerts):
        """Waits until the status has this exit code and just these alerts, and expects the metrics to say the same."""
        def status():
            done = run(lamina_binary(), "status", "--control", self.daemon.control, check=False)
            return done.returncode, done.stdout.strip()
        words = ", ".join(f"{device}: {alert.replace('_', ' ')}" for device, alert in alerts)
        state = {0: "ok", 3: "degraded", 4: "failed"}[code]
        line = f"{self.daemon.file}: {state}" + (f": {words}" if words else "")
        end = time.monotonic() + 20
        while status() != (code, line) and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual(status(), (code, line))
        metrics = self.daemon.get("/metrics")
        self.assertIn(f'lamina_hierarchy_state{{file="{self.daemon.file}"}} {[0, 3, 4].index(code)}', metrics)
        on = {line.removesuffix(" 1") for line in metrics.splitlines() if line.startswith("lamina_alert") and line.endswith(" 1")}
        self.assertEqual(on, {f'lamina_alert{{device="{device}",alert="{alert}"}}' for device, alert in alerts})

    @limit(60)
    def test_a_failed_leg_and_a_failed_spare(self):
        self.create(mirrored("abc", 1), exported("m"))
        self.told(0)
        # A spare that fails costs no byte, and is told all the same.
        self.daemon.ctl("m", "fail", "fc")
        self.told(3, ("m", "degraded"))
        self.daemon.ctl("m", "rejoin", "fc")
        self.told(0)
        self.daemon.ctl("m", "fail", "fc")
        self.daemon.ctl("m", "fail", "fa")
        self.told(3, ("m", "degraded"))
        self.assertIn("fa, a leg of m, is failed", self.daemon.tree("100ms"))
        self.assertIn("fc, a leg of m, is failed", self.daemon.tree("100ms"))
        self.daemon.ctl("m", "rejoin", "fa")
        self.daemon.ctl("m", "rejoin", "fc")
        self.told(0)

    @limit(60)
    def test_a_missing_member(self):
        self.create(mirrored("ab"), exported("m"))
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.rig.path("b.img").rename(self.rig.path("away"))
        self.daemon = type(self.daemon)(
            self.rig, self.daemon.file.read_text(), name="vm1", arguments=("--degraded",))
        self.told(3, ("b", "absent"), ("fb", "absent"), ("m", "degraded"))

    @limit(60)
    def test_a_thin_volume_that_is_nearly_full_and_full(self):
        volume = {"a": member("a", "24MiB"), "meta": member("meta", "16MiB"),
                  "vol": {"type": "snapshot", "over": "a", "metadata": "meta", "size": "1GiB"}}
        self.create(volume, exported("vol"))
        self.told(0)
        handle, at = self.client(), 0
        with self.assertRaises(nbd.Error) as failed:
            while at < 64 * MIB:
                handle.pwrite(b"7" * MIB, at)
                at += MIB
        self.assertEqual(failed.exception.errnum, errno.ENOSPC)
        handle.shutdown()
        self.told(3, ("vol", "nearly_full"))
        # The line that a guest's failed write leaves says what to do.
        wait_until("the log to tell", 10, lambda: "no extent is free" in self.daemon.log() or "full" in self.daemon.log())
        line = next(line for line in self.daemon.log().splitlines() if " is full" in line or "no extent is free" in line)
        self.assertRegex(line, r"vol.*(delete|enlarge|resize|larger)")

    @limit(60)
    def test_what_no_request_reaches(self):
        """Layers without redundancy do not notice that a device below is gone; who asks them does."""
        self.create({**joined(), "fb": {"type": "fault", "over": "b"}, "disk": {"type": "concat", "over": ["a", "fb"]}}, exported())
        handle = self.client()
        handle.pwrite(b"1" * 4096, 0)
        self.told(0)
        self.daemon.ctl("fb", "set", 'rules=[{"error": "offline"}]')
        with self.assertRaises(nbd.Error):
            handle.pread(4096, handle.get_size() - 4096)
        # The rest of it is well.
        self.assertEqual(handle.pread(4096, 0), b"1" * 4096)
        self.told(4, ("vm1", "unreachable"))
        self.daemon.ctl("fb", "clear")
        handle.pread(4096, handle.get_size() - 4096)
        self.told(0)
        handle.shutdown()

    @limit(60)
    def test_legs_that_are_all_gone(self):
        self.create(mirrored("ab"), exported("m"))
        handle = self.client()
        for leg in "ab":
            self.daemon.ctl(f"f{leg}", "set", 'rules=[{"error": "offline"}]')
        with self.assertRaises(nbd.Error):
            handle.pwrite(b"1" * 4096, 0)
        end = time.monotonic() + 10
        while (code := run(lamina_binary(), "status", "--control", self.daemon.control, check=False).returncode) != 4:
            self.assertLess(time.monotonic(), end, code)
        handle.shutdown()

    def test_a_file_that_was_cut_short(self):
        self.daemon = Lamina(self.rig, written({"m": member("m", "8MiB")}, exported("m")).split("\n", 2)[2])
        self.told(0)
        handle = self.client()
        os.truncate(self.rig.path("m.img"), MIB)
        with self.assertRaises(nbd.Error):
            handle.pread(4096, 4 * MIB)
        handle.shutdown()
        self.told(4, ("m", "unreachable"))

    @limit(60)
    def test_an_integrity_error(self):
        devices = {"a": member("a", "24MiB"), "sums": {"type": "integrity", "over": "a"}}
        self.create(devices, exported("sums"))
        handle = self.client()
        handle.pwrite(b"lamina.." * (MIB // 8), 0)
        handle.flush()
        self.told(0)
        with open(self.rig.path("a.img"), "r+b") as image:
            data = image.read()
            image.seek(data.index(b"lamina.." * 1024) + 4096)
            image.write(b"another")
            image.flush()
            os.fsync(image.fileno())
        with self.assertRaises(nbd.Error):
            handle.pread(MIB, 0)
        handle.shutdown()
        self.told(3, ("sums", "corrupt"))


class Shown(LegsCase):
    """What is shown is of now, and fits into a hundred columns."""

    @limit(60)
    def test_the_tree(self):
        names = [f"a-rather-long-name-of-a-device-{number}" for number in range(2)]
        devices = {
            **{name: member(name, "24MiB") for name in names},
            "m": {"type": "mirror", "over": names},
            "volume": {"type": "snapshot", "over": "m", "size": "1277GiB"},
            "monday": {"type": "view", "over": "volume", "name": "monday"},
        }
        first = {name: keys for name, keys in devices.items() if name != "monday"}
        self.create(first, exported("volume"))
        self.daemon.ctl("volume", "snapshot", "monday")
        self.apply(devices, {**exported("volume"), "old": {"device": "monday", "nbd": "unix:nbd.sock", "read-only": True}})
        self.daemon.ctl("m", "fail", names[1])
        tree = self.daemon.tree("100ms")
        self.assertLessEqual(max(map(len, tree.splitlines())), 100, tree)
        self.assertIn("1.25TiB", tree)
        first = [line.split()[0] for line in tree.splitlines() if "snapshot" in line or "view" in line]
        self.assertEqual(first[0], "volume", tree)
        self.assertRegex(tree, f"{names[1]}, a leg of m, is failed")
        self.stop()

    @limit(60)
    def test_errors_since_the_start(self):
        self.create(mirrored("ab"), exported("m"))
        handle = self.client()
        self.kill("fa")
        handle.pwrite(b"1" * 4096, 0)
        self.daemon.tree("100ms")
        line = next(line for line in self.daemon.tree("100ms").splitlines() if "fa " in line and "fault" in line)
        errors, new = map(int, line.split()[-2:])
        self.assertEqual((errors > 0, new), (True, 0), line)
        handle.shutdown()

    @limit(60)
    def test_a_scrub_tells_what_it_healed_and_not_what_others_did(self):
        self.create(mirrored("abc"), exported("m"))
        handle = self.client()
        data = random.Random(9).randbytes(8 * MIB)
        for at in range(0, len(data), MIB):
            handle.pwrite(data[at:at + MIB], at)
        handle.flush()
        handle.shutdown()
        found = []
        for blocks in ((300, 301, 700), (400,), ()):
            for block in blocks:
                Image(self.rig.path("b.img")).flip(block)
            found.append(self.scrub()["last_scrub"]["healed"])
        self.assertEqual(found, [3, 1, 0])
        self.stop()

    @limit(60)
    def test_a_job_that_goes_on_is_as_fast_as_it_is_now(self):
        """What was done before a restart is done, and no part of the rate."""
        disk = lambda name, limit: {
            name: member(name, "64MiB"), "moves": {"type": "migrate", "over": name, "limit": limit},
            "vm1": {"type": "linear", "over": "moves"},
        }
        self.create(disk("a", "24MiB"), exported())
        other = self.rig.write("other.toml", written(disk("b", "24MiB"), exported()))
        child = self.rig.start(lamina_binary(), "apply", other, "--control", self.daemon.control, name="apply")
        job = lambda: next(iter(self.daemon.get("/v1/jobs")), None)
        wait_until("half of it to be moved", 30, lambda: job() and job()["done"] > 24 * MIB)
        self.daemon.kill()
        child.wait(20)
        self.daemon.start()
        wait_until("it to go on", 30, job)
        self.daemon.ctl("moves", "job", "move", "limit=1MiB")
        resumed = job()
        self.assertGreater(resumed["done"], 16 * MIB)
        self.assertLess(resumed["rate"], 64 * MIB, resumed)
        wait_until("the rate to be that of now", 20, lambda: not job() or job()["rate"] < 30 * MIB)
        self.daemon.ctl("moves", "job", "move", "limit=none")


class Events(LegsCase):
    """What has happened to devices is told later, also by the next daemon, and to a program as it happens."""

    def begin(self, *words):
        self.daemon = Lamina(self.rig, self.daemon.file.read_text(), name="vm1", arguments=words)

    def events(self, *words):
        told = run(lamina_binary(), "events", "--json", "--control", self.daemon.control, *words).stdout
        return [json.loads(line) for line in told.splitlines()]

    @limit(60)
    def test_what_happens_is_kept_and_told(self):
        program, heard, kept = self.rig.path("hear"), self.rig.path("heard"), self.rig.path("events")
        program.write_text(f'#!/bin/sh\necho "$LAMINA_EVENT_SEVERITY $LAMINA_EVENT_DEVICE: $LAMINA_EVENT_MESSAGE" >> {heard}\nexit 3\n')
        program.chmod(0o755)
        self.create(mirrored("ab"), exported("m"))
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.begin("--events", kept, "--on-event", program)
        self.daemon.ctl("m", "fail", "fa")
        wait_until("an event", 10, lambda: self.events("m"))
        fails = self.events("m")[-1]
        self.assertEqual((fails["device"], fails["times"]), ("m", 1))
        self.assertIn("fa", fails["message"])
        wait_until("the program to hear of it", 10, lambda: heard.exists() and fails["message"] in heard.read_text())
        self.assertIn(f"{fails['severity']} m: {fails['message']}", heard.read_text())
        # The end of the program that failed is in the log, and is no event.
        wait_until("the log to tell", 10, lambda: "--on-event has failed" in self.daemon.log())
        self.assertFalse([event for event in self.events() if "--on-event" in event["message"]])
        self.daemon.ctl("m", "rejoin", "fa")
        wait_until("another event", 10, lambda: self.events("m")[-1]["number"] > fails["number"])
        before = self.events("m")
        # A daemon that is killed has told the file; a line that it has not finished is left out.
        self.daemon.proc.kill()
        with kept.open("a") as file:
            file.write('{"number": 99')
        self.begin("--events", kept)
        self.assertEqual([event for event in self.events("m") if event in before], before)
        self.daemon.ctl("m", "fail", "fa")
        wait_until("the same again", 10, lambda: self.events("m")[-1]["number"] > before[-1]["number"])
        lines = run(lamina_binary(), "events", "m", "--control", self.daemon.control).stdout.splitlines()
        self.assertRegex(lines[-1], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (info   |warning|error  ) m: .*fa")
        self.assertEqual(run(lamina_binary(), "events", "vm9", "--control", self.daemon.control).stdout, "nothing has happened\n")

    @limit(60)
    def test_a_file_that_takes_nothing_keeps_nobody_from_work(self):
        self.create(mirrored("ab"), exported("m"))
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.begin("--events", "/dev/full", "--on-event", self.rig.path("nothing"))
        self.daemon.ctl("m", "fail", "fa")
        wait_until("an event", 10, lambda: self.events("m"))
        wait_until("the log to tell", 10, lambda: "the file of events takes no more" in self.daemon.log())
        wait_until("the log to tell", 10, lambda: "No such file" in self.daemon.log())
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
