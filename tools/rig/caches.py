"""Write-back caches over one emulated store and one cache device: in user space, each reached through NBD, and in the
kernel of a guest. And the devices they stand on."""

import shutil

from . import files
from .guest import Guest, disk_arguments
from .hierarchy import device, export, exported, written
from .mount import attached
from .process import run
from .serve import Lamina, lamina_binary

MIB = 1 << 20
# The time of a request to the store, and the writes that it begins in a second.
DELAY, RATE = "1ms", 7500
MODULES = ["dm-writecache", "dm-cache", "dm-cache-smq", "bcache"]
BCACHE_SETTLES = 10


def store(mib, log=False):
    """The emulated store `san`; with `log` everything that was flushed to it is in san.log."""
    text = device("san-file", "file", path="san.img", size=f"{mib}MiB")
    below = "san-file"
    if log:
        text, below = text + recorded("san-log", below, "san.log"), "san-log"
    return text + device("san", "delay", below, read=DELAY, write=DELAY, flush=DELAY, write_iops=RATE)


def flash(mib, log=False):
    """The cache device `nvme`: a file on this machine's disk, past the page cache."""
    text = device("nvme-file" if log else "nvme", "file", path="nvme.img", size=f"{mib}MiB", direct=True)
    return text + (recorded("nvme", "nvme-file", "nvme.log") if log else "")


def recorded(name, below, log):
    # Nothing is to be logged before its flush for want of memory.
    return device(name, "record", below, log=log, buffer="512MiB")


class Devices:
    """A store and a cache device, served by a process of their own under the exports `san` and `nvme`: blank, or
    with the contents of the files `images`."""

    def __init__(self, rig, store_mib, flash_mib, log=False, images=None):
        self.rig = rig
        for name in images or ():
            shutil.copy(images[name], rig.path(f"{name}.img"))
        if not images:
            blank(rig, store_mib, flash_mib)
        text = store(store_mib, log) + flash(flash_mib, log)
        for name in ("san", "nvme"):
            text += export(name, name, "devices.sock") + f'vhost-user = "{name}.vhost"\nserial = "{name}"\n\n'
        self.lamina = Lamina(rig, text, name="devices")

    def uri(self, name):
        return self.lamina.uri(name, "devices.sock")

    def disks(self):
        """QEMU's arguments for both."""
        return [word for name in ("san", "nvme") for word in disk_arguments(self.rig.path(f"{name}.vhost"), name=name)]


def blank(rig, store_mib, flash_mib):
    """The files of both. That of the cache device lies on the disk already: its growth is not measured."""
    rig.file("san.img", store_mib * MIB)
    run("dd", "if=/dev/zero", f"of={rig.path('nvme.img')}", "bs=1M", f"count={flash_mib}", "oflag=direct", seconds=120)


# In user space. Each has `make`, once for blank devices, `start`, which returns the address of what it serves, and
# `kill`,
# after which it may be started again.

class Uncached:
    name = "the store, uncached"
    # What it keeps what it caches in.
    kept_in = "-"

    def __init__(self, rig, devices):
        self.rig, self.devices, self.proc = rig, devices, None

    def make(self):
        pass

    def start(self):
        return self.devices.uri("san")

    def kill(self):
        if self.proc:
            self.proc.kill()

    def listen(self, *argv, **more):
        sock = self.rig.path("cache.sock")
        self.proc = self.rig.listen(sock, *(word.replace("SOCK", str(sock)) for word in argv), name="cache", **more)
        return f"nbd+unix:///?socket={sock}"


class PageCache(Uncached):
    """qemu-storage-daemon with `cache.direct=off`. The page cache is of this machine's kernel, so the store has to
    be a block device of it: nbdfuse and a loop device."""
    name = "qemu-storage-daemon, page cache"
    kept_in = "memory"

    def __init__(self, rig, devices):
        super().__init__(rig, devices)
        self.loop = rig.enter_context(attached(rig, devices.uri("san"), direct=True))

    def start(self):
        return self.listen(
            "qemu-storage-daemon", "--nbd-server", "addr.type=unix,addr.path=SOCK", "--blockdev",
            f"host_device,node-name=disk,filename={self.loop},cache.direct=off,aio=threads",
            "--export", "nbd,id=disk,node-name=disk,name=,writable=on")


class Filter(Uncached):
    """nbdkit's `cache` over its client of NBD."""
    name = "nbdkit, `cache` filter"
    kept_in = "a temporary file"

    def start(self):
        # Where the file of the cache is, which has no name.
        place = {"TMPDIR": str(self.rig.dir)}
        return self.listen("nbdkit", "-f", "-U", "SOCK", "--filter=cache", "nbd", f"uri={self.devices.uri('san')}",
                           "cache=writeback", env=place)


def accelerated(san, nvme):
    """Our own write-back cache as a hierarchy file; `san` and `nvme` are the text of the devices of these names."""
    top = device("cache", "flash", "nvme") + device("vm", "accelerate", ["san", "cache"], policy="write-back")
    return exported("ours", san, nvme, top, top="vm") + 'vhost-user = "ours.vhost"\nserial = "ours"\n'


def missing():
    """Why ours is not measured, or None."""
    kinds = run(lamina_binary(), "kinds").stdout.split()
    lacking = [kind for kind in ("flash", "accelerate") if kind not in kinds]
    return f"`lamina kinds` does not list `{'` and `'.join(lacking)}`" if lacking else None


