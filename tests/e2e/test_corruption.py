"""Bytes that change on their own: the files of members are written to behind the daemon's back, past the page cache, while
it serves and while it does not. What is given out is right, or an error; what can be healed is, and is counted and named."""

import errno
import itertools
import random
import threading

import nbd

from common import MIB, limit
from hierarchies import exported, member
from legs import DATA, MIRROR, RAID5, RAID6, UNIT, Image, LegsCase, mirrored, over_legs
from rig import wait_until

BLOCK = Image.PAGE
SIZE = 12 * MIB
# So many blocks of a leg are further apart than what a scrub compares at once.
APART = 100


class CorruptionCase(LegsCase):
    """A device holds `data`, of which every block is another one, so that it is found again on its members."""

    def fill(self, members):
        self.data = random.Random(3).randbytes(SIZE)
        client = self.client()
        client.pwrite(self.data, 0)
        client.flush()
        client.shutdown()
        numbers = {self.block(number): number for number in range(SIZE // BLOCK)}
        # By the number of a block of all images: which block of the data each member has there, if any.
        self.rows = {}
        for name in members:
            for row, block in enumerate(self.image(name).read()):
                if block in numbers:
                    self.rows.setdefault(row, {})[name] = numbers[block]

    def image(self, name):
        return Image(self.rig.path(f"{name}.img"))

    def block(self, number):
        return self.data[number * BLOCK:(number + 1) * BLOCK]

    def sums(self, name):
        """How many blocks a device of sums has found to be wrong, and where."""
        info = self.daemon.device(name)["info"]
        return info["corrupt"], info["corrupt_at"]

    def is_right(self):
        client = self.client()
        right = all(client.pread(MIB, at) == self.data[at:at + MIB] for at in range(0, SIZE, MIB))
        client.shutdown()
        return right

    def unreadable(self, client, numbers):
        """Those of the blocks that cannot be read; the others must be right."""
        bad = set()
        for number in numbers:
            try:
                self.assertTrue(client.pread(BLOCK, number * BLOCK) == self.block(number), number)
            except nbd.Error as error:
                self.assertEqual(error.errnum, errno.EIO, error)
                bad.add(number)
        return bad


class SumsBelowLegs(CorruptionCase):
    """A device with legs, each with checksums of its own: it is known which copy is wrong."""

    def go(self, kind, legs, lost):
        """So many of `legs` may be wrong at the same place."""
        self.legs_called, self.kept = legs, {}
        self.create(over_legs(kind, legs, below="integrity", direct=True), exported("m"))
        self.fill(legs)
        most = max(len(row) for row in self.rows.values())
        # Rows that are full, in an order of no meaning, again and again: what was wrong is healed by then.
        places = [row for row in sorted(self.rows) if len(self.rows[row]) == most][::APART]
        random.Random(5).shuffle(places)
        self.places = itertools.cycle(places)
        self.while_it_serves()
        self.while_it_does_not()
        self.in_a_scrub()
        self.where_too_much_is_wrong(lost, stripe=UNIT * most if lost < len(legs) - 1 else BLOCK)
        self.stop()

    def flip(self, name, row):
        self.kept[name, row] = self.image(name).block(row)
        self.image(name).flip(row)

    def healed(self):
        """Expects that what was flipped is as it was, and that all legs are good; returns how much was healed, and names."""
        for (name, row), before in self.kept.items():
            self.assertTrue(self.image(name).block(row) == before, f"{name}, block {row}")
        self.assertEqual(set(self.legs().values()), {"in sync"})
        found = self.info()["found"]
        self.assertEqual(found["different"], 0, found)
        return found["healed"], [place["leg"] for place in found["places"]]

    def flip_data_of_each(self):
        """A block of data on each leg; returns its number by the leg."""
        flipped = {}
        for name in self.legs_called:
            row = next(row for row in self.places if name in self.rows[row])
            self.flip(name, row)
            flipped[name] = self.rows[row][name]
        return flipped

    def while_it_serves(self):
        client = self.client()
        for name, number in self.flip_data_of_each().items():
            def is_found():
                self.assertTrue(client.pread(BLOCK, number * BLOCK) == self.block(number))
                return self.sums(f"i{name}")[0]
            # A mirror reads it from this leg or from that.
            wait_until(f"the wrong block of {name} to be read", 10, is_found, every=0)
            self.assertIn(f"f{name}", self.daemon.log())
        client.flush()
        client.shutdown()
        self.assertEqual(self.healed(), (len(self.legs_called), [f"f{name}" for name in self.legs_called]))
        self.assertEqual(self.daemon.log().count("healed from"), len(self.legs_called))
        self.assertTrue(self.is_right())

    def while_it_does_not(self):
        self.stop()
        flipped = self.flip_data_of_each()
        self.daemon.start()
        # Several times, so that each leg of a mirror is asked.
        wait_until("all to be found", 20, lambda: self.is_right() and all(self.sums(f"i{name}")[0] for name in flipped))
        healed, names = self.healed()
        self.assertGreaterEqual(healed, len(flipped))
        self.assertEqual(set(names), {f"f{name}" for name in flipped})

    def in_a_scrub(self):
        """Of each leg a row, parity or data."""
        before, earlier = self.healed()
        for name in self.legs_called:
            self.flip(name, next(self.places))
        self.scrub()
        healed, names = self.healed()
        self.assertGreaterEqual(healed, before + len(self.legs_called))
        self.assertEqual(set(names[len(earlier):]), {f"f{name}" for name in self.legs_called})
        self.assertEqual(self.scrub()["healed"], healed)
        self.assertTrue(self.is_right())

    def where_too_much_is_wrong(self, lost, stripe):
        """At one place more legs are wrong than may be: an error there, and nowhere else, until it is written anew."""
        row = next(self.places)
        for name in self.legs_called[:lost + 1]:
            self.image(name).flip(row)
        gone = {number for name, number in self.rows[row].items() if name in self.legs_called[:lost + 1]}
        client = self.client()
        there = range(min(gone) // 64 * 64, min(gone) // 64 * 64 + 256)
        self.assertEqual(self.unreadable(client, there), gone)
        self.scrub()
        self.assertEqual(self.unreadable(client, there), gone)
        self.assertEqual(set(self.legs().values()), {"in sync"})
        at = min(gone) * BLOCK // stripe * stripe
        client.pwrite(self.data[at:at + stripe], at)
        client.flush()
        client.shutdown()
        self.assertTrue(self.is_right())
        healed = self.scrub()["healed"]
        self.assertEqual(self.scrub()["healed"], healed)

    @limit(60)
    def test_below_a_mirror(self):
        self.go(MIRROR, "ab", 1)

    @limit(60)
    def test_below_a_parity(self):
        self.go(RAID5, "abcd", 1)

    @limit(60)
    def test_below_a_double_parity(self):
        self.go(RAID6, "abcde", 2)


class SumsAboveLegs(CorruptionCase):
    """Checksums over a device with legs: they say which of its copies is right."""

    # Where the letters of legs hold something else than they did.
    def changed(self):
        return {(name, row) for (name, row), before in self.kept.items() if self.image(name).block(row) != before}

    def flip(self, name, row, bits=255):
        self.kept[name, row] = self.image(name).block(row)
        self.image(name).flip(row, bits)

    def scrub_sums(self):
        self.daemon.ctl("sums", "scrub")
        wait_until("the scrub to end", 30, lambda: "scrub" not in self.jobs())
        info = self.daemon.device("sums")["info"]
        return info["healed"], info["healed_at"]

    def write_elsewhere(self, stop):
        """Writes what is there already, in the second half."""
        client, draw = self.client(), random.Random(7)
        while not stop.is_set():
            number = draw.randrange(SIZE // BLOCK // 2, SIZE // BLOCK)
            client.pwrite(self.block(number), number * BLOCK)
        client.shutdown()

    def go(self, kind, legs, scrubbed):
        """`scrubbed`: the legs on which a scrub finds what is wrong."""
        devices = {**over_legs(kind, legs, direct=True), "sums": {"type": "integrity", "over": "m"}}
        self.kept = {}
        self.create(devices, exported("sums"))
        self.fill(legs)
        # Rows of the first half, that hold data on each leg, far from each other.
        half = [row for row in sorted(self.rows) if max(self.rows[row].values()) < SIZE // BLOCK // 2]
        place = {name: iter([row for row in half if name in self.rows[row]][7 + 20 * n::APART]) for n, name in enumerate(legs)}
        stop = threading.Event()
        writer = threading.Thread(target=self.write_elsewhere, args=(stop,))
        writer.start()
        try:
            client = self.client()
            for name in legs:
                row = next(place[name])
                number = self.rows[row][name]
                self.flip(name, row)

                def is_healed():
                    self.assertTrue(client.pread(BLOCK, number * BLOCK) == self.block(number), number)
                    return not self.changed()
                # A mirror reads it from this leg or from that.
                wait_until(f"what was wrong on {name} to be read, and healed", 10, is_healed, every=0)
                self.assertIn(number * BLOCK, self.daemon.device("sums")["info"]["healed_at"])
            client.shutdown()
        finally:
            stop.set()
            writer.join()
        healed, _ = self.scrub_sums()
        self.assertEqual(healed, len(legs))
        self.assertRegex(self.daemon.log(), r"a block was healed from another copy")
        self.stop()
        # At rest, found by a scrub.
        flipped = {self.rows[row][name] * BLOCK for name in scrubbed for row in [next(place[name])] if not self.flip(name, row)}
        self.daemon.start()
        healed, places = self.scrub_sums()
        self.assertEqual((healed, set(places)), (len(flipped), flipped))
        self.assertEqual(self.changed(), set())
        self.assertEqual(self.scrub()["different"], 0)
        self.assertEqual({place["leg"] for place in self.info()["found"]["places"]}, {f"f{name}" for name in scrubbed})
        # On all legs: an error there, and nowhere else, and nothing is written over.
        row = next(place[legs[0]])
        for n, name in enumerate(legs):
            # What is wrong in two cells must not cancel out in the third.
            self.flip(name, row, 1 << n)
        lost = set(self.rows[row].values())
        wrong, client = self.changed(), self.client()
        self.assertEqual(self.unreadable(client, range(SIZE // BLOCK)), lost)
        self.assertEqual(self.scrub_sums()[0], healed)
        self.assertEqual(self.changed(), wrong)
        client.shutdown()
        self.stop()

    @limit(60)
    def test_above_a_mirror(self):
        self.go(MIRROR, "ab", "ab")

    @limit(60)
    def test_above_a_parity(self):
        self.go(RAID5, "abc", "abc")


class SumsAlone(CorruptionCase):
    @limit(60)
    def test_an_error_there_and_nowhere_else(self):
        devices = {"a": {**member("a", "24MiB"), "direct": True}, "sums": {"type": "integrity", "over": "a"}}
        self.create(devices, exported("sums"))
        self.fill("a")
        rows = {of["a"]: row for row, of in self.rows.items()}
        self.assertEqual(len(rows), SIZE // BLOCK)
        bad = {300, 301, 1000}
        for number in bad:
            self.image("a").flip(rows[number])
        client = self.client()
        self.assertEqual(self.unreadable(client, range(200, 400)), {300, 301})
        # What touches one of them fails as a whole, and a part of one cannot be written.
        with self.assertRaises(nbd.Error):
            client.pread(MIB, MIB)
        with self.assertRaises(nbd.Error):
            client.pwrite(b"x" * 512, 300 * BLOCK)
        said = self.daemon.log()
        self.assertRegex(said, rf"a block is not what was written.*offset={300 * BLOCK}")
        for restarted in (False, True):
            if restarted:
                # Neither an orderly end makes them right, nor a crash while nothing is being written.
                client.shutdown()
                self.stop()
                self.daemon.start()
                self.daemon.kill()
                self.daemon.start()
                client = self.client()
            self.daemon.ctl("sums", "scrub")
            wait_until("the scrub to end", 20, lambda: "scrub" not in self.jobs())
            corrupt, places = self.sums("sums")
            self.assertGreaterEqual(corrupt, 3)
            self.assertEqual(set(places), {number * BLOCK for number in bad})
            self.assertEqual(self.unreadable(client, range(SIZE // BLOCK)), bad)
        for number in bad:
            client.pwrite(self.block(number), number * BLOCK)
        client.shutdown()
        self.assertTrue(self.is_right())
        self.stop()


class WithoutSums(CorruptionCase):
    @limit(60)
    def test_silent_corruption_is_named_and_healed_where_it_is_known_what_is_right(self):
        two = mirrored("ab")
        self.create(two, exported("m"))
        data, client = random.Random(3).randbytes(8 * MIB), self.client()
        client.pwrite(data, 0)
        client.flush()
        client.shutdown()

        def flip(name, at):
            with open(self.rig.path(f"{name}.img"), "r+b") as image:
                image.seek(DATA + at)
                image.write(bytes(255 - byte for byte in data[at:at + 100]))
        flip("b", 3 * MIB + 5000)
        # Of two copies none is known to be right: both stay as they are.
        found = self.scrub()
        self.assertEqual((found["different"], found["healed"]), (1, 0), found)
        place = found["places"][0]
        self.assertLessEqual(place["start"], 3 * MIB + 5000)
        self.assertGreater(place["end"], 3 * MIB + 5000)
        self.assertNotEqual(self.held("b", 8 * MIB), data)
        self.assertEqual(self.held("a", 8 * MIB), data)
        # Unless somebody says so.
        self.daemon.ctl("m", "scrub", "trust=fa")
        wait_until("the scrub to end", 30, lambda: not self.daemon.get("/v1/jobs"))
        self.assertEqual(self.info()["found"]["healed"], 1)
        self.assertEqual(self.held("b", 8 * MIB), data)
        # Of three copies the majority is right.
        self.apply(mirrored("abc"), exported("m"))
        wait_until("the new leg to have all", 30, lambda: set(self.legs().values()) == {"in sync"})
        flip("a", 6 * MIB)
        found = self.scrub()
        self.assertEqual(found["healed"], 1 if found["different"] == 0 else 2, found)
        self.assertEqual(found["places"][-1]["leg"], "fa")
        self.stop()
        for name in "abc":
            self.assertEqual(self.held(name, 8 * MIB), data)

    def flip_one_of_each(self, kind, legs):
        """In a row of its own each; returns what a scrub finds."""
        self.create(over_legs(kind, legs, direct=True), exported("m"))
        self.fill(legs)
        for leg, row in zip(legs, sorted(self.rows)[::APART]):
            self.image(leg).flip(row)
        return self.scrub()

    @limit(60)
    def test_a_parity_sees_that_something_is_wrong(self):
        found = self.flip_one_of_each(RAID5, "abc")
        self.assertEqual((found["different"], found["healed"]), (3, 0), found)
        self.stop()

    @limit(60)
    def test_two_parities_see_what_is_wrong(self):
        found = self.flip_one_of_each(RAID6, "abcd")
        self.assertEqual((found["different"], found["healed"]), (0, 4), found)
        self.assertEqual({place["leg"] for place in found["places"]}, {"fa", "fb", "fc", "fd"})
        self.assertTrue(self.is_right())
        self.stop()
