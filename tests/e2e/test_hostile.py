"""Guests, front-ends, clients and neighbours on the host that do what nobody honest does: others are served, their data stay
what they were, and the daemon ends in order. See `NeighbourCase`."""

import contextlib
import errno
import fcntl
import json
import os
import random
import resource
import signal
import socket
import ssl
import struct
import threading
import time

import nbd

from common import MIB, RigCase, limit, memory
from front_end import (
    ADD_MEMORY, AVAILABLE, DATA, GET_FEATURES, GET_INFLIGHT, GET_VRING_BASE, READ, REMOVE_MEMORY, SET_INFLIGHT, SET_LOG_BASE,
    SET_MEM_TABLE, TABLE_OF_MEMORY, WRITE,
)
from hierarchies import member, written
from neighbour import NeighbourCase
from rig import Lamina, lamina_binary, run, wait_until

# Lets memory of a process be one thing and another, without end.
FLIP = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
begin, one, other = int(sys.argv[2]), *(bytes.fromhex(word) * int(sys.argv[3]) for word in sys.argv[4:])
end = begin + len(one)
while True:
    memory[begin:end] = one
    memory[begin:end] = other
"""


# A front-end whose child has its connection as well, and stays until the server hangs up.
HOLDER = """
import os, socket, struct, sys, time
front_end = socket.socket(socket.AF_UNIX)
front_end.connect(sys.argv[1])
front_end.sendall(struct.pack("<III", 1, 1, 0))
front_end.recv(20, socket.MSG_WAITALL)
if os.fork() == 0:
    sys.exit(front_end.recv(1) != b"")
