"""The NBD server against libnbd's tools, its Python binding (what nbdsh is), qemu-img and qemu-io."""

import hashlib
import json
import os
import random

import nbd

from common import MIB, RigCase, limit, memory, striped
from hierarchies import HierarchyCase, exported, member
from rig import Lamina, run


def info(uri, *options):
    return json.loads(run("nbdinfo", "--json", *options, uri).stdout)


class Nbdinfo(RigCase):
    def test_says_size_flags_and_description(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        answer = info(lamina.uri("m"))
        self.assertEqual(answer["protocol"], "newstyle-fixed")
        self.assertTrue(answer["structured"])
        export = answer["exports"][0]
        self.assertEqual(export["export-size"], 64 * MIB)
        self.assertEqual(export["description"], "a device in memory")
        self.assertFalse(export["is_read_only"])
        for flag in ("can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_multi_conn", "can_df"):
            self.assertTrue(export[flag], flag)
        self.assertIn("base:allocation", export["contexts"])

    def test_lists_several_exports_of_one_listener(self):
        lamina = Lamina(self.rig, memory() + """
[export.copy]
device = "m"
nbd = "unix:nbd.sock"
read-only = true
description = "the same, for reading"
""")
        answer = info(lamina.uri("", "nbd.sock"), "--list")
        exports = {export["export-name"]: export for export in answer["exports"]}
        self.assertEqual(set(exports), {"m", "copy"})
        self.assertEqual(exports["copy"]["description"], "the same, for reading")
        self.assertTrue(exports["copy"]["is_read_only"])
        self.assertFalse(exports["m"]["is_read_only"])

    def test_map_tells_data_from_holes(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri("m"))
        handle.pwrite(b"x" * MIB, 16 * MIB)
        extents = json.loads(run("nbdinfo", "--json", "--map", lamina.uri("m")).stdout)
        holes = [(e["offset"], e["length"]) for e in extents if e["type"] == 3]
        data = [(e["offset"], e["length"]) for e in extents if e["type"] == 0]
        self.assertEqual(data, [(16 * MIB, MIB)])
        self.assertEqual(holes, [(0, 16 * MIB), (17 * MIB, 47 * MIB)])

    def test_unknown_export_is_refused_by_name(self):
        lamina = Lamina(self.rig, memory())
        done = run("nbdinfo", lamina.uri("nosuch"), check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nosuch", done.stderr)


class DirtyBitmap(HierarchyCase):
    """Changes since a snapshot."""

    def setUp(self):
        super().setUp()
        vm1 = {"type": "snapshot", "over": "disk", "size": "128MiB"}
        self.create({"disk": member("disk", "256MiB"), "vm1": vm1}, exported())
        self.uri = self.daemon.uri("vm1")
        self.h = self.connect()

    def connect(self, *contexts):
        handle = nbd.NBD()
        for context in contexts:
            handle.add_meta_context(context)
        handle.connect_uri(self.uri)
        return handle

    def snapshot(self, name):
        self.daemon.ctl("vm1", "snapshot", f"name={name}")

    def dirty(self, since):
        """The ranges that `nbdinfo` prints as dirty."""
        runs = json.loads(run("nbdinfo", "--json", f"--map=qemu:dirty-bitmap:{since}", self.uri).stdout)
        self.assertEqual(sum(e["length"] for e in runs), 128 * MIB)
        return [(e["offset"], e["length"]) for e in runs if e["description"] == "dirty"]

    def test_nbdinfo_and_qemu_print_what_was_written(self):
        self.h.pwrite(b"x" * MIB, 0)
        self.snapshot("monday")
        self.assertEqual(self.dirty("monday"), [])
        self.h.pwrite(b"y" * 512, 16 * MIB + 512)
        self.h.zero(MIB, 0)
        self.snapshot("tuesday")
        self.h.pwrite(b"z" * 65536, 32 * MIB)
        first = [(0, MIB), (16 * MIB, 32768)]
        self.assertEqual(self.dirty("monday"), [*first, (32 * MIB, 65536)])
        self.assertEqual(self.dirty("tuesday"), [(32 * MIB, 65536)])
        names = info(self.uri, "--list")["exports"][0]["contexts"]
        self.assertEqual(names.count("qemu:dirty-bitmap:monday") + names.count("qemu:dirty-bitmap:tuesday"), 2)
        bitmap = f"driver=nbd,export=vm1,path={self.rig.path('nbd.sock')},x-dirty-bitmap=qemu:dirty-bitmap:tuesday"
        runs = json.loads(run("qemu-img", "map", "--output=json", "--image-opts", bitmap).stdout)
        self.assertEqual([(e["start"], e["length"]) for e in runs if not e["data"]], [(32 * MIB, 65536)])

    def test_a_copy_of_what_is_dirty_makes_the_old_copy_the_new_one(self):
        chance = random.Random(5)
        for _ in range(60):
            self.h.pwrite(chance.randbytes(chance.randrange(1, 40) * 512), chance.randrange(127 * 2048) * 512)
        self.snapshot("monday")
        run("nbdcopy", self.uri, self.rig.path("backup"))
        for _ in range(40):
            at = chance.randrange(127 * 2048) * 512
            chance.choice((
                lambda: self.h.pwrite(chance.randbytes(chance.randrange(1, 40) * 512), at),
                lambda: self.h.zero(chance.randrange(1, 200) * 512, at),
                lambda: self.h.trim(chance.randrange(1, 200) * 512, at),
            ))()
        runs = self.dirty("monday")
        self.assertLess(sum(length for _, length in runs), 40 * (100 << 10) + 40 * 65536)
        with open(self.rig.path("backup"), "r+b") as backup:
            for offset, length in runs:
                backup.seek(offset)
                backup.write(self.h.pread(length, offset))
        run("nbdcopy", self.uri, self.rig.path("whole"))
        run("cmp", self.rig.path("backup"), self.rig.path("whole"))

    def test_a_deleted_snapshot_fails_the_question_and_not_the_connection(self):
        self.snapshot("monday")
        h = self.connect("qemu:dirty-bitmap:monday", nbd.CONTEXT_BASE_ALLOCATION)
        seen = []
        h.block_status(MIB, 0, lambda context, *_: seen.append(context))
        self.assertEqual(sorted(seen), [nbd.CONTEXT_BASE_ALLOCATION, "qemu:dirty-bitmap:monday"])
        self.daemon.ctl("vm1", "delete", "name=monday")
        with self.assertRaises(nbd.Error) as refused:
            h.block_status(MIB, 0, lambda *_: 0)
        self.assertEqual(refused.exception.errno, "EINVAL")
        self.assertEqual(h.pread(512, 0), bytes(512))
        # A context that is not there is not agreed on.
        self.assertFalse(self.connect("qemu:dirty-bitmap:monday").can_meta_context("qemu:dirty-bitmap:monday"))


class Nbdcopy(RigCase):
    @limit(180)
    def test_what_goes_in_comes_out(self):
        size = 256 * MIB
        lamina = Lamina(self.rig, striped("129MiB"))
        # A piece of everything: random data, zeroes, and a hole at the end.
        source = self.rig.file("source", size, lambda _size: os.urandom(48 * MIB) + bytes(16 * MIB) + os.urandom(8 * MIB))
        run("nbdcopy", "--flush", source, lamina.uri("vm1"))
        run("nbdcopy", lamina.uri("vm1"), self.rig.path("back"))
        with open(source, "rb") as a, open(self.rig.path("back"), "rb") as b:
            copied = b.read(size)
            self.assertEqual(hashlib.sha256(a.read()).hexdigest(), hashlib.sha256(copied).hexdigest())
        self.assertEqual(lamina.stop(), 0)
        # And it is all in the files: a new daemon reads the same.
        lamina.start()
        run("nbdcopy", lamina.uri("vm1"), self.rig.path("again"))
        run("cmp", self.rig.path("back"), self.rig.path("again"))

    def test_several_connections(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        source = self.rig.file("source", 64 * MIB, os.urandom)
        run("nbdcopy", "--connections=4", "--requests=64", "--threads=2", source, lamina.uri("m"))
        run("nbdcopy", "--connections=4", "--request-size=1048576", lamina.uri("m"), self.rig.path("back"))
        run("cmp", source, self.rig.path("back"))

    def test_between_two_exports_without_a_file(self):
        lamina = Lamina(self.rig, memory("32MiB") + """
[device.n]
type = "memory"
size = "32MiB"

[export.n]
device = "n"
nbd = "unix:nbd.sock"
""")
        source = self.rig.file("source", 32 * MIB, os.urandom)
        run("nbdcopy", source, lamina.uri("m"))
        run("nbdcopy", lamina.uri("m"), lamina.uri("n"))
        run("nbdcopy", lamina.uri("n"), self.rig.path("back"))
        run("cmp", source, self.rig.path("back"))


class Nbdsh(RigCase):
    """Single requests, by libnbd's Python binding."""

    def setUp(self):
        super().setUp()
        self.lamina = Lamina(self.rig, memory("64MiB", keys='') + """
[export.ro]
device = "m"
nbd = "unix:nbd.sock"
read-only = true
""")
        self.h = self.connect("m")

    def connect(self, export, meta=True):
        handle = nbd.NBD()
        # What libnbd itself would refuse is left to the server.
        handle.set_strict_mode(0)
        if meta:
            handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        handle.connect_uri(self.lamina.uri(export))
        return handle

    def test_write_is_read_back_with_and_without_fua(self):
        for at, flags in ((0, 0), (4096, nbd.CMD_FLAG_FUA), (64 * MIB - 512, 0)):
            self.h.pwrite(b"\xa5" * 512, at, flags)
            self.assertEqual(self.h.pread(512, at), b"\xa5" * 512)
        self.h.flush()
        self.assertEqual(self.lamina.counter("m", "write"), 3)
        self.assertEqual(self.lamina.counter("m", "flush"), 1)

    def test_trim_and_zero_read_as_zeroes(self):
        flags = [0, nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO]
        for flag in flags:
            self.h.pwrite(b"x" * 65536, MIB)
            self.h.zero(65536, MIB, flag)
            self.assertEqual(self.h.pread(65536, MIB), bytes(65536))
        self.h.pwrite(b"x" * 65536, MIB)
        self.h.trim(65536, MIB)
        self.assertEqual(self.h.pread(65536, MIB), bytes(65536))

    def extents(self, length, at, flags=0):
        found = []
        self.h.block_status(length, at, lambda _context, offset, entries, _error: found.append((offset, entries)), flags)
        return found

    def test_block_status(self):
        self.h.pwrite(b"x" * 65536, 65536)
        (at, entries), = self.extents(MIB, 0)
        self.assertEqual(at, 0)
        hole = nbd.STATE_HOLE | nbd.STATE_ZERO
        self.assertEqual(entries[:6], [65536, hole, 65536, 0, MIB - 131072, hole])
        (at, entries), = self.extents(MIB, 65536, nbd.CMD_FLAG_REQ_ONE)
        self.assertEqual((at, entries), (65536, [65536, 0]))

    def test_cache_does_no_harm(self):
        self.h.pwrite(b"x" * 4096, 0)
        if self.h.can_cache():
            self.h.cache(4096, 0)
        self.assertEqual(self.h.pread(4096, 0), b"x" * 4096)

    def fails(self, errno_name, call, *args):
        with self.assertRaises(nbd.Error) as caught:
            call(*args)
        self.assertEqual(caught.exception.errno, errno_name, str(caught.exception))
        # The connection lives on.
        self.assertEqual(self.h.pread(512, 0), bytes(512))

    def test_beyond_the_end(self):
        self.fails("EINVAL", self.h.pread, 1024, 64 * MIB - 512)
        self.fails("ENOSPC", self.h.pwrite, bytes(1024), 64 * MIB - 512)
        self.fails("EINVAL", self.h.trim, 1024, 64 * MIB - 512)
        self.fails("ENOSPC", self.h.zero, 1024, 64 * MIB - 512)
        self.fails("EINVAL", self.h.pread, 512, (1 << 63))

    def test_unaligned_requests(self):
        # Block sizes are announced; a client that ignores them gets an error, or what it asked for.
        try:
            self.h.pwrite(b"abc", 1)
        except nbd.Error as error:
            self.assertEqual(error.errno, "EINVAL")
        else:
            self.assertEqual(self.h.pread(5, 0), b"\0abc\0")

    def test_read_only_export_refuses_changes(self):
        self.h.pwrite(b"x" * 512, 0)
        reader = self.connect("ro")
        self.assertTrue(reader.is_read_only())
        self.assertEqual(reader.pread(512, 0), b"x" * 512)
        for call in (lambda: reader.pwrite(bytes(512), 0), lambda: reader.trim(512, 0), lambda: reader.zero(512, 0)):
            with self.assertRaises(nbd.Error) as caught:
                call()
            self.assertEqual(caught.exception.errno, "EPERM")
        self.assertEqual(reader.pread(512, 0), b"x" * 512)

    def test_thousands_of_requests_in_flight(self):
        cookies = []
        for number in range(4000):
            buffer = nbd.Buffer.from_bytearray(bytearray(number.to_bytes(4, "little") * 1024))
            cookies.append(self.h.aio_pwrite(buffer, number * 4096))
        while self.h.aio_in_flight() > 0:
            self.h.poll(1000)
        self.assertTrue(all(self.h.aio_command_completed(cookie) for cookie in cookies))
        for number in (0, 1, 1999, 3999):
            self.assertEqual(self.h.pread(4096, number * 4096), number.to_bytes(4, "little") * 1024)

    def test_oldest_clients_too(self):
        """Export name without options, and simple replies."""
        handle = nbd.NBD()
        handle.set_request_structured_replies(False)
        handle.set_export_name("m")
        handle.set_handshake_flags(0)
        handle.connect_unix(str(self.lamina.socket("nbd.sock")))
        self.assertEqual(handle.get_size(), 64 * MIB)
        handle.pwrite(b"y" * 512, 512)
        self.assertEqual(handle.pread(512, 512), b"y" * 512)
        handle.shutdown()

    def test_two_connections_see_each_other(self):
        other = self.connect("m")
        self.h.pwrite(b"z" * 4096, 8192)
        self.h.flush()
        self.assertEqual(other.pread(4096, 8192), b"z" * 4096)


class QemuTools(RigCase):
    def test_convert_compare_info(self):
        lamina = Lamina(self.rig, striped("33MiB"))
        source = self.rig.file("source.raw", 64 * MIB, lambda _n: os.urandom(20 * MIB))
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, self.rig.path("source.qcow2"))
        # -n: the export is there already and has its size. Out of one format into the export, and back into another.
        size = json.loads(run("nbdinfo", "--json", lamina.uri("vm1")).stdout)["exports"][0]["export-size"]
        self.assertGreaterEqual(size, 64 * MIB)
        run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", self.rig.path("source.qcow2"), lamina.uri("vm1"))
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", lamina.uri("vm1"), self.rig.path("back.qcow2"))
        # Sizes differ by what the export has more; that is zeroes.
        compared = run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, lamina.uri("vm1"), check=False)
        self.assertEqual(compared.returncode, 0, compared.stdout + compared.stderr)
        compared = run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", self.rig.path("back.qcow2"), lamina.uri("vm1"))
        self.assertIn("identical", compared.stdout)
        answer = json.loads(run("qemu-img", "info", "--output=json", lamina.uri("vm1")).stdout)
        self.assertEqual(answer["virtual-size"], size)

    def test_map_of_qemu_agrees(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        run("qemu-io", "-f", "raw", "-c", "write -P 7 1M 2M", lamina.uri("m"))
        extents = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", lamina.uri("m")).stdout)
        data = [(e["start"], e["length"]) for e in extents if e["data"]]
        self.assertEqual(data, [(MIB, 2 * MIB)])

    def test_qemu_io_patterns(self):
        lamina = Lamina(self.rig, memory("64MiB"))
        script = [
            "write -P 1 0 64k", "write -P 2 -f 64k 64k", "aio_write -P 3 128k 1M", "aio_flush", "read -P 1 0 64k",
            "read -P 2 64k 64k", "read -P 3 128k 1M", "write -z 64k 64k", "read -P 0 64k 64k", "write -z -u 0 64k",
            "read -P 0 0 64k", "discard 128k 1M", "read -P 0 128k 1M", "flush",
        ]
        done = run("qemu-io", "-f", "raw", "-d", "unmap", *[x for line in script for x in ("-c", line)], lamina.uri("m"))
        self.assertNotIn("failed", done.stdout.lower() + done.stderr.lower())

    @limit(60)
    def test_unaligned_by_qemu(self):
        """qemu-io reads and writes single bytes; whoever rounds them must not lose the neighbours."""
        lamina = Lamina(self.rig, memory("64MiB"))
        script = ["write -P 9 0 4k", "write -P 5 100 200", "read -P 9 0 100", "read -P 5 100 200", "read -P 9 300 200"]
        done = run("qemu-io", "-f", "raw", *[x for line in script for x in ("-c", line)], lamina.uri("m"))
        self.assertNotIn("failed", done.stdout.lower() + done.stderr.lower())
