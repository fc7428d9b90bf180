"""Tokens of Google and Azure, by their SDKs, from services on loopback."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from google.auth.compute_engine import _metadata
from support.token_servers import IDENTITY_HEADER, TokenServer, service_account, token_server

from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.credentials.tokens import (
    EntraClient,
    TokenCredentials,
    azure_credentials,
    google_credentials,
)
from anaphora.errors import MissingExtra, MissingSecret, Transport, Unauthenticated

SCOPE = "https://cognitiveservices.azure.com/.default"


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with token_server() as running:
        yield running


def headers(credentials: TokenCredentials) -> dict[str, str]:
    return dict(asyncio.run(credentials.headers("POST", "https://x", SecretHeaders(), b"")))


@pytest.fixture(autouse=True)
def nothing_ambient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")


def test_a_service_account_signs_for_a_token(server: TokenServer, tmp_path: Path) -> None:
    file = service_account(tmp_path, server)
    credentials = google_credentials(str(file))
    first = headers(credentials)
    assert first["authorization"].startswith("Bearer ya29.google-")
    assert headers(credentials) == first
    assert list(credentials.secrets()) == [first["authorization"].removeprefix("Bearer ")]
    assert "ya29" not in repr(credentials)


def test_the_default_credentials_are_a_file_or_the_metadata_server(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        file = service_account(tmp_path, server)
        patched.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        assert "ya29.google-" in headers(google_credentials())["authorization"]
    host = server.url.removeprefix("http://")
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)  # read when it is imported
    monkeypatch.setenv("GCE_METADATA_IP", host)
    assert "ya29.metadata-" in headers(google_credentials())["authorization"]


def test_a_quota_project_goes_with_the_token(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, server)))
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "quota-1")
    assert headers(google_credentials())["x-goog-user-project"] == "quota-1"


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ('{"type": "gdch"}', "[]", "AIzaSyCanary7Hq2Zt9v", "{}"):
        file.write_text(text)
        with pytest.raises(MissingSecret, match="not a file of Google's credentials") as caught:
            headers(google_credentials(str(file)))
        assert "7Hq2Zt9v" not in f"{caught.value}"


def test_what_google_refuses_is_named(server: TokenServer, tmp_path: Path) -> None:
    plain = (
        r"^no credentials of Google Cloud were found: run `gcloud auth application-default login`, or"
        r" set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account$"
    )
    with pytest.raises(MissingSecret, match=plain):
        headers(google_credentials())
    file = service_account(tmp_path, server)
    server.failing = 401
    try:
        with pytest.raises(Unauthenticated, match="Google refused a token: RefreshError"):
            headers(google_credentials(str(file)))
    finally:
        server.failing = 0
    fields = json.loads(file.read_text()) | {"token_uri": "http://127.0.0.1:9/token"}
    file.write_text(json.dumps(fields))
    with pytest.raises(Transport, match="Google's token service"):
        headers(google_credentials(str(file)))


def test_a_refused_token_is_fetched_again_once(server: TokenServer, tmp_path: Path) -> None:
    credentials = google_credentials(str(service_account(tmp_path, server)))
    assert not credentials.renews(401, {})
    headers(credentials)
    assert not credentials.renews(403, {})
    assert not credentials.renews(401, {})  # it is new: another would be refused as well


def test_a_managed_identity_has_tokens(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", IDENTITY_HEADER)
    for client in (None, EntraClient("client-1")):
        found = headers(azure_credentials(SCOPE, client))
        assert found["authorization"].startswith("Bearer eyJ")
    monkeypatch.setenv("IDENTITY_HEADER", "wrong")
    with pytest.raises((Unauthenticated, MissingSecret)):
        headers(azure_credentials(SCOPE))


def test_an_empty_chain_of_azure_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "dev")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingSecret, match="no credentials of Azure were found: run `az login`"):
        headers(azure_credentials(SCOPE))
    assert capfd.readouterr().err == ""


def test_a_client_secret_is_exchanged_with_entra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    pem = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(pem))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pem))
    with token_server(context) as entra:
        good = EntraClient("client-1", "tenant-1", Secret("entra-secret-6Tn1Vx4c"), entra.url)
        assert ".azure-" in headers(azure_credentials(SCOPE, good))["authorization"]
        bad = good._replace(secret=Secret("wrong-secret-8Yb3Wd5f"))
        with pytest.raises(Unauthenticated, match=r"Entra refused a token: .*AADSTS") as caught:
            headers(azure_credentials(SCOPE, bad))
        assert "8Yb3Wd5f" not in f"{caught.value}"


@pytest.mark.parametrize(
    "module, extra, credentials",
    [
        ("google.auth", "google", google_credentials),
        ("azure.identity", "azure", lambda: azure_credentials(SCOPE)),
    ],
)
def test_without_the_sdk_the_error_names_the_extra(
    module: str, extra: str, credentials: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert callable(credentials)
    with pytest.raises(MissingExtra, match=rf"pip install 'anaphora\[{extra}\]'"):
        headers(credentials())
