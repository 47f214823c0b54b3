"""Persistent hierarchies: created, served, killed, unplugged, renamed, and found again by what their members carry."""

import itertools
import json
import random
import time

import nbd

from common import KILLS_NBD, MIB, RigCase, limit
from rig import Lamina, lamina_binary, run

NAMES = ("a", "b", "c")


def hierarchy(name="vm1", export="vm1", unit="64KiB", paths=NAMES):
    members = "".join(
        f'[device.{member}]\ntype = "file"\npath = "{path}.img"\nsize = "8MiB"\n\n' for member, path in zip(NAMES, paths)
    )
    return f"""\
[hierarchy]
name = "{name}"

{members}[device.disk]
type = "stripe"
over = ["a", "b", "c"]
unit = "{unit}"

[export.{export}]
device = "disk"
nbd = "unix:nbd.sock"
"""


class Members(RigCase):
    def lamina(self, *words, check=True):
        return run(lamina_binary(), *words, check=check, seconds=30, cwd=self.rig.path(""))

    def refused(self, *words):
        done = self.lamina(*words, check=False)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        return done.stderr

    def create(self, **keys):
        self.file = self.rig.write("vm1.toml", hierarchy(**keys))
        return self.lamina("create", self.file).stdout

    def serve(self, text=None, name="vm1"):
        return Lamina(self.rig, text or hierarchy(), name=name)

    def fill(self, lamina, seed, export="vm1"):
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri(export))
        self.bytes = random.Random(seed).randbytes(handle.get_size())
        for at in range(0, len(self.bytes), MIB):
            handle.pwrite(self.bytes[at:at + MIB], at)
        handle.flush()
        handle.shutdown()

    def verify(self, lamina, export="vm1"):
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri(export))
        for at in range(0, len(self.bytes), MIB):
            part = self.bytes[at:at + MIB]
            self.assertEqual(bytes(handle.pread(len(part), at)), part, at)
        handle.shutdown()

    def member(self, path):
        return json.loads(self.lamina("inspect", "--json", self.rig.path(path)).stdout)["member"]

    def test_nothing_is_served_before_create_and_nothing_is_overwritten_without_force(self):
        file = self.rig.write("vm1.toml", hierarchy())
        said = self.refused("serve", file)
        self.assertIn("a.img cannot be opened: No such file", said)
        self.assertIn("`lamina assemble` finds members", said)
        self.assertFalse(self.rig.path("a.img").exists())
        shown = self.create()
        self.assertIn("a new file of 8MiB", shown)
        uuid = self.member("a.img")["superblock"]["hierarchy_uuid"]
        self.assertIn(uuid, shown)
        said = self.refused("create", file)
        self.assertIn("a.img carries Lamina member", said)
        self.assertIn("--force", said)
        self.assertEqual(self.member("a.img")["superblock"]["hierarchy_uuid"], uuid)
        self.lamina("create", file, "--force")
        self.assertNotEqual(self.member("a.img")["superblock"]["hierarchy_uuid"], uuid)
        with open(self.rig.path("b.img"), "r+b") as image:
            image.seek(0)
            image.write(b"LUKS\xba\xbe\x00\x02")
        self.assertIn("carries LUKS", self.refused("create", file))

    def test_a_member_is_clean_only_after_an_orderly_end(self):
        self.create()
        self.assertTrue(self.member("a.img")["superblock"]["clean"])
        lamina = self.serve()
        self.assertFalse(self.member("a.img")["superblock"]["clean"])
        self.fill(lamina, 1)
        lamina.kill()
        self.assertFalse(self.member("a.img")["superblock"]["clean"])
        lamina.start()
        self.assertIn("was not shut down cleanly", lamina.log())
        self.verify(lamina)
        self.assertEqual(lamina.stop(), 0)
        self.assertTrue(self.member("a.img")["superblock"]["clean"])

    def test_renamed_and_shuffled_members_are_assembled_from_any_one_of_them(self):
        self.create()
        lamina = self.serve()
        self.fill(lamina, 2)
        self.assertEqual(lamina.stop(), 0)
        away = self.rig.path("away")
        away.mkdir()
        for name, new in zip(NAMES, ("x", "y", "z")):
            self.rig.path(f"{name}.img").rename(away / new)
        printed = {self.lamina("assemble", away / one).stdout for one in ("x", "y", "z")}
        printed |= {self.lamina("assemble", *order).stdout for order in itertools.permutations(away.iterdir())}
        printed.add(self.lamina("assemble", away).stdout)
        self.assertEqual(len(printed), 1)
        again = self.serve(printed.pop(), name="found")
        self.verify(again)
        self.assertEqual(again.stop(), 0)
        # The old names in another order: refused in words, and found all the same.
        for new, name in zip(("x", "y", "z"), ("c", "a", "b")):
            (away / new).rename(self.rig.path(f"{name}.img"))
        said = self.refused("serve", self.file)
        self.assertIn("paths were exchanged", said)
        again = self.serve(self.lamina("assemble", self.rig.path("c.img")).stdout, name="shuffled")
        self.verify(again)

    def test_assemble_prints_no_relative_path(self):
        """What it prints is right in every folder."""
        (self.rig.path("key")).write_text("secret")
        file = self.rig.write("vm1.toml", """\
[hierarchy]
name = "vm1"
[device.a]
type = "file"
path = "a.img"
size = "32MiB"
[device.k]
type = "crypt"
over = "a"
key-file = "key"
kdf-memory = "32KiB"
[export.vm1]
device = "k"
nbd = "unix:nbd.sock"
vhost-user = "vm1.sock"
tls = { certificate = "c.pem", key = "k.pem" }
""")
        self.lamina("create", file)
        printed = run(lamina_binary(), "assemble", self.rig.path("a.img"), cwd="/").stdout
        for name in ("a.img", "key", "nbd.sock", "vm1.sock", "c.pem", "k.pem"):
            self.assertRegex(printed, f'"(unix:)?{self.rig.path(name)}"')

    def test_assemble_serves(self):
        self.create()
        daemon = self.rig.start(lamina_binary(), "assemble", "--serve", "--control", self.rig.path("ctl"),
                                self.rig.path("b.img"), name="assembled", cwd=self.rig.path(""))
        daemon.wait_for("\nready\n", 20)
        run("nbdinfo", f"nbd+unix:///vm1?socket={self.rig.path('nbd.sock')}")

    def test_a_stale_a_copied_and_a_missing_member_are_refused_in_words(self):
        self.create()
        old = self.rig.path("c.img").read_bytes()
        made = self.member("c.img")["superblock"]["generation"]
        # Other exports are a change of the hierarchy: the generation rises.
        lamina = self.serve(hierarchy(export="disk"))
        self.assertIn("the exports have changed", lamina.log())
        self.assertEqual(lamina.stop(), 0)
        self.assertEqual(self.member("a.img")["superblock"]["generation"], made + 1)
        self.rig.path("c.img").write_bytes(old)
        said = self.refused("serve", self.file)
        self.assertIn(f'device "c": key "path": is stale: it has generation {made}, and member "a" has {made + 1}', said)
        said = self.refused("assemble", self.rig.path("a.img"))
        self.assertIn('"c" is missing', said)
        self.rig.path("c.img").write_bytes(self.rig.path("a.img").read_bytes())
        self.assertIn('is a copy of member "a"', self.refused("serve", self.file))
        self.rig.path("c.img").unlink()
        self.assertIn("c.img", self.refused("serve", self.file))
        self.assertFalse(self.rig.path("c.img").exists())

    def test_a_damaged_copy_is_mended_and_another_file_is_refused(self):
        self.create()
        made = self.member("a.img")["superblock"]["generation"]
        with open(self.rig.path("b.img"), "r+b") as image:
            image.write(b"\0" * 4096)
        lamina = self.serve()
        self.assertIn("written anew from the other one", lamina.log())
        self.assertEqual(lamina.stop(), 0)
        self.assertEqual(self.member("b.img")["copies"], [f"is good, generation {made}"] * 2)
        said = self.refused("serve", self.rig.write("vm1.toml", hierarchy(unit="128KiB")))
        self.assertIn('here [device.disk] unit = "128KiB", there [device.disk] unit = "64KiB"', said)

    @limit(240)
    def test_kill_9_at_random_moments_leaves_members_that_are_served(self):
        self.create()
        chance = random.Random(4)
        lamina = self.serve()
        self.fill(lamina, 3)
        lamina.stop()
        for round in range(max(10, KILLS_NBD // 2)):
            # Every start with other exports writes all superblocks with a new generation.
            self.rig.write("vm1.toml", hierarchy(export=f"e{round}"))
            starting = self.rig.start(lamina_binary(), "serve", self.file, "--control", self.rig.path("k"), name=f"k{round}")
            time.sleep(chance.random() * 0.03)
            starting.kill()
        self.rig.write("vm1.toml", hierarchy())
        lamina = self.serve()
        self.verify(lamina)
        self.assertEqual(lamina.stop(), 0)
