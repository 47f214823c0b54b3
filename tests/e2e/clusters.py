"""Hosts in network namespaces, in front of a store that is served in another one: for tests of what fails there."""

import json
import os
import signal
import time
import unittest

import nbd

from common import RigCase
from hierarchies import written
from rig import Lamina, lamina_binary, run, wait_until
from rig.ledger import Ledger, Writer
from rig.network import Network

STORE = """\
[device.disk]
type = "file"
path = "disk.img"
size = "48MiB"

[device.far]
type = "delay"
over = "disk"
read = "2ms"
write = "5ms"

[export.disk]
device = "far"
nbd = "tcp:{address}:10809"
"""
# Of a write to a store that is to lack what the flash has.
SLOW = "8s"


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class ClusterCase(RigCase):
    """Hosts `a`, `b`, ..., which have the volume `vm1` one at a time, and `store`."""

    names = "ab"
    # Namespaces of hosts that are not started.
    spares = ""
    lease = 2
    # Of `lamina serve`.
    options = ()

    def setUp(self):
        super().setUp()
        self.network = self.enterContext(Network([*self.names, *self.spares, "store"]))
        text = STORE.format(address=self.network.addresses["store"])
        self.store = Lamina(self.rig, text, name="store", at=self.network.at("store"))
        self.hosts = {}
        # Devices of a host that are others than usual.
        self.instead = {}

    def hierarchy(self, host, flash=None, timeout="2s", **keys):
        """The volume as a host serves it, on its own flash or that of the host `flash`. The store is taken for away
        when it says nothing for `timeout`."""
        flash = flash or host
        devices = {
            "remote": {"type": "nbd", "address": f"tcp:{self.network.addresses['store']}:10809", "timeout": timeout},
            "san": {
                "type": "reservation", "over": "remote", "vault": "vault", "volume": "vm1", "host": host,
                "lease": f"{self.lease}s", "listen": f"tcp:{self.network.addresses[host]}:0", "tls": "off",
                "settles": "1s",
            },
            "nvme": {"type": "file", "path": f"nvme-{flash}.img", "size": "24MiB"},
            "failing": {"type": "fault", "over": "nvme"},
            "cache": {"type": "flash", "over": "failing"},
            "vm1": {"type": "accelerate", "over": ["san", "cache"], **keys},
            **self.instead.get(host, {}),
        }
        return written(devices, {"vm1": {"device": "vm1", "nbd": f"unix:{host}.sock"}}, name=f"vm1-{flash}")

    def start(self, **keys):
        """All hosts, of which the first one gets the volume."""
        for host in self.names:
            self.hosts[host] = daemon = Lamina(
                self.rig, self.hierarchy(host, **keys), name=host, start=False, at=self.network.at(host),
                arguments=self.options,
            )
            run(*self.network.at(host), lamina_binary(), "create", daemon.file)
            daemon.start()
        return tuple(self.hosts.values())

    def uri(self, daemon):
        return daemon.uri("vm1", f"{daemon.name}.sock")

    def client(self, daemon):
        client = nbd.NBD()
        client.connect_uri(self.uri(daemon))
        return client

    def writer(self, daemon, ledger=None, seed=0):
        """A client with stamps, for which this host takes the volume and has what it has to have."""
        writer = Writer(ledger or Ledger(), self.uri(daemon), seed)
        writer.check()
        return writer

    def moves_to(self, daemon, ledger, seed=0, seconds=30):
        """The writer of a client that asks this host until it has the volume."""
        wait_until(f"{daemon.name} has the volume", seconds, lambda: self.may_read(daemon))
        return self.writer(daemon, ledger, seed)

    def has(self, daemon, seconds):
        """Whether it gets the volume within some seconds."""
        end = time.monotonic() + seconds
        while not (had := self.may_read(daemon)) and time.monotonic() < end:
            time.sleep(0.05)
        return had

    def may_read(self, daemon):
        return may_read(self.uri(daemon))

    def refused(self, daemon):
        """What a host logs that may not have the volume."""
        before = len(daemon.log())
        with self.assertRaises(nbd.Error):
            self.client(daemon).pread(4096, 0)
        return daemon.log()[before:]

    def info(self, daemon):
        return daemon.device("vm1")["info"]

    def peers(self, daemon):
        """The hosts that have each write before it is acknowledged; none if writes wait for the store."""
        info = self.info(daemon)
        connected = info["peers"] and info["peers"].get("connected") or []
        return {peer["host"] for peer in connected} if info["policy"] == "write-back" else set()

    def paired(self, daemon, *hosts):
        """Waits until these hosts have each write, or any host if none is named."""
        def look():
            found = self.peers(daemon)
            return found if not hosts or found == set(hosts) else None
        return wait_until(f"{daemon.name} has peers {hosts}", 40, look)

    def vault(self, *words):
        return run(lamina_binary(), "vault", "vault", *words, cwd=self.rig.path("")).stdout

    def dirty(self, daemon):
        return self.info(daemon)["dirty_bytes"]

    def slow_store(self, write=SLOW):
        self.store.ctl("far", "set", f"write={write}")

    def fast_store(self):
        self.store.ctl("far", "set", "write=5ms")

    def flash_fails(self, daemon, **rule):
        daemon.ctl("failing", "set", f"rules={json.dumps([{'error': 'offline', **rule}])}")

    def flash_works(self, daemon):
        daemon.ctl("failing", "clear")

    def stop(self, daemon):
        daemon.proc.signal(signal.SIGSTOP)

    def go_on(self, daemon):
        daemon.proc.signal(signal.SIGCONT)


def may_read(uri):
    """Whether a host answers a read, for which it takes the volume if it may."""
    client = nbd.NBD()
    try:
        client.connect_uri(uri)
        client.pread(4096, 0)
        return True
    except nbd.Error:
        return False


def times(count):
    """For `Writer.pump_until`: so many rounds."""
    return iter([False] * count + [True]).__next__
