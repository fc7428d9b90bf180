"""Signatures are those of botocore, byte for byte, and what is verified is what it signs."""

from __future__ import annotations

import datetime
import itertools
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from support.sigv4_verifier import SignatureProblem, SignedRequest, Verified, verify

from anaphora.client.config.secrets import Secret
from anaphora.client.credentials.sigv4 import AwsKeys, Signer

ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJ/abc+def=="
NOW = 1_795_000_000.0
JSON = {"content-type": "application/json"}
RUNTIME = "https://bedrock-runtime.us-east-1.amazonaws.com"

PATHS = (
    "/model/us.anthropic.claude-sonnet-5/converse",
    "/model/anthropic.claude-3-5-haiku-20241022-v1%3A0/converse-stream",
    "/model/anthropic.claude-3-5-haiku-20241022-v1:0/invoke",
    "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A000000000000%3Ainference-profile%2Fabc/converse",
    "/model/arn:aws:bedrock:us-east-1:000000000000:application-inference-profile%2Fx1/invoke",
    "/model/name%20with%20space/invoke",
    "/model/a~b_c-d.e/count-tokens",
    "/model/%E2%82%AC/invoke",
    "//model//x/./y/../converse/",
    "/",
    "",
    "/a+b=c&d@e!$'()*,;/x",
)
QUERIES = (
    "",
    "?alt=sse",
    "?b=2&a=1&a=0",
    "?empty&x=",
    "?key=a%20b&key=a%2Bb&Z=1&z=2",
    "?x=%7E~&y=%2F/",
)
HEADERS: tuple[dict[str, str], ...] = (
    JSON,
    {},
    {**JSON, "X-Amzn-Bedrock-Trace": "ENABLED"},
    {**JSON, "x-amz-target": "  many   spaces\there "},
    {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
)
BODIES = (b"{}", b"", '{"text":"Grüße €"}'.encode(), b"x" * 20_000)
#: Every path and query, and the other values in turn.
TABLE = [
    (RUNTIME + path + query, HEADERS[n % 5], BODIES[n % 4], (None, TOKEN)[n % 2])
    for n, (path, query) in enumerate(itertools.product(PATHS, QUERIES))
] + [
    ("https://sts.eu-west-1.amazonaws.com/", HEADERS[4], b"Action=AssumeRole", None),
    ("http://127.0.0.1:8080/model/x/converse", JSON, b"{}", TOKEN),
    ("http://localhost:80/model/x/converse", JSON, b"{}", None),
    ("https://[::1]:8443/model/x/converse", JSON, b"{}", None),
    ("https://HOST.Example:443/v1/messages", JSON, b"{}", None),
]


def by_botocore(
    url: str,
    headers: dict[str, str],
    body: bytes,
    token: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, str]:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: moment)
    request = AWSRequest(method="POST", url=url, headers=dict(headers), data=body)
    keys = BotoCredentials(ACCESS, SECRET, token)
    botocore.auth.SigV4Auth(keys, "bedrock", "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def signed(
    url: str, headers: dict[str, str], body: bytes, token: str | None, at: float = NOW
) -> dict[str, str]:
    signer = Signer(AwsKeys(ACCESS, SECRET, token), "us-east-1", "bedrock")
    return dict(signer.headers("POST", url, headers, sha256(body).hexdigest(), at))


def test_the_table_is_long() -> None:
    assert len(TABLE) >= 40


