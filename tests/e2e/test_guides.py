"""The guides for administrators (docs/guides): every command of every page is run, and what the page says happens."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import time
import unittest
import unittest.mock

import guides
from common import MIB
from rig import Guest, run, wait_until
from rig.certificates import Authority
from rig.container import Container
from rig.files import package
from rig.guest import disk_arguments, reconnect_option
from rig.process import free_port
from test_guest import VERIFY

# Lines of a page, at most.
LONG = 160


class Pages(unittest.TestCase):
    """What all pages have in common."""

    def test_every_page_has_a_test_and_every_block_says_what_it_is(self):
        tested = [of.page for of in globals().values() if isinstance(of, type) and issubclass(of, guides.GuideCase)]
        self.assertEqual(sorted(tested), guides.pages())
        listed = (guides.FOLDER / "README.md").read_text()
        for page in guides.pages():
            with self.subTest(page):
                self.assertTrue(any(block.kind != "not run" for block in guides.blocks(page)))
                self.assertEqual(listed.count(f"]({page}.md): "), 1)
                title, empty, first, *_ = lines = (guides.FOLDER / f"{page}.md").read_text().splitlines()
                self.assertTrue(title.startswith("# ") and not empty and first[0].isupper(), lines[:3])
                self.assertLessEqual(len(lines), LONG)
                for number, line in enumerate(lines, 1):
                    self.assertTrue(len(line) <= 120 or line.startswith(("|", "args: ", "<!-- ")), f"{page}.md:{number}")

    def test_a_block_that_does_not_say_what_it_is_is_an_error(self):
        run_ = "<!-- run -->\n```sh\ntrue\n```\n"
        for text, error in (
            (run_, None), ("```text\nx\n```\n", None), ("```sh\ntrue\n```\n", "no comment"),
            (run_ + "```toml\n```\n", "no comment"), ("  " + run_, "no comment"),
            ("<!-- run -->\n\n" + run_, "without a block"), ("<!-- walk -->\n" + run_, "unknown"),
            ("<!-- not run -->\n```sh\n```\n", "more is to be said"), (run_[:-4], "no end"),
        ):
            with self.subTest(text), unittest.mock.patch.object(pathlib.Path, "read_text", lambda _: text):
                with contextlib.nullcontext() if error is None else self.assertRaisesRegex(AssertionError, error):
                    guides.blocks("page")


class FirstTenMinutes(guides.GuideCase):
    page = "first-ten-minutes"

    def go(self):
        monday = self.image("/srv/monday.raw", 8)
        self.image("/srv/tuesday.raw", 8)
        self.section("Install")
        self.section("A disk in a file")
        self.section("Use it")
        self.section("Back to a moment")
        copied = self.rig.path("copied")
        run("nbdcopy", self.uri(), copied)
        self.assertEqual(copied.read_bytes()[:8 * MIB], monday.read_bytes())
        self.section("A device fails")
        self.at_rest()
        self.assertEqual({leg["is"] for leg in self.info("both")["legs"]}, {"in sync"})
        self.section("State of the disk")
        self.section("The hierarchy from its devices")


class MigrateADisk(guides.GuideCase):
    page = "migrate-a-disk"

    def go(self):
        raw = self.image("/srv/old.raw", 20)
        other = self.image("/srv/other.raw", 20)
        run("qemu-img", "convert", "-O", "qcow2", other, self.rig.path("srv/old.qcow2"))
        self.disk("sdb", 24)
        self.disk("sdc", 28)
        self.assertEqual(self.section("An image as it is").strip(), str(20 * MIB))
        self.section("Into a persistent hierarchy, while it is used")
        with self.load():
            self.section("Everything moves there")
        copied = self.rig.path("copied")
        run("nbdcopy", self.uri(), copied)
        self.assertEqual(copied.read_bytes()[16 * MIB:20 * MIB], raw.read_bytes()[16 * MIB:])
        self.section("A copy, while the machine is off")
        self.section("Out again")
        self.assertEqual(self.rig.path("srv/out.raw").read_bytes()[:20 * MIB], other.read_bytes())
        with self.load():
            self.section("To another device, while it is used")
        self.assertEqual(self.device()["over"], ["sdc"])
        self.assertIn("sdb", self.rig.path("etc/vm1.toml.orig").read_text())
        # The old device has left.
        self.rig.path("dev/sdb").unlink()


class Grow(guides.GuideCase):
    page = "grow"

    def go(self):
        self.disk("sdb", 24)
        self.disk("sdc", 24)
        self.section("A mirror with snapshots")
        self.assertEqual(self.size(), 16 * MIB)
        with self.load():
            self.section("The whole disk")
        [daemon] = self.daemons.values()
        self.assertEqual(daemon.stop(40), 0, daemon.output())
        self.again()
        self.assertEqual(self.size(), 32 * MIB)
        self.section("Smaller")
        self.assertEqual(self.size(), 16 * MIB)
        printed = self.section("One more disk")
        self.assertGreater(int(printed.split()[-1]), 44 * MIB)


class GrowByItself(guides.GuideCase):
    page = "grow-by-itself"
    other = (("/usr/local/sbin", "/etc/lamina"), ("/usr/bin/lamina", "/etc/lamina/../bin/lamina"))

    def go(self):
        self.image("/srv/first.raw", 18)
        self.section("The program")
        self.section("The hierarchy")
        *fills, _looks, _prints = [block for block in self.blocks if block.section == "A volume that fills"]
        for block in fills:
            self.step(block)
            self.at += 1
        wait_until("the volume to have more", 20, lambda: self.info()["data_percent"] < 80)
        self.section("A volume that fills")


class ReplaceADisk(guides.GuideCase):
    page = "replace-a-disk"

    def go(self):
        for name in ("sdb", "sdc", "sdd", "sde"):
            self.disk(name, 24)
        self.section("The hierarchy")
        with self.load():
            # A disk that loses what lies on it fails.
            os.truncate(self.rig.path("dev/sdd"), MIB)
            wait_until("the disk to be out", 20, lambda: self.legs()["sdd"] != "in sync")
            self.section("The disk fails")
            self.rig.path("dev/sdd").unlink()
            self.section("Another disk takes its place")
            self.assertEqual(self.legs(), dict.fromkeys(("sdb", "sdc", "sde"), "in sync"))
        self.section("Is everything the same?")
        found = self.info()["found"]["last_scrub"]
        self.assertEqual((found["different"], found["lost"]), (0, 0), found)

    def run_(self, block):
        self.at_rest()
        super().run_(block)


class NightlySnapshots(guides.GuideCase):
    page = "nightly-snapshots"
    other = (("/etc/systemd/system", "/etc/lamina"),)

    def go(self):
        self.disk("sdb", 64)
        self.section("The hierarchy")
        self.section("By hand")
        snapshots = json.loads(self.asked("ctl", "vm1", "list"))
        self.assertEqual(len(snapshots), 8)
        for snapshot in snapshots:
            self.assertLess(abs(time.time() - snapshot["taken_unix"]), 600)
        self.section("How much they take")
        self.section("By a timer")


class Restore(guides.GuideCase):
    page = "restore"

    def go(self):
        self.disk("sdb", 64)
        self.image("/srv/monday.raw", 8)
        self.image("/srv/tuesday.raw", 8)
        self.section("The hierarchy")
        self.section("A snapshot")
        self.section("A backup of it")
        self.assertLess(self.rig.path("srv/backup.raw").stat().st_blocks * 512, 9 * MIB)
        self.section("Roll back to the snapshot")
        self.section("A backup comes back")
        self.assertNotIn('"monday"', self.printed)
        self.section("What else a backup needs")


class IncrementalBackup(guides.GuideCase):
    page = "incremental-backup"

    def go(self):
        self.disk("sdb", 64)
        self.image("/srv/disk.raw", 8)
        self.section("The hierarchy")
        self.section("The first backup is whole")
        self.section("The next backup has the changes alone")
        # A little more than the dirty ranges: qcow2 has clusters of 64 KiB.
        self.assertLess(self.rig.path("srv/tuesday.qcow2").stat().st_blocks * 512, MIB)
        run("qemu-io", "-f", "raw", "-c", "write -P 9 0 8M", "-c", "flush", self.uri())
        self.section("Back from it")


class FromLvm(guides.GuideCase):
    page = "from-lvm"

    def go(self):
        self.image("/dev/vg0/vm1", 20)
        for name in ("sdb", "sdc"):
            self.disk(name, 24)
        self.disk("sdd", 28)
        self.section("From nothing to a disk")
        self.section("The volume grows")
        self.assertEqual(self.size("vm1", "vg0"), 28 * MIB)
        self.section("One more volume")
        self.assertEqual(self.size("vm2", "vg0"), 16 * MIB)
        with self.load("vm2", "vg0"):
            self.section("A disk leaves")


class FromMdadm(guides.GuideCase):
    page = "from-mdadm"

    def go(self):
        self.image("/dev/md0", 30)
        for name in ("sdb", "sdc", "sdd", "sde"):
            self.disk(name, 24)
        self.section("From nothing to a disk")
        self.assertEqual(self.legs(), {"sdb": "in sync", "sdc": "in sync", "sdd": "in sync", "sde": "spare"})
        self.section("A disk fails")
        wait_until("the rebuild to end", 30, lambda: self.legs()["sde"] == "in sync")
        self.section("The disk is back")
        self.assertEqual(self.legs(), {"sdb": "spare", "sdc": "in sync", "sdd": "in sync", "sde": "in sync"})
        self.section("Everything is compared")
        self.section("The disks in another host")


class FromQcow2(guides.GuideCase):
    page = "from-qcow2"

    def go(self):
        image = self.rig.path("srv/vm1.qcow2")
        monday = self.image("/srv/old.raw", 16)
        run("qemu-img", "convert", "-O", "qcow2", monday, image)
        run("qemu-img", "snapshot", "-c", "monday", image)
        run("qemu-io", "-f", "qcow2", "-c", "write -P 7 1M 3M", image)
        self.section("From nothing to a disk")
        self.section("Roll back, and export")
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", monday, self.rig.path("srv/monday.qcow2"))


class FromBcache(guides.GuideCase):
    page = "from-bcache"

    def go(self):
        self.image("/dev/bcache0", 40)
        self.disk("sdb", 48)
        self.disk("nvme0n1", 24)
        self.section("From nothing to a disk")
        self.section("Another policy")
        self.section("The flash goes, and comes back")


class FromDrbd(guides.GuideCase):
    page = "from-drbd"

    def go(self):
        self.other = (("10.0.0.2:10809", f"127.0.0.1:{free_port()}"),)
        authority = Authority(self.rig)
        for host in "ab":
            authority.issue(host)
        for name in ("ca-cert", "a-cert", "a-key", "b-cert", "b-key"):
            shutil.copy(self.rig.path(f"pki/{name}.pem"), self.rig.path("etc") / f"{name.replace('ca-cert', 'hosts-ca')}.pem")
        self.image("/dev/drbd0", 16)
        self.image("/srv/more.raw", 4)
        self.disk("sdb", 24)
        self.disk("sdc", 24)
        self.section("Host b: the other leg")
        self.section("Host a: the mirror")
        self.section("Host b is away")
        self.section("Host b is back")
        wait_until("the leg to have all", 30, lambda: self.legs()["there"] == "in sync")
        self.assertEqual(self.info()["copied"], 4 * MIB)
        self.daemons[str(self.rig.path("etc/vm1.toml"))].kill()
        self.section("Host a has died")


# The user and the group of hypervisors here: libvirt's driver wants another user than root.
NOBODY = 65534 if os.geteuid() == 0 else os.getgid()


class Libvirt(guides.GuideCase):
    page = "libvirt"
    has_guest = True
    other = (
        ('socket-group = "kvm"', f'socket-group = "{NOBODY}"'), ("<domain type='kvm'>", "<domain type='qemu'>"),
        ("<memory unit='GiB'>4<", "<memory unit='MiB'>256<"),
    )

    def go(self):
        self.attached = {}
        self.section("The disk")
        self.section("The domain of libvirt")
        self.section("QEMU")
        self.section("Live migration")
        if shutil.which("virt-qemu-run") and shutil.which("xmllint"):
            self.by_libvirt()
        else:
            print("        libvirt is not installed: its part was left out (tools/install test)")
        guest = self.boot("qemu", "guest").wait_ready()
        self.assertEqual(guest.run("ls /sys/block/vda/mq | wc -l; cat /sys/block/vda/serial"), "2\nvm1")
        # It ends by itself: a signal in the first moments after a migration was lost now and then.
        guest.background("fio", VERIFY.format(file="/dev/vda", size="48M", seconds=45))
        self.restart()
        address = f"unix:{self.rig.path('migration.sock')}"
        target = self.boot("target", "target", incoming=address)
        guest.migrate_to(target, address)
        guest.proc.kill()
        self.assertFalse(target.finished("fio"))
        report = target.result("fio", 180)
        self.assertIn("err= 0", report)
        self.assertNotIn("verify: bad", report)
        self.assertEqual(target.complaints(), "")
        self.assertEqual(target.power_off(), 0)

    def attach(self, block):
        self.attached[block.more] = self.adapted(block.text)

    def restart(self):
        """kill -9 of the daemon, and a new start."""
        [daemon] = self.daemons.values()
        daemon.kill()
        self.again()

    def until_printed(self, text):
        [daemon] = self.daemons.values()
        daemon.wait_for(text, 30)

    def option(self, kind, name):
        """An option of one of QEMU's commands on the page."""
        words = shlex.split(self.attached[kind].replace("\\\n", " "))
        return words[words.index(name) + 1]

    def boot(self, kind, name, **more):
        """A guest with the disk of QEMU's command of the page; the rig has the rest of that command itself."""
        chardev = self.option(kind, "-chardev").replace("reconnect-ms=200", reconnect_option())
        guest = Guest(self.rig, ["-chardev", chardev, "-device", self.option(kind, "-device")], name=name, **more)
        # The memory is shared in the same way.
        without_size = lambda word: re.sub(r"size=\w+", "size", word)
        self.assertIn(without_size(self.option(kind, "-object")), map(without_size, guest.proc.argv))
        self.assertIn("memory-backend=mem", self.option(kind, "-machine"))
        return guest

    def by_libvirt(self):
        """libvirt knows the domain, makes of it what the page says, and starts it; its QEMU connects again."""
        os.chmod(self.rig.dir, 0o711)
        domain = self.rig.write("vm1.xml", self.attached["domain"])
        run("virt-xml-validate", domain)
        wrong = self.rig.write("wrong.xml", domain.read_text().replace("enabled='yes'", "enabled='maybe'"))
        self.assertNotEqual(run("virt-xml-validate", wrong, check=False).returncode, 0)
        root = self.rig.path("libvirt")
        (root / "etc").mkdir(parents=True)
        (root / "etc/qemu.conf").write_text('stdio_handler = "file"\n')
        as_other = ["env", f"HOME={root}"]
        if os.geteuid() == 0:
            run("chown", "-R", f"{NOBODY}:{NOBODY}", root)
            as_other += ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
        said = run(*as_other, "virsh", "-c", f"qemu:///embed?root={root}", "domxml-to-native", "qemu-argv", domain).stdout
        words = shlex.split(said)
        devices = [json.loads(word) for word in words if word.startswith("{")]
        [disk] = [device for device in devices if device.get("driver") == "vhost-user-blk-pci"]
        self.assertIn(f"num-queues={disk['num-queues']},", self.option("qemu", "-device"))
        [memory] = [device for device in devices if device.get("qom-type") == "memory-backend-memfd"]
        self.assertTrue(memory["share"])
        path = re.search(r"path=([^,]+)", self.option("qemu", "-chardev"))[1]
        self.assertIn(f"socket,id={disk['chardev']},path={path},reconnect=1", words)
        machine = self.rig.start(*as_other, "virt-qemu-run", "--verbose", f"--root={root}", domain, name="libvirt")
        machine.wait_for("guest running", 30)
        # The BIOS looks at the disk, and finds nothing to boot; later it is only connected to.
        self.until_printed("the front-end keeps the in-flight region")
        self.restart()
        self.until_printed("a front-end has connected")
        self.assertTrue(machine.running(), machine.output())
        machine.signal(signal.SIGINT)
        self.assertEqual(machine.wait(20), 0, machine.output())


