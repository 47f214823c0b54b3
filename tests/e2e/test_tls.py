"""TLS with client certificates, by certificates of GnuTLS's making and clients that use GnuTLS."""

import json
import os
import shutil
import socket

import nbd

from common import RigCase, memory
from rig import Lamina, run, wait_until

TEMPLATES = {
    "ca": 'cn = "Lamina test CA"\nca\ncert_signing_key\n',
    "server": 'cn = "localhost"\ndns_name = "localhost"\nip_address = "127.0.0.1"\ntls_www_server\nsigning_key\nencryption_key\n',
    "client": 'cn = "a client"\ntls_www_client\nsigning_key\nencryption_key\n',
}


def reserved():
    """A socket with a port that nobody else is given while it is open. A server may listen there: it reuses addresses, as
    this one allows from when it has its port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


class Tls(RigCase):
    def setUp(self):
        super().setUp()
        self.authority("pki")
        place = reserved()
        self.addCleanup(place.close)
        self.port = place.getsockname()[1]
        keys = f"""
tls = {{ certificate = "pki/server-cert.pem", key = "pki/server-key.pem", client-ca = "pki/ca-cert.pem" }}
"""
        self.lamina = Lamina(self.rig, memory(keys=keys).replace("unix:nbd.sock", f"tcp:127.0.0.1:{self.port}"))

    def authority(self, name):
        """A folder with a certificate authority, a server's certificate and a client's."""
        folder = self.rig.path(name)
        folder.mkdir()
        for who, template in TEMPLATES.items():
            key, cert = folder / f"{who}-key.pem", folder / f"{who}-cert.pem"
            (folder / f"{who}.tmpl").write_text(template + "expiration_days = 2\n")
            run("certtool", "--generate-privkey", "--key-type=rsa", "--bits=2048", "--outfile", key)
            common = ["--load-privkey", key, "--template", folder / f"{who}.tmpl", "--outfile", cert]
            if who == "ca":
                run("certtool", "--generate-self-signed", *common)
            else:
                run(
                    "certtool", "--generate-certificate", "--load-ca-certificate", folder / "ca-cert.pem",
                    "--load-ca-privkey", folder / "ca-key.pem", *common,
                )
        return folder

    def uri(self, folder):
        return f"nbds://localhost:{self.port}/m?tls-certificates={self.rig.path(folder)}"

    def test_client_with_a_certificate(self):
        answer = json.loads(run("nbdinfo", "--json", self.uri("pki")).stdout)
        self.assertTrue(answer["TLS"])
        self.assertEqual(answer["exports"][0]["export-size"], 64 << 20)

    def test_data_both_ways(self):
        source = self.rig.file("source", 64 << 20, lambda size: b"lamina-tls-data!" * (size // 16))
        run("nbdcopy", source, self.uri("pki"))
        run("nbdcopy", self.uri("pki"), self.rig.path("back"))
        run("cmp", source, self.rig.path("back"))

    def test_qemu_with_a_certificate(self):
        answer = run(
            "qemu-img", "info", "--object", f"tls-creds-x509,id=tls0,dir={self.rig.path('pki')},endpoint=client",
            "--image-opts", f"driver=nbd,host=localhost,port={self.port},export=m,tls-creds=tls0",
        ).stdout
        self.assertIn("64 MiB", answer)

    def renew(self, files):
        """Gives the files of `pki` the contents of those in `other`, each at once."""
        for file in files:
            shutil.copy(self.rig.path(f"other/{file}"), self.rig.path("new"))
            os.replace(self.rig.path("new"), self.rig.path(f"pki/{file}"))

    def test_renewed_certificates_are_in_use_without_a_restart(self):
        self.authority("other")
        early = nbd.NBD()
        early.set_uri_allow_local_file(True)
        early.connect_uri(self.uri("pki"))
        self.refused("nbdinfo", self.uri("other"))
        # The key is still that of before: so the certificate of before stays in use.
        self.renew(["server-cert.pem"])
        wait_until("a warning", 20, lambda: "changed certificates cannot be used" in self.lamina.proc.output())
        run("nbdinfo", self.uri("pki"))
        self.renew(["server-key.pem", "ca-cert.pem"])
        wait_until("the new ones to be in use", 20, lambda: run("nbdinfo", self.uri("other"), check=False).returncode == 0)
        # Its authority is none any more.
        self.assertNotEqual(run("nbdinfo", self.uri("pki"), check=False).returncode, 0)
        self.assertEqual(len(early.pread(4096, 0)), 4096)
        early.shutdown()

    def refused(self, *command):
        done = run(*command, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        # And the server is well.
        run("nbdinfo", self.uri("pki"))

    def test_client_without_a_certificate_is_refused(self):
        bare = self.rig.path("bare")
        bare.mkdir()
        (bare / "ca-cert.pem").write_text(self.rig.path("pki/ca-cert.pem").read_text())
        self.refused("nbdinfo", self.uri("bare"))

    def test_client_of_another_authority_is_refused(self):
        other = self.authority("other")
        # It trusts our server, but is signed by somebody else.
        (other / "ca-cert.pem").write_text(self.rig.path("pki/ca-cert.pem").read_text())
        self.refused("nbdinfo", self.uri("other"))

    def test_client_without_tls_is_refused(self):
        self.refused("nbdinfo", f"nbd://localhost:{self.port}/m")
        self.refused("nbdinfo", "--list", f"nbd://localhost:{self.port}")

    def test_our_client_with_a_certificate(self):
        """nbdkit as the server, which wants to know its client; our sink in front of it."""
        sock = self.rig.path("peer.sock")
        self.rig.listen(
            sock, "nbdkit", "-f", "-U", sock, "--tls=require", f"--tls-certificates={self.rig.path('pki')}",
            "--tls-verify-peer", "memory", "64M",
        )
        front = Lamina(self.rig, """\
[device.remote]
type = "nbd"
address = "unix:peer.sock"
tls = { ca = "pki/ca-cert.pem", certificate = "pki/client-cert.pem", key = "pki/client-key.pem", name = "localhost" }

[export.front]
device = "remote"
nbd = "unix:front.sock"
""", name="front")
        source = self.rig.file("source", 64 << 20, lambda size: b"lamina-tls-data!" * (size // 16))
        run("nbdcopy", source, front.uri("front", "front.sock"))
        run("nbdcopy", front.uri("front", "front.sock"), self.rig.path("back"))
        run("cmp", source, self.rig.path("back"))
