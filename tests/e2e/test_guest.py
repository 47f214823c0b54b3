"""A real Linux guest over vhost-user-blk: what it is told about its disk, kill -9 under it, live migration."""

import time

from common import KILLS_GUEST, MIB, RigCase, limit, memory, striped
from rig import Guest, Lamina
from rig.guest import disk_arguments

VERIFY = (
    "fio --name=verify --filename={file} --size={size} --rw=randrw --rwmixwrite=70 --bs=4k --ioengine=libaio "
    "--direct=1 --iodepth=16 --verify=crc32c --verify_backlog=128 --verify_fatal=1 --verify_state_save=0 --fsync=128 --time_based "
    # The counter of a processor that is emulated, and waits for one, is no clock.
    "--clocksource=clock_gettime --runtime={seconds} --group_reporting"
)


class GuestCase(RigCase):
    has_guest = True

    def boot(self, lamina, sock="vm1.sock", queues=1):
        return Guest(self.rig, disk_arguments(lamina.socket(sock), queues)).wait_ready()

    def assert_busy(self, guest):
        """fio in the guest has not ended."""
        if guest.finished("fio"):
            self.fail(f"fio ended early: {guest.run('cat /tmp/fio.out')}")

    def assert_healthy(self, guest, report=None):
        self.assertEqual(guest.complaints(), "")
        if report is not None:
            self.assertIn("err= 0", report)
            self.assertNotIn("verify: bad", report)


