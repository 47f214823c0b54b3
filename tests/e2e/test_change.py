"""A persistent hierarchy becomes another one while clients use it: layers, members, sizes, exports, views."""

import json

from common import MIB, limit
from hierarchies import ROOM, HierarchyCase, exported, joined, member, written
from rig import lamina_binary, run, wait_until
from rig.process import PATIENCE
from test_fio import fio
from test_guest import VERIFY, GuestCase

SLOW = {"slow": {"type": "delay", "over": "disk", "write": "1ms"}, "vm1": {"type": "linear", "over": "slow"}}
LOG = {"log": {"type": "record", "over": "vm1", "log": "writes.log"}}
VOLUME = {
    "meta": member("meta", "16MiB"), "vol": {"type": "snapshot", "over": "disk", "metadata": "meta"},
    "vm1": {"type": "linear", "over": "vol"},
}

# A partition table over the disk, and a partition of it under `vm1`.
PARTS = {
    "parts": {"type": "partition", "over": "disk", "partitions": [{"name": "root", "size": "40MiB"}]},
    "vm1": {"type": "view", "over": "parts", "name": "root"},
}


def longest_wait(report):
    """Milliseconds that the slowest request of a fio with `--output-format=json` took, and its error."""
    job = json.JSONDecoder().raw_decode(report[report.index("{"):])[0]["jobs"][0]
    return max(job[way]["clat_ns"]["max"] for way in ("read", "write")) / 1e6, job["error"]


