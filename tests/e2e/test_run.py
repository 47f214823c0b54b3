"""The runner of these tests: what runs beside what, what it says, and what is left of a worker that dies."""

import json
import os
import sys

from common import RigCase, limit
from rig import run
from rig.files import ROOT

SAMPLES = """\
import os, pathlib, signal, time, unittest
from common import RigCase, limit
from rig import wait_until

SHARED = pathlib.Path(os.environ["SHARED"])

class Pair(unittest.TestCase):
    # Each waits for the other one.
    def meet(self, mine, theirs):
        (SHARED / mine).touch()
        wait_until(theirs, 20, (SHARED / theirs).exists)
    def test_one(self):
        print("        one has met the other")
        self.meet("one", "other")
    def test_other(self):
        self.meet("other", "one")

class Alone(unittest.TestCase):
    alone = "nothing else may be here"
    def here(self):
        os.mkdir(SHARED / "here")
        time.sleep(0.2)
        os.rmdir(SHARED / "here")
        (SHARED / "alone").touch()
    test_first = test_second = here

class Wrong(RigCase):
    def test_fails(self):
        self.assertFalse((SHARED / "alone").exists())
        self.fail("as it should")
    def test_dies(self):
        self.assertFalse((SHARED / "alone").exists())
        self.rig.write("file", "")
        self.rig.start("tail", "-f", self.rig.path("file"))
        print("        is about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    @limit(1)
    def test_takes_too_long(self):
        time.sleep(60)
    @unittest.skip("not today")
    def test_is_skipped(self):
        pass
"""


class Run(RigCase):
    def setUp(self):
        super().setUp()
        for folder in ("tests", "shared", "scratch", "cache"):
            self.rig.path(folder).mkdir()
        self.rig.write("tests/test_samples.py", SAMPLES)

    def samples(self, *words):
        """What the runner says of these tests, and its exit code."""
        for file in self.rig.path("shared").iterdir():
            file.unlink()
        env = {"SHARED": self.rig.path("shared"), "LAMINA_TMP": self.rig.path("scratch"), "LAMINA_CACHE": self.rig.path("cache")}
        done = run(
            sys.executable, ROOT / "tests/e2e/run", "--tests", self.rig.path("tests"), *words, check=False,
            env={name: str(path) for name, path in env.items()} | {"LAMINA_KEEP": ""},
        )
        return done.stdout + done.stderr, done.returncode

    @limit(120)
    def test_everything_at_once(self):
        said, code = self.samples("-j", "3")
        self.assertEqual((code, said.splitlines()[-1]), (1, "4 passed, 3 failed, 1 skipped"), said)
        took = r"\([0-9.]+ s, [0-9.]+ s of a processor\)"
        for line in (
            rf"        one has met the other\nok      test_samples\.Pair\.test_one {took}\n",
            rf"FAILED  test_samples\.Wrong\.test_fails {took}\nTraceback[^\0]*AssertionError: as it should\n",
            rf"ERROR   test_samples\.Wrong\.test_takes_too_long {took}\nTraceback[^\0]*not done within [0-9]+ s\n",
            rf"skipped test_samples\.Wrong\.test_is_skipped {took}\n        not today\n",
            # A worker that dies costs its test alone, and leaves nothing.
            r"ERROR   test_samples\.Wrong\.test_dies \([0-9.]+ s\)\n        is about to die\nthe worker has died "
            r"\(exit code -9\)\nremoved: ",
        ):
            self.assertRegex(said, line)
        self.assertNotIn("left behind", said)
        self.assertEqual(os.listdir(self.rig.path("scratch")), [])
        # What took how long is known the next time.
        times = json.loads(self.rig.path("cache/end-to-end.json").read_text())
        self.assertEqual(len(times), 8, times)
        self.assertGreaterEqual(times["test_samples.Alone.test_first"], 0.2)

    @limit(120)
    def test_one_after_the_other(self):
        said, code = self.samples("-j1", "Alone", "fails")
        self.assertEqual((code, said.splitlines()[-1]), (1, "2 passed, 1 failed, 0 skipped"), said)
        names = [line.split()[1] for line in said.splitlines() if line.startswith(("ok ", "FAILED "))]
        self.assertEqual(names, ["test_samples." + name for name in ("Alone.test_first", "Alone.test_second", "Wrong.test_fails")])
        said, code = self.samples("-j1", "Alone")
        self.assertEqual((code, said.splitlines()[-2:]), (0, ["OK", "2 passed, 0 failed, 0 skipped"]), said)
        self.assertEqual(self.samples("nothing has this name")[1], 1)
