"""The certificate of a daemon, read again when its files change."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from support.certificates import write_certificate

from anaphora.daemon.home.tls import ServerCertificate
from anaphora.errors import InvalidConfig


def served(certificate: ServerCertificate) -> str:
    """The certificate that a client gets, in PEM."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for each in (client, server, client):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


def test_half_written_pair_keeps_the_certificate_in_use(tmp_path: Path) -> None:
    files, other = (write_certificate(tmp_path, name) for name in ("one", "two"))
    texts = [each.cert.read_text() for each in (files, other)]
    certificate = ServerCertificate(files.cert, files.key)
    assert not certificate.reload()
    assert served(certificate) == texts[0]
    other.cert.rename(files.cert)
    with pytest.raises(InvalidConfig, match="not a certificate and its key"):
        certificate.reload()
    assert served(certificate) == texts[0]
    other.key.rename(files.key)
    assert certificate.reload()
    assert served(certificate) == texts[1]