class Ours(Uncached):
    """The layer `accelerate`, over the devices as block devices of this machine: members of a hierarchy are files."""
    name = "Lamina, `accelerate`"
    kept_in = "the cache device"

    def __init__(self, rig, devices):
        super().__init__(rig, devices)
        self.text = accelerated(*(
            device(name, "file", path=rig.enter_context(attached(rig, devices.uri(name), f"fuse-{name}", direct=True)), direct=True)
            for name in ("san", "nvme")))
        self.lamina = Lamina(rig, self.text, name="ours", start=False)

    def make(self):
        written(self.rig, "ours", self.text)

    def start(self):
        self.lamina.start()
        self.proc = self.lamina.proc
        return self.lamina.uri("vm1", "ours.sock")


USER_SPACE = (Uncached, PageCache, Filter, Ours)


def in_process(rig, store_mib, flash_mib, again=None):
    """The layer `accelerate` in one process with its devices, served; blank ones also if it was served before
    (`again`)."""
    if again:
        again.stop()
    blank(rig, store_mib, flash_mib)
    text = accelerated(store(store_mib), flash(flash_mib))
    written(rig, "ours", text)
    return again.start() if again else Lamina(rig, text, name="ours")


# In the guest's kernel. Each is a few lines of shell, which have the disks as $san and $nvme: `prepare` makes it,
# `assemble`
# is needed for one that is there, `takedown` takes it apart; `device` is what it is called in between.

class Stack:
    kept_in = "the cache device"

    def __init__(self, name, device, assemble, prepare="", takedown="dmsetup remove cached"):
        self.name, self.device, self.assemble, self.prepare, self.takedown = name, device, assemble, prepare, takedown


BLANK = "for disk in $san $nvme; do dd if=/dev/zero of=$disk bs=64k count=16 conv=fsync 2>/dev/null; done\n"
SECTORS = "sectors() { echo $(($(blockdev --getsz $1) - ${2:-0})); }\n"


def dm_cache(meta_mib=4):
    """dm-cache with its metadata beside its blocks of 32 KiB: the first MiB of the cache device."""
    meta = meta_mib * MIB // 512
    return Stack("dm-cache, smq, writeback", "/dev/mapper/cached", f"""\
dmsetup create meta --table "0 {meta} linear $nvme 0"
dmsetup create data --table "0 $(sectors $nvme {meta}) linear $nvme {meta}"
dmsetup create cached --table "0 $(sectors $san) cache /dev/mapper/meta /dev/mapper/data $san 64 1 writeback smq 0"
""", BLANK, "dmsetup remove cached\ndmsetup remove meta\ndmsetup remove data\n")


# Neither what bcache takes for sequential nor what it takes for congested goes past it.
TAKES_ALL = """\
echo 0 >$(echo /sys/block/bcache[0-9]*)/bcache/sequential_cutoff
set=$(echo /sys/fs/bcache/*-*)
for way in read write; do echo 0 >$set/congested_${way}_threshold_us; done
"""


def bcache(name="bcache, writeback", settings=TAKES_ALL):
    """bcache, which wants about 1024 buckets, of a power of two."""
    return Stack(name, "$(ls -d /dev/bcache[0-9]*)", f"""\
for disk in $san $nvme; do echo $disk >/sys/fs/bcache/register; done
for _ in $(seq {BCACHE_SETTLES * 10}); do ls -d /sys/fs/bcache/*-* /dev/bcache[0-9]* >/dev/null 2>&1 && break; sleep 0.1; done
{settings}cat /sys/block/bcache[0-9]*/bcache/cache_mode
""", BLANK + """\
bucket=4
while [ $((bucket << 21)) -le $(blockdev --getsize64 $nvme) ]; do bucket=$((bucket * 2)); done
make-bcache --writeback --block 4k --bucket ${bucket}k -C $nvme -B $san
""", f"""\
set=$(echo /sys/fs/bcache/*-*)
for which in $(echo /sys/block/bcache[0-9]*)/bcache $set; do echo 1 >$which/stop; done
for _ in $(seq {BCACHE_SETTLES * 10}); do [ -e $set ] || ls -d /dev/bcache[0-9]* >/dev/null 2>&1 || break; sleep 0.1; done
""")


STACKS = (
    # By default there is no write-back for three seconds after each flush.
    Stack("dm-writecache", "/dev/mapper/cached",
          'dmsetup create cached --table "0 $(sectors $san) writecache s $san $nvme 4096 2 pause_writeback 0"\n', BLANK),
    dm_cache(),
    bcache(),
)


class Kernel(Guest):
    """A guest that has the caches of its kernel, over disks known by their serial numbers."""

    def __init__(self, rig, disks, name="guest", cpus=2):
        super().__init__(rig, disks, name=name, cpus=cpus, modules=MODULES, tools=["dmsetup", files.CACHE / "bcache-tools/usr/sbin/make-bcache"])
        self.wait_ready()
        self.disks = self.run('for disk in /sys/block/vd*; do echo "$(cat $disk/serial)=/dev/${disk##*/}"; done')

    def at(self, script, seconds=60):
        """Runs a script that has disks as variables, until its first error."""
        return self.run(f"export DM_DISABLE_UDEV=1\n{self.disks.replace('lamina-tools', 'tools')}\n{SECTORS}set -e\n{script}", seconds)

    def make(self, stack):
        return self.at(stack.prepare + stack.assemble)

    def crash(self, command, seconds=120):
        """Runs a command of fio's, and when it has had its last answer resets the guest, which writes nothing more;
        waits until it is up again."""
        self.run("echo 1 >/proc/sys/kernel/sysrq")
        self._send(f"""{command} --exec_postrun="sh -c 'echo b >/proc/sysrq-trigger'" """)
        self._until("@@ready", seconds, f"in the guest, to its end: {command}")
