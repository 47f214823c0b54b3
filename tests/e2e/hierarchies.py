"""Persistent hierarchies that change: as plain data, so that a test says what differs and nothing else."""

import json

import nbd

from common import MIB, RigCase
from rig import Lamina, lamina_binary, run


# Bytes of a member of 24 MiB that hold data: the rest is for its superblocks.
ROOM = 24 * MIB - MIB - 64 * 1024


def toml(value):
    """A value as it stands in a file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(of)}" for key, of in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(of) for of in value) + "]"
    return json.dumps(value)


def written(devices, exports, name="vm1", **more):
    """The hierarchy file of `devices` and `exports`, each a table of keys by name."""
    tables = {"hierarchy": {"name": name, **more}}
    tables |= {f"device.{device}": keys for device, keys in devices.items()}
    tables |= {f"export.{export}": keys for export, keys in exports.items()}
    return "\n".join(
        f"[{table}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
        for table, keys in tables.items()
    )


def member(name, size):
    """A device of type file, whose image is called like it."""
    return {"type": "file", "path": f"{name}.img", "size": size}


def joined(members=("a", "b"), size="24MiB"):
    """The disk `vm1`: a linear over a concat, `disk`, over members."""
    return {
        **{name: member(name, size) for name in members},
        "disk": {"type": "concat", "over": list(members)},
        "vm1": {"type": "linear", "over": "disk"},
    }


def exported(device="vm1", **more):
    return {"vm1": {"device": device, "nbd": "unix:nbd.sock", **more}}


class HierarchyCase(RigCase):
    """A test with a persistent hierarchy that is created, served, and changed by `apply`."""

    def lamina(self, *words, check=True, seconds=60):
        return run(lamina_binary(), *words, check=check, seconds=seconds, cwd=self.rig.path(""))

    def create(self, devices, exports, **more):
        """Makes the hierarchy and serves it."""
        text = written(devices, exports, **more)
        self.lamina("create", self.rig.write("vm1.toml", text))
        self.daemon = Lamina(self.rig, text, name="vm1")
        return self.daemon

    def write(self, devices, exports, **more):
        self.daemon.file.write_text(written(devices, exports, **more))

    def apply(self, devices, exports, *words, check=True, **more):
        """Makes the hierarchy what is said; returns what `lamina apply` printed, or the words of its refusal."""
        self.write(devices, exports, **more)
        done = self.lamina("apply", self.daemon.file, "--control", self.daemon.control, *words, check=check)
        return done.stdout if check else done.stderr

    def jobs(self):
        """The names of what is under way in the background."""
        return [job["name"] for job in self.daemon.get("/v1/jobs")]

    def refused(self, *words):
        done = self.lamina(*words, check=False)
        self.assertIn(done.returncode, (1, 2), done.stdout)
        return done.stderr

    def assemble(self, *devices):
        """The hierarchy file that the devices carry; without devices, all images in the rig's folder."""
        return self.lamina("assemble", *(devices or sorted(self.rig.dir.glob("*.img")))).stdout

    def client(self, export="vm1"):
        handle = nbd.NBD()
        handle.connect_uri(self.daemon.uri(export))
        return handle

    def size(self, export="vm1"):
        return int(run("nbdinfo", "--size", self.daemon.uri(export)).stdout)
