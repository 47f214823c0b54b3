#!/usr/bin/python3
"""Writes stamped blocks to an NBD export, and checks that each block read back is the newest written there.

    stamps.py URI SECONDS [SEED]

Every block carries its place, the number of the write and a digest of both over its whole length, so that a lost, torn,
misplaced or doubled write is told apart from a right one: fio's checksums alone accept an old block as a good one.
Blocks are read back while writing goes on and all of them once more at the end, which SIGTERM brings on early. Several
requests are in flight, never two of them on one block. Prints `N writes, N reads, N flushes, longest gap N ms` and ends 0, or says what was wrong.
"""

import hashlib
import random
import signal
import struct
import sys
import time

import nbd

BLOCK = 16 * 1024
BLOCKS = 1024
DEPTH = 16


def content(place, number):
    """The bytes of write `number` at block `place`; zeroes for no write."""
    if number == 0:
        return bytes(BLOCK)
    head = struct.pack("<QQ", place, number)
    return (head + hashlib.sha256(head).digest() * (BLOCK // 32))[:BLOCK]


class Stamps:
    def __init__(self, uri, seed):
        self.random = random.Random(seed)
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)
        self.newest = [0] * BLOCKS
        self.busy = {}
        self.next = 1
        self.counts = {"writes": 0, "reads": 0, "flushes": 0}
        self.longest = 0.0
        self.last = time.monotonic()
        self.enough = False
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, _number, _frame):
        self.enough = True

    def start(self):
        """Starts one request on a block that has none."""
        place = self.random.randrange(BLOCKS)
        if place in self.busy:
            return
        if self.random.random() < 0.7:
            number, self.next = self.next, self.next + 1
            buffer = nbd.Buffer.from_bytearray(bytearray(content(place, number)))
            cookie = self.handle.aio_pwrite(buffer, place * BLOCK)
        else:
            number, buffer = None, nbd.Buffer(BLOCK)
            cookie = self.handle.aio_pread(buffer, place * BLOCK)
        self.busy[place] = (cookie, number, buffer)

    def harvest(self):
        """Takes what is complete; an error of the server's is raised here by libnbd."""
        self.handle.poll(100)
        for place, (cookie, number, buffer) in list(self.busy.items()):
            if not self.handle.aio_command_completed(cookie):
                continue
            del self.busy[place]
            self.tick()
            if number is None:
                self.compare(place, bytes(buffer.to_bytearray()))
                self.counts["reads"] += 1
            else:
                self.newest[place] = number
                self.counts["writes"] += 1

    def tick(self):
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last)
        self.last = now

    def compare(self, place, found):
        if found == content(place, self.newest[place]):
            return
        at, number = struct.unpack_from("<QQ", found)
        sys.exit(f"block {place}: expected write {self.newest[place]}, found the bytes of write {number} at block {at}")

    def drain(self):
        while self.busy:
            self.harvest()

    def run(self, seconds):
        end = time.monotonic() + seconds
        flush = time.monotonic()
        while time.monotonic() < end and not self.enough:
            while len(self.busy) < DEPTH:
                self.start()
            self.harvest()
            if time.monotonic() - flush > 0.05:
                self.handle.flush()
                self.counts["flushes"] += 1
                flush = time.monotonic()
        self.drain()
        self.handle.flush()
        for place in range(BLOCKS):
            self.compare(place, bytes(self.handle.pread(BLOCK, place * BLOCK)))
        self.handle.shutdown()
        print(", ".join(f"{n} {what}" for what, n in self.counts.items()) + f", longest gap {self.longest * 1000:.0f} ms")


if __name__ == "__main__":
    Stamps(sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 1).run(float(sys.argv[2]))