@unittest.skipIf(os.geteuid() != 0, "needs root, for a container")
class Upgrade(guides.GuideCase):
    """In a Debian of its own, with the paths of the page."""

    page = "upgrade"
    has_guest = True
    places = ()

    def shell(self, script, code=0):
        done = self.container.run(f"exec 2>&1\nset -e\n{self.adapted(script)}", seconds=120, check=False)
        if done.returncode != code:
            log = self.container.run("journalctl -u lamina@vm1 -o cat --no-pager | tail -n 30", check=False).stdout
            raise AssertionError(f"{script}: exit {done.returncode}\n{done.stdout}\n{log}")
        return done.stdout.strip()

    sh = shell

    def file(self, block):
        self.container.path(block.more).write_text(self.adapted(block.text))

    def process(self):
        return self.shell("systemctl show -P MainPID lamina@vm1")

    def version(self):
        return self.shell("dpkg-query -W -f '${Version}' lamina")

    def next_version(self, deb):
        """The same program in a package of another version."""
        tree, made = self.rig.path("next"), self.rig.path("next.deb")
        run("dpkg-deb", "-R", deb, tree)
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.2.0-1", control.read_text()))
        run("dpkg-deb", "-b", "-Zgzip", "-z1", "--root-owner-group", tree, made)
        return made

    def goes_on(self, guest):
        """The guest writes after a restart, and has seen no error."""
        wrote = lambda: guest.run("cat /sys/block/vda/stat").split()[4]
        before = wrote()
        wait_until("the guest's next writes", 60, lambda: wrote() != before, every=0.3)
        self.assertFalse(guest.finished("fio"), guest.run("cat /tmp/fio.out; true"))

    def go(self):
        self.container = Container(self.rig, "bookworm")
        old = package()
        new = self.next_version(old)
        for deb, name in (old, "0.1.0-1"), (new, "0.2.0-1"):
            run("cp", deb, self.container.path(f"/root/lamina_{name}_amd64.deb"))
        self.sh("apt-get install -y ./lamina_0.1.0-1_amd64.deb")
        self.section("A disk, as a service")
        guest = Guest(self.rig, disk_arguments(self.container.path("/run/lamina/vm1.sock"))).wait_ready(120)
        guest.background("fio", f"{VERIFY.format(file='/dev/vda', size='32M', seconds=500)}; test $? -eq 128")
        process = self.process()
        self.section("Install the new version")
        self.assertEqual(self.process(), process, "an installation alone restarts nothing")
        self.assertEqual(self.version(), "0.2.0-1")
        self.section("Restart")
        self.assertNotEqual(self.process(), process)
        wait_until("systemd's restart", 60, lambda: self.shell("systemctl show -P NRestarts lamina@vm1") == "1", every=0.3)
        self.goes_on(guest)
        self.section("Back to the old version")
        self.assertEqual(self.version(), "0.1.0-1")
        self.goes_on(guest)
        guest.end_fio()
        report = guest.result("fio", 120)
        self.assertIn("err= 0", report)
        self.assertNotIn("verify: bad", report)
        self.assertEqual(guest.complaints(), "")
        self.assertEqual(guest.power_off(), 0)
