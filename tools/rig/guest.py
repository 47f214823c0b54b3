"""A small Linux guest under QEMU, with a virtual disk of Lamina's as /dev/vda.

A port of virtio-serial takes commands (see init.sh); the serial port is the guest's console, kept in a file. QEMU emulates
the processor unless LAMINA_ACCEL says otherwise (`LAMINA_ACCEL=kvm` where KVM works): the same everywhere, if slow.
"""

import base64
import functools
import json
import os
import re
import socket
import time

from . import files
from .process import PATIENCE, Timeout, run, wait_until

MEMORY = os.environ.get("LAMINA_GUEST_MEMORY", "512M")

# What QEMU says when it dies of a race of its own while a machine with several processors boots: one of them reads through an
# entry of its TLB while another moves a device's registers (QEMU's issue 1921).
BOOT_RACE = "iotlb_to_section: Assertion"

# What a background script that does not end has printed, and whether its disk owes it something.
STUCK = "tail -c 2000 /tmp/{name}.out; grep . /sys/block/vd*/inflight /sys/block/vd*/stat; ps; dmesg | tail -n 20"


class GuestError(AssertionError):
    """A command in the guest failed, or the guest is gone."""


@functools.cache
def qemu_version():
    """QEMU's version as a tuple, such as (10, 0, 2)."""
    text = run("qemu-system-x86_64", "--version").stdout
    return tuple(int(n) for n in re.search(r"version (\d+)\.(\d+)\.(\d+)", text).groups())


def reconnect_option():
    """How QEMU is told to reconnect to a vhost-user socket whose server went away."""
    # `reconnect` is in seconds and deprecated since 9.2.
    return "reconnect-ms=200" if qemu_version() >= (9, 2, 0) else "reconnect=1"


def disk_arguments(sock, queues=1, name="disk", more=""):
    """QEMU's arguments for a disk behind the vhost-user socket `sock`; `more` properties of the device, such as `addr=8.1`."""
    return [
        "-chardev", f"socket,id={name},path={sock},{reconnect_option()}",
        "-device", f"vhost-user-blk-pci,chardev={name},num-queues={queues},id={name}0{',' if more else ''}{more}",
    ]


def image_arguments(path, serial, read_only=False):
    """QEMU's arguments for a disk that QEMU itself has in a file, and that the guest knows by its serial number."""
    return [
        "-drive", f"if=none,id={serial},file={path},format=raw,readonly={'on' if read_only else 'off'}",
        "-device", f"virtio-blk-pci,drive={serial},serial={serial}",
    ]


class _Lines:
    """A Unix socket read by lines, with a limit on every wait."""

    def __init__(self, path, seconds):
        def connect():
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(path))
                return sock
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                return None
        self._sock = wait_until(f"the socket {path}", seconds, connect)
        self._rest = b""

    def line(self, deadline, what):
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout(f"{what}: no answer in time; so far: {self._rest[-2000:].decode(errors='replace')}")
            self._sock.settimeout(left)
            try:
                got = self._sock.recv(65536)
            except TimeoutError:
                continue
            if not got:
                raise GuestError(f"{what}: the guest is gone")
            self._rest += got
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace").rstrip("\r")

    def send(self, data):
        self._sock.sendall(data)

    def close(self):
        self._sock.close()


