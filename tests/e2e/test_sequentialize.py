"""Random writes made sequential: the daemon is killed under load in both modes, and while a log beside data comes and goes."""

from common import KILLS, KILLS_CHANGE, limit
from hierarchies import exported, member
from rig.ledger import Ledger
from test_kills import EACH, Kills

# Blocks of the client with stamps: 12 MiB, which is much of a log of less than 23 MiB, and far more than a region.
BLOCKS = 768
# Modes, in sizes that a load fills many times in a short while: what counts is copied, or goes home, all the time.
MODES = {
    "log": {"mode": "log", "size": "13MiB"},
    "home": {"mode": "home", "reserve": 15, "small": "16KiB"},
}


def sequential(mode):
    """The disk `vm1`: a log over a file without the page cache."""
    return {
        "a": {**member("a", "24MiB"), "direct": True},
        "vm1": {"type": "sequentialize", "over": "a", **MODES[mode]},
    }


class Killed(Kills):
    """kill -9 under load: no byte is ever wrong."""

    def info(self):
        return self.daemon.device("vm1")["info"]

    def kill_under(self, mode):
        self.begin(sequential(mode), exported(), ledger=Ledger(BLOCKS))
        collected = 0
        for _ in range(KILLS):
            self.pump(self.chance.random() * 0.8)
            collected += self.info()["collected_segments"]
            self.daemon.kill()
            self.daemon.start()
            self.attach()
        self.writer.close()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log())
        self.assertGreater(collected, 0)
        print(f"        {KILLS} kills, {collected} segments collected between them")

    @limit(60 + 5 * KILLS)
    def test_log(self):
        self.kill_under("log")

    @limit(60 + 5 * KILLS)
    def test_home(self):
        self.kill_under("home")

    @limit(120 + 2 * KILLS)
    def test_log_under_fio(self):
        self.kill_under_fio(sequential("log"), KILLS)

    @limit(120 + 2 * KILLS)
    def test_home_under_fio(self):
        self.kill_under_fio(sequential("home"), KILLS)


class ComesAndGoes(Kills):
    """A log beside the data of a disk in use comes and goes under load."""

    def steps(self):
        disk = {"a": member("a", "24MiB")}
        part = {"type": "linear", "size": "20MiB"}
        log = {"log": {"type": "sequentialize", "over": "a", "mode": "home", "size": "20MiB", "small": "16KiB"}}
        return (
            ({**disk, "vm1": {**part, "over": "a"}}, exported()),
            ({**disk, **log, "vm1": {**part, "over": "log"}}, exported()),
        )

    def test_drained_and_taken_away(self):
        without, beside = self.steps()
        self.begin(*without)
        self.pump(0.3)
        self.command(*self.change(*beside))
        self.pump(1)
        self.assertGreater(self.daemon.device("log")["info"]["live_bytes"], 0)
        self.command("ctl", "log", "drain")
        self.pump(0.2)
        self.command(*self.change(*without))
        self.pump(0.2)
        self.ended()
        self.daemon.start()
        self.attach()
        self.writer.close()

    @limit(60 + EACH * KILLS_CHANGE)
    def test_killed_meanwhile(self):
        steps = self.steps()
        self.begin(*steps[0], ledger=Ledger(256))
        self.go_round(*steps)
