"""Certificates for the hosts whose tunnels a forward proxy opens, signed by an authority that is
made for one run.

    with temporary_authority(os.environ) as authority:
        authority.environment       variables by which programs trust it
        authority.context(host)     TLS in the name of a host

Private keys stay in memory. The folder with the certificates is removed at the end, and they are
valid for a day.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from anaphora.errors import InvalidRequest

#: Variables that name a file of trusted certificates, and are set for the program.
_TRUSTED = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
#: The same, but without them programs read other files: changed only if the user has set them.
_OWN_FILES = ("CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO", "DENO_CERT")
#: Its certificates are added to Node's own.
_ADDED = frozenset({"NODE_EXTRA_CA_CERTS", "DENO_CERT"})
#: Where systems keep their root certificates, for a Python that has no file of its own.
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_DAY = datetime.timedelta(days=1)
#: Clocks of containers may be slow.
_EARLIER = datetime.timedelta(hours=1)
_NAME = "Anaphora proxy of this run"


class Authority:
    """Signs certificates until it is closed."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self._began = datetime.datetime.now(datetime.UTC)
        self._key, self._host_key = _new_key(), _new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
        self._certificate = (
            self._builder(subject, subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.environment = self._written(environ)

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """TLS with a certificate for that name; only HTTP/1.1 is offered."""
        found = self._contexts.get(host)
        if found is None:
            found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            found.set_alpn_protocols(["http/1.1"])
            key = self._host_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            # OpenSSL reads files only.
            with _readable(self._signed(host)) as chain, _readable(key) as secret:
                found.load_cert_chain(chain, secret)
            self._contexts[host] = found
        return found

    def _signed(self, host: str) -> bytes:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            self._builder(name, self._certificate.subject, self._host_key)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=not host)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return signed.public_bytes(serialization.Encoding.PEM)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._began - _EARLIER)
            .not_valid_after(self._began + _DAY)
            .add_extension(identifier, critical=False)
        )

    def _written(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables, each with a file that contains this certificate and those that the program
        trusts otherwise."""
        made: dict[str, str] = {}
        for name in (*_TRUSTED, *(one for one in _OWN_FILES if environ.get(one))):
            trusted = b"" if name in _ADDED else system_roots()
            if environ.get(name):
                trusted = _read(Path(environ[name]), name)
            file = self.folder / f"{name.lower()}.pem"
            file.write_bytes(trusted.rstrip() + b"\n" + self.certificate)
            made[name] = str(file)
        return made


@contextlib.contextmanager
def temporary_authority(environ: Mapping[str, str]) -> Iterator[Authority]:
    """An authority until the block ends. `environ` is the program's environment."""
    if sys.platform == "win32":
        raise InvalidRequest("a forward proxy needs Linux or macOS")
    with tempfile.TemporaryDirectory(prefix="anaphora-proxy-") as folder:
        yield Authority(Path(folder), environ)


def system_roots() -> bytes:
    """The certificates that this system trusts, in one file."""
    files = [ssl.get_default_verify_paths().cafile, *_SYSTEM_FILES]
    found = next((Path(one) for one in files if one and os.path.isfile(one)), None)
    if found is None:
        reason = "found no file with this system's root certificates; name one in SSL_CERT_FILE"
        raise InvalidRequest(reason)
    return _read(found, "root certificates")


def _read(file: Path, name: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise InvalidRequest(f"{name}: cannot read {file}: {reason}") from None


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[str]:
    """A path from which the data can be read once, without writing it to disk."""
    reading, writing = os.pipe()
    try:
        # Smaller than a pipe's buffer, so the write does not block.
        with open(writing, "wb") as pipe:
            pipe.write(data)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
