"""A Ceph cluster of one monitor and one OSD, whose data are in a sparse file of the rig."""

import uuid

from .process import free_port, run, wait_until

POOL = "vms"

# What a process of Ceph writes down goes to its standard error; nothing goes to the system's folders.
CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:{address}:{port}]
public addr = {address}
keyring = {folder}/keyring
run dir = {folder}
admin socket =
pid file =
crash dir = {folder}
log file =
mon cluster log file = /dev/null
osd pool default size = 1
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 1
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
keyring = {folder}/osd/keyring
osd objectstore = bluestore
bluestore block size = 4294967296
"""


class Ceph:
    """Runs from when it is made until its rig ends. `at` is what a command begins with (`Network.at`)."""

    def __init__(self, rig, address="127.0.0.1", at=()):
        self._rig, self._at, self._daemons = rig, list(at), {}
        self.folder = rig.path("ceph")
        self.conf = self.folder / "ceph.conf"
        for folder in ("", "mon", "osd"):
            (self.folder / folder).mkdir()
        fsid, osd, port = uuid.uuid4(), uuid.uuid4(), free_port()
        self.conf.write_text(CONFIGURATION.format(fsid=fsid, address=address, port=port, folder=self.folder))
        keyring, of_mon, monmap = (self.folder / name for name in ("keyring", "mon.keyring", "monmap"))
        allow = [word for daemon in ("mon", "osd") for word in ("--cap", daemon, "allow *")]
        run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "client.admin", *allow)
        run("ceph-authtool", "--create-keyring", of_mon, "--gen-key", "-n", "mon.", *allow[:3])
        run("ceph-authtool", of_mon, "--import-keyring", keyring)
        run("monmaptool", "--create", "--addv", "a", f"[v2:{address}:{port}]", "--fsid", fsid, monmap)
        run("ceph-mon", "-c", self.conf, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", of_mon)
        self.start("mon")
        self.run("ceph", "osd", "new", osd)
        key = self.run("ceph", "auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *")
        (self.folder / "osd" / "keyring").write_text(key)
        run(*self._at, "ceph-osd", "-c", self.conf, "--mkfs", "-i", "0", "--osd-uuid", osd)
        self.start("osd")
        wait_until("Ceph to begin", 60, lambda: "1 up" in self.run("ceph", "osd", "stat"))
        self.run("ceph", "osd", "pool", "create", POOL, "8")
        self.run("rbd", "pool", "init", POOL)

    def run(self, program, *words, seconds=60, **more):
        """What a command of Ceph prints."""
        return run(*self._at, program, "-c", self.conf, *words, seconds=seconds, **more).stdout

    def start(self, daemon):
        """Starts the monitor ("mon") or the OSD ("osd")."""
        number = {"mon": "a", "osd": "0"}[daemon]
        program = [f"ceph-{daemon}", "-c", self.conf, "-i", number, "--foreground"]
        self._daemons[daemon] = self._rig.start(*self._at, *program, name=f"ceph-{daemon}")

    def kill(self, daemon):
        """Ends a daemon at once."""
        self._daemons.pop(daemon).kill()

    def signal(self, daemon, number):
        """Sends a signal to a daemon, such as that to stop or to go on."""
        self._daemons[daemon].signal(number)

    def image(self, name, mib, *options):
        """Makes an image of so many MiB, and gives its name with its pool."""
        self.run("rbd", "create", "--size", str(mib), *options, f"{POOL}/{name}")
        return f"{POOL}/{name}"
