"""AWS keys from the environment and the shared files, with assumed roles and web identities.

The order is botocore's: environment, assumed role, web identity, SSO, keys in `credentials`, a
process, keys in `config`, container, instance. Those without keys here go to `BotocoreKeys`.
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from anaphora.client.config.secrets import Secret, SecretVariables
from anaphora.errors import Io, MissingSecret
from anaphora.redaction import quoted, shown_name

from .aws import ADVICE, BotocoreKeys
from .refreshing import Fetched
from .sigv4 import AwsKeys
from .sts import RoleRequest, StsClient

REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

_DEFAULT = "default"
#: In a profile, for sources that botocore has.
_SSO = ("sso_session", "sso_start_url")
_PROCESS = ("credential_process", "login_session")


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A role to assume with other keys."""

    arn: str
    external_id: str | None = None
    session_name: str | None = None
    seconds: int | None = None


class SharedFiles:
    """The profiles of `~/.aws/config` and `~/.aws/credentials`, read once."""

    def __init__(self, variables: SecretVariables) -> None:
        home = text_of(variables, "HOME") or os.path.expanduser("~")
        self.paths = tuple(
            os.path.expanduser(text_of(variables, name) or f"{home}/.aws/{file}")
            for name, file in (
                ("AWS_CONFIG_FILE", "config"),
                ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            )
        )
        self._config = {
            _profile_name(section): dict(values)
            for section, values in _sections(self.paths[0]).items()
            if section == _DEFAULT or section.split()[:1] == ["profile"]
        }
        self._keys = {name: dict(values) for name, values in _sections(self.paths[1]).items()}

    def __repr__(self) -> str:
        return "<SharedFiles>"

    def __contains__(self, profile: str) -> bool:
        return profile in self._config or profile in self._keys

    def require(self, profile: str) -> None:
        if profile not in self:
            known = ", ".join(map(shown_name, self.names())) or "none"
            raise MissingSecret(
                f"no AWS profile {quoted(profile)} in {' or '.join(self.paths)}; there are: {known}"
            )

    def names(self) -> list[str]:
        return sorted({*self._config, *self._keys})

    def has(self, profile: str, *fields: str) -> bool:
        """Whether a profile has one of these fields, in either file."""
        return any(self.get(profile, field) is not None for field in fields)

    def get(self, profile: str, field: str) -> str | None:
        """A field of a profile; that of `credentials` has priority."""
        found = self._keys.get(profile, {}).get(field)
        return self._config.get(profile, {}).get(field) if found is None else found

    def keys(self, profile: str, *, in_config: bool) -> AwsKeys | None:
        """The key pair of a profile in one of the files."""
        table = (self._config if in_config else self._keys).get(profile, {})
        if not table.get("aws_access_key_id"):
            return None
        if not table.get("aws_secret_access_key"):
            raise MissingSecret(f"the profile {quoted(profile)} has no aws_secret_access_key")
        return AwsKeys(
            table["aws_access_key_id"],
            table["aws_secret_access_key"],
            table.get("aws_session_token") or table.get("aws_security_token"),
        )