class Guest:
    """One virtual machine. `disk` is QEMU's arguments for the disk under test (see `disk_arguments`), or for several.

    It has further kernel modules and tools if they are named, and as much memory.
    `incoming` starts it as the target of a live migration: it waits for `migrate_to` of another guest.
    """

    def __init__(self, rig, disk, name="guest", cpus=2, incoming=None, modules=(), tools=(), memory=MEMORY):
        self.name = name
        self.console = rig.path(f"{name}.console")
        self._control_path = rig.path(f"{name}.ctl")
        self._qmp_path = rig.path(f"{name}.qmp")
        image, _version = files.kernel()
        accel = os.environ.get("LAMINA_ACCEL", "tcg,thread=multi")
        self._argv = [
            "qemu-system-x86_64", "-nodefaults", "-display", "none", "-name", f"lamina-{name}",
            "-accel", accel, "-cpu", "host" if accel.startswith("kvm") else "max", "-smp", cpus, "-m", memory,
            # The server maps the guest's memory, so it must be shareable.
            "-object", f"memory-backend-memfd,id=mem,size={memory},share=on", "-machine", "pc,memory-backend=mem",
            "-kernel", image, "-initrd", files.initramfs(modules),
            "-append", "console=ttyS0 quiet mitigations=off tsc=reliable no_timer_check panic=-1 printk.time=1",
            "-serial", f"file:{self.console}",
            "-chardev", f"socket,id=control,path={self._control_path},server=on,wait=off",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=lamina-control",
            "-qmp", f"unix:{self._qmp_path},server=on,wait=off",
            *disk,
            *image_arguments(files.tools_disk(tools), "lamina-tools", read_only=True),
        ]
        if incoming:
            self._argv += ["-incoming", incoming]
        self._rig = rig
        self._has_our_disk = bool(disk)
        self._start()

    def _start(self):
        self.proc = self._rig.start(*self._argv, name=self.name)
        self._control = _Lines(self._control_path, 10)
        self._rig.callback(self._control.close)
        self._qmp = _Lines(self._qmp_path, 10)
        self._rig.callback(self._qmp.close)
        self._qmp_answer("greeting", lambda message: "QMP" in message)
        self.qmp("qmp_capabilities")

    # The guest's shell.

    def wait_ready(self, seconds=60):
        """Waits until the guest takes commands. QEMU is started once more if it died of `BOOT_RACE`, or if a guest hangs that
        has no disk of Lamina's: nothing of ours can be the reason."""
        try:
            self._until("@@ready", seconds, "the guest's boot")
        except GuestError as error:
            if BOOT_RACE not in str(error):
                raise
            self._start_again(seconds)
        except Timeout as error:
            known = self._what_qemu_knows()
            if self._has_our_disk:
                raise Timeout(f"{error}\n{known}") from None
            print(f"        {self.name}: a machine without a disk under test did not boot, and is started once more\n{known}")
            self._start_again(seconds)
        return self

    def _start_again(self, seconds):
        # A process that is still dying keeps its sockets, and takes connections that it resets.
        self.proc.kill()
        self._start()
        self._until("@@ready", seconds, "the guest's second boot")

    def _what_qemu_knows(self):
        """Where the processors of a guest are that does not boot; or why nothing is known."""
        try:
            registers = self.qmp("human-monitor-command", **{"command-line": "info registers -a"})
            return "\n".join(line for line in registers.splitlines() if line.startswith("CPU#") or "IP=" in line)
        except (Timeout, GuestError, OSError) as error:
            return f"QEMU says nothing: {error}"

    def run(self, script, seconds=60, check=True):
        """Runs a shell script in the guest and returns its output."""
        self._send(script)
        out, code = self._answer(seconds, script)
        if check and code != 0:
            raise GuestError(f"in the guest: {script}\nexit {code}: {out}\nconsole: {self.console_tail()}")
        return out

    def _send(self, script):
        self._control.send(b"RUN " + base64.b64encode(script.encode()) + b"\n")

    def _answer(self, seconds, script):
        out = self._until("@@done ", seconds, f"in the guest: {script}")
        return "\n".join(out[:-1]).strip(), int(out[-1].split()[1])

    def _until(self, mark, seconds, what):
        deadline = time.monotonic() + seconds * PATIENCE
        lines = []
        while True:
            try:
                lines.append(self._control.line(deadline, what))
            except (Timeout, GuestError) as error:
                raise type(error)(f"{error}\nconsole: {self.console_tail()}\nqemu: {self.proc.output()}") from None
            if lines[-1].startswith(mark):
                return lines

    def background(self, name, script):
        """Starts a script in the guest that goes on while others run; see `result`."""
        self.run(f"rm -f /tmp/{name}.*\n( ( {script}\n ) >/tmp/{name}.out 2>&1; echo $? >/tmp/{name}.code ) &")

    def finished(self, name):
        """Whether the background script has ended."""
        return self.run(f"test -e /tmp/{name}.code && echo yes || true") == "yes"

    def end_fio(self):
        """Tells fio to end its jobs. One that gets the signal itself may wait for a lock that it has: so it is for the process
        that has begun first, which has no requests."""
        self.run("kill -INT $(pidof fio | tr ' ' '\\n' | sort -n | head -n 1)")

    def result(self, name, seconds):
        """Waits for a background script and returns its output; an error if it failed."""
        try:
            wait_until(f"{name} in the guest", seconds, lambda: self.finished(name), every=0.3)
        except Timeout as error:
            raise Timeout(f"{error}\n{self.run(STUCK.format(name=name), check=False)}") from None
        out = self.run(f"cat /tmp/{name}.out")
        code = self.run(f"cat /tmp/{name}.code")
        if code != "0":
            raise GuestError(f"{name} in the guest: exit {code}: {out}\ndmesg: {self.complaints()}")
        return out

    def complaints(self):
        """Messages of the guest's kernel about its disk or file systems that a healthy one does not print."""
        words = "I/O error|Buffer I/O|EXT4-fs error|EXT4-fs warning|blk_update_request|critical|hung task|BUG|Oops"
        return self.run(f"dmesg | grep -E '{words}' || true")

    def console_tail(self):
        try:
            return self.console.read_text(errors="replace")[-3000:]
        except FileNotFoundError:
            return ""

    def reboot(self, seconds=90):
        """Restarts the guest's kernel inside the same QEMU, so that its devices are reset and driven anew."""
        self._send("sync; reboot -f")
        self._until("@@ready", seconds, "the guest's reboot")

    def power_off(self, seconds=30):
        """Ends the guest from inside."""
        self._send("sync; poweroff -f")
        return self.proc.wait(seconds)

    # QEMU's own control.

    def qmp(self, command, seconds=20, **arguments):
        """One QMP command; returns its answer."""
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._qmp.send(json.dumps(request).encode() + b"\n")
        answer = self._qmp_answer(command, lambda m: "return" in m or "error" in m, seconds)
        if "error" in answer:
            raise GuestError(f"QMP {command}: {answer['error']}")
        return answer["return"]

    def _qmp_answer(self, what, wanted, seconds=20):
        deadline = time.monotonic() + seconds * PATIENCE
        while True:
            message = json.loads(self._qmp.line(deadline, f"QMP {what}"))
            if wanted(message):
                return message

    def migrate_to(self, other, address, seconds=120):
        """Moves the running guest to `other` (started with `incoming`), and returns QEMU's account of it."""
        for guest in (self, other):
            guest.qmp("migrate-set-parameters", **{"max-bandwidth": 1 << 30})
        self.qmp("migrate", uri=address)

        def ended():
            state = self.qmp("query-migrate")
            if state.get("status") in ("failed", "cancelled"):
                raise GuestError(f"migration: {state}\nto: {other.proc.output()}\nfrom: {self.proc.output()}")
            return state if state.get("status") == "completed" else None

        return wait_until("the migration", seconds, ended, every=0.1)
