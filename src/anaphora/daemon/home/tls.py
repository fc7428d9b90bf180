"""The daemon's certificate, read again when its files change."""

from __future__ import annotations

import ssl
from pathlib import Path

from anaphora.errors import InvalidConfig


class ServerCertificate:
    """A TLS context with a certificate from two PEM files."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises `InvalidConfig` if the files cannot be used."""
        self._cert, self._key = cert, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._read_at = self._stamp()
        self._load()

    def reload(self) -> bool:
        """Uses changed files for new connections, and returns whether they had changed. Raises
        `InvalidConfig` if they cannot be used; the old certificate stays."""
        stamp = self._stamp()
        if stamp == self._read_at:
            return False
        # Only one of the two files may be written yet, so a separate context is tried first.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load()
        self._read_at = stamp
        return True

    def _load(self, context: ssl.SSLContext | None = None) -> None:
        try:
            return (context or self.context).load_cert_chain(self._cert, self._key, _no_password)
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