class UnderLoad(HierarchyCase):
    def verifying(self, seconds):
        """fio with 16 requests of 4 KiB in flight that checks what it wrote, for so long."""
        return self.rig.start(
            *fio(self.daemon.uri("vm1"), "--do_verify=1", "--verify_backlog=256", "--time_based",
                 f"--runtime={seconds * PATIENCE}", "--thread", "--output-format=json"), name="fio",
        )

    def clean(self, client):
        """Expects that fio ends well; returns how long its slowest request took, in milliseconds."""
        code = client.wait(30)
        wait, error = longest_wait(client.output())
        self.assertEqual((code, error), (0, 0), client.output())
        return wait

    @limit(240)
    def test_layers_and_members_come_and_go(self):
        base, grown, other = joined(), joined(("a", "b", "c")), joined(("d", "b"))
        daemon = self.create(base, exported())
        self.assertEqual(self.size(), 2 * ROOM)
        client = self.verifying(8)
        rounds = 0
        while client.running():
            self.apply({**base, **SLOW}, exported())
            self.apply(base, exported())
            self.apply({**base, **LOG}, exported("log"))
            self.apply(base, exported())
            # Larger by a member, and smaller again.
            self.apply(grown, exported(), "--force")
            self.assertEqual(self.size(), 3 * ROOM)
            refused = self.apply({**base, "disk": {**grown["disk"], "over": ["b", "a"]}}, exported(), check=False)
            self.assertIn("the others have 0B free", refused)
            daemon.ctl("disk", "resize", f"size={2 * ROOM}", "force=true")
            self.apply(base, exported())
            self.assertEqual(self.size(), 2 * ROOM)
            # The data of a member moves to another one, and back.
            self.assertIn("move      disk: away from a", self.apply(other, exported(), "--force"))
            self.apply(base, exported(), "--force")
            rounds += 1
        wait = self.clean(client)
        self.assertGreaterEqual(rounds, 1)
        print(f"        {rounds} rounds of 8 changes under fio; its slowest request took {wait:.0f} ms")

    @limit(120)
    def test_the_members_say_what_was_applied(self):
        """After a change the hierarchy is found, and served, as it is now; files from before are refused."""
        base, other = joined(), joined(("a", "c"), "32MiB")
        other["a"] = base["a"]
        self.create(base, exported())
        client = self.verifying(2)
        self.apply(other, exported())
        self.clean(client)
        self.fill()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        found = self.assemble()
        self.assertIn('[device.c]', found)
        self.assertNotIn('[device.b]', found)
        self.assertEqual(found, self.assemble(self.rig.path("c.img")))
        self.assertEqual(found, self.assemble(self.rig.path("a.img")))
        old = self.rig.write("old.toml", written(base, exported()))
        self.assertIn('device "b": key "path": is stale', self.refused("serve", old))
        for text in (found, written(other, exported())):
            self.daemon.file.write_text(text)
            self.daemon.start()
            self.check()
            self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    def fill(self):
        """Writes what `check` expects to find."""
        handle = self.client()
        for at in range(0, 40 * MIB, MIB):
            handle.pwrite(at.to_bytes(8, "little") * (MIB // 8), at)
        handle.flush()
        handle.shutdown()

    def check(self):
        handle = self.client()
        for at in range(0, 40 * MIB, MIB):
            self.assertEqual(handle.pread(MIB, at), at.to_bytes(8, "little") * (MIB // 8))
        handle.shutdown()

    @limit(240)
    def test_partitions_views_and_exports_come_and_go(self):
        base = {**joined(), **PARTS}
        daemon = self.create(base, exported())
        client = self.verifying(6)
        more = {**base, "home": {"type": "view", "over": "parts", "name": "home"}}
        rounds = 0
        while client.running():
            daemon.ctl("parts", "create", "name=home", "size=2MiB")
            self.apply(more, {**exported(), "home": {"device": "home", "nbd": "unix:nbd.sock"}})
            self.assertEqual(self.size("home"), 2 * MIB)
            held = self.client("home")
            held.pwrite(b"7" * 512, 0)
            self.assertIn('export "home" is in use', self.apply(base, exported(), check=False))
            daemon.ctl("parts", "resize", "name=home", "size=3MiB")
            self.assertEqual(self.size("home"), 3 * MIB)
            self.assertEqual(held.pread(512, 0), b"7" * 512)
            held.shutdown()
            self.apply(more, {**exported(), "again": {"device": "home", "nbd": "unix:again.sock"}})
            self.assertFalse(self.try_ctl("parts", "delete", "name=home"))
            self.apply(base, exported())
            self.assertFalse(self.rig.path("again.sock").exists())
            daemon.ctl("parts", "delete", "name=home")
            # The disk below the table gets other layers and members meanwhile.
            self.apply({**base, **self.slower(base)}, exported())
            self.apply({**base, **joined(("a", "c")), **PARTS}, exported(), "--force")
            self.apply(base, exported(), "--force")
            rounds += 1
        wait = self.clean(client)
        self.assertGreaterEqual(rounds, 1)
        self.assertEqual([part["name"] for part in json.loads(daemon.ctl("parts", "list"))["partitions"]], ["root"])
        print(f"        {rounds} rounds of 9 changes under fio; its slowest request took {wait:.0f} ms")

    def moving(self):
        """A hierarchy with data on `slow`, which takes its time, and an `apply` on its way that replaces that; has the
        daemon's jobs wait, and returns the client's process, and what was to be applied."""
        slow = {"a": member("a", "24MiB"), "slow": {"type": "delay", "over": "a", "read": "100ms"}}
        old, new = ({"device": "vm1", "nbd": f"unix:{name}.sock"} for name in ("old", "new"))
        self.create({**joined(("slow", "b")), **slow}, {**exported(), "old": old})
        self.fill()
        change = joined(("c", "b")), {**exported(), "new": new}
        self.write(*change)
        client = self.rig.start(lamina_binary(), "apply", self.daemon.file, "--control", self.daemon.control, name="apply")
        wait_until("data to be moved", 20, lambda: self.daemon.get("/v1/jobs"))
        self.daemon.ctl("disk", "job", "move", "pause")
        return client, change

    def changed(self):
        """Expects what `moving` was to bring about, with all data."""
        self.check()
        self.assertFalse(self.rig.path("old.sock").exists())
        self.assertEqual(int(run("nbdinfo", "--size", self.daemon.uri("new", "new.sock")).stdout), self.size())
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        found = self.assemble(self.rig.path("c.img"))
        self.assertIn('over = ["c", "b"]', found)
        self.assertNotIn("leaving", found)

    @limit(120)
    def test_a_change_that_was_stopped_goes_on_when_applied_again(self):
        client, change = self.moving()
        self.daemon.ctl("disk", "job", "move", "cancel")
        self.assertEqual(client.wait(), 10, client.output())
        self.assertIn("the same file leads on from there", client.output())
        # What there is on the way is served: all data, and the exports of the new file.
        self.check()
        self.assertEqual(self.size("vm1"), int(run("nbdinfo", "--size", self.daemon.uri("new", "new.sock")).stdout))
        self.assertIn("move      disk: away from slow", self.apply(*change))
        self.changed()

    @limit(120)
    def test_a_change_whose_client_is_gone_goes_on(self):
        client, change = self.moving()
        client.kill()
        self.assertIn("another change", self.apply(*change, check=False))
        self.daemon.ctl("disk", "job", "move", "resume")
        wait_until("the change to end", 60, lambda: "another change" not in self.apply(*change, check=False))
        self.assertEqual(self.apply(*change), "everything is as the file says\n")
        self.changed()

    @limit(120)
    def test_a_daemon_that_is_stopped_during_a_change_goes_on_after_its_start(self):
        client, change = self.moving()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        # The move was cancelled, if the daemon could still say so.
        self.assertIn(client.wait(), (1, 10), client.output())
        self.daemon.file.write_text(self.assemble())
        self.daemon.start()
        self.check()
        self.apply(*change)
        self.changed()

    def slower(self, base):
        return {"slow": {"type": "delay", "over": "disk", "write": "1ms"}, "parts": {**base["parts"], "over": "slow"}}

    def try_ctl(self, *words):
        return self.lamina("ctl", "--control", self.daemon.control, *words, check=False).returncode == 0


class UnderAGuest(GuestCase, HierarchyCase):
    @limit(300)
    def test_a_guest_does_not_notice_but_for_the_size(self):
        """fio verifies in the guest while layers are put under its disk, a snapshot among them, a member is replaced, and
        one is added."""
        devices, exports = joined(size="48MiB"), exported(**{"vhost-user": "vm1.sock"})
        self.create(devices, exports)
        guest = self.boot(self.daemon)
        sectors = int(guest.run("cat /sys/block/vda/size"))
        # fio has enough to do for all changes on the slowest machine, and is told to end after the last one: 128.
        fio = VERIFY.format(file="/dev/vda", size="64M", seconds=240) + " --output-format=json"
        guest.background("fio", f"{fio}; test $? -eq 128")

        def go_on():
            before = self.daemon.counter("vm1", "write")
            self.assert_busy(guest)
            wait_until("more writes of the guest", 30, lambda: self.daemon.counter("vm1", "write") > before + 50)
        log = exported("log", **{"vhost-user": "vm1.sock"})
        replaced, grown = joined(("a", "c"), "48MiB"), joined(("a", "c", "d"), "48MiB")
        for change in (
            ({**devices, **SLOW}, exports), (devices, exports), ({**devices, **LOG}, log), (devices, exports),
            ({**devices, **VOLUME}, exports), (devices, exports), ({**devices, **VOLUME}, exports, "--force"),
            ({**replaced, **VOLUME}, exports), ({**grown, **VOLUME}, exports),
        ):
            go_on()
            self.apply(*change)
        self.daemon.ctl("vol", "grow")
        # Now there is room for what a snapshot keeps.
        self.daemon.ctl("vol", "snapshot", "name=monday")
        go_on()
        self.assertIn("there are 1 snapshots", self.apply(grown, exports, check=False))
        self.daemon.ctl("vol", "delete", "name=monday")
        size = sectors * 512 + 16 * MIB
        self.daemon.ctl("vol", "resize", f"size={size}")
        told = "for i in $(seq 100); do s=$(cat /sys/block/vda/size); [ $s = {} ] || break; sleep 0.1; done; echo $s"
        self.assertEqual(int(guest.run(told.format(sectors))), size // 512)
        guest.end_fio()
        wait, error = longest_wait(guest.result("fio", 120))
        self.assertEqual(error, 0)
        self.assert_healthy(guest)
        guest.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=100 count=6 conv=fsync")
        self.assertEqual(guest.power_off(), 0)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        print(f"        the guest's slowest request took {wait:.0f} ms")
