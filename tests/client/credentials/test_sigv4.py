"""Signatures are those of botocore, byte for byte."""

from __future__ import annotations

import datetime
import itertools
from hashlib import sha256

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

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


URL = f"{RUNTIME}/model/x/converse"


def test_the_key_of_a_day_changes_with_the_day() -> None:
    signer = Signer(AwsKeys(ACCESS, SECRET), "us-east-1", "bedrock")
    for at in (NOW, NOW + 86_400, NOW):
        added = dict(signer.headers("POST", URL, JSON, sha256(b"{}").hexdigest(), at))
        assert added == signed(URL, JSON, b"{}", None, at)


def test_no_repr_shows_keys() -> None:
    keys = AwsKeys(ACCESS, SECRET, TOKEN)
    added = Signer(keys, "us-east-1", "bedrock").headers("POST", URL, JSON, "", NOW)
    for shown in (f"{keys!r}{keys.secret!r}{keys.token!r}", repr(added), str(added)):
        assert SECRET not in shown
        assert TOKEN not in shown
