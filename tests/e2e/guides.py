"""The guides for administrators (docs/guides): their blocks, and a test case that runs the blocks of a page in order, as they
stand there but for paths and sizes.

A comment before each block says what the block is:

    <!-- run -->             commands for the shell; `run: exit 3` is the exit code that the last of them ends with
    <!-- file: PATH -->      the text of a file
    <!-- serve -->           commands, of which the last one stays; <!-- stop -->, without a block, ends it
    <!-- prints -->          lines that the commands before have printed; … stands for anything
    <!-- attach -->          words that are compared with what the test itself does
    <!-- not run: WHY -->
"""

import contextlib
import dataclasses
import json
import os
import re
import shlex

import nbd

from common import MIB, RigCase, limit
from rig import lamina_binary, run, wait_until
from rig.files import ROOT

FOLDER = ROOT / "docs/guides"
MARK = re.compile(r"<!-- (run|file|serve|stop|prints|attach|not run)(?:: (.+))? -->")
# What has to be said of its block.
TELLING = {"file", "not run"}


@dataclasses.dataclass
class Block:
    """A block of a page, or a step without one."""
    place: str
    section: str
    kind: str
    more: str
    language: str
    text: str


def pages():
    """The names of all pages."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")


def blocks(page):
    """The blocks of a page in their order. One that does not say what it is is an error."""
    found, section, mark, block = [], "", None, None
    for number, line in enumerate((FOLDER / f"{page}.md").read_text().splitlines(), 1):
        place = f"docs/guides/{page}.md:{number}"
        if block:
            if line == "```":
                found.append(block)
                block = None
            else:
                block.text += line + "\n"
        elif line.lstrip().startswith("```"):
            language = line.removeprefix("```")
            assert mark or language == "text", f"{place}: no comment says what this block is"
            assert line.startswith("```"), f"{place}: a block is indented"
            kind, more = mark or ("not run", "a picture")
            block, mark = Block(place, section, kind, more, language, ""), None
        else:
            assert not mark, f"{place}: a comment without a block"
            if line.startswith("<!--"):
                mark = MARK.fullmatch(line)
                assert mark, f"{place}: an unknown comment"
                mark = mark[1], mark[2] or ""
                assert mark[0] not in TELLING or mark[1], f"{place}: more is to be said"
                if mark[0] == "stop":
                    found.append(Block(place, section, *mark, "", ""))
                    mark = None
            elif line.startswith("## "):
                section = line.removeprefix("## ")
    assert not block and not mark, f"docs/guides/{page}.md: the last block has no end"
    return found


class GuideCase(RigCase):
    """Runs the page `page`; `go` runs its sections, and looks at what it says between them."""

    page = None
    # What else differs here from the page.
    other = ()
    # Paths of the page, and their folders here. Disks are files.
    places = (
        ("/etc/lamina", "etc"), ("/var/lib/lamina", "lib"), ("/run/lamina", "run"), ("/srv", "srv"), ("/dev/vg0", "vg0"),
    )
    disks = re.compile(r"/dev/(?=(?:sd|nvme|md|drbd|bcache|disk/)[\w/-])")

    def setUp(self):
        super().setUp()
        self.blocks = blocks(self.page)
        self.at, self.printed, self.exports, self.daemons = 0, "", "", {}
        for folder in ("bin", "dev", *(folder for _, folder in self.places)):
            self.rig.path(folder).mkdir()
        self.rig.path("bin/lamina").symlink_to(lamina_binary())

    @limit(300)
    def test_page(self):
        self.go()
        left = [block.place for block in self.blocks[self.at:] if block.kind != "not run"]
        self.assertEqual(left, [], "not run by the test")

    def adapted(self, text):
        """A text of the page as it is here: with other folders, and each GiB a MiB."""
        for old, new in self.other:
            text = text.replace(old, new)
        text = self.disks.sub(f"{self.rig.path('dev')}/", text)
        for old, folder in self.places:
            text = re.sub(rf"(?<![\w/.]){old}\b", str(self.rig.path(folder)), text)
        return re.sub(r"(?<=\d)G(?=iB\b|\b)", "M", text)

    def disk(self, name, gib):
        """A disk of the page, which is a file here."""
        return self.rig.file(f"dev/{name}", gib * MIB)

    def image(self, path, mib, fill=os.urandom):
        """A file of the page with something in it."""
        path = self.rig.path(self.adapted(path))
        path.write_bytes(fill(mib * MIB))
        return path

    def sh(self, text, code=0):
        """Runs commands; what they print."""
        before = f"exec 2>&1\nPATH={self.rig.path('bin')}:$PATH\n{self.exports}"
        done = run("sh", "-ec", before + self.adapted(text), check=False, cwd=self.rig.path(""))
        self.assertEqual(done.returncode, code, f"{text}\n{done.stdout}\n{self.logs()}")
        self.exports += "".join(f"{line}\n" for line in self.adapted(text).splitlines() if line.startswith("export "))
        return done.stdout

    def uri(self, export="vm1", sock=None):
        """The address of an export on the socket of this name."""
        return f"nbd+unix:///{export}?socket={self.rig.path('run')}/{sock or export}.nbd"

    def size(self, *words):
        return int(run("nbdinfo", "--size", self.uri(*words)).stdout)

    def asked(self, *words, code=0):
        """What a command prints that asks the daemon of `vm1`."""
        return self.sh(f"lamina {shlex.join(words)} --control /run/lamina/vm1.ctl.sock", code)

    def info(self, device="vm1"):
        return self.device(device)["info"]

    def device(self, name="vm1"):
        return json.loads(self.asked("ctl", name, "info"))

    def legs(self):
        """What each leg of `vm1` is, by its name."""
        return {leg["device"]: leg["is"] for leg in self.info()["legs"]}

    def at_rest(self):
        """Waits for the end of all jobs."""
        wait_until("the jobs to end", 30, lambda: json.loads(self.asked("jobs", "--json")) == [])

    @contextlib.contextmanager
    def load(self, *words):
        """A client writes to the first 16 MiB, verifies what it wrote, and sees no error."""
        handle = nbd.NBD()
        handle.connect_uri(self.uri(*words))
        handle.zero(16 * MIB, 0)
        handle.shutdown()
        client = self.rig.start("python3", ROOT / "tools/rig/stamps.py", self.uri(*words), 600, name="stamps")
        yield
        self.assertTrue(client.running(), client.output())
        self.assertEqual(client.stop(60), 0, client.output())

    def logs(self):
        return "\n".join(daemon.output() for daemon in self.daemons.values())

    def section(self, name):
        """Runs all blocks of a section, which is the next one."""
        begun = self.at
        while self.at < len(self.blocks) and self.blocks[self.at].section == name:
            self.step(self.blocks[self.at])
            self.at += 1
        self.assertGreater(self.at, begun, f"{name!r} is not the next section of {self.page} with blocks")
        return self.printed

    def step(self, block):
        {
            "run": self.run_, "file": self.file, "serve": self.serve, "stop": self.stop, "prints": self.prints,
            "attach": self.attach, "not run": lambda block: None,
        }[block.kind](block)

    def run_(self, block):
        try:
            self.printed = self.sh(block.text, int(block.more.removeprefix("exit ") or 0))
        except AssertionError as error:
            raise AssertionError(f"{block.place}: {error}") from None

    def file(self, block):
        path = self.rig.path(self.adapted(block.more))
        path.write_text(self.adapted(block.text))

    def serve(self, block):
        *first, last = block.text.replace("\\\n", " ").splitlines()
        self.printed = self.sh("\n".join(first))
        program = shlex.split(self.adapted(last))
        self.assertEqual(program[:2], ["lamina", "serve"], block.place)
        self.assertFalse(any(daemon.running() for name, daemon in self.daemons.items() if name == program[2]), block.place)
        self.begin(program[2:])

    def begin(self, words):
        """Starts a daemon, with the words after `lamina serve`, and waits until it serves."""
        self.daemons[words[0]] = self.rig.start(lamina_binary(), "serve", *words, name=f"serve-{self.at}")
        self.daemons[words[0]].wait_for("ready\n", 20)

    def again(self):
        """Starts the only daemon again, as it was started."""
        [daemon] = self.daemons.values()
        self.begin(daemon.argv[2:])

    def stop(self, block):
        """Ends the daemon of a file, or the only one."""
        running = {name: daemon for name, daemon in self.daemons.items() if daemon.running()}
        name = self.adapted(block.more) if block.more else next(iter(running))
        self.assertTrue(block.more or len(running) == 1, block.place)
        self.assertEqual(running[name].stop(40), 0, running[name].output())

    def prints(self, block):
        """The lines stand in this order in what was printed."""
        rest = self.printed
        for line in self.adapted(block.text).splitlines():
            pattern = ".*".join(r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in line.split("…"))
            found = re.search(rf"(?m)^\s*{pattern}\s*$", rest)
            self.assertTrue(found, f"{block.place}: {line!r} was not printed:\n{self.printed}\n{self.logs()}")
            rest = rest[found.end():]

    def attach(self, block):
        """A test that has such blocks says what is done with them."""
        self.fail(f"{block.place}: nothing is done with it")
