"""A flash in front of a slow store: killed at random moments, changed while it runs, moved to another host, and what is left
of it."""

import hashlib
import shutil
import time

import nbd

from common import KILLS_GUEST, KILLS_NBD, MIB, limit
from hierarchies import written
from rig import Lamina, Rig, wait_until
from rig.ledger import Ledger, Writer
from test_guest import VERIFY, GuestCase
from test_kills import Kills
from test_kills import Killed as KilledHierarchy

# Store and flash, of which the flash is the smaller one, so that it goes round.
SIZES = {"san-file": "48MiB", "nvme": "24MiB"}


def accelerated(policy="write-back", volumes=("vm1",), direct=True, **keys):
    """Volumes on one flash, each in front of a store of its own that takes its time."""
    devices = {"nvme": {"type": "file", "path": "nvme.img", "size": SIZES["nvme"], "direct": direct},
               "cache": {"type": "flash", "over": "nvme"}}
    exports = {}
    for name in volumes:
        devices[f"{name}-file"] = {"type": "file", "path": f"{name}.img", "size": SIZES["san-file"], "direct": direct}
        devices[f"{name}-san"] = {"type": "delay", "over": f"{name}-file", "write": "5ms", "write-iops": 400}
        devices[name] = {"type": "accelerate", "over": [f"{name}-san", "cache"], "policy": policy, **keys}
        exports[name] = {"device": name, "nbd": "unix:nbd.sock"}
    return devices, exports


