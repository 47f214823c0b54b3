"""The writes that survive a power failure: writes in a known order, devices that forget unflushed writes, and a
judgement of the remains.

fio replays a list of writes, one at a time, and puts into each block where it belongs and the number of the write. A
device that forgets is a `record` over a file: its log has only flushed writes, so the log's replay gives the contents
of a disk that lost all others.
"""

import hashlib
import shutil
import struct


BLOCK = 16 * 1024
SECTOR = 512
# A block begins with fio's header (`verify_header` in its verify.h), then the digest of the rest.
HEADER = struct.Struct("<HHIQQIIHHI")
MAGIC = 0xACCA


class Sequence:
    """Writes number 1 to `writes`, each of one block, to places that a generator draws; a flush after every so many,
    but none after the last `unflushed`."""

    def __init__(self, writes, places, every=64, unflushed=256):
        self.writes, self.places, self.every, self.unflushed = writes, places, every, unflushed
        self.flushed = writes - unflushed
        self.place, drawn = {}, 1
        for number in range(1, writes + 1):
            # Of Park and Miller.
            drawn = drawn * 16807 % (2**31 - 1)
            self.place[number] = drawn % places

    def list(self, file):
        """fio's list of these, for the device it knows as `file`."""
        lines = ["fio version 2 iolog", f"{file} add", f"{file} open"]
        for number, place in self.place.items():
            lines.append(f"{file} write {place * BLOCK} {BLOCK}")
            if number % self.every == 0 and number <= self.flushed:
                lines.append(f"{file} sync 0 0")
        return "\n".join([*lines, f"{file} close", ""])

    def newest(self, until):
        """The newest of the first `until` writes for each place that has one."""
        return {place: number for number, place in self.place.items() if number <= until}

    def found(self, image):
        """The number of the write that each place holds in this file: 0 for zeroes, None for what no write left."""
        data = image.read_bytes()
        begin = self._begin(data)
        starts = (begin + place * BLOCK for place in range(self.places))
        return [number_of(data[start:start + BLOCK], place) for place, start in enumerate(starts)]

    def _begin(self, data):
        """Where the device begins in what may be a part of another one: blocks say where they belong."""
        for at in range(0, len(data) - HEADER.size, SECTOR):
            magic, _, length, _, offset, *_ = HEADER.unpack_from(data, at)
            if magic == MAGIC and length == BLOCK and offset <= at:
                return at - offset
        return 0


def replay(*engine):
    """The command with which fio does a list of writes (`--read_iolog`), by this engine."""
    return [
        "fio", "--name=cut", *engine, "--replay_no_stall=1", "--iodepth=1", f"--bs={BLOCK}", "--verify=md5", "--do_verify=0",
        "--verify_state_save=0",
    ]


def number_of(block, place):
    """The number of the write that a block holds; 0 for zeroes, None for anything else."""
    magic, _, length, _, offset, _, _, _, number, _ = HEADER.unpack_from(block)
    digest, rest = block[HEADER.size:HEADER.size + 16], block[HEADER.size + 16:]
    if magic == MAGIC and length == BLOCK and offset == place * BLOCK and hashlib.md5(rest).digest() == digest:
        # fio counts from zero.
        return number + 1
    return 0 if not any(block) else None


class Verdict:
    """The found writes of a sequence whose writes had all been answered."""

    def __init__(self, sequence, found):
        self.sequence = sequence
        flushed, all_of_it = sequence.newest(sequence.flushed), sequence.newest(sequence.writes)
        self.flushed = len(flushed)
        self.lost = sum(found[place] is None or found[place] < number for place, number in flushed.items())
        late = {place: number for place, number in all_of_it.items() if number > sequence.flushed}
        self.unflushed = len(late)
        self.kept = sum(found[place] == number for place, number in late.items())
        self.garbage = found.count(None)
        self.moment = max((number for number in found if number), default=0)
        then = sequence.newest(self.moment)
        # Blocks that are older than at the moment of the newest write that is there.
        self.older = sum(found[place] != then.get(place, 0) for place in range(sequence.places))

    def state(self):
        """In words: the device as after one of the writes, or a mixture."""
        if not self.moment:
            return "empty" if not self.garbage else f"{self.garbage} blocks of nobody's"
        if not self.older:
            return f"as after write {self.moment:,} of {self.sequence.writes:,}"
        return f"mixture: has write {self.moment:,}, lacks older ones in {self.older:,} of {self.sequence.places:,} blocks"


def survivor(log, before, image):
    """Makes the file `image`: the contents of the file `before`, and then everything in the log of a `record`."""
    shutil.copyfile(before, image)
    with open(log, "rb") as entries, open(image, "r+b") as disk:
        head = entries.read(28)
        if not any(head):
            # Nothing was ever flushed.
            return image
        magic, version, count, sector = struct.unpack("<QQQI", head)
        assert (magic, version) == (0x006A736677736872, 1), log
        entries.seek(sector)
        for _ in range(count):
            place, sectors, flags, length = struct.unpack_from("<QQQQ", entries.read(sector))
            discarded = flags & 4
            data = bytes(sectors * sector) if discarded else entries.read(sectors * sector)
            disk.seek(place * sector)
            disk.write(data)
    return image
