"""Processes with a limit on everything, and the scratch they work in.

Every process started here is the leader of its own group, is killed with that group when its `Rig` ends, and asks the
kernel to be killed should this program itself be killed (PR_SET_PDEATHSIG), so that a `kill -9` of a test run leaves
no server behind. Start processes from the main thread only: the kernel ties that promise to the starting thread.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .files import TOOLS_PATH

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# Every wait is multiplied by this: slow machines set it, limits need no edits.
PATIENCE = float(os.environ.get("LAMINA_PATIENCE", "1"))

# Scratch folders are here and start with this, so that left-over ones (if ever) can be told apart.
SCRATCH = os.environ.get("LAMINA_TMP", "/tmp")
PREFIX = "lamina-rig-"


class Timeout(Exception):
    """Something did not happen within its limit."""


def end_with_parent(number=signal.SIGKILL):
    """Asks the kernel for this signal when the thread that started this process ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)


def environment(extra=None):
    """The environment of everything started here: Debian's own tools first (libnbd's Python binding lives there)."""
    env = dict(os.environ, PATH=TOOLS_PATH, LC_ALL="C", **(extra or {}))
    env.pop("RUST_BACKTRACE", None)
    return env


def wait_until(what, seconds, check, every=0.05):
    """Calls `check` until it returns something true, and returns that. Raises Timeout naming `what`."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f"{what}: not within {seconds * PATIENCE:.0f} s")
        time.sleep(every)


def free_port(address="127.0.0.1"):
    """A TCP port that nobody had a moment ago."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def run(*argv, seconds=60, check=True, stdin=None, env=None, cwd=None):
    """Runs a command to its end and returns its result (`stdout` and `stderr` as text).

    Raises Timeout past `seconds`, and AssertionError with everything the command printed if it fails and `check`.
    """
    argv = [str(arg) for arg in argv]
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", env=environment(env), cwd=cwd, start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        out, err = child.communicate(stdin, timeout=seconds * PATIENCE)
    except subprocess.TimeoutExpired:
        raise Timeout(f"{' '.join(argv)}: not done within {seconds * PATIENCE:.0f} s") from None
    finally:
        if child.poll() is None:
            _kill_group(child)
            child.communicate()
    done = subprocess.CompletedProcess(argv, child.returncode, out, err)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def _kill_group(child):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


class Usage:
    """The kernel's state of the process `pid`."""

    def __init__(self, pid):
        self.pid = pid

    def cpu_seconds(self):
        """User plus system time it has used so far: all threads and children, those that ended too.
        To a hundredth of a second."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def resident_kib(self):
        """Its memory, as the kernel counts it (VmRSS)."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0


    def hasten(self, priority):
        """Lets its threads of now go before all others of a lower priority, 1 to 99, if this is allowed: for a process that
        has to be on time on a busy machine, and sleeps most of the time."""
        for thread in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(priority))


