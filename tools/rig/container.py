"""A Debian of its own, booted with systemd as process 1 in a container (systemd-nspawn; needs root).

The container has the host's kernel and no network. Its root file system is a copy that goes with the rig.
"""

import contextlib
import os
import pathlib
import signal

from . import files
from .process import Timeout, run, wait_until

# What a login would set; apt asks nothing.
ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"]

# Where the host has mounted version 2 of control groups.
GROUPS = next(path for path in map(pathlib.Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if path.is_dir())


class Container:
    """A freshly installed Debian: `bookworm` (12) or `trixie` (13)."""

    def __init__(self, rig, suite):
        archive = files.CACHE / f"{suite}.tar"
        if not archive.exists():
            raise FileNotFoundError(f"no {archive}: run tools/install packages")
        self.root = rig.path(suite)
        self.root.mkdir()
        run("tar", "-xf", archive, "-C", self.root, "--numeric-owner", seconds=300)
        # A machine name is a host name: no underscore, which a temporary folder may have.
        name = f"{rig.dir.name}-{suite}".replace("_", "-")
        # systemd-nspawn makes the container's groups in the one where it runs: in a shared one, the services of two
        # containers that have the same name would be one.
        self.group = GROUPS / name
        self.group.mkdir()
        rig.callback(wait_until, "the end of the container's groups", 20, self._ungroup)
        # cgroup v2, whatever the host itself has: newer versions of systemd refuse the older one. Without the capability
        # systemd-nspawn would refuse munlock to all processes, which a machine does not.
        self.proc = rig.start(
            "sh", "-c", 'echo $$ >"$0" && exec "$@"', self.group / "cgroup.procs",
            "systemd-nspawn", "--boot", "--register=no", "--keep-unit", "--private-network", "--link-journal=no",
            "--capability=CAP_IPC_LOCK", "--console=pipe", f"--machine={name}", f"--directory={self.root}",
            name=f"{suite}-console", env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        rig.callback(self._end, name)
        self.leader = int(wait_until("process 1 of the container", 30, self._leader))
        wait_until("the container's boot", 120, self._is_up, every=0.5)

    def _leader(self):
        if not self.proc.running():
            raise AssertionError(f"systemd-nspawn ended with {self.proc.exit_code()}:\n{self.proc.output()}")
        # It forks once more before that is process 1 of its own namespace.
        for child in pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                status = pathlib.Path(f"/proc/{child}/status").read_text()
                if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines()):
                    return child
        return None

    def _is_up(self):
        return self.run("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def _ungroup(self):
        with contextlib.suppress(OSError):
            for group, _, _ in os.walk(self.group, topdown=False):
                pathlib.Path(group).rmdir()
        return not self.group.exists()

    def _end(self, name):
        """All its processes end with process 1; then systemd-nspawn removes what it made on the host, but for a folder."""
        if self.proc.running():
            for child in pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split():
                run("kill", "-KILL", child, check=False)
            with contextlib.suppress(Timeout):
                self.proc.wait(20)
        with contextlib.suppress(OSError):
            pathlib.Path(f"/run/systemd/nspawn/propagate/{name}").rmdir()

    def run(self, script, seconds=60, check=True):
        """Runs a shell script in the container, and returns its result."""
        enter = ["nsenter", f"--target={self.leader}", "--all", "env", "-i", *ENVIRONMENT, "sh", "-c"]
        return run(*enter, f"cd /root\n{script}", seconds=seconds, check=check)

    def path(self, name):
        """A file of the container, also one in a file system that only the container has mounted, such as /run."""
        return pathlib.Path(f"/proc/{self.leader}/root") / name.lstrip("/")

    def kill(self, unit, number=signal.SIGKILL):
        """Sends a signal to the main process of a service."""
        self.run(f"kill -{int(number)} $(systemctl show -P MainPID {unit})")