def _sections(path: str) -> Mapping[str, Mapping[str, str]]:
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Io(f"{path}: cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        problem = MissingSecret("not a file of AWS profiles", file=path)
    else:
        return {name: parser[name] for name in parser.sections()}
    raise problem  # outside: the parser's error quotes a line, which may be a key


def _profile_name(section: str) -> str:
    try:
        return " ".join(shlex.split(section)[1:]) or section
    except ValueError:
        return section


def text_of(variables: SecretVariables, *names: str) -> str | None:
    """The first of these variables that is set and not empty."""
    for name in names:
        found = variables.get(name)
        if found is not None and found.reveal():
            return found.reveal()
    return None


def region_of(variables: SecretVariables, profile: str | None = None) -> str | None:
    """The region of the environment, or of the profile; that of a given profile comes first."""
    named = text_of(variables, *REGION_VARIABLES)
    if profile is None and named is not None:
        return named
    name = profile or text_of(variables, "AWS_PROFILE") or _DEFAULT
    return SharedFiles(variables).get(name, "region") or named


class WebIdentity(NamedTuple):
    arn: str
    token_file: str
    session_name: str | None


class AwsChain:
    """The source of keys for a profile, or for the environment if none is given. Files are read
    again at each call: other programs write them."""

    def __init__(
        self,
        variables: SecretVariables,
        sts: StsClient,
        profile: str | None = None,
        *,
        role: Role | None = None,
        keys: AwsKeys | None = None,
    ) -> None:
        """With `keys` or a `role`, these are used."""
        self._variables = variables
        self._profile = profile
        self._role = role
        self._given = keys
        self._sts = sts
        self._botocore: dict[str | None, BotocoreKeys] = {}

    def __repr__(self) -> str:
        return "<AwsChain>"

    def __call__(self) -> Fetched[AwsKeys]:
        found = Fetched(self._given, None) if self._given is not None else self._found()
        if self._role is None:
            return found
        return self._assume(found.value, self._role)

    def _found(self) -> Fetched[AwsKeys]:
        if self._profile is None and (keys := self._in_environment()) is not None:
            return Fetched(keys, None)
        files = SharedFiles(self._variables)
        name = self._profile or text_of(self._variables, "AWS_PROFILE")
        if name is not None:
            files.require(name)
        return self._of_profile(files, name or _DEFAULT, ())

    def _in_environment(self) -> AwsKeys | None:
        access = text_of(self._variables, "AWS_ACCESS_KEY_ID")
        if access is None:
            return None
        secret = self._variables.get("AWS_SECRET_ACCESS_KEY") or Secret("")
        if not secret.reveal():
            raise MissingSecret("AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not")
        return AwsKeys(access, secret.reveal(), text_of(self._variables, "AWS_SESSION_TOKEN"))

    def _of_profile(
        self, files: SharedFiles, profile: str, via: tuple[str, ...]
    ) -> Fetched[AwsKeys]:
        if profile in via and via[-1] != profile:
            raise MissingSecret(f"the AWS profiles {' → '.join((*via, profile))} are a circle")
        arn = files.get(profile, "role_arn")
        with_environment = self._profile is None and not via
        identity = self._web_identity(files, profile, with_environment=with_environment)
        if arn is not None and profile not in via and files.get(profile, "mfa_serial"):
            raise MissingSecret(
                f"the profile {quoted(profile)} needs a code of an MFA device, which only a person"
                " has: use a profile with a session token"
            )
        if arn is not None and profile not in via and identity is None:
            role = Role(
                arn=arn,
                external_id=files.get(profile, "external_id"),
                session_name=files.get(profile, "role_session_name"),
                seconds=_seconds(files.get(profile, "duration_seconds")),
            )
            return self._assume(self._base_keys(files, profile, via), role)
        if identity is not None:
            return self._exchange(identity)
        if files.has(profile, *_SSO):
            return self._by_sdk(profile, f"the profile {quoted(profile)} uses SSO")
        keys = files.keys(profile, in_config=False)
        if keys is None and files.has(profile, *_PROCESS):
            return self._by_sdk(profile, f"the profile {quoted(profile)} runs a process")
        keys = keys or files.keys(profile, in_config=True)
        if keys is not None:
            return Fetched(keys, None)
        if via or self._profile is not None:
            raise MissingSecret(f"the AWS profile {quoted(profile)} has no keys")
        why = "no AWS credentials in the environment or in files; there may be some of the machine"
        return self._by_sdk(None, why)

    def _base_keys(self, files: SharedFiles, profile: str, via: tuple[str, ...]) -> AwsKeys:
        """The keys that assume the role of a profile."""
        source = files.get(profile, "source_profile")
        if source is not None:
            if source not in files:
                raise MissingSecret(
                    f"the profile {quoted(profile)} names the source_profile {quoted(source)},"
                    " which is missing"
                )
            return self._of_profile(files, source, (*via, profile)).value
        kind = files.get(profile, "credential_source")
        if kind == "Environment":
            keys = self._in_environment()
            if keys is None:
                raise MissingSecret(f"no AWS keys in the environment: {ADVICE}")
            return keys
        if kind is None:
            reason = "has a role_arn, but neither source_profile nor credential_source"
            raise MissingSecret(f"the profile {quoted(profile)} {reason}")
        why = f"the profile {quoted(profile)} has the credential_source {shown_name(kind)}"
        return self._by_sdk(profile, why).value

    def _web_identity(
        self, files: SharedFiles, profile: str, *, with_environment: bool
    ) -> WebIdentity | None:
        named = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": files.get(profile, "web_identity_token_file"),
            "AWS_ROLE_ARN": files.get(profile, "role_arn"),
            "AWS_ROLE_SESSION_NAME": files.get(profile, "role_session_name"),
        }
        token, arn, session = named.values()
        if token is None and arn is not None:
            return None  # the role is assumed with keys
        if with_environment:
            token, arn, session = (
                text_of(self._variables, name) or value for name, value in named.items()
            )
        if token is None:
            return None
        if arn is None:
            raise MissingSecret("a web identity token file is named, but no role: set AWS_ROLE_ARN")
        return WebIdentity(arn, token, session)

    def _by_sdk(self, profile: str | None, why: str) -> Fetched[AwsKeys]:
        if not self._variables.is_process:  # botocore reads others
            raise MissingSecret(f"{why}; {ADVICE}")
        if profile not in self._botocore:
            self._botocore[profile] = BotocoreKeys(profile, why)
        return self._botocore[profile]()

    # ── STS ──────────────────────────────────────────────────────────────────────────────────────

    def _assume(self, keys: AwsKeys, role: Role) -> Fetched[AwsKeys]:
        asked = RoleRequest(
            "AssumeRole", role.arn, role.session_name, role.seconds, external_id=role.external_id
        )
        return self._sts.fetch(asked, keys)

    def _exchange(self, identity: WebIdentity) -> Fetched[AwsKeys]:
        try:
            token = Secret(Path(identity.token_file).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):
            raise Io(f"{identity.token_file}: the web identity token cannot be read") from None
        asked = RoleRequest(
            "AssumeRoleWithWebIdentity", identity.arn, identity.session_name, token=token
        )
        return self._sts.fetch(asked, None)


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise MissingSecret(f"duration_seconds must be a number, not {quoted(text)}")
    return int(text)
