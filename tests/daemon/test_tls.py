"""The expiry of a certificate, as its own bytes have it."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import write_certificate

from anaphora.daemon.home.tls import ServerCertificate, expiry


@pytest.mark.parametrize("days", [1, 400, 20_000])
def test_expiry_is_read_from_the_certificate(tmp_path: Path, days: int) -> None:
    """After 2049 the time has another format."""
    files = write_certificate(tmp_path, "one", days=days)
    known = x509.load_pem_x509_certificate(files.cert.read_bytes())
    expected = known.not_valid_after_utc.timestamp()
    assert expiry(ssl.PEM_cert_to_DER_cert(files.cert.read_text())) == expected
    assert ServerCertificate(files.cert, files.key).expires == expected > time.time()


def test_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    own, issuer = (write_certificate(tmp_path, name, days=9) for name in ("own", "issuer"))
    own.cert.write_text(f"a comment\n{own.cert.read_text()}{issuer.cert.read_text()}")
    assert ServerCertificate(own.cert, own.key).expires < time.time() + 10 * 86_400


def test_half_written_pair_keeps_the_certificate_in_use(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "one")
    certificate = ServerCertificate(files.cert, files.key)
    assert not certificate.reload()
    other = write_certificate(tmp_path, "two", days=90)
    before = certificate.expires
    other.cert.rename(files.cert)
    with pytest.raises(Exception, match="not a certificate and its key"):
        certificate.reload()
    assert certificate.expires == before
    other.key.rename(files.key)
    assert certificate.reload()
    assert certificate.expires > before
