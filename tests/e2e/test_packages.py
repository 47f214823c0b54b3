"""The Debian package in a fresh Debian 12 and 13: installed, used by a guest, upgraded under it, removed and purged."""

import os
import pathlib
import re
import signal
import time
import unittest

from common import MIB, RigCase, limit
from rig import Guest, run, wait_until
from rig.container import Container
from rig.files import package
from rig.guest import disk_arguments
from test_guest import VERIFY

UNIT = "lamina@vm1"
CONTROL = "/run/lamina/vm1.ctl.sock"
URI = "'nbd+unix:///vm1?socket=/run/lamina/vm1-nbd.sock'"
# Encrypted: the daemon reads a key, and locks its memory.
VOLUME = """\
[device.disk]
type = "file"
path = "/var/lib/lamina/vm1.img"
size = "96MiB"

[device.vm1]
type = "crypt"
over = "disk"
key-file = "/etc/lamina/vm1.key"
format = true

[export.vm1]
device = "vm1"
vhost-user = "/run/lamina/vm1.sock"
nbd = "unix:/run/lamina/vm1-nbd.sock"
socket-group = "kvm"
socket-mode = "0660"
"""
# A block device, and an address of the network.
BLOCK = """\
[device.block]
type = "file"
path = "/dev/lamina-test"

[export.block]
device = "block"
nbd = "tcp:127.0.0.1:10809"
"""
# A drop-in: what hangs is found sooner than an operator would want.
WATCHDOG = "[Service]\nWatchdogSec=10s\n"
# Files that come and go with no package, or that say which packages were there.
ELSEWHERE = (
    "/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/cache", "/var/log", "/var/lib/apt", "/var/lib/dpkg",
    "/var/lib/systemd", "/var/tmp",
)


def may_raise_limits():
    """Whether systemd in a container can give a service more locked memory than this process may have: a sandbox in which
    these tests run may keep CAP_SYS_RESOURCE from it."""
    effective = re.search(r"^CapEff:\s*(\w+)$", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(effective[1], 16) >> 24 & 1)


