"""`lamina top` in a terminal of 80 columns and 24 lines, which tmux shows."""

import os
import signal

from common import RigCase, limit
from rig import Lamina, lamina_binary, run, wait_until
from rig.hierarchy import device, exported, written
from rig.terminal import Terminal


class Top(RigCase):
    def serve(self):
        """A mirror with a slow leg, behind a queue."""
        disks = [device(name, "file", path=f"{name}.img", size="64MiB") for name in "ab"]
        slow = device("far", "delay", "b", read="2ms", write="2ms")
        raid = device("raid", "mirror", ["a", "far"])
        turns = device("turns", "schedule", "raid", policy="noop", depth=4)
        path = written(self.rig, "disk", exported("disk", *disks, slow, raid, turns, top="turns"))
        self.daemon = Lamina(self.rig, path.read_text(), name="disk")

    def load(self):
        return self.rig.start(
            lamina_binary(), "bench", self.daemon.uri("vm1", "disk.sock"), "--force", "--rw", "mixed", "--depth", 16, "--time",
            "100s", name="bench")

    def begin(self):
        self.terminal = Terminal(self.rig)
        self.terminal.enter("stty -g > before; echo the screen before")
        self.terminal.wait_for("the shell", "^the screen before$")
        self.terminal.enter(f"{lamina_binary()} top --control {self.daemon.control} --interval 500ms; echo it ended with $?")
        self.terminal.wait_for("the tree", "^DEVICE ")

    def assert_ended(self, code=0):
        """The program has ended, and the terminal is as it was."""
        self.terminal.wait_for("the end", f"^it ended with {code}$")
        self.assertEqual(self.terminal.modes(), "0 1")
        self.terminal.wait_for("the screen before", "^the screen before$")
        self.terminal.enter("stty -g > after; echo compared")
        self.terminal.wait_for("the shell", "^compared$")
        self.assertEqual(self.rig.path("before").read_text(), self.rig.path("after").read_text())

    def row(self, name):
        """The cells of a device, without the sparkline."""
        for line in self.terminal.lines():
            words = [word for word in line.split() if not set(word) <= set("│├└─")]
            if words and words[0] == name:
                return words[1:]
        return None

    @limit(90)
    def test_the_tree_and_the_keys(self):
        self.serve()
        self.begin()
        self.load()
        self.terminal.wait_for("samples", r"^WHY SLOW vm1: (read|write): of the slowest 1%")
        # Kind, queue, reads, writes, MiB, P99, self time and share, all of them with something.
        row = wait_until("the figures of the exported device", 20, lambda: (row := self.row("turns")) and row[7] != "-" and row)
        self.assertEqual(row[0], "schedule")
        for figure in row[2:5]:
            self.assertGreater(float(figure.replace("k", "")), 0, row)
        self.assertRegex(row[5], r"^[0-9.]+(us|ms|s)$")
        text = self.terminal.text()
        self.assertRegex(text, rf"^lamina \S+  pid {self.daemon.proc.pid}  up \S+  \S+  \S+ of a core  no alerts")
        for branch in ("└─ raid ", "├─ a ", "└─ far ", "└─ b "):
            self.assertIn(branch, text)
        # The parts of a request's time add up to all of it.
        shares = [int(self.row(name)[7].rstrip("%")) for name in ("turns", "raid", "a", "far", "b")]
        self.assertAlmostEqual(sum(shares), 100, delta=3)
        self.terminal.wait_for("bars", r"^turns .* [▁▂▃▄▅▆▇█]+$")
        # Some work in the background.
        self.daemon.ctl("raid", "scrub")
        self.daemon.ctl("raid", "job", "scrub", "limit=1MiB")
        self.terminal.wait_for("the job", r"^JOB raid scrub +[█░]{16} +[0-9.]+% of ")
        self.terminal.keys("s")
        self.terminal.wait_for("an order", "s sort: requests")
        self.assertNotIn("├─", self.terminal.text())
        self.terminal.keys("?")
        self.terminal.wait_for("help", "lamina top: keys")
        self.terminal.wait_for("a key with its effect", r"enter +show the chosen device in depth")
        self.terminal.keys("x", "s", "s", "s", "s")
        self.terminal.wait_for("the tree", "├─ a ")
        self.terminal.keys("Enter")
        self.terminal.wait_for("one device", r"^turns \(schedule\), .* over raid, exported as vm1")
        self.terminal.wait_for("its operations", r"^(read|write) +[1-9]")
        self.terminal.wait_for("its figures", r"^POLICY +noop  The order of requests.$")
        self.terminal.keys("End")
        self.terminal.wait_for("its commands", "^COMMANDS")
        self.terminal.keys("Escape", "e")
        self.terminal.wait_for("events", "^EVENTS")
        self.terminal.keys("e")
        self.terminal.wait_for("the tree", "├─ a ")
        self.terminal.tmux("resize-window", "-x", 60, "-y", 12)
        self.terminal.wait_for("fewer columns", "^DEVICE .* SHARE$")
        self.assertEqual(self.terminal.modes(), "1 0")
        self.terminal.keys("q")
        self.assert_ended()

    @limit(60)
    def test_a_daemon_that_is_killed_and_started_again(self):
        self.serve()
        self.begin()
        first = self.daemon.proc.pid
        self.daemon.kill()
        self.terminal.wait_for("the outage", r"^NO ANSWER since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\d+s\):")
        # The last that was known stays.
        self.assertIn("└─ raid ", self.terminal.text())
        self.daemon.start()
        self.assertNotEqual(self.daemon.proc.pid, first)
        self.terminal.wait_for("the other one", f"pid {self.daemon.proc.pid} ")
        self.load()
        self.terminal.wait_for("its samples", r"^WHY SLOW vm1: (read|write): ")
        # One that hangs is told, and keys work meanwhile.
        self.daemon.proc.signal(signal.SIGSTOP)
        self.terminal.wait_for("the outage", r"^NO ANSWER since (.|\n)*no\s+answer\s+within\s+5\s+s")
        self.terminal.keys("?")
        self.terminal.wait_for("help", "lamina top: keys")
        self.terminal.keys("C-c")
        self.assert_ended()
        self.daemon.proc.signal(signal.SIGCONT)

    @limit(60)
    def test_signals_end_it_and_the_terminal_is_as_it_was(self):
        self.serve()
        self.begin()
        command = f"{lamina_binary()} top --control {self.daemon.control}"
        for number in (signal.SIGTERM, signal.SIGINT):
            panes = self.terminal.tmux("list-panes", "-F", "#{pane_pid}").split()
            program = int(run("pgrep", "-P", panes[0]).stdout)
            os.kill(program, number)
            self.assert_ended()
            self.terminal.enter(f"clear; echo the screen before; {command}; echo it ended with $?")
            self.terminal.wait_for("the tree", "^DEVICE ")
        # A terminal that is gone ends it as well.
        self.terminal.tmux("kill-server")
        wait_until("its end", 10, lambda: run("pgrep", "-f", f"top --control {self.daemon.control}", check=False).returncode == 1)

    def test_without_a_terminal(self):
        self.serve()
        refused = run(lamina_binary(), "top", "--control", self.daemon.control, check=False)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("use `lamina show --watch`", refused.stderr)
        refused = run(lamina_binary(), "top", "--interval", "10ms", check=False)
        self.assertIn("100ms is the shortest time", refused.stderr)