@pytest.mark.parametrize("url, headers, body, token", TABLE)
def test_signatures_equal_those_of_botocore(
    url: str,
    headers: dict[str, str],
    body: bytes,
    token: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = by_botocore(url, headers, body, token, monkeypatch)
    ours = signed(url, headers, body, token)
    assert {name: theirs.get(name) for name in ours} == ours
    assert ("x-amz-security-token" in theirs) == (token is not None)


def received(
    url: str, headers: dict[str, str], body: bytes, added: dict[str, str]
) -> SignedRequest:
    parts = urlsplit(url)
    host = parts.netloc.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
    pairs = [("Host", host), *headers.items(), *added.items()]
    return SignedRequest("POST", parts.path, parts.query, pairs, sha256(body).hexdigest())


def secret_of(access: str) -> Secret | None:
    return Secret(SECRET) if access == ACCESS else None


@pytest.mark.parametrize("url, headers, body, token", TABLE)
def test_signatures_of_botocore_are_verified(
    url: str,
    headers: dict[str, str],
    body: bytes,
    token: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = by_botocore(url, headers, body, token, monkeypatch)
    added = {name: value for name, value in theirs.items() if name not in map(str.lower, headers)}
    found = verify(received(url, headers, body, added), secret_of, NOW + 299)
    assert isinstance(found, Verified)
    assert (found.access_key, found.region, found.service) == (ACCESS, "us-east-1", "bedrock")
    assert found.until == NOW + 300
    changed = verify(received(url, headers, body + b" ", added), secret_of, NOW)
    assert isinstance(changed, SignatureProblem)
    assert changed.code == "InvalidSignatureException"


URL = f"{RUNTIME}/model/x/converse"


def problem(added: dict[str, str], *, body: bytes = b"{}", now: float = NOW, **changes: Any) -> str:
    request = received(URL, JSON, body, added)._replace(**changes)
    found = verify(request, secret_of, now)
    assert isinstance(found, SignatureProblem), found
    assert SECRET not in f"{found}"
    return f"{found.code}: {found.message}"


def test_what_is_not_signed_is_refused() -> None:
    good = signed(URL, JSON, b"{}", None)
    header = good["authorization"]
    for name in ("host", "x-amz-date"):
        rest = ";".join(one for one in ("content-type", "host", "x-amz-date") if one != name)
        without = header.replace("content-type;host;x-amz-date", rest)
        assert f"{name} must be signed" in problem({**good, "authorization": without})
    assert "Every X-Amz- header must be signed" in problem({**good, "x-amz-target": "y"})
    last = "0" if header[-1] != "0" else "1"
    assert "does not match" in problem({**good, "authorization": header[:-1] + last})
    assert "missing" in problem({**good, "authorization": header.replace("host;", "host;via;")})
    assert "sorted" in problem(
        {**good, "authorization": header.replace("content-type;host", "host;content-type")}
    )


def test_the_hash_is_that_of_the_body_whatever_the_header_says() -> None:
    for stated, reason in (
        ("UNSIGNED-PAYLOAD", "Unsigned bodies"),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "in chunks"),
        (sha256(b"other").hexdigest(), "is not the SHA-256 of the body"),
    ):
        headers = {**JSON, "x-amz-content-sha256": stated}
        signer = Signer(AwsKeys(ACCESS, SECRET), "us-east-1", "bedrock")
        added = dict(signer.headers("POST", URL, headers, stated, NOW))
        assert reason in problem({**added, "x-amz-content-sha256": stated})
    stated = sha256(b"{}").hexdigest()
    headers = {**JSON, "x-amz-content-sha256": stated}
    added = signed(URL, headers, b"{}", None)
    assert isinstance(verify(received(URL, headers, b"{}", added), secret_of, NOW), Verified)


def test_old_signatures_unknown_keys_and_other_forms_are_refused() -> None:
    good = signed(URL, JSON, b"{}", None)
    assert "Signature expired" in problem(good, now=NOW + 301)
    assert "not yet current" in problem(good, now=NOW - 301)
    assert isinstance(verify(received(URL, JSON, b"{}", good), secret_of, NOW - 300), Verified)
    other = {**good, "authorization": good["authorization"].replace(ACCESS, "AKIDOTHER")}
    assert "UnrecognizedClientException" in problem(other)
    assert "MissingAuthenticationToken" in problem({})
    assert "IncompleteSignature" in problem({**good, "authorization": "Bearer abc"})
    assert "Presigned" in problem({}, query="X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0")
    late = {**good, "x-amz-date": "20990101T000000Z"}
    assert "credential scope" in problem(late)
    assert "does not match" in problem(good, path="/model/y/converse")
    assert "does not match" in problem(good, method="GET")
    assert "does not match" in problem(good, query="a=1")


def test_the_key_of_a_day_changes_with_the_day() -> None:
    signer = Signer(AwsKeys(ACCESS, SECRET), "us-east-1", "bedrock")
    for at in (NOW, NOW + 86_400, NOW):
        added = dict(signer.headers("POST", URL, JSON, sha256(b"{}").hexdigest(), at))
        assert added == signed(URL, JSON, b"{}", None, at)


def test_no_repr_shows_keys() -> None:
    keys = AwsKeys(ACCESS, SECRET, TOKEN)
    request = received(URL, JSON, b"{}", signed(URL, JSON, b"{}", TOKEN))
    for shown in (f"{keys!r}{keys.secret!r}{keys.token!r}", repr(request), str(request)):
        assert SECRET not in shown
        assert TOKEN not in shown
