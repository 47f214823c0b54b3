"""The allowed contents of every block of a disk after its server was killed, and a client that writes and checks them.

A block must hold its newest write that a flush covered, or one that was begun later; anything else is a lost, torn,
misplaced or old write. With `acknowledged`, answered writes count as well, flushed or not: a kill of a server loses no
write that the kernel has. With `moment`, all blocks must be of one moment: if a write is there, then so is every other
one that had been answered before it began.
"""

import random
import struct
import time

import nbd

from .stamps import content

BLOCK = 16 * 1024
SECTOR = 512
DEPTH = 16
# Seconds between two flushes.
PACE = 0.02


class Wrong(AssertionError):
    """A block has forbidden contents."""


class Ledger:
    """The writes of each block: which is flushed, which answered, and which were begun."""

    def __init__(self, blocks=512, acknowledged=True, moment=False):
        self.blocks = blocks
        self.acknowledged = acknowledged
        self.moment = moment
        self.flushed = [0] * blocks
        self.answered = [0] * blocks
        # Those begun after the one that is flushed, in their order.
        self.later = [[] for _ in range(blocks)]
        self._next = 1
        # Writes under way, and for each that is not flushed the last one before which all had been answered by then.
        self._open = set()
        self._before = {}

    def begin(self, place):
        number, self._next = self._next, self._next + 1
        self.later[place].append(number)
        self._before[number] = min(self._open, default=number) - 1
        self._open.add(number)
        return number

    def answer(self, place, number):
        self.answered[place] = number
        self._open.remove(number)

    def cover(self, answered):
        """A flush has ended; these were the writes answered when it began."""
        for place, number in enumerate(answered):
            if number > self.flushed[place]:
                self.flushed[place] = number
                self.later[place] = [n for n in self.later[place] if n > number]

    def least(self):
        """The oldest write that each block may hold."""
        return list(self.answered if self.acknowledged else self.flushed)

    def most(self):
        """The newest one."""
        return [max([flushed, *later]) for flushed, later in zip(self.flushed, self.later)]

    def torn(self, place, found):
        """True if a block has parts of allowed writes, and some write was under way there."""
        least, later = self.least()[place], self.later[place]
        may = [sectors(content(place, number)) for number in [self.flushed[place], *later] if number >= least]
        return self._open.intersection(later) and all(
            any(one[at] == sector for one in may) for at, sector in enumerate(sectors(found))
        )

    def check(self, numbers):
        """Expects that the blocks may hold these writes; with `moment`, that all did at one moment."""
        compare(numbers, self.least(), self.most())
        if self.moment:
            newest = self._before.get(max(numbers), 0)
            there = [max([n for n in [flushed, *later] if n <= newest], default=0)
                     for flushed, later in zip(self.flushed, self.later)]
            compare(numbers, there, self.most())

    def settle(self, numbers):
        """The contents of the blocks are known, and last."""
        self.flushed, self.answered = list(numbers), list(numbers)
        self.later = [[] for _ in numbers]
        self._open, self._before = set(), {}


def read(handle, blocks):
    """The number of the write that each block holds; for one that holds parts of several, its bytes instead."""
    numbers = []
    step = (1 << 20) // BLOCK
    for first in range(0, blocks, step):
        some = bytes(handle.pread(min(step, blocks - first) * BLOCK, first * BLOCK))
        for place in range(first, min(first + step, blocks)):
            found = some[(place - first) * BLOCK:][:BLOCK]
            _at, number = struct.unpack_from("<QQ", found)
            numbers.append(number if found == content(place, number) else found)
    return numbers


def sectors(block):
    return [block[at:at + SECTOR] for at in range(0, BLOCK, SECTOR)]


def compare(numbers, least, most):
    """Every block must hold a write from `least` to `most`."""
    for place, number in enumerate(numbers):
        if isinstance(number, bytes):
            at, number = struct.unpack_from("<QQ", number)
            raise Wrong(f"block {place}: torn or foreign; it begins as write {number} of block {at}")
        if not least[place] <= number <= most[place]:
            raise Wrong(f"block {place}: holds write {number}, and must hold one of {least[place]} to {most[place]}")


class Writer:
    """A client that keeps `DEPTH` requests in flight whenever it is pumped."""

    def __init__(self, ledger, uri, seed=0):
        self.ledger = ledger
        self._random = random.Random(seed)
        self._handle = nbd.NBD()
        self._handle.connect_uri(uri)
        self._busy = {}
        self._flush = None
        self._flushed = time.monotonic()
        # Blocks of which only a part had been written when the server was killed.
        self.torn = 0

    def check(self):
        """Reads all blocks, after a new start, and expects one of the contents that each may have."""
        numbers = self.read()
        for place, found in enumerate(numbers):
            if isinstance(found, bytes) and not self.ledger.moment and self.ledger.torn(place, found):
                numbers[place] = self.ledger.begin(place)
                self._handle.pwrite(content(place, numbers[place]), place * BLOCK)
                self.torn += 1
        self._handle.flush()
        self.ledger.check(numbers)
        self.ledger.settle(numbers)

    def read(self):
        """As the function `read`."""
        return read(self._handle, self.ledger.blocks)

    def pump(self):
        """Begins as many requests as there is space for, and takes those that ended within a few milliseconds."""
        while len(self._busy) < DEPTH:
            self._begin()
        if self._flush is None and time.monotonic() - self._flushed > PACE:
            self._flush = self._handle.aio_flush(), list(self.ledger.answered)
        self._take(2)

    def pump_until(self, done, seconds=30):
        """Pumps until `done()`."""
        end = time.monotonic() + seconds
        while not done():
            self.pump()
            if time.monotonic() > end:
                raise Wrong(f"not done within {seconds} s of writing")

    def quiet(self):
        """Waits for all that is in flight, and flushes it."""
        while self._busy or self._flush:
            self._take(100)
        answered = list(self.ledger.answered)
        self._handle.flush()
        self.ledger.cover(answered)

    def close(self):
        self.quiet()
        self._handle.shutdown()

    def _begin(self):
        place = self._random.randrange(self.ledger.blocks)
        if place in self._busy:
            return
        if self._random.random() < 0.7:
            number = self.ledger.begin(place)
            buffer = content(place, number)
            cookie = self._handle.aio_pwrite(buffer, place * BLOCK)
        else:
            # No nbd.Buffer: libnbd 1.14 never gives its memory back.
            number, buffer = None, bytearray(BLOCK)
            cookie = self._handle.aio_pread(buffer, place * BLOCK)
        self._busy[place] = (cookie, number, buffer)

    def _take(self, milliseconds):
        """An error of the server's is raised here by libnbd."""
        self._handle.poll(milliseconds)
        for place, (cookie, number, buffer) in list(self._busy.items()):
            if not self._handle.aio_command_completed(cookie):
                continue
            del self._busy[place]
            if number is not None:
                self.ledger.answer(place, number)
            elif buffer != content(place, self.ledger.answered[place]):
                raise Wrong(f"block {place}: does not hold its newest write, {self.ledger.answered[place]}")
        if self._flush and self._handle.aio_command_completed(self._flush[0]):
            self.ledger.cover(self._flush[1])
            self._flush, self._flushed = None, time.monotonic()
