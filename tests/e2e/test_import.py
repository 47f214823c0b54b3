"""`lamina import`: images of QEMU's formats become served disks; `lamina map`: their bytes are where it says."""

import json
import random

from common import MIB
from hierarchies import HierarchyCase, exported, member
from rig import run

SIZE = 24 * MIB


class Images(HierarchyCase):
    def thin(self, size="24MiB"):
        devices = {"a": member("a", "64MiB"), "vm1": {"type": "snapshot", "over": "a", "size": size}}
        return self.create(devices, exported())

    def plain(self):
        return self.create({"a": member("a", "40MiB"), "vm1": {"type": "linear", "over": "a"}}, exported())

    def image(self, name, *options, size=SIZE):
        path = self.rig.path(name)
        run("qemu-img", "create", "-q", *options, path, str(size))
        return path

    def fill(self, path, *commands, form="qcow2"):
        run("qemu-io", "-f", form, *(word for command in commands for word in ("-c", command)), path)

    def imported(self, *words, check=True):
        done = self.lamina("import", "--control", self.daemon.control, *words, check=check)
        return done.stdout if check else done.stderr

    def same(self, path, form="qcow2"):
        run("qemu-img", "compare", "-f", form, "-F", "raw", path, self.daemon.uri("vm1"))

    def test_states_of_an_image_share_what_is_the_same(self):
        daemon = self.thin()
        path = self.image("old.qcow2", "-f", "qcow2")
        self.fill(path, "write -P 1 0 8M")
        run("qemu-img", "snapshot", "-c", "monday", path)
        self.fill(path, "write -P 2 1M 64k")
        run("qemu-img", "snapshot", "-c", "tuesday", path)
        self.fill(path, "write -z 4M 2M", "write -P 3 16M 1M", "write -P 1 0 1M")
        printed = self.imported(path, "vm1")
        self.assertEqual(
            printed.splitlines(),
            ["monday: 8MiB of 24MiB written", "tuesday: 64KiB of 24MiB written", "the present state: 3MiB of 24MiB written"],
        )
        self.same(path)
        info = daemon.device("vm1")["info"]
        self.assertEqual([snapshot["name"] for snapshot in info["snapshots"]], ["monday", "tuesday"])
        taken = (info["extents"] - info["free"]) * info["extent"]
        self.assertLess(taken, 11 * MIB)
        for state in ("tuesday", "monday"):
            daemon.ctl("vm1", "rollback", f"name={state}", "force=true")
            raw = self.rig.path(f"{state}.raw")
            run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", "-l", f"snapshot.name={state}", path, raw)
            self.same(raw, "raw")
        # Once more, only what differs from monday's state is written; and the names are there already.
        self.assertIn("there is a snapshot \"monday\" already", self.imported("--force", path, "vm1", check=False))
        self.assertIn("the present state: ", self.imported("--force", "--no-snapshots", path, "vm1"))
        self.same(path)

    def test_data_is_overwritten_only_if_that_is_said(self):
        self.plain()
        path = self.image("disk.vmdk", "-f", "vmdk")
        self.fill(path, "write -P 9 5M 3M", form="vmdk")
        chance = random.Random(5)
        before = chance.randbytes(MIB)
        handle = self.client()
        handle.pwrite(before, 2 * MIB)
        handle.pwrite(before, 30 * MIB)
        refused = self.imported("--format", "vmdk", path, "vm1", check=False)
        self.assertIn("the import overwrites the first 24MiB; nothing was done: say --force to confirm", refused)
        self.assertEqual(handle.pread(MIB, 2 * MIB), before)
        self.imported("--format", "vmdk", "--force", path, "vm1")
        self.assertEqual(handle.pread(MIB, 2 * MIB), bytes(MIB))
        self.assertEqual(handle.pread(MIB, 5 * MIB), bytes([9]) * MIB)
        # Behind the image.
        self.assertEqual(handle.pread(MIB, 30 * MIB), before)
        handle.shutdown()

    def test_what_does_not_fit_is_refused_and_the_advice_helps(self):
        daemon = self.thin("8MiB")
        path = self.image("big.qcow2", "-f", "qcow2", size=80 * MIB)
        self.fill(path, "write -P 4 72M 4M")
        refused = self.imported(path, "vm1", check=False)
        self.assertIn("vm1 has 8MiB, the image 80MiB: `lamina resize vm1 80MiB` makes it larger", refused)
        self.lamina("resize", "--control", daemon.control, "vm1", "80MiB")
        self.assertGreater(daemon.device("a")["geometry"]["size"], 80 * MIB)
        self.imported(path, "vm1")
        self.same(path)
        daemon.kill()
        daemon.start()
        self.same(path)

    def test_snapshots_need_a_device_that_keeps_them(self):
        self.plain()
        path = self.image("old.qcow2", "-f", "qcow2")
        run("qemu-img", "snapshot", "-c", "monday", path)
        self.fill(path, "write -P 6 1M 1M")
        refused = self.imported(path, "vm1", check=False)
        self.assertIn("the image has snapshots, and vm1, of kind linear, keeps none: --no-snapshots", refused)
        self.imported("--no-snapshots", path, "vm1")
        self.assertEqual(self.client().pread(MIB, MIB), bytes([6]) * MIB)

    def test_an_image_reads_no_other_file_unless_that_is_allowed(self):
        self.thin()
        secret = self.rig.path("secret")
        secret.write_bytes(b"a secret" * (3 * MIB))
        path = self.image("evil.qcow2", "-f", "qcow2", "-F", "raw", "-b", secret)
        self.assertIn("reads from another file", self.imported(path, "vm1", check=False))
        # A raw image that looks like the other is what its bytes are.
        disguised = self.rig.path("disguised.raw")
        disguised.write_bytes(path.read_bytes().ljust(MIB, b"\0"))
        self.imported("--format", "raw", disguised, "vm1")
        self.assertEqual(self.client().pread(512, 0)[:8], b"QFI\xfb\0\0\0\3")
        self.imported("--backing", "--force", path, "vm1")
        self.assertEqual(self.client().pread(512, 0)[:16], b"a secreta secret")
        for words, says in (
            ((self.rig.path("none.qcow2"), "vm1"), "No such file"),
            ((secret, "vm1"), "not in qcow2 format"),
            (("--backing", path, "vm2"), "there is no export \"vm2\""),
        ):
            self.assertIn(says, self.imported(*words, check=False))


