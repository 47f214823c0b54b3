"""Encryption: what `cryptsetup` made is served, what Lamina made `cryptsetup` opens, and neither loses a byte.

`cryptsetup` encrypts and decrypts whole files in place (`reencrypt --encrypt`, `--decrypt`) without device-mapper, so
that the data is checked by another implementation, in both directions."""

import json
import os
import random
import time

import nbd

from common import KILLS_CHANGE, MIB, RigCase, limit
from rig import Lamina, lamina_binary, run

KEY = b"a key file\nwith two lines\0and a zero"
# How often the daemon is killed during one.
KEY_CHANGES = max(KILLS_CHANGE, 20)
# Cheap enough for a test, both here and there.
CHEAP = ("--pbkdf", "argon2id", "--pbkdf-force-iterations", "4", "--pbkdf-memory", "32768")


def cryptsetup(*words, check=True, stdin=None):
    return run("cryptsetup", "--batch-mode", *words, check=check, seconds=100, stdin=stdin)


def vault(keys='key-file = "key"', size="64MiB", header=False):
    """The volume `vault` over a file, exported on nbd.sock; with `header`, its LUKS header is on a file of its own."""
    extra = '[device.header]\ntype = "file"\npath = "header.img"\nsize = "16MiB"\n' if header else ""
    if header:
        keys += '\nmetadata = "header"'
    return f"""\
[device.disk]
type = "file"
path = "disk.img"
size = "{size}"

{extra}
[device.vault]
type = "crypt"
over = "disk"
kdf-memory = "32MiB"
{keys}

[export.vault]
device = "vault"
nbd = "unix:nbd.sock"
"""