print("served", flush=True)
time.sleep(60)
"""


class Guests(NeighbourCase):
    def greedy(self, **export):
        self.serve({"greedy": member("greedy", "256MiB")}, **{"vhost-user": "greedy.sock", **export})
        return self.guest(256)

    def flip(self, guest, begin, times, one, other):
        """Another thread of the guest."""
        file = f"/proc/{os.getpid()}/fd/{guest.file}"
        return self.rig.start("python3", "-c", FLIP, file, begin, times, one.hex(), other.hex(), name="flip")

    def test_kicks_without_end(self):
        guest = self.greedy()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            os.eventfd_write(guest.kick, 1)
        # One that stays full for ever costs nothing at all.
        endless = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
        os.eventfd_write(endless, (1 << 64) - 2)
        guest.kicked_by(endless)
        time.sleep(1.5)
        guest.request(READ, 0, 4096, writable=True)
        guest.kick_off()
        self.assertEqual(guest.wait(5), [0])
        self.end()

    def test_a_process_that_ends_and_leaves_its_connection_to_a_child(self):
        """A second hypervisor must not get the disk of one that runs, and must get it from one that is gone."""
        self.serve({"greedy": member("greedy", "256MiB")}, **{"vhost-user": "greedy.sock"})
        holder = self.rig.start("python3", "-c", HOLDER, self.lamina.socket("greedy.sock"), name="holder")
        holder.wait_for("served")
        second = socket.socket(socket.AF_UNIX)
        self.addCleanup(second.close)
        second.connect(str(self.lamina.socket("greedy.sock")))
        second.sendall(struct.pack("<III", GET_FEATURES, 1, 0))
        second.settimeout(1)
        with self.assertRaises(TimeoutError, msg="two front-ends have the disk"):
            second.recv(20)
        os.kill(holder.pid, signal.SIGKILL)
        second.settimeout(10)
        self.assertEqual(len(second.recv(20, socket.MSG_WAITALL)), 20)
        second.close()
        guest = self.guest(256)
        guest.request(WRITE, 0, 4096)
        guest.kick_off()
        self.assertEqual(guest.wait(5), [0])
        self.end()

    def test_an_index_that_changes_all_the_time(self):
        guest = self.greedy()
        guest.request(READ, 0, 4096, writable=True)
        guest.kick_off()
        self.assertEqual(guest.wait(5), [0])
        flip = self.flip(guest, AVAILABLE + 2, 1, struct.pack("<H", 1), struct.pack("<H", 2))
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            os.eventfd_write(guest.kick, 1)
        flip.kill()
        self.end()

    def test_memory_tables_again_and_again(self):
        guest = self.greedy()
        guest.request(WRITE, 0, MIB)
        guest.kick_off()
        guest.wait(5)
        folder = f"/proc/{self.lamina.proc.pid}/fd"
        before = len(os.listdir(folder))
        other = struct.pack("<QQQQQ", 0, 1 << 40, 4096, 1 << 50, 0)
        for _ in range(400):
            # A ring with more requests than entries would be the guest's own fault.
            if guest.offered - guest.done() < guest.entries:
                guest.offer()
                guest.kick_off()
            guest.order(SET_MEM_TABLE, TABLE_OF_MEMORY, guest.file)
            guest.order(ADD_MEMORY, other, guest.file)
            guest.order(REMOVE_MEMORY, other)
        self.assertEqual(guest.wait(20), [0])

        def kept():
            with open(f"/proc/{self.lamina.proc.pid}/maps") as maps:
                return maps.read().count("memfd:guest"), len(os.listdir(folder))
        wait_until("what is not used any more to be let go", 5, lambda: kept() <= (1, before + 1) and kept()[1] <= before + 1)
        self.end()

    def test_an_in_flight_region_and_a_log_that_are_cut_short(self):
        guest = self.greedy()
        guest.ask(GET_VRING_BASE, struct.pack("<II", 0, 0))
        size = guest.ask(GET_INFLIGHT, struct.pack("<QQHHI", 0, 0, 1, 256, 0))
        region, log = os.memfd_create("region"), os.memfd_create("log")
        os.ftruncate(region, size)
        os.ftruncate(log, MIB)
        guest.order(SET_INFLIGHT, struct.pack("<QQHHI", size, 0, 1, 256, 0), region)
        guest.ask(SET_LOG_BASE, struct.pack("<QQ", MIB, 0), log)
        guest.kicked_by(guest.kick)
        guest.request(READ, 0, 4096, writable=True)
        guest.kick_off()
        self.assertEqual(guest.wait(5), [0])
        self.assertTrue(any(os.pread(log, MIB, 0)), "the log is written")
        os.ftruncate(region, 0)
        os.ftruncate(log, 0)
        for _ in range(50):
            guest.offer()
            guest.kick_off()
        guest.wait(5)
        self.end()

    @limit(60)
    def test_data_that_change_while_they_are_written(self):
        for kind, legs in ("parity", "abc"), ("mirror", "ab"), ("integrity", "a"):
            with self.subTest(kind):
                self.change_while_written(kind, legs)

    def change_while_written(self, kind, legs):
        parts = [{"name": name, "size": "16MiB"} for name in ("greedy", "calm")]
        self.serve(
            {
                **{name: member(f"{kind}-{name}", "64MiB") for name in legs},
                "safe": {"type": kind, "over": list(legs) if len(legs) > 1 else legs},
                "disk": {"type": "partition", "over": "safe", "partitions": parts},
                **{part["name"]: {"type": "view", "name": part["name"], "over": "disk"} for part in parts},
            },
            persistent=True, **{"vhost-user": "greedy.sock", "nbd": "unix:greedy-nbd.sock"},
        )
        calm, greedy = nbd.NBD(), nbd.NBD()
        calm.connect_uri(self.lamina.uri("calm", "calm.sock"))
        greedy.connect_uri(self.lamina.uri("greedy", "greedy-nbd.sock"))
        theirs = os.urandom(4 * MIB)
        calm.pwrite(theirs, 0)
        guest = self.guest(256)
        flip = self.flip(guest, DATA, 65536, b"\x00", b"\xff")
        for number in range(64):
            guest.request(WRITE, number * 4 * 65536 + number % 16 * 4096, 65536)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            guest.kick_off()
            self.assertEqual(set(guest.wait(10, every=0.001)), {0})
            for number in range(64):
                guest.offer(number)
        flip.kill()
        # What was written may be any mixture, and it can be read.
        for at in range(0, 16 * MIB, MIB):
            greedy.pread(MIB, at)
        if kind == "parity":
            # The parity is that of what was written.
            self.lamina.ctl("safe", "scrub")
            wait_until("the scrub to end", 30, lambda: not self.lamina.get("/v1/jobs"))
            found = self.lamina.get("/v1/devices/safe")["info"]["found"]
            self.assertEqual((found["different"], found["lost"]), (0, 0))
        self.assertEqual(calm.pread(len(theirs), 0), theirs)
        guest.close()
        self.end()


    def test_front_ends_that_say_half_a_message_or_wait_their_turn(self):
        self.greedy()
        others = []
        for number in range(200):
            other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.addCleanup(other.close)
            with contextlib.suppress(BlockingIOError):
                other.connect(str(self.lamina.socket("greedy.sock")))
                if number % 2:
                    other.send(b"\1\0\0\0\1\0")
            others.append(other)
        time.sleep(1.5)
        self.end()


class Clients(NeighbourCase):
    def test_more_clients_than_files_can_be_open(self):
        self.serve({"greedy": member("greedy", "16MiB")}, nbd="unix:greedy.sock")
        used = len(os.listdir(f"/proc/{self.lamina.proc.pid}/fd"))
        before = resource.prlimit(self.lamina.proc.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.lamina.proc.pid, resource.RLIMIT_NOFILE, (used + 8, before[1]))
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(2)
                with contextlib.suppress(OSError):
                    client.connect(str(self.lamina.socket("greedy.sock")))
            time.sleep(1.5)
        # When they have left, others are served.
        def served():
            client = nbd.NBD()
            try:
                client.connect_uri(self.lamina.uri("greedy", "greedy.sock"))
                return client.pread(512, 0) == bytes(512)
            except nbd.Error:
                return False
        wait_until("somebody to be served", 20, served)
        self.end()

    def test_a_client_that_reads_nothing_beside_a_mirror(self):
        """Nobody troubles the mirror: it is closed in order, at once, and needs no resync."""
        legs = {name: member(name, "24MiB") for name in "ab"}
        text = written({**legs, "m": {"type": "mirror", "over": ["a", "b"]}}, {"m": {"device": "m", "nbd": "unix:m.sock"}})
        run(lamina_binary(), "create", self.rig.write("mirror.toml", text))
        self.rig.write("greedy.toml", written(
            {"greedy": member("greedy", "256MiB")}, {"greedy": {"device": "greedy", "nbd": "unix:greedy.sock"}}).split("\n", 2)[2])
        lamina = Lamina(self.rig, text, name="mirror", arguments=[self.rig.path("greedy.toml")])
        mirror = nbd.NBD()
        mirror.connect_uri(lamina.uri("m", "m.sock"))
        mirror.pwrite(b"1" * MIB, 0)
        mirror.flush()
        mirror.shutdown()
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.connect(str(lamina.socket("greedy.sock")))
        client.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 6) + b"greedy")
        for number in range(8):
            client.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, number, number * 32 * MIB, 32 * MIB))
        time.sleep(0.5)
        begun = time.monotonic()
        lamina.stop()
        self.assertLess(time.monotonic() - begun, 20)
        for leg in "ab":
            inspected = run(lamina_binary(), "inspect", "--json", self.rig.path(f"{leg}.img")).stdout
            self.assertTrue(json.loads(inspected)["member"]["superblock"]["clean"], leg)

    def test_control_requests_without_end(self):
        self.serve({"greedy": member("greedy", "16MiB")}, nbd="unix:greedy.sock")
        json_type = b"content-type: application/json\r\n"
        head = b"POST /v1/apply HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        requests = (
            # A body that does not end, headers that do not, JSON of a great depth, a path out of the API, no HTTP at all.
            (head + json_type + b"content-length: 1000000000\r\n\r\n", b"x" * MIB, 100),
            (head, b"x-header: " + b"y" * 1000 + b"\r\n", 100_000),
            (head + json_type + b"content-length: 100000\r\n\r\n", b"[" * 100_000, 1),
            (b"GET /v1/devices/..%2f..%2f..%2fetc%2fpasswd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"", 0),
            (b"\0" * 100_000, b"", 0),
        )
        for begin, more, times in requests:
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.settimeout(10)
                client.connect(str(self.lamina.control))
                client.sendall(begin)
                for _ in range(times):
                    client.sendall(more)
                answer = client.recv(MIB)
                self.assertNotIn(b" 200 ", answer[:20])
        self.lamina.get("/v1/health")
        self.end()

    def test_block_status_of_a_sieve(self):
        self.rig.file("greedy.img", 1 << 30)
        with open(self.rig.path("greedy.img"), "r+b") as file:
            for number in range(20_000):
                os.pwrite(file.fileno(), b"x", number * 8192)
        self.serve({"greedy": member("greedy", "1GiB")}, nbd="unix:greedy.sock")
        client = nbd.NBD()
        client.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        client.connect_uri(self.lamina.uri("greedy", "greedy.sock"))
        told = []
        for _ in range(64):
            client.aio_block_status(1 << 30, 0, lambda _context, _offset, entries, _error: told.append(len(entries)))
        wait_until("all replies", 30, lambda: client.poll(100) >= 0 and client.aio_in_flight() == 0, every=0)
        self.assertEqual(len(told), 64)
        self.assertGreater(min(told), 100)
        self.end()

    def test_handshakes_without_end(self):
        key, certificate = self.rig.path("key.pem"), self.rig.path("certificate.pem")
        template = self.rig.write("template", 'cn = "localhost"\ntls_www_server\nsigning_key\nexpiration_days = 2\n')
        run("certtool", "--generate-privkey", "--key-type=rsa", "--bits=2048", "--outfile", key)
        run("certtool", "--generate-self-signed", "--load-privkey", key, "--template", template, "--outfile", certificate)
        tls = {"certificate": "certificate.pem", "key": "key.pem"}
        self.serve({"greedy": member("greedy", "16MiB")}, nbd="unix:greedy.sock", tls=tls)
        # A greeting that was recorded once makes the server sign, and costs its sender nothing.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing).do_handshake()
        greeting, end, begun = outgoing.read(), time.monotonic() + 2, []

        def flood():
            while time.monotonic() < end:
                with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                    client.settimeout(2)
                    client.connect(str(self.lamina.socket("greedy.sock")))
                    # Fixed newstyle without zeroes, STARTTLS (the NBD protocol's doc/proto.md).
                    client.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 5, 0))
                    client.recv(18 + 20, socket.MSG_WAITALL)
                    client.sendall(greeting)
                    begun.append(client.recv(1))
        floods = [threading.Thread(target=flood) for _ in range(8)]
        for one in floods:
            one.start()
        for one in floods:
            one.join()
        self.assertGreater(begun.count(b"\x16"), 20, "the server answers with its part of the handshake")
        self.end()

    def test_control_connections_that_say_nothing(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        self.serve({"greedy": member("greedy", "16MiB")}, nbd="unix:greedy.sock")
        with contextlib.ExitStack() as stack:
            for _ in range(2000):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(1)
                with contextlib.suppress(OSError):
                    client.connect(str(self.lamina.control))
                    client.send(b"GET /v1/hea")
            self.lamina.get("/v1/health")
            self.end()


class Hosts(RigCase):
    def test_a_disk_whose_superblock_names_a_file_of_this_host(self):
        """A guest that owns a raw image can write such a superblock: nothing but the disk itself is opened unless somebody
        says so."""
        secret = self.rig.write("secret", "nobody's business" * 100)
        text = written(
            {"stick": member("stick", "16MiB"), "host": {"type": "file", "path": str(secret), "read-only": True, "block": "512"}},
            {"vm1": {"device": "stick", "nbd": "unix:vm1.sock"}, "host": {"device": "host", "nbd": "unix:vm1.sock"}},
        )
        os.truncate(secret, 2048)
        run(lamina_binary(), "create", self.rig.write("made.toml", text))
        stick = self.rig.path("away")
        self.rig.path("stick.img").rename(stick)
        for words in (("assemble", "--serve"), ("serve", "--from-members")):
            refused = run(lamina_binary(), *words, stick, "--control", self.rig.path("ctl"), check=False, seconds=10)
            self.assertEqual(refused.returncode, 2, refused.stdout)
            self.assertIn(f'device "host": key "path": {secret}', refused.stderr)
            self.assertIn("--trust", refused.stderr)
            self.assertNotIn("ready", refused.stdout)
        self.assertIn(str(secret), run(lamina_binary(), "assemble", stick).stdout)

    def test_a_link_in_the_place_of_a_socket(self):
        """It is not followed, and what it names stays."""
        other = self.rig.write("other", "somebody's")
        for name in ("nbd.sock", "lamina.ctl"):
            os.symlink(other, self.rig.path(name))
            refused = run(
                lamina_binary(), "serve", self.rig.write("lamina.toml", memory()), "--control", self.rig.path("lamina.ctl"),
                check=False, seconds=20,
            )
            self.assertEqual(refused.returncode, 1, name)
            self.assertIn(name, refused.stderr)
            self.assertEqual(other.read_text(), "somebody's")
            self.rig.path(name).unlink()

    def test_a_disk_without_space(self):
        """Who writes there is told, and nobody else notices; when there is space, it goes on."""
        full = self.rig.path("full")
        full.mkdir()
        if os.geteuid():
            self.skipTest("a file system of its own is mounted by root only")
        run("mount", "-t", "tmpfs", "-o", "size=8M", "none", full)
        self.addCleanup(run, "umount", "-l", full)
        devices = {"a": {"type": "file", "path": "full/a.img", "size": "64MiB"}, "b": member("b", "64MiB")}
        text = written(devices, {name: {"device": name, "nbd": "unix:nbd.sock"} for name in "ab"}).split("\n", 2)[2]
        lamina = Lamina(self.rig, text)
        there, other = nbd.NBD(), nbd.NBD()
        there.connect_uri(lamina.uri("a"))
        other.connect_uri(lamina.uri("b"))
        with self.assertRaises(nbd.Error) as failed:
            for at in range(0, 64 * MIB, MIB):
                there.pwrite(b"1" * MIB, at)
        self.assertEqual(failed.exception.errnum, errno.ENOSPC)
        self.assertEqual(there.pread(MIB, 0), b"1" * MIB)
        for at in range(0, 64 * MIB, MIB):
            other.pwrite(b"2" * MIB, at)
        other.flush()
        run("mount", "-o", "remount,size=128M", full)
        there.pwrite(b"3" * MIB, 60 * MIB)
        self.assertEqual(there.pread(MIB, 60 * MIB), b"3" * MIB)
        for client in (there, other):
            client.shutdown()
        self.assertEqual(lamina.stop(), 0, lamina.log())

    @limit(120)
    def test_members_with_bytes_changed(self):
        """Whatever their bytes are: no command panics, is killed, or hangs, and what is served can be asked."""
        chance = random.Random(6)
        devices = {
            **{name: member(name, "4MiB") for name in "ab"}, "n": member("n", "8MiB"), "log": member("log", "4MiB"),
            "m": {"type": "mirror", "over": ["a", "b"]}, "r": {"type": "redo", "over": "m", "metadata": "log"},
            "c": {"type": "flash", "over": "n"}, "v": {"type": "accelerate", "over": ["r", "c"]},
            "s": {"type": "snapshot", "over": "v"},
        }
        text = written(devices, {"s": {"device": "s", "nbd": "unix:nbd.sock"}}, name="lamina")
        run(lamina_binary(), "create", self.rig.write("lamina.toml", text))
        lamina = Lamina(self.rig, text)
        client = nbd.NBD()
        client.connect_uri(lamina.uri("s"))
        for at in range(0, MIB, 65536):
            client.pwrite(chance.randbytes(4096), at)
        client.flush()
        lamina.kill()
        images = {path: path.read_bytes() for path in self.rig.dir.glob("*.img")}
        used = {path: [at for at in range(0, len(held), 512) if any(held[at:at + 512])] for path, held in images.items()}
        for number in range(12):
            for path, held in images.items():
                path.write_bytes(held)
            for _ in range(chance.choice((1, 2, 5, 20))):
                path = chance.choice(list(images))
                bad = chance.choice((b"\xff" * 8, bytes(512), chance.randbytes(64), bytes([chance.getrandbits(8)])))
                with open(path, "r+b") as image:
                    image.seek(chance.choice(used[path]) + chance.randrange(512))
                    image.write(bad)
            for words in (("inspect", *images), ("assemble", *images), ("check", "--metadata", lamina.file), ("repair", lamina.file)):
                words = ("inspect", path) if words[0] == "inspect" else words
                done = run(lamina_binary(), *words, check=False, seconds=20)
                self.assertIn(done.returncode, (0, 1, 2), f"{number} {words[0]}: {done.stderr}")
                self.assertNotIn("panicked", done.stderr, number)
            try:
                lamina.start()
            except AssertionError:  # It is refused, or it serves.
                self.assertIn(lamina.proc.wait(20), (1, 2), lamina.log())
            else:
                client = nbd.NBD()
                client.connect_uri(lamina.uri("s"))
                for at in range(0, MIB, 65536):
                    with contextlib.suppress(nbd.Error):
                        client.pread(4096, at)
                lamina.kill()
            self.assertNotIn("panicked", lamina.log(), number)

    def test_a_folder_that_somebody_has_locked(self):
        folder = os.open(self.rig.dir, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        lamina = Lamina(self.rig, memory())
        self.assertEqual(lamina.stop(), 0, lamina.log())