class Bytes(HierarchyCase):
    """The bytes of a disk are found in the files, at the offsets that `lamina map` tells."""

    def mapped(self, device, at):
        done = self.lamina("map", "--control", self.daemon.control, "--json", device, str(at))
        return json.loads(done.stdout)

    def leaves(self, map_):
        below = [leaf for child in map_["below"] for leaf in self.leaves(child)]
        return below or [(map_["device"], map_["at"], map_["role"])]

    def at(self, leaf):
        name, at, _ = leaf
        return self.rig.path(f"{name}.img").read_bytes()[at:at + 512]

    def test_of_a_mirror_of_a_parity_of_a_log(self):
        legs = ("a", "b", "c", "d")
        devices = {
            **{name: member(name, "24MiB") for name in (*legs, "e")},
            "five": {"type": "parity", "over": list(legs[:3]), "unit": "16KiB"},
            "log": {"type": "sequentialize", "over": "five"},
            "both": {"type": "mirror", "over": ["d", "e"]},
            "vm1": {"type": "concat", "over": ["both", "log"]},
        }
        daemon = self.create(devices, exported())
        chance, client = random.Random(7), self.client()
        written = {}
        for number in range(60):
            at = chance.randrange(client.get_size() // 4096) * 4096
            written[at] = chance.randbytes(4096)
            client.pwrite(written[at], at)
        client.flush()
        kinds = set()
        for at, data in written.items():
            leaves = self.leaves(self.mapped("vm1", at + 512))
            held = [leaf for leaf in leaves if leaf[2] == "data"]
            kinds.add(tuple(role for _, _, role in leaves))
            self.assertEqual([self.at(leaf) for leaf in held], [data[512:1024]] * len(held), leaves)
        self.assertEqual(kinds, {("data", "data"), ("data", "parity")})
        places = range(0, client.get_size(), MIB // 8)
        unwritten = next(at for at in places if self.leaves(self.mapped("vm1", at))[0][0] == "log")
        shown = self.lamina("map", "--control", daemon.control, "vm1", str(unwritten)).stdout
        self.assertIn("zero, not allocated", shown)
        beyond = self.lamina("map", "--control", daemon.control, "vm1", str(client.get_size()), check=False)
        self.assertEqual((beyond.returncode, "out of range" in beyond.stderr), (2, True), beyond.stderr)
        # What is away is no place of it.
        daemon.ctl("both", "fail", "leg=e")
        inside = next(at for at in written if self.leaves(self.mapped("vm1", at))[0][0] in "de")
        self.assertEqual([name for name, _, _ in self.leaves(self.mapped("vm1", inside))], ["d"])
        client.shutdown()
