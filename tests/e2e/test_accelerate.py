"""A flash in front of a slow store: killed at random moments, changed while it runs, and what is left of it."""

from common import KILLS_NBD, limit
from test_kills import Kills

# Store and flash, of which the flash is the smaller one, so that it goes round.
SIZES = {"san-file": "48MiB", "nvme": "24MiB"}


def accelerated(policy="write-back", volumes=("vm1",), direct=True, **keys):
    """Volumes on one flash, each in front of a store of its own that takes its time."""
    devices = {"nvme": {"type": "file", "path": "nvme.img", "size": SIZES["nvme"], "direct": direct},
               "cache": {"type": "flash", "over": "nvme"}}
    exports = {}
    for name in volumes:
        devices[f"{name}-file"] = {"type": "file", "path": f"{name}.img", "size": SIZES["san-file"], "direct": direct}
        devices[f"{name}-san"] = {"type": "delay", "over": f"{name}-file", "write": "5ms", "write-iops": 400}
        devices[name] = {"type": "accelerate", "over": [f"{name}-san", "cache"], "policy": policy, **keys}
        exports[name] = {"device": name, "nbd": "unix:nbd.sock"}
    return devices, exports


class Killed(Kills):
    """kill -9 under load, store and flash on files without the page cache: no byte is ever wrong."""

    def kill_under(self, policy, kills):
        self.begin(*accelerated(policy))
        dirty = 0
        for _ in range(kills):
            self.pump(self.chance.random() * 0.5)
            self.daemon.kill()
            self.daemon.start()
            dirty += self.daemon.device("vm1")["info"]["dirty_bytes"] > 0
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        print(f"        {kills} kills, {dirty} of them with writes that the store did not have")

    @limit(60 + 5 * KILLS_NBD)
    def test_write_back(self):
        self.kill_under("write-back", KILLS_NBD // 2)

    @limit(60 + 5 * KILLS_NBD)
    def test_write_through(self):
        self.kill_under("write-through", KILLS_NBD // 4)

    @limit(60 + 5 * KILLS_NBD)
    def test_policies_that_change(self):
        """The daemon is killed while the policy changes, too."""
        self.begin(*accelerated())
        for n in range(KILLS_NBD // 4):
            policy = ["write-through", "uncached", "write-back"][n % 3]
            child = self.start("ctl", "vm1", "set-policy", policy)
            self.pump(self.chance.random() * 0.3)
            self.daemon.kill()
            child.wait()
            self.daemon.start()
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
