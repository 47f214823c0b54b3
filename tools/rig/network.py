"""Hosts of a test as network namespaces on one bridge, whose links can be cut."""

import contextlib
import itertools
import os

from .process import run

_numbers = itertools.count()


class Network(contextlib.AbstractContextManager):
    """A network with a namespace for each host, which is 10.99.0.N there. Needs root."""

    def __init__(self, hosts):
        self._name = f"lamina-{os.getpid()}-{next(_numbers)}"
        self.addresses = {host: f"10.99.0.{n}" for n, host in enumerate(hosts, 1)}
        self._made = []
        try:
            self._make(self._name)
            self._ip("-n", self._name, "link", "add", "name", "bridge", "type", "bridge")
            self._ip("-n", self._name, "link", "set", "bridge", "up")
            for host, address in self.addresses.items():
                inside = self._inside(host)
                self._make(inside)
                self._ip("-n", self._name, "link", "add", "name", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", inside)
                self._ip("-n", self._name, "link", "set", f"to-{host}", "master", "bridge", "up")
                self._ip("-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    self._ip("-n", inside, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        while self._made:
            run("ip", "netns", "delete", self._made.pop(), check=False)

    def at(self, host):
        """What a command is to begin with that runs on a host."""
        return ["ip", "netns", "exec", self._inside(host)]

    def cut(self, host):
        """What a host sends does not arrive, and nothing gets there; nobody is told."""
        self._ip("-n", self._name, "link", "set", f"to-{host}", "nomaster")

    def join(self, host):
        """It is connected again."""
        self._ip("-n", self._name, "link", "set", f"to-{host}", "master", "bridge")

    def lose(self, here, there):
        """What one host sends to another one does not arrive; nobody is told, and what the other one sends does."""
        # A hardware address that nobody has.
        self._ip("-n", self._inside(here), "neigh", "replace", self.addresses[there], "lladdr", "02:00:00:00:00:01",
                 "dev", "eth0", "nud", "permanent")

    def find(self, here, there):
        """It arrives again."""
        self._ip("-n", self._inside(here), "neigh", "delete", self.addresses[there], "dev", "eth0")

    def slow_down(self, host, rate):
        """What is sent to a host arrives at a rate such as "10mbit" at most."""
        run("tc", "-n", self._name, "qdisc", "replace", "dev", f"to-{host}", "root", "tbf", "rate", rate, "burst", "32kb",
            "latency", "1s")

    def part(self, one, other):
        """Nothing arrives of what two hosts send to each other."""
        self.lose(one, other)
        self.lose(other, one)

    def meet(self, one, other):
        """It arrives again."""
        self.find(one, other)
        self.find(other, one)

    def _inside(self, host):
        return f"{self._name}-{host}"

    def _make(self, name):
        self._ip("netns", "add", name)
        self._made.append(name)

    @staticmethod
    def _ip(*words):
        run("ip", *words)
