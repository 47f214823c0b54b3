"""Certificates that hosts show to each other, of GnuTLS's making."""

from .process import run


class Authority:
    """A certificate authority, with its files in a folder of the rig."""

    def __init__(self, rig, name="pki"):
        self.name, self._folder = name, rig.path(name)
        self._folder.mkdir()
        key = self._key("ca")
        run("certtool", "--generate-self-signed", "--load-privkey", key, "--outfile", self._folder / "ca-cert.pem",
            "--template", self._template("ca", f'cn = "{name}"\nca\ncert_signing_key\n'))

    def issue(self, host):
        """A certificate for the name of a host, which is a client and a server of others."""
        roles = "tls_www_server\ntls_www_client\nsigning_key\n"
        run("certtool", "--generate-certificate", "--load-privkey", self._key(host),
            "--load-ca-certificate", self._folder / "ca-cert.pem", "--load-ca-privkey", self._folder / "ca-key.pem",
            "--template", self._template(host, f'cn = "a host"\ndns_name = "{host}"\n{roles}'),
            "--outfile", self._folder / f"{host}-cert.pem")
        return self

    def keys(self, host, trusts=None):
        """The table `tls` of a host that has been issued a certificate, and trusts this authority, or another one."""
        return {
            "ca": f"{(trusts or self).name}/ca-cert.pem",
            "certificate": f"{self.name}/{host}-cert.pem",
            "key": f"{self.name}/{host}-key.pem",
        }

    def _key(self, who):
        path = self._folder / f"{who}-key.pem"
        run("certtool", "--generate-privkey", "--key-type=ed25519", "--outfile", path)
        return path

    def _template(self, who, text):
        path = self._folder / f"{who}.tmpl"
        path.write_text(f"{text}expiration_days = 2\n")
        return path