class Disk(GuestCase):
    """What one guest sees; one boot for all of it."""

    @limit(180)
    def test_what_the_guest_is_told_and_what_arrives(self):
        lamina = Lamina(self.rig, memory("64MiB").replace('nbd = "unix:nbd.sock"', """\
nbd = "unix:nbd.sock"
vhost-user = "vm1.sock"
queues = 2
serial = "lamina-0001"
"""))
        guest = self.boot(lamina, queues=2)
        attribute = lambda name: guest.run(f"cat /sys/block/vda/{name}")

        with self.subTest("shape"):
            self.assertEqual(int(attribute("size")), 64 * MIB // 512)
            self.assertEqual(attribute("serial"), "lamina-0001")
            self.assertEqual(attribute("ro"), "0")
            self.assertEqual(guest.run("ls /sys/block/vda/mq | wc -l"), "2")

        with self.subTest("the guest is known by its process"):
            client = f"client: a hypervisor over vhost-user (process {guest.proc.pid} (qemu-system"
            self.assertIn(client, lamina.tree())

        with self.subTest("flushes arrive"):
            self.assertEqual(attribute("queue/write_cache"), "write back")
            before = lamina.counter("m", "flush")
            guest.run("for i in 1 2 3 4 5; do dd if=/dev/zero of=/dev/vda bs=4k count=1 conv=fsync 2>/dev/null; done")
            self.assertGreaterEqual(lamina.counter("m", "flush"), before + 5)

        with self.subTest("discards and zeroes arrive"):
            self.assertGreater(int(attribute("queue/discard_max_bytes")), 0)
            self.assertGreater(int(attribute("queue/write_zeroes_max_bytes")), 0)
            guest.run("head -c 1048576 /dev/urandom >/dev/vda; sync")
            guest.run("/tools/bin/blkdiscard -o 0 -l 524288 /dev/vda && /tools/bin/blkdiscard -z -o 524288 -l 524288 /dev/vda")
            self.assertGreater(lamina.counter("m", "discard"), 0)
            self.assertGreater(lamina.counter("m", "zero"), 0)
            guest.run("echo 3 >/proc/sys/vm/drop_caches; head -c 1048576 /dev/vda | cmp - /dev/zero 2>&1 | grep EOF")

        with self.subTest("both queues verify"):
            report = guest.run(VERIFY.format(file="/dev/vda", size="32M", seconds=4) + " --numjobs=1", seconds=90)
            self.assert_healthy(guest, report)

        with self.subTest("what the guest wrote is what NBD clients read"):
            guest.run("yes lamina | head -c 1048576 | dd of=/dev/vda bs=64k conv=fsync 2>/dev/null")
            import nbd
            handle = nbd.NBD()
            handle.connect_uri(lamina.uri("m"))
            self.assertEqual(handle.pread(MIB, 0), (b"lamina\n" * (MIB // 7 + 1))[:MIB])

        self.assertEqual(guest.power_off(), 0)
        self.assertEqual(lamina.stop(), 0, lamina.log())

    @limit(120)
    def test_read_only_export(self):
        lamina = Lamina(self.rig, striped(vhost=True) + "read-only = true\n")
        guest = self.boot(lamina)
        self.assertEqual(guest.run("cat /sys/block/vda/ro"), "1")
        self.assertNotEqual(guest.run("dd if=/dev/zero of=/dev/vda bs=4k count=1 2>/dev/null; echo $?"), "0")
        guest.run("dd if=/dev/vda of=/dev/null bs=1M count=8")
        self.assertEqual(lamina.counter("vm1", "write"), 0)

    @limit(120)
    def test_resize_is_seen_live(self):
        lamina = Lamina(self.rig, """\
[device.disk]
type = "file"
path = "disk.img"
size = "64MiB"

[export.disk]
device = "disk"
vhost-user = "vm1.sock"
""")
        guest = self.boot(lamina)
        guest.run("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt && echo kept >/mnt/file")
        lamina.ctl("disk", "resize", "size=96MiB")
        size = guest.run("for i in $(seq 50); do s=$(cat /sys/block/vda/size); [ $s = 131072 ] || break; sleep 0.1; done; echo $s")
        self.assertEqual(int(size), 96 * MIB // 512)
        guest.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=80 count=8 conv=fsync")
        self.assertEqual(guest.run("cat /mnt/file; umount /mnt"), "kept")
        self.assert_healthy(guest)


class Kills(GuestCase):
    def under(self, lamina, guest, times, again, pause=1.0):
        for _ in range(times):
            time.sleep(pause)
            self.assert_busy(guest)
            again()

    @limit(400)
    def test_kill_9_under_fio_with_verify(self):
        # Slow enough that a kill always finds requests under way.
        slow = '[device.vm1]\ntype = "delay"\nover = "whole"\nread = "4ms"\nwrite = "4ms"\n\n'
        hierarchy = striped("64MiB", vhost=True).replace("[device.vm1]", "[device.whole]")
        lamina = Lamina(self.rig, slow + hierarchy + "queues = 2\n")
        guest = self.boot(lamina, queues=2)
        guest.run("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt", seconds=60)
        # fio has enough to do for all restarts on the slowest machine, and is told to end after the last one: 128.
        fio = VERIFY.format(file="/mnt/file", size="48M", seconds=330)
        guest.background("fio", f"{fio}; test $? -eq 128")
        self.under(lamina, guest, KILLS_GUEST, lambda: lamina.restart(busy="vm1"))
        time.sleep(2)
        self.assert_busy(guest)
        guest.end_fio()
        report = guest.result("fio", 120)
        self.assert_healthy(guest, report)
        self.assertEqual(lamina.starts, KILLS_GUEST + 1)
        # Without requests taken over from the record that the guest's side keeps, all of this would prove nothing.
        # How many kills find some is chance; none of all is not.
        self.assertGreaterEqual(lamina.log().count("INFLIGHT_SHMFD"), KILLS_GUEST + 1, lamina.log())
        self.assertGreaterEqual(len(lamina.requests_taken_over()), max(KILLS_GUEST // 5, 1), lamina.log())
        guest.run("umount /mnt && e2fsck -fn /dev/vda", seconds=60)
        self.assertEqual(guest.power_off(), 0)

    @limit(240)
    def test_orderly_restart_under_fio_with_verify(self):
        """An upgrade: SIGTERM drains, and the new daemon goes on."""
        lamina = Lamina(self.rig, striped("64MiB", vhost=True))
        guest = self.boot(lamina)

        def again():
            self.assertEqual(lamina.stop(), 0, lamina.log())
            lamina.start()
        guest.background("fio", VERIFY.format(file="/dev/vda", size="48M", seconds=14))
        self.under(lamina, guest, 3, again)
        self.assert_healthy(guest, guest.result("fio", 120))

    @limit(180)
    def test_guest_reboots(self):
        """The devices are reset and driven anew, twice, and nothing is lost."""
        lamina = Lamina(self.rig, striped("64MiB", vhost=True))
        guest = self.boot(lamina)
        guest.run("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt && head -c 8388608 /dev/urandom >/mnt/file")
        digest = guest.run("sha256sum /mnt/file; umount /mnt")
        for _ in range(2):
            guest.reboot()
            guest.run("mount -t ext4 /dev/vda /mnt")
            self.assertEqual(guest.run("sha256sum /mnt/file"), digest)
            guest.run("umount /mnt")
        self.assert_healthy(guest)


class Migration(GuestCase):
    @limit(300)
    def test_live_migration_under_fio_with_verify(self):
        """From one QEMU to another, both attached to the same served disk by an export each."""
        lamina = Lamina(self.rig, striped("64MiB", vhost=True) + """
[export.vm1-target]
device = "vm1"
vhost-user = "target.sock"
""")
        source = self.boot(lamina)
        source.background("fio", VERIFY.format(file="/dev/vda", size="48M", seconds=25))
        time.sleep(3)
        address = f"unix:{self.rig.path('migration.sock')}"
        target = Guest(self.rig, disk_arguments(lamina.socket("target.sock")), name="target", incoming=address)
        account = source.migrate_to(target, address)
        source.proc.kill()
        self.assert_busy(target)
        print(f"        cut-over {account['downtime']} ms, in all {account['total-time']} ms, "
              f"{account['ram']['transferred'] >> 20} MiB moved")
        self.assert_healthy(target, target.result("fio", 120))
        # And once more, from the start, by the target alone.
        self.assert_healthy(target, target.run(VERIFY.format(file="/dev/vda", size="16M", seconds=2), seconds=60))
        self.assertEqual(target.power_off(), 0)
        self.assertEqual(lamina.stop(), 0, lamina.log())
