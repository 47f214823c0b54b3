"""The demo of several hosts: a guest on one of two hosts in front of shared storage, whose writes are acknowledged when the
flashes of both have them. The host is killed with its guest; the guest is started on the other one, and finds every write
that was acknowledged.

The hosts are network namespaces where this program is root, otherwise daemons on one loopback.
"""

import contextlib
import os
import time

from rig import Guest, Lamina, Rig, lamina_binary, run, wait_until
from rig.certificates import Authority
from rig.guest import disk_arguments
from rig.network import Network

from telling import require, say, show, title

# Seconds that a write to the storage takes, and how many writes go on at a time.
WRITE, PARALLEL = 0.3, 32

STORE = f"""\
[device.disk]
type = "file"
path = "disk.img"
size = "256MiB"

[device.far]                  # on the other side of a network
type = "delay"
over = "disk"
write = "{WRITE * 1000:.0f}ms"
parallel = {PARALLEL}

[export.disk]
device = "far"
nbd = "unix:storage.sock"
"""

HOST = """\
[hierarchy]
name = "vm1-{host}"

[device.remote]               # the shared storage
type = "nbd"
address = "unix:storage.sock"

[device.san]                  # one host at a time has the volume
type = "reservation"
over = "remote"
vault = "vault"
volume = "vm1"
host = "{host}"
listen = "tcp:{address}:0"
tls = {{ ca = "pki/ca-cert.pem", certificate = "pki/{host}-cert.pem", key = "pki/{host}-key.pem" }}
lease = "3s"
settles = "1s"

[device.nvme]
type = "file"
path = "nvme-{host}.img"
size = "128MiB"

[device.cache]
type = "flash"
over = "nvme"

[device.vm1]                  # a write is acknowledged when both flashes have it
type = "accelerate"
over = ["san", "cache"]
peers = 1

[export.vm1]
device = "vm1"
vhost-user = "vm1-{host}.sock"
"""

# One of the writers' jobs: 8 MiB each, at random places, with checksums.
JOB_MIB, JOBS = 8, 24
FIO = (
    "fio --name=job --filename=/dev/vda --size=8M --offset={offset}M --rw=randwrite --bs=4k --ioengine=libaio --direct=1 "
    "--iodepth=16 --verify=crc32c --verify_fatal=1 --randseed={number} --verify_state_save=0"
)


def job(number, more):
    return f"{FIO.format(offset=number * JOB_MIB, number=number + 1)} {more} >/dev/null"


class Hosts:
    """Two hosts, of which the first one has the guest."""

    def __init__(self, rig, stack):
        self.rig = rig
        names = ("a", "b")
        network = stack.enter_context(Network(names)) if os.geteuid() == 0 else None
        addresses = network.addresses if network else dict.fromkeys(names, "127.0.0.1")
        title("Two hosts, and storage that both reach")
        Lamina(rig, STORE, name="storage")
        authority = Authority(rig)
        self.daemons = {}
        for name in names:
            authority.issue(name)
            text = HOST.format(host=name, address=addresses[name])
            if name == "a":
                show(text)
            daemon = Lamina(rig, text, name=name, start=False, at=network.at(name) if network else ())
            run(lamina_binary(), "create", daemon.file)
            self.daemons[name] = daemon.start()
            where = "a network namespace of its own" if network else "the loopback"
            say(f"host {name}, in {where} ({addresses[name]}): lamina create {name}.toml; lamina serve {name}.toml")

    def boot(self, host, name):
        began = time.monotonic()
        guest = Guest(self.rig, disk_arguments(self.daemons[host].socket(f"vm1-{host}.sock")), name=name).wait_ready()
        say(f"a Linux guest on host {host}, booted in {time.monotonic() - began:.0f} s")
        return guest

    def paired(self, host, behind=0):
        """Waits until the host has a peer. Before, `behind` MiB go to the storage twice; each block alone, at worst."""
        info = lambda: self.daemons[host].device("vm1")["info"]
        longest = 30 + 2 * (behind << 8) / PARALLEL * WRITE
        wait_until(f"host {host} to have a peer", longest, lambda: info()["policy"] == "write-back")
        say(f"vm1 on host {host}: {info()['cluster']['promise']['sentence']}")

    def vault(self):
        say("lamina vault vault")
        show(run(lamina_binary(), "vault", "vault", cwd=self.rig.path("")).stdout)


def main():
    with Rig() as rig, contextlib.ExitStack() as stack:
        hosts = Hosts(rig, stack)
        guest = hosts.boot("a", "guest-a")
        guest.run("dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")
        hosts.paired("a")
        hosts.vault()

        title("The host dies, with its guest")
        guest.run("echo 0 >/tmp/done")
        writes = "; ".join(f"{job(n, '--do_verify=0')} && echo {n + 1} >/tmp/done || exit 1" for n in range(JOBS))
        guest.background("writes", writes)
        done = 0
        while done < 4:
            done = int(guest.run("cat /tmp/done"))
        dirty = hosts.daemons["a"].device("vm1")["info"]["dirty_bytes"]
        done = int(guest.run("cat /tmp/done"))
        guest.proc.kill()
        hosts.daemons["a"].kill()
        say(f"kill -9 of QEMU and lamina on host a: {done * JOB_MIB} MiB were acknowledged, and the storage lacks {dirty >> 20} MiB")
        began = time.monotonic()
        guest = hosts.boot("b", "guest-b")
        guest.run("dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null", seconds=30)
        say(f"host b has the volume, {time.monotonic() - began:.1f} s after host a died, boot included")
        for number in range(done):
            guest.run(job(number, "--verify_only"), seconds=60)
        require(f"fio finds every byte of the {done * JOB_MIB} MiB that were acknowledged", True)
        require("the guest's kernel saw no I/O error", guest.complaints() == "", guest.complaints())
        hosts.vault()

        title("It is back, and is the other one's peer")
        hosts.daemons["a"].start()
        # What was on flash alone at the takeover: at once, and again when nothing can come any more from the host that
        # died (decision 0025).
        hosts.paired("b", behind=done * JOB_MIB)
        guest.run(job(0, "--do_verify=1"), seconds=90)
        hosts.vault()
        guest.proc.kill()
        for name in ("b", "a"):
            require(f"lamina on host {name} ends well (SIGTERM)", hosts.daemons[name].stop() == 0, hosts.daemons[name].log())
    say("the demo is done, and nothing of it is left behind")
