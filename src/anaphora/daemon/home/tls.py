"""The daemon's certificate, read again when its files change, and its expiry."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from anaphora.errors import InvalidConfig

#: Tags of DER.
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


class ServerCertificate:
    """A TLS context with a certificate from two PEM files."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises `InvalidConfig` if the files cannot be used."""
        self._cert, self._key = cert, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._read_at = self._stamp()
        self.expires = self._load()

    def reload(self) -> bool:
        """Uses changed files for new connections, and returns whether they had changed. Raises
        `InvalidConfig` if they cannot be used; the old certificate stays."""
        stamp = self._stamp()
        if stamp == self._read_at:
            return False
        # Only one of the two files may be written yet, so a separate context is tried first.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self.expires = self._load()
        self._read_at = stamp
        return True

    def _load(self, context: ssl.SSLContext | None = None) -> float:
        try:
            (context or self.context).load_cert_chain(self._cert, self._key, _no_password)
            first = self._cert.read_text("ascii").partition("-----END CERTIFICATE-----")
            begin = first[0].rindex("-----BEGIN CERTIFICATE-----")
            return expiry(ssl.PEM_cert_to_DER_cert(first[0][begin:] + first[1] + "\n"))
        except ssl.SSLError as error:
            reason = f"not a certificate and its key ({error.reason or 'unreadable'})"
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
        except ValueError as error:
            reason = f"not a certificate in PEM format: {error}"
        raise InvalidConfig(f"{self._cert} and {self._key}: {reason}") from None

    def _stamp(self) -> tuple[int, ...]:
        try:
            states = [path.stat() for path in (self._cert, self._key)]
        except OSError:
            return ()
        return tuple(value for s in states for value in (s.st_mtime_ns, s.st_size, s.st_ino))


def _no_password() -> str:
    raise ValueError("the key has a password; write one without")


def expiry(certificate: bytes) -> float:
    """Expiry of a certificate (DER), in seconds since 1970."""
    outer = _element(certificate, 0)
    fields = _element(certificate, outer[1])
    at = fields[1]
    if certificate[at] == _VERSION:
        at = _element(certificate, at)[2]
    for _ in range(3):  # serial number, algorithm, issuer
        at = _element(certificate, at)[2]
    validity = _element(certificate, at)
    after = _element(certificate, _element(certificate, validity[1])[2])
    text = certificate[after[1] : after[2]].decode("ascii")
    if after[0] == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The tag of a DER element, and the start and end of its content."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size]), start + size
    return tag, start, start + length
