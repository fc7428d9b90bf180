"""Keys of AWS: those of variables, and those that botocore finds in files and at services."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from support.bedrock_server import bedrock_server
from support.token_servers import KNOWN, WEB_TOKEN, TokenServer, token_server

from anaphora import Client
from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import SecretVariables
from anaphora.client.credentials.aws_keys import AwsChain, Role, region_of
from anaphora.client.credentials.refreshing import Fetched
from anaphora.client.credentials.sigv4 import AwsKeys
from anaphora.emulator.server import Emulator
from anaphora.errors import MissingExtra, MissingSecret, Transport, Unauthenticated

BASE = ("AKIDBASE", KNOWN["AKIDBASE"])
ARN = "arn:aws:iam::000000000000:role/reader"
KEYS = "aws_access_key_id = {}\naws_secret_access_key = {}\n".format(*BASE)
OTHER = "aws_access_key_id = AKIDOTHER\naws_secret_access_key = {}\n".format(KNOWN["AKIDOTHER"])
STATIC = {"AWS_ACCESS_KEY_ID": BASE[0], "AWS_SECRET_ACCESS_KEY": BASE[1]}

#: Name: config, credentials, variables, and whether STS is asked.
CHAINS: dict[str, tuple[str, str, dict[str, str], bool]] = {
    "variables": ("", "", STATIC, False),
    "variables with a token": ("", f"[default]\n{OTHER}", {**STATIC, "AWS_SESSION_TOKEN": "t"}, False),
    "variables before AWS_PROFILE": ("", f"[x]\n{OTHER}", {**STATIC, "AWS_PROFILE": "x"}, False),
    "default of credentials": ("", f"[default]\n{KEYS}", {}, False),
    "default of config": (f"[default]\n{KEYS}", "", {}, False),
    "credentials before config": (f"[default]\n{OTHER}", f"[default]\n{KEYS}", {}, False),
    "a named profile": (f"[profile a]\n{KEYS}", "", {"AWS_PROFILE": "a"}, False),
    "a quoted profile": (f'[profile "a b"]\n{KEYS}', "", {"AWS_PROFILE": "a b"}, False),
    "a profile with a token": ("", f"[a]\n{KEYS}aws_session_token = tt\n", {"AWS_PROFILE": "a"}, False),
    "nested values": (f"[default]\ns3 =\n  max = 3\n{KEYS}", "", {}, False),
    "a role": (f"[profile r]\nrole_arn = {ARN}\nsource_profile = b\n", f"[b]\n{KEYS}", {"AWS_PROFILE": "r"}, True),
    "a role of the same profile": (
        f"[profile r]\nrole_arn = {ARN}\nsource_profile = r\n{KEYS}", "", {"AWS_PROFILE": "r"}, True,
    ),
    "a role of a role": (
        f"[profile r]\nrole_arn = {ARN}2\nsource_profile = m\nexternal_id = e1\n"
        f"[profile m]\nrole_arn = {ARN}1\nsource_profile = b\nduration_seconds = 900\n",
        f"[b]\n{KEYS}", {"AWS_PROFILE": "r"}, True,
    ),
    "a role with the variables": (
        f"[profile r]\nrole_arn = {ARN}\ncredential_source = Environment\nrole_session_name = s1\n", "",
        {**STATIC, "AWS_PROFILE": "r"}, False,
    ),
    "a web identity of the profile": (
        f"[profile w]\nrole_arn = {ARN}\nweb_identity_token_file = {{token}}\n", "",
        {"AWS_PROFILE": "w"}, True,
    ),
    "a web identity of variables": (
        "", f"[default]\n{OTHER}",
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "{token}", "AWS_ROLE_ARN": ARN, "AWS_ROLE_SESSION_NAME": "s1"},
        True,
    ),
    "a role before the web identity of variables": (
        f"[default]\nrole_arn = {ARN}\nsource_profile = b\n", f"[b]\n{KEYS}",
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "{token}", "AWS_ROLE_ARN": f"{ARN}9"}, True,
    ),
    "a process": (
        "[default]\ncredential_process = {python} -c \"print('{{\\\"Version\\\": 1,"
        " \\\"AccessKeyId\\\": \\\"AKIDP\\\", \\\"SecretAccessKey\\\": \\\"sp\\\"}}')\"\n", "", {}, False,
    ),
    "a container": (
        "", "",
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{server}/container",
         "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container-token"}, False,
    ),
    "an instance": ("", "", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "{server}/", "AWS_EC2_METADATA_DISABLED": "false"}, False),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with token_server() as running:
        yield running


class Place:
    """Shared files and variables, for us and for botocore."""

    def __init__(self, folder: Path, server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.server, self.monkeypatch = folder, server, monkeypatch
        for name in ("config", "credentials"):
            monkeypatch.setenv(
                "AWS_CONFIG_FILE" if name == "config" else "AWS_SHARED_CREDENTIALS_FILE",
                str(folder / name),
            )
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        (folder / "token").write_text(WEB_TOKEN)

    def filled(self, text: str) -> str:
        for name, value in (
            ("token", str(self.folder / "token")),
            ("server", self.server.url),
            ("python", sys.executable),
        ):
            text = text.replace(f"{{{name}}}", value)
        return text.replace("{{", "{").replace("}}", "}")

    def write(self, config: str, credentials: str, variables: dict[str, str]) -> None:
        (self.folder / "config").write_text(self.filled(config))
        (self.folder / "credentials").write_text(self.filled(credentials))
        for name, value in variables.items():
            self.monkeypatch.setenv(name, self.filled(value))

    def chain(self, profile: str | None = None, **more: Any) -> AwsChain:
        return AwsChain(SecretVariables(), "us-east-1", profile, **more)


@pytest.fixture
def place(tmp_path: Path, server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, server, monkeypatch)


def without_number(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Keys of STS and metadata are numbered."""
    return tuple(text.rstrip("0123456789+/=") for text in keys)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.long
