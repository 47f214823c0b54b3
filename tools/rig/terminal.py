"""A terminal with a shell, which tmux shows to a test or a picture."""

import re

from .process import run, wait_until

# Nothing but the program is on the screen.
SETTINGS = """\
set -g status off
set -g default-terminal screen-256color
"""


class Terminal:
    """A shell in a tmux of its own, whose server ends with the rig."""

    def __init__(self, rig, columns=80, lines=24):
        self.socket = rig.path("tmux")
        self.server = rig.start("tmux", "-D", "-S", self.socket, "-f", rig.write("tmux.conf", SETTINGS), name="tmux")
        wait_until("tmux", 10, self.socket.exists)
        self.tmux("new-session", "-d", "-x", columns, "-y", lines, "-c", rig.dir, "env", "PS1=$ ", "ENV=", "sh")
        wait_until("a prompt", 10, lambda: "$" in self.text())

    def tmux(self, *arguments):
        return run("tmux", "-u", "-S", self.socket, *arguments).stdout

    def lines(self):
        return self.tmux("capture-pane", "-p").splitlines()

    def coloured(self):
        """The screen with its colours, as ANSI sequences."""
        return self.tmux("capture-pane", "-p", "-e")

    def text(self):
        return "\n".join(self.lines())

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def enter(self, command):
        self.keys("-l", command)
        self.keys("Enter")

    def wait_for(self, what, pattern, seconds=20):
        """Waits until a pattern is on the screen, and returns the match."""
        try:
            return wait_until(what, seconds, lambda: re.search(pattern, self.text(), re.MULTILINE))
        except Exception as error:
            raise AssertionError(f"{error}:\n{self.text()}") from error

    def modes(self):
        """Whether the program has the screen for itself, and whether the cursor is seen."""
        return self.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip()
