"""`make check`: which tests a changed file asks for."""

import json
import shutil

from common import RigCase
from rig import TOOLS_PATH, run
from rig.files import ROOT

# Prints what it is asked for, and where the crates are.
CARGO = """\
#!/bin/sh
[ "$1" != metadata ] || exec cat metadata
echo "cargo $*" >>asked
"""


class Check(RigCase):
    def setUp(self):
        super().setUp()
        for folder in ("tools", "bin", "crates/block/src", "crates/layers/cache/src/flash", "crates/layers/cache/tests"):
            self.rig.path(folder).mkdir(parents=True)
        shutil.copy(ROOT / "tools/check", self.rig.path("tools"))
        self.rig.write(".gitignore", "asked\n*.log\n")
        for name in ("cargo", "rustfmt"):
            self.rig.write(f"bin/{name}", CARGO).chmod(0o755)
        self.rig.write("metadata", json.dumps({"packages": [
            {"name": f"lamina-{name}", "manifest_path": str(self.rig.path(f"crates/{folder}/Cargo.toml")),
             "targets": [{"kind": [kind]}]}
            for name, folder, kind in (("block", "block", "lib"), ("cache", "layers/cache", "lib"), ("program", "program", "bin"))
        ]}))
        self.rig.write("crates/layers/cache/src/flash/mod.rs", "")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *words):
        run("git", "-c", "user.name=x", "-c", "user.email=x", *words, cwd=self.rig.path(""))

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")

    def asks(self, *files, base=()):
        """The commands that run tests when these files have changed, without what all have in common; and all that is said."""
        for file in files:
            self.rig.path(file).parent.mkdir(parents=True, exist_ok=True)
            self.rig.write(file, "fn f() {}\n")
        asked = self.rig.write("asked", "")
        done = run(
            "env", "-u", "CARGO", f"PATH={self.rig.path('bin')}:{TOOLS_PATH}", self.rig.path("tools/check"), *base, cwd=self.rig.path(""),
        )
        self.asked = asked.read_text().splitlines()
        begin = "cargo test --locked -p lamina-"
        return [line.removeprefix(begin) for line in self.asked if line.startswith(begin)], done.stdout

    def test_a_module_asks_for_its_tests(self):
        found, said = self.asks("crates/layers/cache/src/flash/log.rs", "crates/layers/cache/src/redo.rs")
        self.assertEqual(found, ["cache --lib -- flash:: redo::"])
        self.assertEqual(self.asked[1], "cargo clippy --locked --all-targets -p lamina-cache -- -D warnings")
        self.assertIn("2 changed files in 1 crates", said)

    def test_a_test_asks_for_itself(self):
        self.assertEqual(self.asks("crates/layers/cache/tests/order.rs")[0], ["cache --test order"])

    def test_anything_else_in_a_crate_asks_for_all_of_it(self):
        for file in ("src/lib.rs", "Cargo.toml", "tests/common/mod.rs", "build.rs"):
            with self.subTest(file):
                found, _said = self.asks(f"crates/block/{file}", "crates/block/src/node.rs")
                self.assertEqual(found, ["block"])
                self.commit()

    def test_a_program_has_no_unit_tests_of_a_library(self):
        self.assertEqual(self.asks("crates/program/src/cli.rs")[0], ["program"])

    def test_what_is_in_no_crate_is_named(self):
        found, said = self.asks("tools/other")
        self.assertEqual(found, [])
        self.assertIn("not looked at: tools/other\n", said)
        self.assertEqual(self.asked, [])

    def test_compared_with_another_commit(self):
        self.asks("crates/block/src/node.rs")
        self.commit()
        self.assertEqual(self.asks()[0], [])
        self.assertEqual(self.asks(base=["HEAD~1"])[0], ["block --lib -- node::"])
