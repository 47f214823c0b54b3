"""Digests of blocks, checked against Python's `hashlib`: after nbdcopy, fio, small writes, kill -9 and a restart."""

import collections
import hashlib
import json
import random

import nbd
from common import MIB, limit
from hierarchies import HierarchyCase, exported, member
from legs import Image
from rig import run, wait_until
from test_fio import clean, fio


class Fingerprints(HierarchyCase):
    def ask(self, command, *arguments):
        return json.loads(self.daemon.ctl("prints", command, *arguments))

    def go(self, name, block):
        self.hash, self.block = lambda of: hashlib.new(name, of).hexdigest(), block
        devices = {
            "a": {**member("a", "40MiB"), "direct": True},
            "prints": {"type": "fingerprint", "over": "a", "hash": name, "block": f"{block // 1024}KiB"},
        }
        self.create(devices, exported("prints"))
        self.assertEqual(self.ask("duplicates")["blocks"], 0)
        self.copied_in()
        self.marked()
        self.written_by_fio()
        self.killed()
        self.flipped()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())

    def blocks(self):
        """What the device holds, by nbdcopy."""
        path = self.rig.path("found")
        run("nbdcopy", self.daemon.uri("vm1"), path)
        data = path.read_bytes()
        return [data[at:at + self.block] for at in range(0, len(data), self.block)]

    def check(self):
        """Expects that every answer is that of hashlib; returns the blocks."""
        blocks = self.blocks()
        places = collections.defaultdict(list)
        for number, block in enumerate(blocks):
            places[block].append(number * self.block)
        zeroes = len(places.pop(bytes(self.block), []))
        found, equal = self.ask("duplicates", "top=5"), len(blocks) - zeroes - len(places)
        self.assertEqual(
            [found[key] for key in ("blocks", "zero_blocks", "duplicates", "bytes_saved", "one_in", "pending_bytes")],
            [len(blocks) - zeroes, zeroes, equal, equal * self.block, 1, 0],
        )
        most = sorted((-len(where), where[0], block) for block, where in places.items() if len(where) > 1)[:5]
        self.assertEqual(
            [(group["blocks"], group["offset"], group["hash"]) for group in found["top"]],
            [(-count, offset, self.hash(block)) for count, offset, block in most],
        )
        chance = random.Random(7)
        for block in [block for _, _, block in most] + chance.sample(list(places), 4):
            answer = self.ask("where", f"hash={self.hash(block)}", "limit=100000")
            self.assertEqual((answer["blocks"], answer["offsets"]), (len(places[block]), places[block]))
        self.assertEqual(self.ask("where", f"hash={self.hash(b'nowhere')}")["blocks"], 0)
        for number in chance.sample(range(len(blocks)), 8):
            answer = self.ask("at", f"offset={number * self.block + 17}")
            self.assertEqual(answer, {"offset": number * self.block, "hash": self.hash(blocks[number])})
        return blocks

    def verify(self):
        """Reads everything; returns where it is not as the table says."""
        passes = self.info()["passes"]
        self.daemon.ctl("prints", "verify")
        wait_until("the pass to end", 30, lambda: self.info()["passes"] > passes)
        return self.info()["corrupt_at"]

    def info(self):
        return self.daemon.device("prints")["info"]

    def copied_in(self):
        """Of 400 contents and zeroes, drawn again and again."""
        chance = random.Random(1)
        contents = [chance.randbytes(self.block) for _ in range(400)] + [bytes(self.block)] * 30
        path = self.rig.path("content")
        path.write_bytes(b"".join(chance.choice(contents) for _ in range(12 * MIB // self.block)))
        run("nbdcopy", path, self.daemon.uri("vm1"))
        self.assertEqual(b"".join(self.check())[:12 * MIB], path.read_bytes())

    def part(self, client):
        """What is written in part, in bytes: the disk below may have larger blocks than 512."""
        return max(512, client.get_block_size(nbd.SIZE_MINIMUM))

    def marked(self):
        """What is written after a mark, and nothing else, has changed; parts of blocks, too."""
        self.ask("mark", "name=before")
        chance, client = random.Random(2), self.client()
        expected = set()
        part = self.part(client)
        for length in (part, self.block, self.block, 3 * self.block + part) * 10:
            at = chance.randrange((30 * MIB - length) // part) * part
            client.pwrite(chance.randbytes(length), at)
            expected |= set(range(at // self.block, (at + length - 1) // self.block + 1))
        client.shutdown()
        self.assertEqual(self.changed("before"), expected)
        self.check()
        self.ask("mark", "name=later")
        self.assertEqual(self.changed("later"), set())
        self.assertEqual(self.changed("before"), expected)

    def changed(self, name):
        answer = self.ask("changed", f"name={name}", "limit=100000")
        ranges = [range(at // self.block, (at + length) // self.block) for at, length in answer["ranges"]]
        found = {number for one in ranges for number in one}
        self.assertEqual((answer["blocks"], answer["more"]), (len(found), False))
        return found

    def written_by_fio(self):
        client = self.client()
        part = self.part(client)
        client.shutdown()
        mixed = f"--bsrange={part}-64k", f"--blockalign={part}"
        clean(self, run(*fio(self.daemon.uri("vm1"), "--do_verify=1", *mixed, size="16M")).stdout)
        self.check()
        self.assertEqual(self.verify(), [])

    def killed(self):
        """kill -9 under fio: what was being written is summed anew, the marks are still there."""
        before = self.blocks()
        self.ask("mark", "name=kills")
        load = self.rig.start(*fio(self.daemon.uri("vm1"), "--time_based", "--runtime=30", "--thread"), name="load")
        writes = self.daemon.counter("prints", "write")
        wait_until("writes of fio", 30, lambda: self.daemon.counter("prints", "write") > writes + 500, every=0.01)
        self.daemon.kill()
        load.kill()
        self.daemon.start()
        wait_until("all digests to be made anew", 30, lambda: self.info()["needs_resync_bytes"] == 0)
        after = self.check()
        self.assertEqual(self.verify(), [])
        differ = {number for number, (old, new) in enumerate(zip(before, after)) if old != new}
        self.assertGreater(len(differ), 10)
        self.assertLessEqual(differ, self.changed("kills"))
        self.assertEqual(self.info()["marks"], ["before", "later", "kills"])
        self.ask("unmark", "name=later")

    def flipped(self):
        """What changes on its own is found by `verify`, named, and the table stays."""
        blocks = self.blocks()
        once = {block for block, count in collections.Counter(blocks).items() if count == 1}
        number = next(n for n, block in enumerate(blocks) if block in once)
        part = blocks[number][:Image.PAGE]
        image = Image(self.rig.path("a.img"))
        image.flip(image.read().index(part))
        self.assertEqual(self.verify(), [number * self.block])
        self.assertEqual(self.ask("at", f"offset={number * self.block}")["hash"], self.hash(blocks[number]))
        self.assertRegex(self.daemon.log(), rf"a block is not what was written.*offset={number * self.block}")

    @limit(60)
    def test_md5(self):
        self.go("md5", 4096)

    @limit(60)
    def test_sha256_of_larger_blocks(self):
        self.go("sha256", 16384)
