"""Guests and clients that want all the memory, or all the time: others are served, and the daemon ends in order.

The daemon has one core and may not have more than 1 GiB of data (RLIMIT_DATA: what it shares with guests is not in it). A
neighbour reads one block after the other meanwhile."""

import http.client
import json
import os
import socket
import struct
import time

from common import MIB, limit
from front_end import WRITE, ZEROES, DATA
from hierarchies import member
from neighbour import NeighbourCase
from rig import lamina_binary, run

CRYPT = {"type": "crypt", "over": "a", "key-file": "key", "format": True, "kdf-memory": "32KiB"}


class Greed(NeighbourCase):
    @limit(90)
    def test_long_writes_to_a_parity(self):
        legs = {name: member(name, "4GiB") for name in "abc"}
        self.long_writes({**legs, "greedy": {"type": "parity", "over": ["a", "b", "c"]}}, 63)

    @limit(90)
    def test_long_writes_to_checksums(self):
        self.long_writes({"a": member("a", "4GiB"), "greedy": {"type": "integrity", "over": "a"}}, 24)

    @limit(90)
    def test_long_writes_to_a_snapshot(self):
        self.long_writes({"a": member("a", "4GiB"), "greedy": {"type": "snapshot", "over": "a"}}, 24)

    @limit(90)
    def test_long_writes_to_a_cache(self):
        devices = {"a": member("a", "4GiB"), "n": member("n", "512MiB"), "cache": {"type": "flash", "over": "n"}}
        self.long_writes({**devices, "greedy": {"type": "accelerate", "over": ["a", "cache"]}}, 24)

    def long_writes(self, devices, count):
        """The longest writes there are, all at once."""
        self.serve(devices, persistent=True, **{"vhost-user": "greedy.sock"})
        guest = self.guest(256)
        for number in range(count):
            guest.request(WRITE, number * 64 * MIB, 64 * MIB)
        guest.kick_off()
        self.assertEqual(set(guest.wait(60)), {0})
        self.end()

    @limit(90)
    def test_a_long_ring_over_encryption(self):
        self.rig.write("key", "secret").chmod(0o600)
        self.serve({"a": member("a", "4GiB"), "greedy": CRYPT}, **{"vhost-user": "greedy.sock"})
        guest = self.guest(32768)
        for number in range(3500):
            guest.request(WRITE, number * MIB, MIB)
        guest.kick_off()
        self.assertEqual(set(guest.wait(60)), {0})
        self.end()

    @limit(90)
    def test_zeroes_without_end(self):
        self.rig.write("key", "secret").chmod(0o600)
        self.serve({"a": member("a", "2GiB"), "greedy": CRYPT}, **{"vhost-user": "greedy.sock"})
        guest = self.guest(256)
        for number in range(32):
            guest.put(DATA + 16 * number, "<QII", 0, 1 << 20, 0)
        for _ in range(60):
            guest.request(ZEROES, 0, 512)
        guest.kick_off()
        time.sleep(2)
        guest.close()
        self.end()

    @limit(90)
    def test_clients_that_read_no_replies(self):
        self.serve({"greedy": member("greedy", "1GiB")}, nbd="unix:greedy.sock")
        clients = []
        for _ in range(80):
            client = socket.socket(socket.AF_UNIX)
            self.addCleanup(client.close)
            client.connect(str(self.lamina.socket("greedy.sock")))
            client.settimeout(5)
            # Fixed newstyle without zeroes, EXPORT_NAME, and eight reads of 32 MiB (the NBD protocol's doc/proto.md).
            client.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 6) + b"greedy")
            for number in range(8):
                client.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, number, number * 32 * MIB, 32 * MIB))
            clients.append(client)
        time.sleep(3)
        self.end()

    def test_a_file_that_does_not_end_or_begin_is_not_applied(self):
        self.serve({"greedy": member("greedy", "16MiB")}, nbd="unix:greedy.sock")
        os.mkfifo(self.rig.path("pipe"))
        for path in (self.rig.path("pipe"), "/dev/zero", "/proc/kmsg", self.rig.path("")):
            status, said = self.post("/v1/apply", {"file": str(path)})
            self.assertGreaterEqual(status, 400, path)
            self.assertRegex(said, "no regular file|could not be read in", path)
        # The command says so at once, before it reads the file itself.
        said = run(lamina_binary(), "apply", "--control", self.lamina.control, self.rig.path("pipe"), check=False, seconds=5)
        self.assertEqual((said.returncode, "no regular file" in said.stderr), (2, True), said.stderr)
        # Nor does the file that the daemon was started with hold up anything when it has become a pipe.
        other = self.rig.write("other.toml", self.lamina.file.read_text())
        self.lamina.file.unlink()
        os.mkfifo(self.lamina.file)
        self.assertEqual(self.post("/v1/apply", {"file": str(other)})[0], 200)
        self.lamina.get("/v1/health")
        self.end()

    def post(self, path, body):
        connection = http.client.HTTPConnection("localhost", timeout=10)
        self.addCleanup(connection.close)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
        connection.sock.connect(str(self.lamina.control))
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
