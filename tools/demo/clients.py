"""The users of the disk: a Linux guest, or an NBD client. Both write something, put load on it, and look at it
again."""

import os
import pathlib
import re
import sys

from rig import Guest, Lamina, run, wait_until
from rig.guest import disk_arguments

from hierarchies import FRONT
from telling import require, say, show, title

MIB = 1 << 20
# A text that the client writes among other data, to be searched for on the disks.
PLAIN = b"who reads this on a disk has broken its encryption. "

FIO = (
    "fio --name=load --filename=/mnt/load --size=16M --rw=randrw --bs=4k --ioengine=libaio --direct=1 --iodepth=16 "
    "--verify=crc32c --verify_backlog=128 --verify_fatal=1 --verify_state_save=0 --fsync=64 --time_based --runtime=4 "
    "--group_reporting"
)


class LinuxGuest:
    """A guest over vhost-user-blk."""

    def __init__(self, rig, lamina):
        title("A Linux guest on it, over vhost-user-blk")
        self.lamina = lamina
        self.guest = Guest(rig, disk_arguments(lamina.socket("vm1.sock"))).wait_ready()
        say(f"booted Linux {self.guest.run('uname -r')}, which knows nothing of Lamina")
        say(f"/dev/vda has {int(self.guest.run('cat /sys/block/vda/size')) // 2048} MiB")
        cache = self.guest.run("cat /sys/block/vda/queue/write_cache")
        require("the guest sees a write-back cache, so that its flushes are sent", cache == "write back", cache)

    def fill(self):
        guest = self.guest
        guest.run("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt", seconds=120)
        guest.run("for i in $(seq 1 24); do head -c 1048576 /dev/urandom >/mnt/file$i; done", seconds=120)
        guest.run(f"yes '{PLAIN.decode()}' | head -c 1048576 >/mnt/file25; sync", seconds=60)
        self.sums = guest.run("cd /mnt && sha256sum file*", seconds=120)
        say("it made an ext4 file system and wrote 25 files of 1 MiB; their checksums are kept outside of it")

    def begin_load(self):
        self.guest.background("fio", f"until [ -e /tmp/enough ]; do {FIO} || exit 1; done")
        # fio first lays its file out.
        begun = self.lamina.counter("vm1", "read")
        wait_until("fio to read back what it wrote", 60, lambda: self.lamina.counter("vm1", "read") > begun + 200)
        say("fio writes and verifies in the guest, 16 requests in flight, until further notice")

    def check_load(self):
        """Ends the demo if the load has ended."""
        if self.guest.finished("fio"):
            self.guest.result("fio", 1)
            sys.exit("the demo failed: fio ended early")

    def end_load(self):
        guest, lamina = self.guest, self.lamina
        guest.run("touch /tmp/enough")
        report = guest.result("fio", 120)
        runs = len(re.findall(r"err= ", report))
        for line in re.findall(r"^\s+(?:read|write): IOPS=.*$", report, re.M)[-2:]:
            say(f"fio, at last: {line.strip()}")
        require(f"fio saw no error and no wrong byte ({runs} runs)", runs == report.count("err= 0") > 0, report)
        require("the guest's kernel saw no I/O error", guest.complaints() == "", guest.complaints())
        kept = lamina.log().count("INFLIGHT_SHMFD")
        require("the record of requests in flight was negotiated at every start (INFLIGHT_SHMFD)", kept >= lamina.starts, lamina.log())
        if lamina.requests_taken_over():
            say(f"requests in flight that a new daemon found there and did again: {lamina.requests_taken_over()}")

    def lose_all(self):
        self.guest.run("rm -rf /mnt/*; sync; umount /mnt")
        say("rm -rf in the guest: no file is left")

    def look_again(self):
        guest = self.guest
        guest.reboot()
        say(f"the guest has rebooted: Linux {guest.run('uname -r')}")
        guest.run("mount -t ext4 /dev/vda /mnt")
        again = guest.run("cd /mnt && sha256sum file*", seconds=120)
        require("all 25 files are there, with the checksums they had", again == self.sums and len(again.splitlines()) == 25, again)
        fsck = guest.run("umount /mnt && e2fsck -fn /dev/vda", seconds=120)
        require("the file system is clean (e2fsck -fn)", "clean" in fsck or "files" in fsck, fsck)
        require("the guest's kernel saw no I/O error", guest.complaints() == "", guest.complaints())
        require("the guest's flushes arrive", self.lamina.counter("vm1", "flush") > 0)

    def end(self):
        require("the guest powers off", self.guest.power_off() == 0)


class NbdClient:
    """A client that speaks NBD, through a daemon that reconnects when the first one goes away."""

    def __init__(self, rig, lamina):
        title("An NBD client on it")
        self.rig, self.lamina = rig, lamina
        show(run("nbdinfo", lamina.uri("vm1")).stdout)
        say("a second daemon takes that export as its device, and reconnects when it goes away:")
        show(FRONT)
        self.front = Lamina(rig, FRONT, name="front")
        self.uri = self.front.uri("front", "front.sock")
        self.size = int(run("nbdinfo", "--size", self.uri).stdout)

    def fill(self):
        def content(size):
            """The load's part, which has to be empty, and some data after it."""
            plain = PLAIN * (MIB // len(PLAIN))
            return bytes(16 * MIB) + os.urandom(24 * MIB) + plain
        self.picture = self.rig.file("in.raw", self.size, content)
        run("nbdcopy", "--flush", self.picture, self.uri, seconds=120)
        say(f"nbdcopy in.raw: an image of {self.size // MIB} MiB, 24 of them random")

    def begin_load(self):
        stamps = pathlib.Path(__file__).parents[1] / "rig/stamps.py"
        self.load = self.rig.start("python3", stamps, self.uri, 600, name="stamps")
        begun = self.lamina.counter("vm1", "write")
        wait_until("stamped blocks", 20, lambda: self.lamina.counter("vm1", "write") > begun + 200)
        say("a client writes and verifies stamped blocks, 16 requests in flight, until further notice")

    def check_load(self):
        """Ends the demo if the load has ended."""
        if self.load.exit_code() is not None:
            sys.exit(f"the demo failed: the client ended early:\n{self.load.output()}")

    def end_load(self):
        code = self.load.stop(60)
        require("the client saw no error, and every block is the newest written", code == 0, self.load.output())
        say(self.load.output().strip())

    def lose_all(self):
        run("nbdcopy", "--flush", "--allocated", self.rig.file("zeroes.raw", self.size), self.uri, seconds=120)
        say("nbdcopy zeroes.raw: all is overwritten")

    def look_again(self):
        run("nbdcopy", self.uri, self.rig.path("out.raw"), seconds=120)
        same = run("cmp", self.picture, self.rig.path("out.raw"), check=False, seconds=120)
        require("what nbdcopy reads back is what it wrote, byte by byte", same.returncode == 0, same.stdout + same.stderr)
        require("flushes arrive", self.front.counter("remote", "flush") > 0)

    def end(self):
        require("the second daemon drains and ends well (SIGTERM)", self.front.stop() == 0, self.front.log())
