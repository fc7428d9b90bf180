"""Sources of credentials that answer oddly: the error is one of ours, and shows no secret."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.local_server import local_server

from anaphora.client.config.secrets import Secret, SecretHeaders, SecretVariables
from anaphora.client.credentials.aws import AwsCredentials
from anaphora.client.credentials.aws_keys import AwsChain, Role, region_of
from anaphora.client.credentials.refreshing import Fetched, RefreshedValue
from anaphora.client.credentials.sigv4 import AwsKeys
from anaphora.client.credentials.tokens import EntraClient, azure_credentials, google_credentials
from anaphora.errors import AnaphoraError, MissingSecret, Transport

CANARY = "canary-secret-8Qv3Zt6k"
KEYS = AwsKeys("AKIDBASE", "base-secret")


def failure(credentials: Any) -> AnaphoraError:
    """The error of a request, which shows nothing of the secret, whatever prints it."""
    with pytest.raises(AnaphoraError) as caught:
        asyncio.run(credentials.headers("POST", "https://h.example/", SecretHeaders({}), b"{}"))
    error = caught.value
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert CANARY not in "".join(shown.format())
    assert CANARY not in repr(vars(error))
    return error


@pytest.mark.parametrize(
    "output",
    [
        f"no JSON: {CANARY}",
        f'["{CANARY}"]',
        f'{{"Version":1,"AccessKeyId":"A","SecretAccessKey":"{CANARY}","Expiration":"soon"}}',
        "",
    ],
)
def test_a_process_that_prints_something_else(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output").write_text(output)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path}/output\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    chain = AwsChain(SecretVariables(), "us-east-1")
    error = failure(AwsCredentials(chain, "us-east-1", "bedrock"))
    assert isinstance(error, MissingSecret)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"type":"service_account","private_key":"{CANARY}","client_email":"a@b","token_uri":"x"}}',
        f'{{"type":["{CANARY}"]}}',
        '{"type":"impersonated_service_account"}',
    ],
)
def test_a_file_of_google_that_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "google.json").write_text(text)
    assert isinstance(failure(google_credentials(str(tmp_path / "google.json"))), MissingSecret)
    assert isinstance(failure(google_credentials(str(tmp_path / "missing.json"))), MissingSecret)


def test_a_tenant_of_entra_that_is_none() -> None:
    client = EntraClient("c", "no tenant", Secret(CANARY))
    assert "Invalid tenant" in str(failure(azure_credentials("scope", client)))


def test_an_answer_of_sts_that_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = f"<Credentials><SecretAccessKey>{CANARY}</SecretAccessKey>"
    with local_server(lambda _: (200, {}, answer)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        role = Role("arn:aws:iam::0:role/reader")
        chain = AwsChain(SecretVariables(), "us-east-1", keys=KEYS, role=role)
        assert isinstance(failure(AwsCredentials(chain, "us-east-1", "bedrock")), Transport)


@pytest.mark.parametrize("region", ["evil.example/#", "evil.example", "us-east-1@e"])
def test_a_region_names_no_other_host(region: str) -> None:
    chain = AwsChain(SecretVariables(), region, keys=KEYS, role=Role("arn:aws:iam::0:role/reader"))
    assert isinstance(failure(AwsCredentials(chain, region, "bedrock")), MissingSecret)


# ── Clocks, threads, files ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("date", "renews"),
    [
        ("yesterday", False),
        ("", False),
        ("Tue, 99 Foo 2026 00:00:00 GMT", False),
        ("Thu, 01 Jan 2026 00:00:00 -0000", True),
        ("Thu, 01 Jan 2026 00:00:00 GMT", True),
    ],
)
def test_a_date_that_is_none_leaves_the_refusal(
    date: str, renews: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        now = 1_767_225_600.0 + 600  # ten minutes later
        credentials = AwsCredentials(
            lambda: Fetched(KEYS, None), "us-east-1", "bedrock", clock=lambda: now
        )
        assert credentials.renews(403, {"date": date}) is renews
        assert credentials._offset == (-600 if renews else 0)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_without_a_thread_the_next_use_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    value = RefreshedValue(lambda: Fetched(7, None), ahead=0.0)
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "credentials":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        asyncio.run(value.get())
    monkeypatch.undo()
    assert asyncio.run(asyncio.wait_for(value.get(), 60)) == 7


def test_a_profile_without_a_region_takes_that_of_the_variables(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile a]\n[profile b]\nregion = eu-west-1\n")
    variables = SecretVariables(
        {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_REGION": "us-west-2", "HOME": "/none"}
    )
    assert region_of(variables, "a") == "us-west-2"
    assert region_of(variables, "b") == "eu-west-1"