class Proc(Usage):
    """A process in the background whose output goes to a file."""

    def __init__(self, argv, log, env=None, cwd=None, name=None):
        self.argv = [str(arg) for arg in argv]
        self.name = name or pathlib.Path(self.argv[0]).name
        self.log = pathlib.Path(log)
        with open(self.log, "ab") as out:
            # Only the output of this process is looked at, though a restarted server appends to the same file.
            self._start = out.tell()
            self._child = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment(env),
                cwd=cwd, start_new_session=True, preexec_fn=end_with_parent,
            )
        super().__init__(self._child.pid)

    def output(self):
        """Its output so far."""
        with open(self.log, "rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace")

    def running(self):
        return self._child.poll() is None

    def exit_code(self):
        """Its exit code, or None while it runs; negative for a signal."""
        return self._child.poll()

    def wait_for(self, text, seconds=10):
        """Waits until it has printed `text` and returns its output. An early end is an error at once."""
        def check():
            out = self.output()
            if text in out:
                return out
            if not self.running():
                raise AssertionError(f"{self.name} ended with {self.exit_code()} before '{text}':\n{self.output()}")
            return None
        return wait_until(f"{self.name} to print '{text}' ({self.log})", seconds, check)

    def wait(self, seconds=10):
        """Waits for its end and returns its exit code."""
        try:
            return self._child.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Timeout(f"{self.name} to end: not within {seconds * PATIENCE:.0f} s") from None

    def signal(self, number):
        if self.running():
            os.kill(self.pid, number)

    def stop(self, seconds=10):
        """Asks it to end (SIGTERM), waits, and returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self):
        """Ends it and its group with SIGKILL and waits until it is gone."""
        if self.running():
            _kill_group(self._child)
        self._child.wait()


class Rig(contextlib.ExitStack):
    """A scratch folder and everything that was started in it; leaving the block ends and removes it all.

    With LAMINA_KEEP set, the scratch folder stays behind for a look.
    """

    def __enter__(self):
        super().__enter__()
        # Unix sockets' paths are limited to 107 bytes: keep it short. It tells whose it is (see `remove_leftovers`).
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=SCRATCH))
        if not os.environ.get("LAMINA_KEEP"):
            self.callback(shutil.rmtree, self.dir, ignore_errors=True)
        return self

    def path(self, name):
        return self.dir / name

    def write(self, name, text):
        path = self.path(name)
        path.write_text(text)
        return path

    def file(self, name, size, fill=None):
        """A sparse file of `size` bytes, or one with `fill`ed content (a function of the length)."""
        path = self.path(name)
        with open(path, "wb") as f:
            if fill:
                f.write(fill(size))
            f.truncate(size)
        return path

    def start(self, *argv, name=None, env=None, cwd=None):
        """Starts a process that ends with this rig."""
        name = name or pathlib.Path(str(argv[0])).name
        proc = Proc(argv, self.path(f"{name}.log"), env=env, cwd=cwd, name=name)
        self.callback(proc.kill)
        return proc

    def listen(self, sock, *argv, seconds=10, knock=True, **more):
        """Starts a server and waits until it takes connections on the Unix socket `sock`, which it replaces.

        Without `knock` only until the socket is there, for a server that takes one client at a time.
        """
        pathlib.Path(sock).unlink(missing_ok=True)
        proc = self.start(*argv, **more)

        def connects():
            if not proc.running():
                raise AssertionError(f"{proc.name} ended with {proc.exit_code()}:\n{proc.output()}")
            if not knock:
                return pathlib.Path(sock).exists()
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                probe.connect(str(sock))
                return True
        wait_until(f"{proc.name} to listen on {sock}", seconds, connects)
        return proc

    def daemon(self, pid_file, *argv, seconds=10, **more):
        """Starts a server that insists on going into the background; ends it when this rig ends."""
        started = self.start(*argv, **more)
        code = started.wait(seconds)
        if code != 0:
            raise AssertionError(f"{started.name} ended with {code}:\n{started.output()}")
        pid = int(wait_until(f"{started.name} to write its process id", seconds, lambda: _content(pid_file)))
        self.callback(_kill_alone, pid)
        return Usage(pid)


def _content(path):
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(path).read_text().strip()


def _kill_alone(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_on_signals(*more):
    """Turns SIGTERM, SIGHUP and `more` into an ordinary exit, so that `with` blocks clean up."""
    def leave(number, _frame):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP, *more):
        signal.signal(number, leave)


def _folders(mark):
    return sorted(str(path) for path in pathlib.Path(SCRATCH).glob(mark + "*"))


def _mounts(mark):
    points = [line.split()[1] for line in open("/proc/mounts")]
    return [point for point in points if f"{SCRATCH}/{mark}" in point]


def _loop_devices(mark):
    """The files that loop devices are on, by the names of these."""
    found = {}
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found[f"/dev/{backing.parent.parent.name}"] = backing.read_text().strip()
    return {loop: file for loop, file in found.items() if f"{SCRATCH}/{mark}" in file}


def _processes(mark):
    """The command lines of processes, by their ids."""
    found = {}
    for proc in pathlib.Path("/proc").iterdir():
        if not proc.name.isdigit() or int(proc.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if f"{SCRATCH}/{mark}" in line:
                found[int(proc.name)] = line
    return found


def leftovers(mark=PREFIX):
    """The remains of a run: scratch folders that begin so, mounts in them, loop devices on them, processes about
    them."""
    return [
        *_folders(mark), *_mounts(mark), *(f"{loop}: {file}" for loop, file in _loop_devices(mark).items()),
        *(f"process {pid}: {line}" for pid, line in _processes(mark).items()),
    ]


def remove_leftovers(pid):
    """Ends and removes what the process `pid` has left behind, which had no time to do so; returns what there was."""
    mark = f"{PREFIX}{pid}-"
    found = leftovers(mark)
    for process in _processes(mark):
        _kill_alone(process)
    for point in reversed(_mounts(mark)):
        run("umount", "--lazy", point, check=False)
    for loop in _loop_devices(mark):
        run("losetup", "--detach", loop, check=False)
    if not os.environ.get("LAMINA_KEEP"):
        for folder in _folders(mark):
            shutil.rmtree(folder, ignore_errors=True)
    return found