class Killed(Kills):
    """kill -9 under load, store and flash on files without the page cache: no byte is ever wrong."""

    def kill_under(self, policy, kills):
        self.begin(*accelerated(policy))
        dirty = 0
        for _ in range(kills):
            self.pump(self.chance.random() * 0.5)
            self.daemon.kill()
            self.daemon.start()
            dirty += self.daemon.device("vm1")["info"]["dirty_bytes"] > 0
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        print(f"        {kills} kills, {dirty} of them with writes that the store did not have")

    @limit(60 + 5 * KILLS_NBD)
    def test_write_back(self):
        self.kill_under("write-back", KILLS_NBD // 2)

    @limit(60 + 5 * KILLS_NBD)
    def test_write_through(self):
        self.kill_under("write-through", KILLS_NBD // 4)

    @limit(60 + 5 * KILLS_NBD)
    def test_policies_that_change(self):
        """The daemon is killed while the policy changes, too."""
        self.begin(*accelerated())
        for n in range(KILLS_NBD // 4):
            policy = ["write-through", "uncached", "write-back"][n % 3]
            child = self.start("ctl", "vm1", "set-policy", policy)
            self.pump(self.chance.random() * 0.3)
            self.daemon.kill()
            child.wait()
            self.daemon.start()
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())


class Seen(Kills):
    """What it does in the background is visible, and can be ended where that makes sense."""

    def figures(self):
        """The metrics, by name and labels."""
        lines = (line for line in self.daemon.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def test_drain_and_replay(self):
        self.begin(*accelerated())
        self.pump(0.5)
        self.daemon.ctl("vm1-san", "set", "write=1h")
        self.pump(0.5)
        drain = self.start("ctl", "vm1", "drain")
        wait_until("the drain to be a job", 20, lambda: "drain" in self.jobs())
        tree = " ".join(self.daemon.tree("200ms").split())
        for words in ("CLEAN IN", "vm1 write-back", "FLASH", "vm1 drain running"):
            self.assertIn(words, tree)
        figures = self.figures()
        dirty = self.daemon.device("vm1")["info"]["dirty_bytes"]
        self.assertEqual(figures['lamina_accelerate_dirty_bytes{device="vm1"}'], dirty)
        self.assertEqual(figures['lamina_flash_dirty_bytes{device="cache"}'], dirty)
        self.assertGreater(figures['lamina_accelerate_oldest_dirty_seconds{device="vm1"}'], 0)
        self.assertGreater(figures['lamina_accelerate_written_bytes_total{device="vm1"}'], dirty)
        self.assertEqual(figures['lamina_alert{device="vm1",alert="store_trouble"}'], 0)
        self.assertGreater(figures['lamina_job_total_bytes{device="vm1",job="drain"}'], 0)
        refused = self.lamina("ctl", "--control", self.daemon.control, "vm1", "job", "drain", "pause", check=False)
        self.assertIn("drain can only be cancelled", refused.stderr)
        self.daemon.ctl("vm1", "job", "drain", "cancel")
        wait_until("the command to end", 20, lambda: not drain.running())
        self.assertIn("drain was cancelled", drain.output())
        self.assertEqual(self.jobs(), [])
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.jobs(), ["replay"])
        wait_until("the replay to end", 60, lambda: not self.jobs())
        self.assertEqual(self.figures()['lamina_accelerate_dirty_bytes{device="vm1"}'], 0)
        self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())


class UnderAGuest(GuestCase, KilledHierarchy):
    """As the above, with a guest that verifies and notices nothing."""

    def digest(self):
        handle = self.client()
        found = hashlib.sha256()
        for at in range(0, handle.get_size(), MIB):
            found.update(handle.pread(min(MIB, handle.get_size() - at), at))
        handle.shutdown()
        return found.hexdigest()

    def dirty(self):
        return self.daemon.device("vm1")["info"]["dirty_bytes"]

    def change_the_policy(self, n):
        self.start("ctl", "vm1", "set-policy", ["write-through", "uncached", "write-back"][n % 3])

    def kill_under(self, kills, meanwhile=None):
        devices, exports = accelerated()
        exports["vm1"]["vhost-user"] = "vm1.sock"
        self.create(devices, exports)
        guest = self.boot(self.daemon)
        guest.background("fio", VERIFY.format(file="/dev/vda", size="40M", seconds=kills * 3 + 5))
        dirty = 0
        for n in range(kills):
            before = self.daemon.counter("vm1", "write")
            wait_until("the guest to go on", 30, lambda: self.daemon.counter("vm1", "write") > before + 10)
            if meanwhile:
                meanwhile(n)
            time.sleep(self.chance.random() * 0.5)
            self.assert_busy(guest)
            self.daemon.kill()
            self.daemon.start()
            dirty += self.dirty() > 0
        self.assert_healthy(guest, guest.result("fio", kills * 3 + 120))
        self.assertEqual(guest.power_off(), 0)
        # What the flash said is what the store has.
        before = self.digest()
        self.daemon.ctl("vm1", "set-policy", "uncached")
        self.assertEqual(self.digest(), before)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        print(f"        {kills} kills, {dirty} of them with writes that the store did not have; "
              f"{sum(self.daemon.requests_taken_over())} requests taken over")

    @limit(180 + 5 * KILLS_GUEST)
    def test_write_back(self):
        self.kill_under(KILLS_GUEST // 4)

    @limit(180 + 5 * KILLS_GUEST)
    def test_policies_that_change(self):
        self.kill_under(KILLS_GUEST // 4, self.change_the_policy)


class Surrogate(Kills):
    """Its host dies with writes that the store does not have; store and flash are opened on another one."""

    def dies(self):
        """Leaves writes on the flash that the store takes no more, and members that lie somewhere else."""
        self.begin(*accelerated())
        self.pump(0.3)
        self.daemon.ctl("vm1-san", "set", "write=1h", "flush=1h")
        self.pump(0.5)
        self.assertGreater(self.daemon.device("vm1")["info"]["dirty_bytes"], 0)
        self.daemon.kill()
        self.there = self.enterContext(Rig())
        self.members = {"vm1-file": self.there.path("lun7"), "nvme": self.there.path("disk-of-the-dead")}
        shutil.move(self.rig.path("vm1.img"), self.members["vm1-file"])
        shutil.move(self.rig.path("nvme.img"), self.members["nvme"])

    def there_as(self, **members):
        """The hierarchy file of the other host."""
        devices, exports = accelerated()
        for name, path in {**self.members, **members}.items():
            devices[name]["path"] = str(path)
        return written(devices, exports)

    def takes_over(self, text):
        """Serves it there: every byte is right, first from the flash, and then from the store alone."""
        self.daemon = Lamina(self.there, text, name="surrogate")
        info = self.daemon.device("vm1")["info"]
        self.assertGreater(info["dirty_bytes"] + info["destaged_bytes"], 0)
        self.attach()
        self.writer.close()
        wait_until("the replay to end", 60, lambda: not self.daemon.device("vm1")["info"]["dirty_bytes"])
        self.daemon.ctl("vm1", "set-policy", "uncached")
        self.attach()
        self.pump(0.2)
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    def test_a_file_with_other_paths_is_enough(self):
        self.dies()
        self.takes_over(self.there_as())

    def test_the_members_alone_are_enough(self):
        self.dies()
        found = self.assemble(*self.members.values())
        self.assertIn(str(self.members["nvme"]), found)
        # The host that died had its sockets in another folder.
        self.takes_over(found.replace(f"{self.rig.path('x').parent}/", ""))

    def test_the_flash_with_another_store_is_refused(self):
        self.dies()
        # Of another hierarchy, which is described by the same file; and one that carries nothing.
        other = self.there.path("other")
        other.mkdir()
        made = self.there.write("other/vm1.toml", written(*accelerated()))
        self.lamina("create", made)
        blank = self.there.file("blank", 48 * MIB)
        before = self.members["nvme"].read_bytes()
        for store, words in ((other / "vm1.img", "hierarchy"), (blank, "no superblock")):
            said = self.refused("serve", self.there.write("wrong.toml", self.there_as(**{"vm1-file": store})))
            self.assertIn(words, said)
            self.assertIn('device "vm1-file": key "path"', said)
        said = self.refused("assemble", self.members["nvme"], other / "vm1.img")
        self.assertIn("2 hierarchies", said)
        self.assertEqual(self.members["nvme"].read_bytes(), before)
        self.takes_over(self.there_as())


class Unflushed(Ledger):
    """No flush counts: what it covered may be lost, too."""

    def cover(self, answered):
        pass


class LostFlash(Kills):
    """Its host dies, and the flash is gone for good."""

    def test_a_store_with_a_redo_log_is_what_the_volume_was(self):
        devices, exports = accelerated()
        # Writes of 16 KiB are in one piece on it: see the module `epoch`.
        devices["nvme"]["size"] = "256MiB"
        devices["log"] = {"type": "file", "path": "log.img", "size": "12MiB", "direct": True}
        devices["store"] = {"type": "redo", "over": "vm1-san", "metadata": "log"}
        devices["vm1"]["over"] = ["store", "cache"]
        self.begin(devices, exports, Unflushed(acknowledged=False, moment=True))
        point = {"epoch": 0}
        while point["epoch"] < 4:
            self.pump(self.chance.random() * 0.5)
            point = self.daemon.device("vm1")["info"]["recovery_point"]
        self.assertLess(point["age_seconds"], 30)
        self.assertGreater(point["lag_bytes"], 0)
        self.daemon.kill()
        self.rig.path("nvme.img").unlink()
        self.daemon.arguments = ["--degraded"]
        self.daemon.start()
        info = self.daemon.device("vm1")["info"]
        self.assertTrue(info["lost"]["unknown"], info)
        with self.assertRaises(nbd.Error):
            Writer(self.ledger, self.daemon.uri("vm1")).check()
        self.daemon.ctl("vm1", "accept-loss")
        self.attach()
        self.assertGreater(max(self.ledger.flushed), 0)
        self.pump(0.3)
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