def test_keys_are_those_of_botocore(name: str, place: Place) -> None:
    config, credentials, variables, asks = CHAINS[name]
    place.write(config, credentials, variables)
    before = place.server.count("sts")
    found = place.chain()()
    assert (place.server.count("sts") > before) is asks
    theirs = botocore.session.Session().get_credentials().get_frozen_credentials()
    expected = AwsKeys(theirs.access_key, theirs.secret_key, theirs.token).values()
    assert without_number(found.value.values()) == without_number(expected)
    if asks:
        assert found.expires_at is not None


def test_roles_are_assumed_with_their_options(place: Place) -> None:
    place.write(*CHAINS["a role of a role"][:3])
    place.chain()()
    middle, last = place.server.forms[-2:]
    assert (middle["RoleArn"], middle["DurationSeconds"]) == (f"{ARN}1", "900")
    assert (last["RoleArn"], last["ExternalId"]) == (f"{ARN}2", "e1")
    place.chain(keys=AwsKeys(*BASE), role=Role(arn=ARN, external_id="e2"))()
    assert place.server.forms[-1]["ExternalId"] == "e2"


def test_a_named_profile_ignores_the_variables(place: Place) -> None:
    place.write(
        "",
        f"[a]\n{OTHER}",
        {**STATIC, "AWS_ROLE_ARN": ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}"},
    )
    assert place.chain("a")().value.access_key == "AKIDOTHER"


