"""A vhost-user front-end of one queue, with a guest that says what it likes: no hypervisor is as greedy."""

import array
import mmap
import os
import socket
import struct

from common import MIB
from rig.process import wait_until

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_LOG_BASE = 1, 2, 3, 5, 6
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_KICK = 8, 9, 10, 11, 12
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_ENABLE = 15, 16, 18
GET_INFLIGHT, SET_INFLIGHT, ADD_MEMORY, REMOVE_MEMORY = 31, 32, 37, 38
LOG_ALL, INDIRECT, PROTOCOL, VERSION_1 = 1 << 26, 1 << 28, 1 << 30, 1 << 32
# LOG_SHMFD, REPLY_ACK, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS
PROTOCOL_FEATURES = 1 << 1 | 1 << 3 | 1 << 12 | 1 << 15
# Flags of a descriptor.
NEXT, WRITABLE, TABLE = 1, 2, 4
# The kinds of requests (virtio 1.2, 5.2.6).
READ, WRITE, ZEROES = 0, 1, 13

# Where things are in the guest's memory, and what the front-end adds to its addresses.
DESCRIPTORS, AVAILABLE, USED, HEAP, DATA, SIZE = 0x10000, 0xA0000, 0xC0000, 2 * MIB, 64 * MIB, 128 * MIB
USER = 1 << 44
TABLE_OF_MEMORY = struct.pack("<IIQQQQ", 1, 0, 0, SIZE, USER, 0)


class FrontEnd:
    """Connected, its queue of `entries` entries runs."""

    def __init__(self, path, entries):
        self.entries, self.made, self.offered = entries, 0, 0
        self.file = os.memfd_create("guest")
        os.ftruncate(self.file, SIZE)
        self.memory = mmap.mmap(self.file, SIZE)
        self.kick = os.eventfd(0)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.send(SET_OWNER)
        self.features = self.ask(GET_FEATURES)
        self.send(SET_PROTOCOL_FEATURES, struct.pack("<Q", self.ask(GET_PROTOCOL_FEATURES) & PROTOCOL_FEATURES))
        self.order(SET_FEATURES, struct.pack("<Q", self.features & (LOG_ALL | INDIRECT | PROTOCOL | VERSION_1)))
        self.order(SET_MEM_TABLE, TABLE_OF_MEMORY, self.file)
        self.order(SET_VRING_NUM, struct.pack("<II", 0, entries))
        places = [USER + DESCRIPTORS, USER + USED, USER + AVAILABLE, 0]
        self.order(SET_VRING_ADDR, struct.pack("<IIQQQQ", 0, 0, *places))
        self.order(SET_VRING_BASE, struct.pack("<II", 0, 0))
        self.kicked_by(self.kick)
        self.order(SET_VRING_ENABLE, struct.pack("<II", 0, 1))

    def kicked_by(self, kick):
        """The queue, which stops first if it runs, hears of new requests by this eventfd."""
        self.order(SET_VRING_KICK, struct.pack("<Q", 0), kick)

    def send(self, request, body=b"", descriptor=None, flags=1):
        sent = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self.socket.sendmsg([struct.pack("<III", request, flags, len(body)) + body], sent)

    def receive(self):
        """The bytes of an answer."""
        _, _, size = struct.unpack("<III", self.socket.recv(12, socket.MSG_WAITALL))
        return self.socket.recv(size, socket.MSG_WAITALL)

    def ask(self, request, body=b"", descriptor=None):
        """A request that is answered; the number that the answer begins with."""
        self.send(request, body, descriptor)
        return struct.unpack_from("<Q", self.receive())[0]

    def order(self, request, body, descriptor=None):
        """A request that must succeed."""
        self.send(request, body, descriptor, flags=1 | 8)
        failed = struct.unpack("<Q", self.receive())[0]
        assert failed == 0, f"request {request}: {failed}"

    def put(self, at, form, *values):
        struct.pack_into(form, self.memory, at, *values)

    def request(self, kind, at, length, writable=False):
        """Offers a request over the first `length` bytes of the data, which all requests share. See `kick_off`."""
        place = HEAP + self.made * 128
        self.put(place, "<IIQ", kind, 0, at // 512)
        self.put(place + 16, "<B", 255)
        parts = [(place, 16, 0), (DATA, length, WRITABLE if writable else 0), (place + 16, 1, WRITABLE)]
        for index, (address, size, flags) in enumerate(parts):
            chained = NEXT if index < 2 else 0
            self.put(place + 32 + 16 * index, "<QIHH", address, size, flags | chained, index + 1)
        self.put(DESCRIPTORS + 16 * self.made, "<QIHH", place + 32, 48, TABLE, 0)
        self.offer(self.made)
        self.made += 1

    def offer(self, number=0):
        """Offers a request (once more), which may still be under way."""
        self.put(AVAILABLE + 4 + 2 * (self.offered % self.entries), "<H", number)
        self.offered = self.offered + 1 & 0xFFFF

    def kick_off(self):
        """Lets the device have all that was offered."""
        self.put(AVAILABLE + 2, "<H", self.offered)
        os.eventfd_write(self.kick, 1)

    def done(self):
        return struct.unpack_from("<H", self.memory, USED + 2)[0]

    def wait(self, seconds, every=0.05):
        """Waits until all is done; the statuses."""
        wait_until("all requests of the guest", seconds, lambda: self.done() == self.offered, every)
        return [self.memory[HEAP + number * 128 + 16] for number in range(self.made)]

    def close(self):
        self.socket.close()
