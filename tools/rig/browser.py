"""A Chromium that tests and pictures use, driven by playwright-core in Node. `tools/install web` brings both."""

import json
import pathlib
import select
import shutil
import subprocess

from .files import CACHE
from .process import PATIENCE, Timeout, _kill_group, end_with_parent, environment, wait_until

PLAYWRIGHT = CACHE / "playwright/node_modules/playwright-core"
DRIVER = pathlib.Path(__file__).with_name("browser.mjs")


def _chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing():
    """Why there is no browser here, in a few words; None if there is one."""
    have = {"node": shutil.which("node"), "chromium": _chromium(), "playwright-core": PLAYWRIGHT.exists()}
    lacks = [name for name, there in have.items() if not there]
    return f"needs {', '.join(lacks)}: tools/install web" if lacks else None


class Browser:
    """A browser with one page, which ends with the rig."""

    def __init__(self, rig):
        scratch = rig.path("browser")
        scratch.mkdir()
        self._log = open(rig.path("browser.log"), "wb")
        rig.callback(self._log.close)
        self._child = subprocess.Popen(
            [shutil.which("node"), str(DRIVER), str(PLAYWRIGHT), _chromium()], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log, env={**environment(None), "TMPDIR": str(scratch), "HOME": str(scratch)},
            start_new_session=True, preexec_fn=end_with_parent,
        )
        rig.callback(self._end)

    def _end(self):
        # It closes its browser when there are no more orders.
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            _kill_group(self._child)
            self._child.wait()
        self._child.stdout.close()

    def _order(self, order, seconds=30, **more):
        self._child.stdin.write(json.dumps({"order": order, **more}).encode() + b"\n")
        self._child.stdin.flush()
        if not select.select([self._child.stdout], [], [], seconds * PATIENCE)[0]:
            raise Timeout(f"the browser: {order} not done within {seconds * PATIENCE:.0f} s")
        line = self._child.stdout.readline()
        if not line:
            raise AssertionError(f"the browser has ended:\n{pathlib.Path(self._log.name).read_text(errors='replace')}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"the browser: {order}: {answer['error']}")
        return answer["value"]

    def open(self, url, width=1280, height=800, dark=False, allow_errors=()):
        """Opens an address in a new page, without cookies and storage; errors on the console with one of these texts are no
        problems."""
        self._order("open", url=url, width=width, height=height, dark=dark, allow_errors=list(allow_errors))

    def evaluate(self, expression):
        return self._order("evaluate", expression=expression)

    def until(self, what, expression, seconds=15):
        """Waits until an expression is true, and returns it."""
        return wait_until(what, seconds, lambda: self.evaluate(expression), every=0.1)

    def press(self, *keys):
        for key in keys:
            self._order("press", key=key)

    def type(self, text):
        self._order("type", text=text)

    def resize(self, width, height):
        self._order("resize", width=width, height=height)

    def shot(self, path, full=False):
        self._order("shot", path=str(path), full=full)

    def problems(self):
        """Errors and warnings of the page so far: exceptions, the console, violations of its policy."""
        return self._order("problems")

    def requests(self):
        """The addresses that the page has asked for."""
        return self._order("requests")
