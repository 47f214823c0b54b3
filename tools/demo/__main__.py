"""The demo: one virtual disk, encrypted, striped and versioned, under a real guest (with LAMINA_DEMO=nbd: an NBD
client, with LAMINA_DEMO=cluster: see cluster.py). While that works, the daemon is killed, the disks become mirrors, one of them dies and is replaced; then
everything is deleted, and comes back from a snapshot.

Run it by `make demo`, which builds Lamina and installs what is missing first. The demo ends with 0 only if every
statement was also checked. All its files lie in one folder under /tmp and are gone afterwards (LAMINA_KEEP=1 keeps it).
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from rig import Lamina, Rig, lamina_binary, run, wait_until
from rig.process import end_on_signals

import cluster
from clients import PLAIN, LinuxGuest, NbdClient
from hierarchies import FAR, FIGURE, MIRRORED
from telling import require, say, show, show_difference, title

KILLS = 2


class Story:
    """The life of one disk, from its creation to its end."""

    def __init__(self, rig, client):
        self.rig = rig
        self.make()
        self.client = client(rig, self.lamina)
        self.client.fill()
        say("lamina ctl vm1 snapshot monday")
        self.lamina.ctl("vm1", "snapshot", "monday")

    def make(self):
        """Writes the hierarchy, draws it, makes its members, serves it."""
        title("A hierarchy, in one file")
        self.rig.path("vm1.key").write_bytes(os.urandom(64))
        self.lamina = lamina = Lamina(self.rig, FIGURE, name="vm1", start=False)
        show(FIGURE)
        for command in ("check", "create"):
            say(f"lamina {command} vm1.toml")
            show(run(lamina_binary(), command, lamina.file).stdout)
        say("lamina serve vm1.toml")
        lamina.start()
        show(lamina.proc.output())

    def kills(self):
        title("The daemon dies under it")
        self.client.begin_load()
        for number in range(1, KILLS + 1):
            time.sleep(1.5)
            self.kill(f"({number} of {KILLS})")
        time.sleep(1)
        show(self.lamina.tree())

    def kill(self, more):
        """kill -9 of the daemon with requests under way, and a new start."""
        self.client.check_load()
        before = self.lamina.proc.pid
        self.lamina.restart(busy="vm1")
        say(f"kill -9 {before}, and lamina serve again {more}")

    def mirrors(self):
        title("Its disks become mirrors, under load")
        self.far = Lamina(self.rig, FAR, name="far")
        say("another daemon, which stands for another host, serves a disk; the file as it is to be:")
        self.apply(FIGURE, MIRRORED)
        wait_until("a rebuild", 20, lambda: self.lamina.get("/v1/jobs"))
        self.kill("in the middle of a rebuild, which goes on")
        self.wait_for({"left-disk": "in sync", "left-far": "in sync", "left-spare": "spare"})
        self.wait_for({"right-disk": "in sync", "right-copy": "in sync"}, "right-mirror")

    def dies(self):
        title("One of them dies, and is replaced, under load")
        self.far.kill()
        say(f"kill -9 {self.far.proc.pid}: the other host is gone, and the disk in it")
        wait_until("the spare to take over", 30, lambda: self.legs().get("left-spare") == "rebuilding")
        say("the spare has taken its place, by itself")
        self.wait_for({"left-disk": "in sync", "left-far": "failed", "left-spare": "in sync"})
        self.rig.path("far.img").unlink()
        self.far.start()
        say("the other host is back, with an empty disk: lamina ctl left-mirror rejoin left-far")
        self.lamina.ctl("left-mirror", "rejoin", "left-far")
        self.wait_for({"left-disk": "in sync", "left-far": "spare", "left-spare": "in sync"})
        self.scrub("left-mirror")

    def apply(self, before, after):
        """Changes the hierarchy to that of `after`."""
        show_difference(before, after)
        self.lamina.file.write_text(after)
        say("lamina apply vm1.toml")
        show(run(lamina_binary(), "apply", self.lamina.file, "--control", self.lamina.control, seconds=120).stdout)
        self.client.check_load()

    def legs(self, mirror="left-mirror"):
        """The state of each leg, by its name."""
        return {leg["device"]: leg["is"] for leg in self.lamina.device(mirror)["info"]["legs"]}

    def wait_for(self, legs, mirror="left-mirror"):
        """Waits until the legs are that, and shows meanwhile how far they are."""
        if self.legs(mirror) != legs:
            time.sleep(2)
            self.show_rebuild()
            wait_until(f"{mirror} to be {legs}", 60, lambda: self.legs(mirror) == legs)
        self.client.check_load()
        require(f"{mirror} has {', '.join(f'{leg} {state}' for leg, state in legs.items())}", True)

    def show_rebuild(self):
        """The output of `lamina show` besides the tree: out-of-sync legs, and the progress of a rebuild."""
        lines = self.lamina.tree("200ms").splitlines()
        table = [at for at, line in enumerate(lines) if line.startswith("DEVICE") and "JOB" in line]
        told = [line for line in lines if ", a leg of " in line]
        say("lamina show (in part)")
        show("\n".join(told + (lines[table[0]:] if table else [])))

    def scrub(self, mirror):
        say(f"lamina ctl {mirror} scrub: compares every byte of its legs")
        self.lamina.ctl(mirror, "scrub")
        wait_until("the scrub to end", 60, lambda: not self.lamina.get("/v1/jobs"))
        found = self.lamina.device(mirror)["info"]["found"]
        require("they are the same", (found["different"], found["healed"]) == (0, 0), found)
        show(self.lamina.tree())

    def monday(self):
        title("All is lost, and back again")
        self.client.end_load()
        self.client.lose_all()
        say("lamina ctl vm1 list")
        show(self.lamina.ctl("vm1", "list"))
        say("lamina ctl vm1 rollback monday --force")
        self.lamina.ctl("vm1", "rollback", "monday", "--force")
        self.client.look_again()

    def end(self):
        title("What is on the disks")
        self.client.end()
        require("lamina drains and ends well (SIGTERM)", self.lamina.stop() == 0, self.lamina.log())
        disks = sorted(self.rig.dir.glob("*.img"))
        read = [disk.name for disk in disks if PLAIN in disk.read_bytes()]
        names = ", ".join(disk.name for disk in disks)
        require(f"nothing that was written can be read on {names}", len(disks) == 5 and not read, read)
        say("lamina check --metadata vm1.toml")
        show(run(lamina_binary(), "check", "--metadata", self.lamina.file).stdout)


ATTACH = """\
Your own virtual machine, with `vhost-user = "vm1.sock"` in your hierarchy (its memory must be shared):

  QEMU          qemu-system-x86_64 ... -m 4G \\
                  -object memory-backend-memfd,id=mem,size=4G,share=on -machine q35,memory-backend=mem \\
                  -chardev socket,id=disk,path=/run/vm1.sock,reconnect-ms=500 \\
                  -device vhost-user-blk-pci,chardev=disk,num-queues=1

  libvirt       <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
                <disk type='vhostuser' device='disk'>
                  <driver name='qemu' type='raw'/>
                  <source type='unix' path='/run/vm1.sock'><reconnect enabled='yes' timeout='1'/></source>
                  <target dev='vda' bus='virtio'/>
                </disk>

  Cloud         cloud-hypervisor ... --memory size=4G,shared=on \\
  Hypervisor      --disk vhost_user=true,socket=/run/vm1.sock,num_queues=1

Anything else, with `nbd = "unix:nbd.sock"` (or "tcp:HOST:PORT", with TLS):

  nbdinfo 'nbd+unix:///vm1?socket=nbd.sock'
  qemu-img convert -f raw -O qcow2 'nbd+unix:///vm1?socket=nbd.sock' copy.qcow2
  nbd-client -unix nbd.sock -name vm1 /dev/nbd0
"""


def main():
    end_on_signals()
    if os.environ.get("LAMINA_DEMO") == "cluster":
        cluster.main()
        return
    with Rig() as rig:
        story = Story(rig, NbdClient if os.environ.get("LAMINA_DEMO") == "nbd" else LinuxGuest)
        story.kills()
        story.mirrors()
        story.dies()
        story.monday()
        story.end()
    title("Attach your own")
    print(ATTACH)
    say("the demo is done, and nothing of it is left behind")


if __name__ == "__main__":
    main()
