"""Passphrases that a person types at a terminal: of `ask-passphrase`, and of `lamina ctl`."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import termios
import time

from common import MIB, RigCase
from rig import Lamina, lamina_binary, run
from rig.process import PATIENCE, Timeout, end_with_parent, environment
from test_crypt import cryptsetup, vault

ASKED = "ask-passphrase = true"
PASSPHRASE = "correct horse battery"


class AtTerminal:
    """A program at a terminal of its own, where a person types."""

    def __init__(self, *argv):
        self.side, self.terminal = os.openpty()
        self.before = termios.tcgetattr(self.terminal)
        self.seen, self.read_to = "", 0

        def take_terminal():
            end_with_parent()
            fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
        self.child = subprocess.Popen(
            [str(arg) for arg in argv], stdin=self.terminal, stdout=self.terminal, stderr=self.terminal,
            env=environment(), start_new_session=True, preexec_fn=take_terminal,
        )

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        os.close(self.side)
        os.close(self.terminal)

    def look(self, seconds=0.05):
        """Takes in what the terminal shows."""
        if select.select([self.side], [], [], seconds)[0]:
            self.seen += os.read(self.side, 65536).decode(errors="replace")

    def wait_for(self, text, seconds=20):
        """Waits until the terminal shows this text, after what was waited for before."""
        deadline = time.monotonic() + seconds * PATIENCE
        while text not in self.seen[self.read_to:]:
            if time.monotonic() > deadline or self.child.poll() is not None and not self.pending():
                raise Timeout(f"{text!r}: not in {self.seen!r}")
            self.look()
        self.read_to = self.seen.index(text, self.read_to) + len(text)

    def pending(self):
        before = len(self.seen)
        self.look()
        return len(self.seen) > before

    def answer(self, prompt, line):
        """Types a line when the terminal shows this prompt, and what is typed is not shown."""
        self.wait_for(prompt)
        assert not self.shows()
        os.write(self.side, line.encode() + b"\n")

    def shows(self):
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self.terminal)[3] & termios.ECHO)

    def end(self, seconds=30):
        """The exit code, when the program has ended."""
        deadline = time.monotonic() + seconds * PATIENCE
        while self.child.poll() is None:
            if time.monotonic() > deadline:
                raise Timeout(f"it has not ended: {self.seen!r}")
            self.look()
        while self.pending():
            pass
        return self.child.returncode

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        return self.end()


class Passphrases(RigCase):
    def setUp(self):
        super().setUp()
        self.disk = self.rig.path("disk.img")

    def at_terminal(self, *argv):
        program = AtTerminal(lamina_binary(), *argv)
        self.addCleanup(program.close)
        return program

    def daemon(self, hierarchy, **more):
        return Lamina(self.rig, hierarchy, start=False, **more)

    def serve(self, lamina):
        return self.at_terminal("serve", lamina.file, "--control", lamina.control)

    def opens(self, passphrase):
        """Whether a passphrase opens the volume, by cryptsetup, of a copy: the disk is locked while it is served."""
        inside = self.disk.read_bytes()
        start = inside.index(b"LUKS\xba\xbe")
        copy = self.rig.path("copy.img")
        copy.write_bytes(inside[start:start + 17 * MIB])
        done = cryptsetup("open", "--test-passphrase", copy, check=False, stdin=passphrase + "\n")
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return done.returncode == 0

    def assert_restored(self, program):
        self.assertEqual(termios.tcgetattr(program.terminal), program.before)

    def test_a_hierarchy_is_made_and_served_with_a_typed_passphrase(self):
        lamina = self.daemon('[hierarchy]\nname = "safe"\n\n' + vault(ASKED))
        made = self.at_terminal("create", lamina.file)
        made.answer(f"New passphrase of device vault ({lamina.file}): ", PASSPHRASE)
        made.answer(f"Once more, the passphrase of device vault ({lamina.file}): ", PASSPHRASE)
        self.assertEqual(made.end(), 0, made.seen)
        self.assertEqual(made.seen.count("Once more"), 1, "it asks once, however often it opens the volume")
        self.assert_restored(made)
        self.assertTrue(self.opens(PASSPHRASE))
        self.assertFalse(self.opens("wrong"))

        served = self.serve(lamina)
        served.answer(f"Passphrase of device vault ({lamina.file}): ", "wrong")
        served.answer("Wrong. Passphrase of device vault (", PASSPHRASE)
        served.wait_for("ready")
        self.assert_restored(served)
        said = json.dumps(lamina.show()) + lamina.get("/metrics") + json.dumps(lamina.get("/v1/events"))
        self.assertEqual(served.stop(), 0, served.seen)
        self.assertNotIn("horse", made.seen + served.seen + said)

        checked = self.at_terminal("check", "--metadata", lamina.file)
        checked.answer("Passphrase of device vault (", PASSPHRASE)
        self.assertEqual(checked.end(), 0, checked.seen)
        measured = self.at_terminal("bench", lamina.file, "--time", "200ms", "--ramp", "0s")
        measured.answer("Passphrase of device vault (", PASSPHRASE)
        self.assertEqual(measured.end(), 0, measured.seen)
        # Carried by the members as well, and asked for by another name of the file.
        assembled = self.at_terminal("assemble", "--serve", "--trust", self.disk, "--control", lamina.control)
        for prompt in ("Passphrase of device vault (", "Wrong. Passphrase", "Wrong. Passphrase"):
            assembled.answer(prompt, "wrong")
        self.assertEqual(assembled.end(), 2, assembled.seen)
        self.assertIn("ask-passphrase\": wrong key: the passphrase does not open the only keyslot", assembled.seen)

    def test_two_new_passphrases_that_differ_make_no_volume(self):
        lamina = self.daemon(vault(ASKED + "\nformat = true"))
        served = self.serve(lamina)
        served.answer("New passphrase of device vault (", PASSPHRASE)
        served.answer("Once more, ", PASSPHRASE + "!")
        self.assertEqual(served.end(), 2, served.seen)
        self.assertIn("the two answers differ", served.seen)
        self.assertEqual(self.disk.read_bytes().strip(b"\0"), b"")

    def test_a_question_that_is_not_answered_leaves_the_terminal_as_it_was(self):
        lamina = self.daemon('[hierarchy]\nname = "safe"\n\n' + vault(ASKED))
        made = self.at_terminal("create", lamina.file)
        made.answer("New passphrase of device vault (", "half of it\x03")
        self.assertEqual(made.end(), -signal.SIGINT)
        self.assert_restored(made)
        lamina = self.daemon(vault(ASKED + "\nformat = true"))
        for end in ("\x03", None):
            served = self.serve(lamina)
            served.wait_for("New passphrase of device vault (")
            served.wait_for("): ")
            if end:
                os.write(served.side, end.encode())
            else:
                served.child.send_signal(signal.SIGTERM)
            self.assertEqual(served.end(), 0, served.seen)
            self.assert_restored(served)

    def test_without_a_terminal_the_advice_of_the_error_leads_on(self):
        lamina = self.daemon(vault(ASKED + "\nformat = true"))
        done = run(lamina_binary(), "serve", lamina.file, check=False, seconds=20)
        self.assertEqual(done.returncode, 2, done.stderr)
        for words in ('key "ask-passphrase"', "there is no terminal", 'write passphrase-file = "PATH"'):
            self.assertIn(words, done.stderr)
        self.rig.write("typed", PASSPHRASE + "\n").chmod(0o600)
        lamina.file.write_text(lamina.file.read_text().replace(ASKED, 'passphrase-file = "typed"'))
        self.assertEqual(lamina.start().stop(), 0, lamina.log())
        # And back, for a start at a terminal.
        lamina.file.write_text(vault(ASKED))
        served = self.serve(lamina)
        served.answer("Passphrase of device vault (", PASSPHRASE)
        served.wait_for("ready")
        self.assertEqual(served.stop(), 0, served.seen)

    def test_a_daemon_that_serves_asks_for_nothing(self):
        lamina = self.daemon('[hierarchy]\nname = "safe"\n\n[device.first]\ntype = "file"\npath = "first.img"\nsize = "8MiB"\n')
        before = lamina.file.read_text()
        run(lamina_binary(), "create", lamina.file)
        served = self.serve(lamina)
        served.wait_for("ready")

        def apply(keys):
            lamina.file.write_text(before + vault(keys))
            return run(lamina_binary(), "apply", lamina.file, "--control", lamina.control, check=False)
        refused = apply(ASKED)
        self.assertNotEqual(refused.returncode, 0)
        for words in ("a daemon that serves asks for nothing", 'write passphrase-file = "PATH"', "can come back"):
            self.assertIn(words, refused.stderr)
        self.rig.write("typed", PASSPHRASE + "\n").chmod(0o600)
        applied = apply('passphrase-file = "typed"')
        self.assertEqual(applied.returncode, 0, applied.stderr)
        self.assertEqual(served.stop(), 0, served.seen)
        self.assertNotIn("assphrase of device", served.seen)
        lamina.file.write_text(before + vault(ASKED))
        served = self.serve(lamina)
        served.answer("Passphrase of device vault (", PASSPHRASE)
        served.wait_for("ready")
        self.assertEqual(served.stop(), 0, served.seen)

    def test_a_keyslot_gets_a_typed_passphrase_that_is_logged_nowhere(self):
        lamina = self.daemon(vault('key-file = "key"\nformat = true'), arguments=["--log", "debug"])
        self.rig.write("key", "a key").chmod(0o600)
        lamina.start()

        def ctl(*words):
            return self.at_terminal("ctl", "--control", lamina.control, "vault", *words)
        for command, passphrase in (("keyslot-add", PASSPHRASE), ("key-change", PASSPHRASE + " staple")):
            told = ctl(command, "passphrase")
            told.answer("New passphrase of device vault: ", passphrase)
            told.answer("Once more, the passphrase of device vault: ", passphrase)
            self.assertEqual(told.end(), 0, told.seen)
            self.assertNotIn("horse", told.seen)
            self.assertTrue(self.opens(passphrase))
        differ = ctl("keyslot-add", "passphrase")
        differ.answer("New passphrase", "one")
        differ.answer("Once more", "two")
        self.assertEqual((differ.end(), "the two answers differ" in differ.seen), (1, True), differ.seen)
        seen = run(lamina_binary(), "ctl", "--control", lamina.control, "vault", "keyslot-add", f"passphrase={PASSPHRASE}",
                   check=False)
        self.assertEqual(seen.returncode, 2)
        self.assertIn("write passphrase alone", seen.stderr)
        nobody = run(lamina_binary(), "ctl", "--control", lamina.control, "vault", "keyslot-add", "passphrase", check=False)
        self.assertIn("there is no terminal", nobody.stderr)
        events = json.dumps(lamina.get("/v1/events"))
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertIn("***", lamina.log())
        self.assertIn("keyslot-add", events)
        self.assertNotIn("horse", lamina.log() + events)
