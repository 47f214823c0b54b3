#!/usr/bin/python3
"""The load of PostMark on a folder: the files of a mail server, which come, grow, are read, and go.

    postmark.py FOLDER [FILES TRANSACTIONS LOW HIGH SEED]

Written anew after J. Katcher's description (PostMark: A New File System Benchmark, 1997). First a pool of FILES files of
random sizes from LOW to HIGH bytes is made. Then come TRANSACTIONS transactions, each a pair: one file is read as a whole
or appended to, at even odds, and one file is created or deleted, at even odds (the biases of 5 that PostMark has by
default). An append is of a random length that leaves the file no longer than HIGH. In the end all files are deleted.

It differs from PostMark in three things. It reads and writes 64 KiB at a time, not 512 bytes, since the system calls
are not to be measured. All is written out, and no longer cached, before the transactions begin, so that reads reach the
disk though the machine's memory would hold the pool. And the time counts until all is written out.

Prints JSON: for the pool, the transactions and the deletions `seconds`, bytes `read` and `written`, and counts.
"""

import json
import os
import random
import subprocess
import sys
import time

PIECE = 64 << 10


class Pool:
    def __init__(self, folder, low, high, seed):
        self.folder, self.low, self.high = folder, low, high
        self.random = random.Random(seed)
        self.bytes = memoryview(self.random.randbytes(high + PIECE))
        self.files = []
        self.sizes = {}
        self.count = {"created": 0, "deleted": 0, "read": 0, "appended": 0}
        self.moved = {"read": 0, "written": 0}

    def path(self, number):
        return os.path.join(self.folder, str(number))

    def put(self, file, length):
        """Writes so many bytes that do not compress."""
        at = self.random.randrange(PIECE)
        for start in range(at, at + length, PIECE):
            file.write(self.bytes[start:min(start + PIECE, at + length)])
        self.moved["written"] += length

    def create(self):
        number = self.count["created"]
        size = self.random.randint(self.low, self.high)
        with open(self.path(number), "wb", buffering=0) as file:
            self.put(file, size)
        self.files.append(number)
        self.sizes[number] = size
        self.count["created"] += 1

    def delete(self):
        place = self.random.randrange(len(self.files))
        self.files[place], self.files[-1] = self.files[-1], self.files[place]
        number = self.files.pop()
        os.unlink(self.path(number))
        del self.sizes[number]
        self.count["deleted"] += 1

    def read(self, number):
        buffer = bytearray(PIECE)
        with open(self.path(number), "rb", buffering=0) as file:
            while (length := file.readinto(buffer)) > 0:
                self.moved["read"] += length
        self.count["read"] += 1

    def append(self, number):
        length = self.random.randint(0, self.high - self.sizes[number])
        with open(self.path(number), "ab", buffering=0) as file:
            self.put(file, length)
        self.sizes[number] += length
        self.count["appended"] += 1

    def transaction(self):
        number = self.random.choice(self.files)
        if self.random.randrange(10) < 5:
            self.read(number)
        else:
            self.append(number)
        # The last file stays, so that there is always one to choose.
        if self.random.randrange(10) < 5 or len(self.files) == 1:
            self.create()
        else:
            self.delete()

    def written_out(self):
        subprocess.run(["sync", "--file-system", self.folder], check=True)

    def forgotten(self):
        """Nothing of the files is cached any more."""
        for number in self.files:
            file = os.open(self.path(number), os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)

    def timed(self, work):
        before, begin = dict(self.moved), time.monotonic()
        work()
        self.written_out()
        seconds = time.monotonic() - begin
        return {"seconds": seconds} | {way: self.moved[way] - before[way] for way in before}


def run(folder, files=1000, transactions=3000, low=100_000, high=10_000_000, seed=42):
    pool = Pool(folder, low, high, seed)
    found = {"pool": pool.timed(lambda: [pool.create() for _ in range(files)])}
    pool.forgotten()
    found["transactions"] = pool.timed(lambda: [pool.transaction() for _ in range(transactions)])
    found["deletions"] = pool.timed(lambda: [pool.delete() for _ in range(len(pool.files))])
    return found | {"counts": pool.count}


if __name__ == "__main__":
    json.dump(run(sys.argv[1], *map(int, sys.argv[2:])), sys.stdout)