class Crypt(RigCase):
    def setUp(self):
        super().setUp()
        self.disk, self.header = self.rig.path("disk.img"), self.rig.path("header.img")
        self.key = self.secret("key", KEY)

    def secret(self, name, secret):
        path = self.rig.path(name)
        path.write_bytes(secret)
        return path

    def handle(self, lamina):
        handle = nbd.NBD()
        handle.connect_uri(lamina.uri("vault"))
        return handle

    def write(self, lamina, at, data):
        handle = self.handle(lamina)
        handle.pwrite(data, at)
        handle.flush()
        handle.shutdown()

    def read(self, lamina, at, length):
        handle = self.handle(lamina)
        data = handle.pread(length, at)
        handle.shutdown()
        return data

    def opens(self, key):
        """Whether a key file opens the volume, by cryptsetup: a copy, since who serves the disk has it locked."""
        copy = self.rig.path("copy.img")
        with open(self.disk, "rb") as disk:
            copy.write_bytes(disk.read(17 * MIB))
        done = cryptsetup("open", "--test-passphrase", "--key-file", key, copy, check=False)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return done.returncode == 0

    def decrypted(self, *more):
        """The data of the volume, by cryptsetup. The disk is plain afterwards."""
        header = self.rig.path("exported.img") if not more else more[0]
        cryptsetup("reencrypt", "--decrypt", "--force-offline-reencrypt", "--header", header, "--key-file", self.key,
                   self.disk)
        return self.disk.read_bytes()

    def ctl(self, lamina, *words, check=True):
        return run(lamina_binary(), "ctl", "--control", lamina.control, "vault", *words, check=check, seconds=60)

    def encrypted_by_cryptsetup(self, *options):
        """Random data, encrypted in place."""
        data = random.Random(7).randbytes(8 * MIB)
        self.disk.write_bytes(data)
        os.truncate(self.disk, 40 * MIB)
        cryptsetup("reencrypt", "--encrypt", "--type", "luks2", "--reduce-device-size", "32M", "--key-file", self.key,
                   *options, self.disk)
        return data

    @limit(200)
    def test_what_cryptsetup_encrypted_is_served_and_what_is_written_it_decrypts(self):
        for options in (
            ("--sector-size", "512", *CHEAP),
            ("--sector-size", "4096", *CHEAP),
            ("--pbkdf", "pbkdf2", "--hash", "sha512", "--pbkdf-force-iterations", "5000"),
        ):
            with self.subTest(options=options):
                self.rig.path("exported.img").unlink(missing_ok=True)
                data = bytearray(self.encrypted_by_cryptsetup(*options))
                lamina = Lamina(self.rig, vault(size="40MiB"))
                self.assertEqual(self.read(lamina, 0, 8 * MIB), bytes(data))
                for at, length in ((0, 4096), (MIB, 3 * MIB), (8 * MIB - 8192, 8192)):
                    data[at:at + length] = random.Random(at).randbytes(length)
                    self.write(lamina, at, bytes(data[at:at + length]))
                self.assertEqual(lamina.stop(), 0, lamina.log())
                self.assertEqual(self.decrypted()[:8 * MIB], bytes(data))

    @limit(120)
    def test_the_defaults_of_luksFormat_open(self):
        os.truncate(os.open(self.disk, os.O_CREAT | os.O_RDWR), 64 * MIB)
        cryptsetup("luksFormat", self.disk, self.key)
        lamina = Lamina(self.rig, vault(), start=False).start(seconds=60)
        data = random.Random(1).randbytes(MIB)
        self.write(lamina, 5 * MIB, data)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertEqual(self.decrypted()[5 * MIB:6 * MIB], data)

    def test_what_is_made_here_cryptsetup_opens_and_decrypts(self):
        for sector in (512, 4096):
            with self.subTest(sector=sector):
                self.disk.unlink(missing_ok=True)
                self.rig.path("exported.img").unlink(missing_ok=True)
                lamina = Lamina(self.rig, vault(f'key-file = "key"\nformat = true\nsector-size = {sector}'))
                data = random.Random(sector).randbytes(3 * MIB)
                self.write(lamina, MIB, data)
                self.assertEqual(self.read(lamina, MIB, 3 * MIB), data)
                self.assertEqual(lamina.stop(), 0, lamina.log())
                self.assertNotIn(data[:4096], self.disk.read_bytes())
                dump = cryptsetup("luksDump", self.disk).stdout
                for words in ("aes-xts-plain64", "argon2id", f"sector: {sector} [bytes]", "offset: 16777216"):
                    self.assertIn(words, dump)
                self.assertTrue(self.opens(self.key))
                # A keyslot of cryptsetup's opens here.
                other = self.secret("other", b"another one")
                cryptsetup("luksAddKey", "--key-file", self.key, *CHEAP, self.disk, other)
                lamina = Lamina(self.rig, vault('key-file = "other"'))
                self.assertEqual(self.read(lamina, MIB, 3 * MIB), data)
                self.assertEqual(lamina.stop(), 0, lamina.log())
                self.assertEqual(self.decrypted()[MIB:4 * MIB], data)

    def test_a_header_of_its_own(self):
        os.truncate(os.open(self.disk, os.O_CREAT | os.O_RDWR), 32 * MIB)
        cryptsetup("luksFormat", *CHEAP, "--header", self.header, self.disk, self.key)
        lamina = Lamina(self.rig, vault(size="32MiB", header=True))
        data = random.Random(3).randbytes(MIB)
        self.write(lamina, 0, data)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertEqual(self.decrypted(self.header)[:MIB], data)

    def test_a_header_of_its_own_made_here(self):
        lamina = Lamina(self.rig, vault('key-file = "key"\nformat = true', size="32MiB", header=True))
        data = random.Random(4).randbytes(MIB)
        self.write(lamina, 31 * MIB, data)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertEqual(self.decrypted(self.header)[31 * MIB:], data)

    def test_a_destroyed_header_comes_back_from_its_backup(self):
        lamina = Lamina(self.rig, vault('key-file = "key"\nformat = true', size="32MiB"))
        data = random.Random(7).randbytes(MIB)
        self.write(lamina, 0, data)
        self.ctl(lamina, "header-backup", "to=header.img")
        for wrong, words in (("header.img", "is there already"), ("none/header.img", "to: ")):
            refused = self.ctl(lamina, "header-backup", f"to={wrong}", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(words, refused.stderr)
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertEqual(self.header.stat().st_mode & 0o777, 0o600)
        theirs = self.rig.path("theirs.img")
        cryptsetup("luksHeaderBackup", self.disk, "--header-backup-file", theirs)
        self.assertEqual(self.header.read_bytes(), theirs.read_bytes())
        with open(self.disk, "r+b") as disk:
            disk.write(b"\x55" * (16 * MIB))
        # Beside the device, where nothing has to be written, and put back by the other program.
        beside = Lamina(self.rig, vault(size="32MiB", header=True))
        self.assertEqual(self.read(beside, 0, MIB), data)
        self.assertEqual(beside.stop(), 0, beside.log())
        cryptsetup("luksHeaderRestore", self.disk, "--header-backup-file", self.header)
        lamina.file.write_text(vault(size="32MiB"))
        lamina.start()
        self.assertEqual(self.read(lamina, 0, MIB), data)
        self.assertEqual(lamina.stop(), 0, lamina.log())

    def test_with_a_damaged_first_copy_the_second_is_used_and_said_so(self):
        data = self.encrypted_by_cryptsetup(*CHEAP)
        with open(self.disk, "r+b") as disk:
            disk.write(bytes(4096))
        lamina = Lamina(self.rig, vault(size="40MiB"))
        self.assertEqual(self.read(lamina, 0, MIB), data[:MIB])
        self.assertIn("the first copy of the LUKS header is not used", lamina.log())
        self.assertIn("the second copy is used", lamina.device("vault")["info"]["header"])
        # The next change of a keyslot repairs it.
        self.secret("new", b"new")
        self.ctl(lamina, "keyslot-add", "key-file=new")
        self.assertEqual(lamina.device("vault")["info"]["header"], "both copies are whole")
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertTrue(self.opens(self.key))
        self.assertTrue(self.opens(self.rig.path("new")))

    def test_keys_change_while_clients_work_and_secrets_stay_secret(self):
        lamina = Lamina(self.rig, vault('passphrase-file = "passphrase"\nformat = true', size="64MiB"), start=False)
        self.secret("passphrase", b"correct horse battery staple\n")
        new = self.secret("new", b"an even better one")
        lamina.start()
        handle = self.handle(lamina)
        handle.pwrite(b"x" * 4096, 0)
        handle.flush()
        stored = self.disk.read_bytes()[16 * MIB:]
        answers = [self.ctl(lamina, "key-change", "key-file=new"), self.ctl(lamina, "keyslots")]
        self.assertEqual(json.loads(answers[0].stdout), {"keyslot": 1, "removed": 0})
        self.assertEqual(handle.pread(4096, 0), b"x" * 4096)
        # No data was written again.
        self.assertEqual(self.disk.read_bytes()[16 * MIB:], stored)
        said = "".join(answer.stdout + answer.stderr for answer in answers)
        said += lamina.log() + json.dumps(lamina.show()) + lamina.get("/metrics")
        for secret in ("correct horse", "even better"):
            self.assertNotIn(secret, said)
        handle.shutdown()
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertTrue(self.opens(new))
        old = self.secret("old", b"correct horse battery staple")
        self.assertFalse(self.opens(old))
        lamina.file.write_text(vault('passphrase-file = "passphrase"'))
        done = run(lamina_binary(), "serve", lamina.file, check=False, seconds=20)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("wrong key", done.stderr)
        self.assertIn("passphrase-file", done.stderr)

    def test_a_member_of_a_persistent_hierarchy(self):
        text = "[hierarchy]\nname = \"safe\"\n\n" + vault()
        lamina = Lamina(self.rig, text, start=False)
        run(lamina_binary(), "create", lamina.file)
        lamina.start()
        data = random.Random(5).randbytes(MIB)
        self.write(lamina, 7 * MIB, data)
        # The key changes; the file, and with it every member, names the new one from now on. A client does not notice.
        handle, other = self.handle(lamina), self.secret("other", b"another key")
        self.ctl(lamina, "key-change", "key-file=other")
        lamina.file.write_text(text.replace('"key"', '"other"'))
        run(lamina_binary(), "apply", lamina.file, "--control", lamina.control)
        self.assertEqual(handle.pread(MIB, 7 * MIB), data)
        handle.shutdown()
        self.assertEqual(lamina.stop(), 0, lamina.log())
        self.assertEqual(lamina.start().stop(), 0, lamina.log())
        self.key = other
        # Nothing is said of the key but where it is.
        inside = self.disk.read_bytes()
        self.assertNotIn(KEY, inside)
        start = inside.index(b"LUKS\xba\xbe")
        self.disk.write_bytes(inside[start:len(inside) - 64 * 1024])
        self.assertEqual(self.decrypted()[7 * MIB:8 * MIB], data)

    def test_what_is_there_is_never_made_into_a_volume(self):
        self.disk.write_bytes(bytes(MIB) + b"something" + bytes(64 * MIB - MIB - 9))
        before = self.disk.read_bytes()
        lamina = Lamina(self.rig, vault('key-file = "key"\nformat = true'), start=False)
        done = run(lamina_binary(), "serve", lamina.file, check=False, seconds=20)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("there is something on", done.stderr)
        self.assertEqual(self.disk.read_bytes(), before)

    @limit(100 + 6 * KEY_CHANGES)
    def test_killed_at_any_moment_of_a_key_change(self):
        lamina = Lamina(self.rig, vault('key-file = "key"\nformat = true'))
        data = random.Random(6).randbytes(MIB)
        self.write(lamina, 0, data)
        keys, draw, met = ["key", "new"], random.Random(11), [0, 0]
        self.secret("new", b"a new key")

        def changed(key):
            """Seconds that a change takes that nobody interrupts."""
            begin = time.monotonic()
            self.ctl(lamina, "key-change", f"key-file={key}")
            return time.monotonic() - begin
        took = changed("new")
        keys.reverse()
        # On a busy machine a change takes less than the one before it more often: then there are more kills.
        enough, kills = KEY_CHANGES * 3 // 5, 0
        while kills < KEY_CHANGES or met[0] < enough and kills < 2 * KEY_CHANGES:
            n, kills = kills, kills + 1
            change = self.rig.start(lamina_binary(), "ctl", "--control", lamina.control, "vault", "key-change",
                                    f"key-file={keys[1]}", name="change")
            # Most of it is spent on the new key, and nothing is written before the end: every other time there.
            time.sleep(took * (draw.random() if n % 2 else 0.7 + 0.3 * draw.random()))
            met[0] += change.running()
            lamina.kill()
            change.wait(20)
            good = [key for key in keys if self.opens(self.rig.path(key))]
            self.assertTrue(good, "no key opens it")
            # Both do, or only the new one, or nothing had been done.
            met[1] += good != keys[:1]
            # What is given again is done; the old one then opens nothing.
            lamina.file.write_text(vault(f'key-file = "{good[0]}"'))
            lamina.start()
            self.assertEqual(self.read(lamina, 0, MIB), data)
            other = keys[1 - keys.index(good[0])]
            took = changed(other)
            self.assertFalse(self.opens(self.rig.path(good[0])))
            keys = [other, good[0]]
        print(f"        {kills} kills, {met[0]} of them before the command had ended, {met[1]} when something was written")
        self.assertGreaterEqual(met[0], enough)