BAD = {
    "no such profile": ("", f"[b]\n{KEYS}", {"AWS_PROFILE": "nope"}, MissingSecret, "no AWS profile 'nope'.*there are: b"),
    "a circle": (
        f"[profile a]\nrole_arn={ARN}\nsource_profile=b\n[profile b]\nrole_arn={ARN}\nsource_profile=a\n", "",
        {"AWS_PROFILE": "a"}, MissingSecret, "InfiniteLoopConfigError.*a",
    ),
    "no source": (f"[profile a]\nrole_arn={ARN}\n", "", {"AWS_PROFILE": "a"}, MissingSecret, "source_profile or credential_source"),
    "a missing source": (
        f"[profile a]\nrole_arn={ARN}\nsource_profile=gone\n", "", {"AWS_PROFILE": "a"}, MissingSecret, "source_profile \"gone\".*does not exist",
    ),
    "MFA": (
        f"[profile a]\nrole_arn={ARN}\nsource_profile=b\nmfa_serial=m\n", f"[b]\n{KEYS}", {"AWS_PROFILE": "a"}, MissingSecret, "MFA",
    ),
    "half a pair": ("", "", {"AWS_ACCESS_KEY_ID": "AKIDBASE"}, MissingSecret, "AWS_SECRET_ACCESS_KEY is not"),
    "half a pair in a file": ("", "[default]\naws_access_key_id = x\n", {}, MissingSecret, "PartialCredentials.*aws_secret_access_key"),
    "not a file of profiles": ("", f"{BASE[1]}\n", {}, MissingSecret, "Unable to parse config file: .*credentials"),
    "a refused role": (
        f"[profile a]\nrole_arn={ARN}-denied\nsource_profile=b\n", f"[b]\n{KEYS}", {"AWS_PROFILE": "a"},
        Unauthenticated, "AccessDenied.* AssumeRole",
    ),
    "a wrong secret": (
        f"[profile a]\nrole_arn={ARN}\nsource_profile=b\n",
        "[b]\naws_access_key_id = AKIDBASE\naws_secret_access_key = wrong\n", {"AWS_PROFILE": "a"},
        Unauthenticated, "InvalidSignature",
    ),
    "nothing": ("", "", {}, MissingSecret, "no AWS credentials: set AWS_PROFILE"),
    "a process that fails": ("[default]\ncredential_process = false\n", "", {}, Unauthenticated, "CredentialRetrievalError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str, place: Place) -> None:
    config, credentials, variables, kind, message = BAD[name]
    place.write(config, credentials, variables)
    with pytest.raises(kind, match=message) as caught:
        place.chain()()
    for secret in KNOWN.values():
        assert secret not in f"{caught.value}"


def test_without_botocore_the_error_names_the_extra(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    for config in ("", "[default]\nsso_session = corp\n", "[default]\ncredential_process = x\n"):
        place.write(config, "", {})
        with pytest.raises(MissingExtra, match=r"pip install 'anaphora\[aws\]'") as caught:
            place.chain()()
        assert caught.value.extra == "aws"


def test_sts_that_fails_or_is_gone_may_be_asked_again(
    place: Place, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    place.write(*CHAINS["a role"][:3])
    server.failing = 503
    try:
        with pytest.raises(Transport, match="cannot be read") as caught:
            place.chain()()
        assert caught.value.retryable
    finally:
        server.failing = 0
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    with pytest.raises(Transport):
        place.chain()()


def test_the_region_is_that_of_the_variables_or_the_profile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("[profile a]\nregion = eu-west-1\n", "", {})
    assert region_of(SecretVariables()) == "us-east-1"
    assert region_of(SecretVariables({"AWS_REGION": "x", "AWS_DEFAULT_REGION": "y"})) == "x"
    assert region_of(SecretVariables(), "a") == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert region_of(SecretVariables()) is None
    monkeypatch.setenv("AWS_PROFILE", "a")
    assert region_of(SecretVariables()) == "eu-west-1"


def test_variables_of_a_mapping_never_reach_botocore(place: Place) -> None:
    place.write("", "", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{server}/container"})
    chain = AwsChain(SecretVariables({"HOME": str(place.folder)}))
    with pytest.raises(MissingSecret, match="no AWS credentials in these variables"):
        chain()
    (place.folder / "config").write_text(
        f"[profile r]\nrole_arn = {ARN}\ncredential_source = Environment\n[profile a]\n{OTHER}"
    )
    for name, value in STATIC.items():
        place.monkeypatch.setenv(name, value)
    file = {"AWS_CONFIG_FILE": str(place.folder / "config")}
    with pytest.raises(MissingSecret, match="'r' has a credential_source"):
        AwsChain(SecretVariables({**file, "AWS_PROFILE": "r"}))()
    found = AwsChain(SecretVariables({**file, "AWS_PROFILE": "a"}))()
    assert found.value.access_key == "AKIDOTHER"


def test_keys_are_fetched_in_a_thread(place: Place) -> None:
    from anaphora.client.config.secrets import SecretHeaders
    from anaphora.client.credentials.aws import AwsCredentials

    place.write(*CHAINS["a role"][:3])
    before = place.server.count("sts")
    signs = AwsCredentials(place.chain(), "us-east-1", "bedrock")

    async def many() -> list[SecretHeaders]:
        one = ("POST", "https://x.example/a", SecretHeaders(), b"{}")
        return await asyncio.gather(*(signs.headers(*one) for _ in range(50)))

    signed = asyncio.run(many())
    assert place.server.count("sts") == before + 1
    assert {headers["x-amz-security-token"] for headers in signed} == {f"token-sts-{before + 1}+/="}
    assert set(signs.secrets()) >= {f"secret-sts-{before + 1}", f"token-sts-{before + 1}+/="}


def test_keys_of_a_role_are_renewed_before_they_expire(place: Place) -> None:
    from anaphora.client.config.secrets import SecretHeaders
    from anaphora.client.credentials.aws import AHEAD, AwsCredentials

    place.write(*CHAINS["a web identity of the profile"][:3])
    now = time.time()
    signs = AwsCredentials(place.chain(), "us-east-1", "bedrock", clock=lambda: now)

    async def access_key() -> str:
        signed = await signs.headers("POST", "https://x.example/a", SecretHeaders(), b"{}")
        return signed["authorization"].partition("Credential=")[2].partition("/")[0]

    first = asyncio.run(access_key())
    now += place.server.seconds - AHEAD + 60
    assert asyncio.run(access_key()) == first, "it is valid, and nothing waits"
    deadline = time.monotonic() + 60
    while asyncio.run(access_key()) == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)


CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
AT_AWS = {"dialect": "bedrock", "region": "us-east-1", "model": CLAUDE}


def test_a_client_without_botocore(
    place: Place, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile is refused where it is named; key pairs and bearer tokens need no SDK."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    for aws in ({"profile": "llm"}, {"ambient": True, "role": ARN}):
        entry = {**AT_AWS, "credentials": {"aws": aws}}
        with pytest.raises(MissingExtra, match=r"providers\.b\.credentials: .*anaphora\[aws\]"):
            Client.from_config(ClientConfig.from_mapping({"providers": {"b": entry}}))
    for variables in (STATIC, {"AWS_BEARER_TOKEN_BEDROCK": "token"}):
        with bedrock_server(emu.url) as server:
            here = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": server.url}
            with Client.from_env({**variables, **here}) as client:
                assert client.complete("Hi", model=f"bedrock/{CLAUDE}").text
            assert len(server.requests) == 1


def test_values_show_nothing() -> None:
    assert "base-secret" not in repr(Fetched(AwsKeys(*BASE), None))
