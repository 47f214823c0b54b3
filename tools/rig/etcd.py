"""An etcd of three members, each with its own folder in the rig."""

from .files import CACHE
from .process import free_port, run, wait_until

# Debian's packages, unpacked by `tools/install test`: no service begins by itself.
SERVER, CLIENT = CACHE / "etcd-server/usr/bin/etcd", CACHE / "etcd-client/usr/bin/etcdctl"


class Etcd:
    """Runs from when it is made until its rig ends. Of `hosts`, one for each member, `(address, at)` says where the member
    is and what a command there begins with (`Network.at`). With `tls`, an authority that has issued a certificate for
    "localhost", members encrypt what they say to clients, which have to show certificates."""

    def __init__(self, rig, hosts=(("localhost", ()),) * 3, tls=None, options=()):
        self._rig, self._tls, self._options = rig, tls, list(options)
        self._scheme = "https" if tls else "http"
        # In a namespace of its own all ports are free.
        self._members = [
            {"name": f"etcd-{n}", "at": list(at), "address": address,
             "client": 2379 if at else free_port(address), "peer": 2380 if at else free_port(address)}
            for n, (address, at) in enumerate(hosts)
        ]
        self._running = {}
        for number in range(len(self._members)):
            self.start(number)
        wait_until("etcd to have a leader", 30, self.is_healthy)

    @property
    def vault(self):
        """The key `vault`."""
        return "etcd:" + ",".join(f"{member['address']}:{member['client']}" for member in self._members)

    def start(self, number):
        """Starts a member, with what it had before."""
        member = self._members[number]
        url = lambda kind, scheme: f"{scheme}://{member['address']}:{member[kind]}"
        cluster = ",".join(f"{other['name']}=http://{other['address']}:{other['peer']}" for other in self._members)
        self._running[number] = self._rig.start(
            *member["at"], SERVER, "--name", member["name"], "--data-dir", self._rig.path(member["name"]),
            "--listen-client-urls", url("client", self._scheme), "--advertise-client-urls", url("client", self._scheme),
            "--listen-peer-urls", url("peer", "http"), "--initial-advertise-peer-urls", url("peer", "http"),
            "--initial-cluster", cluster, "--logger", "zap",
            *self._files("--trusted-ca-file", "--cert-file", "--key-file"), *(["--client-cert-auth"] if self._tls else []),
            *self._options, name=member["name"],
        )

    def kill(self, number):
        """Ends a member at once."""
        self._running.pop(number).kill()

    def stop(self, number, signal):
        """Sends a signal to a member."""
        self._running[number].signal(signal)

    def ctl(self, *words, check=True, members=None):
        """What `etcdctl` prints that asks one of the members, or all that are named by number."""
        members = [self._members[n] for n in (members if members is not None else sorted(self._running))]
        endpoints = ",".join(f"{self._scheme}://{member['address']}:{member['client']}" for member in members)
        told = run(
            *members[0]["at"], CLIENT, "--endpoints", endpoints, *self._files("--cacert", "--cert", "--key"), *words, check=check,
            env={"ETCDCTL_API": "3"},
        )
        return told.stdout

    def is_healthy(self):
        """Whether a member answers, which needs most of them."""
        return "true" in self.ctl("endpoint", "health", "--write-out", "json", check=False)

    def _files(self, ca, certificate, key):
        """The options, of these names, for the files of one who shows a certificate."""
        if not self._tls:
            return []
        files = self._tls.keys("localhost")
        return [ca, self._rig.path(files["ca"]), certificate, self._rig.path(files["certificate"]), key, self._rig.path(files["key"])]