@unittest.skipIf(os.geteuid() != 0, "needs root, for a container")
class Packages(RigCase):
    has_guest = True

    @limit(600)
    def test_debian_12(self):
        self.life("bookworm", keep=False)

    @limit(600)
    def test_debian_13(self):
        self.life("trixie", keep=True)

    def life(self, suite, keep):
        """The life of the package; at its purge the data is kept, or goes."""
        self.container = Container(self.rig, suite)
        before = self.files()
        first = package()
        self.install(first)
        self.assert_complete()
        self.serve()
        self.assert_shut_in()
        self.assert_sockets()
        self.assert_watched()
        self.assert_block_devices()
        self.upgrade_under_a_guest(first)
        self.remove(first)
        self.purge(before, keep)

    def shell(self, script, seconds=60):
        try:
            return self.container.run(script, seconds=seconds).stdout.strip()
        except AssertionError as error:
            log = self.container.run(f"journalctl -u {UNIT} -o cat --no-pager | tail -n 30", check=False).stdout
            raise AssertionError(f"{error}\n{log}") from None

    def files(self):
        """The paths of all files but for those of `ELSEWHERE`."""
        prune = " -o ".join(f"-path {path}" for path in ELSEWHERE)
        return set(self.shell(f"find / \\( {prune} \\) -prune -o -print").splitlines())

    def property(self, name):
        return self.shell(f"systemctl show -P {name} {UNIT}")

    def install(self, deb):
        run("cp", deb, self.container.path("/root/"))
        self.shell(f"apt-get install -y ./{deb.name}", seconds=120)

    def assert_complete(self):
        with self.subTest("the package is complete"):
            self.assertRegex(self.shell("lamina --version"), r"lamina \d")
            listed = self.shell("dpkg -L lamina").splitlines()
            for path in (
                "/usr/share/man/man1/lamina.1.gz", "/usr/share/man/man1/lamina-serve.1.gz", "/usr/share/man/man5/lamina.toml.5.gz",
                "/usr/share/bash-completion/completions/lamina", "/usr/share/zsh/vendor-completions/_lamina",
                "/usr/share/fish/vendor_completions.d/lamina.fish",
            ):
                self.assertIn(path, listed)
            completed = "bash -c '. /usr/share/bash-completion/completions/lamina && complete -p lamina'"
            self.assertIn("complete", self.shell(completed))
            self.assertEqual(self.shell("stat -c '%a %U %G' /etc/lamina /var/lib/lamina /run/lamina").splitlines(), [
                "750 root lamina", "750 lamina lamina", "2750 lamina kvm",
            ])

    def serve(self):
        self.container.path("/etc/lamina/vm1.toml").write_text(VOLUME)
        drop_in = self.container.path(f"/etc/systemd/system/{UNIT}.service.d/")
        drop_in.mkdir()
        (drop_in / "watchdog.conf").write_text(WATCHDOG)
        self.shell("""
            head -c 64 /dev/urandom >/etc/lamina/vm1.key
            chown lamina /etc/lamina/vm1.key
            chmod 400 /etc/lamina/vm1.key
            lamina check /etc/lamina/vm1.toml
            systemctl daemon-reload""")
        self.shell(f"systemctl enable --now {UNIT}")
        self.assertEqual(self.property("ActiveState"), "active")
        self.assertIn("ready", self.shell(f"journalctl -u {UNIT} -o cat"))
        if may_raise_limits():
            self.assertNotIn("WARN", self.shell(f"journalctl -u {UNIT} -o cat"))
        self.assertIn("vm1", self.shell(f"lamina show --control {CONTROL}"))

    def assert_watched(self):
        """The daemon says that it is alive, and is not restarted."""
        last = self.property("WatchdogTimestampMonotonic")
        for _ in range(2):
            before = last
            alive = lambda: self.property("WatchdogTimestampMonotonic") != before
            wait_until("a sign of life", 20, alive, every=0.5)
            last = self.property("WatchdogTimestampMonotonic")
        self.assertEqual(self.property("NRestarts"), "0")

    def assert_shut_in(self):
        with self.subTest("the sandbox"):
            self.shell(f"systemd-analyze security --threshold=30 {UNIT}")
            status = dict(
                line.split(":", 1) for line in self.shell(f"cat /proc/{self.property('MainPID')}/status").splitlines()
            )
            self.assertEqual(status["Uid"].split(), [self.shell("id -u lamina")] * 4)
            for name, value in {"NoNewPrivs": "1", "Seccomp": "2", "CapBnd": "0" * 16, "CapEff": "0" * 16}.items():
                self.assertEqual(status[name].strip(), value, name)
            # No key gets into swap.
            if may_raise_limits():
                self.assertNotEqual(status["VmLck"].strip(), "0 kB")
            self.assertEqual(self.property("LimitCORE"), "0")

    def assert_sockets(self):
        """Members of QEMU's group connect, and no other users do."""
        with self.subTest("sockets"):
            as_nobody = "setpriv --reuid nobody --regid nogroup"
            self.shell(f"{as_nobody} --groups kvm nbdinfo {URI}")
            refused = self.container.run(f"{as_nobody} --clear-groups nbdinfo {URI}", check=False)
            self.assertIn("Permission denied", refused.stderr)
            refused = self.container.run(
                f"{as_nobody} --groups kvm lamina show --control {CONTROL}", check=False)
            self.assertNotEqual(refused.returncode, 0)

    def assert_block_devices(self):
        """A block device of the user's own, served over TCP."""
        with self.subTest("a block device"):
            loop = run("losetup", "--find", "--show", self.rig.file("block.img", 8 * MIB)).stdout.strip()
            self.rig.callback(run, "losetup", "--detach", loop, check=False)
            number = os.stat(loop).st_rdev
            self.container.path("/etc/lamina/block.toml").write_text(BLOCK)
            self.shell(f"""
                mknod -m 600 /dev/lamina-test b {os.major(number)} {os.minor(number)}
                chown lamina /dev/lamina-test
                systemctl start lamina@block
                yes lamina | head -c {8 * MIB} >wanted
                nbdcopy --flush wanted nbd://127.0.0.1/block
                systemctl stop lamina@block
                cmp wanted /dev/lamina-test
                rm /dev/lamina-test /etc/lamina/block.toml""")

    def upgrade_under_a_guest(self, first):
        guest = Guest(self.rig, disk_arguments(self.container.path("/run/lamina/vm1.sock"))).wait_ready(120)
        # fio has enough to do on the slowest machine, and is told to end after the last restart: 128.
        guest.background("fio", f"{VERIFY.format(file='/dev/vda', size='32M', seconds=500)}; test $? -eq 128")

        def again(how, begin):
            """The daemon is another process after this, and serves the guest."""
            with self.subTest(how):
                old = self.property("MainPID")
                time.sleep(2)
                self.assertFalse(guest.finished("fio"), guest.run("cat /tmp/fio.out; true"))
                begin()
                is_new = lambda: self.property("MainPID") not in ("0", old) and self.property("ActiveState") == "active"
                wait_until("the daemon's next process", 60, is_new, every=0.3)
                wrote = lambda: guest.run("cat /sys/block/vda/stat").split()[4]
                now = wrote()
                wait_until("the guest's next writes", 60, lambda: wrote() != now, every=0.3)

        old = self.property("MainPID")
        second = self.next_version(first)
        self.install(second)
        self.assertEqual(self.shell("dpkg-query -W -f '${Version}' lamina"), self.version(second))
        self.assertEqual(self.property("MainPID"), old, "an upgrade alone restarts nothing")
        again("restart", lambda: self.shell(f"systemctl restart {UNIT}"))
        again("kill -9", lambda: self.container.kill(UNIT))
        # On a busy machine the first new start may be too late for the watchdog.
        self.assertGreaterEqual(int(self.property("NRestarts")), 1)
        again("a daemon that hangs", lambda: self.container.kill(UNIT, signal.SIGSTOP))
        self.assertIn("Watchdog timeout", self.shell(f"journalctl -u {UNIT} -o cat"))
        time.sleep(2)
        self.assertFalse(guest.finished("fio"), guest.run("cat /tmp/fio.out; true"))
        guest.end_fio()
        report = guest.result("fio", 120)
        self.assertIn("err= 0", report)
        self.assertNotIn("verify: bad", report)
        # Bytes that are to be found again.
        guest.run("yes lamina | head -c 1048576 | dd of=/dev/vda bs=64k conv=fsync 2>/dev/null")
        self.assertEqual(guest.complaints(), "")
        self.assertEqual(guest.power_off(), 0)

    def version(self, deb):
        return run("dpkg-deb", "-f", deb, "Version").stdout.strip()

    def next_version(self, deb):
        """The same program, in a package of a higher version."""
        tree, made = self.rig.path("next"), self.rig.path("lamina_next.deb")
        run("dpkg-deb", "-R", deb, tree)
        control = tree / "DEBIAN/control"
        text = control.read_text()
        control.write_text(text.replace(f"Version: {self.version(deb)}\n", f"Version: {self.version(deb)}+next\n"))
        run("dpkg-deb", "-b", "-Zgzip", "-z1", "--root-owner-group", tree, made)
        return made

    def remove(self, deb):
        daemon = self.property("MainPID")
        self.shell("apt-get remove -y lamina", seconds=120)
        with self.subTest("removal leaves configuration and data"):
            self.shell(f"! test -e /proc/{daemon} && ! test -e /run/lamina")
            self.shell(f"! command -v lamina && ! systemctl cat {UNIT}")
            self.shell("test -s /etc/lamina/vm1.toml -a -s /etc/lamina/vm1.key -a -s /var/lib/lamina/vm1.img")
        with self.subTest("the volume is there again after another installation"):
            self.install(deb)
            self.shell(f"systemctl start {UNIT}")
            self.shell(f"""
                yes lamina | head -c 1048576 >wanted
                nbdcopy {URI} - | head -c 1048576 | cmp - wanted""")

    def purge(self, before, keep):
        if keep:
            self.shell("echo 'lamina lamina/purge-data boolean false' | debconf-set-selections")
        said = self.shell("apt-get purge -y lamina 2>&1", seconds=120)
        left = self.files() - before - {f"/etc/systemd/system/{UNIT}.service.d"}
        left = {path for path in left if not path.startswith(f"/etc/systemd/system/{UNIT}.service.d/")}
        # systemd-sysusers and userdel keep the former version of a list.
        left -= {f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")}
        left -= {"/etc/.pwd.lock"}
        self.assertFalse(self.container.path("/run/lamina").exists())
        if keep:
            self.assertIn("the user lamina stay", said)
            self.assertEqual(left, {
                "/etc/lamina", "/etc/lamina/vm1.toml", "/etc/lamina/vm1.key", "/var/lib/lamina", "/var/lib/lamina/vm1.img",
                # What has happened is kept with the volumes.
                "/var/lib/lamina/vm1.events", "/var/lib/lamina/block.events",
            })
            self.shell("id lamina")
        else:
            self.assertIn("deleting /etc/lamina with its keys", said)
            self.assertEqual(left, set())
            self.shell("! getent passwd lamina && ! getent group lamina")
