"""AWS keys: those of variables; all others (profiles, roles, web identities, SSO, processes,
containers, instances) are botocore's, in the extra `aws`.

The chain is botocore's: files, variables and services are read as `aws` reads them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from anaphora.client.config.secrets import Secret, SecretVariables
from anaphora.errors import AnaphoraError, MissingExtra, MissingSecret, Transport, Unauthenticated
from anaphora.redaction import quoted, shown_name, shown_text

from .refreshing import Fetched
from .sigv4 import AwsKeys

T = TypeVar("T")

REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
#: Variables of the files of profiles, and botocore's names for them.
_FILES = {
    "AWS_CONFIG_FILE": ("config", "config_file"),
    "AWS_SHARED_CREDENTIALS_FILE": ("credentials", "credentials_file"),
}
_SECRETS = ("aws_secret_access_key", "aws_session_token", "aws_security_token")
_LOGGERS = ("auth", "credentials", "endpoint", "hooks", "parsers", "regions", "utils")
_ADVICE = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"
    " AWS_BEARER_TOKEN_BEDROCK, or run `aws configure`"
)


class Role(NamedTuple):
    """A role to assume with other keys."""

    arn: str
    external_id: str | None = None


def text_of(variables: SecretVariables, *names: str) -> str | None:
    """The first of these variables that is set and not empty."""
    for name in names:
        found = variables.get(name)
        if found is not None and found.reveal():
            return found.reveal()
    return None


def profiles(variables: SecretVariables) -> Mapping[str, Mapping[str, Any]]:
    """The profiles of AWS's files, if there are any; secrets are `Secret`."""
    if not any(map(os.path.exists, _paths(variables).values())):
        return {}
    session = _session(variables, None, "there are files of AWS profiles")
    return _asked(
        lambda: {
            name: {
                field: Secret(fields[field]) if field in _SECRETS else fields[field]
                for field in fields
            }
            for name, fields in session.full_config["profiles"].items()
        }
    )


def require_profile(variables: SecretVariables, name: str) -> Mapping[str, Mapping[str, Any]]:
    """All profiles. Raises if there is none of this name."""
    known = profiles(variables)
    if name not in known:
        names = ", ".join(map(shown_name, sorted(known))) or "none"
        files = " or ".join(_paths(variables).values())
        raise MissingSecret(f"no AWS profile {quoted(name)} in {files}; there are: {names}")
    return known


def region_of(variables: SecretVariables, profile: str | None = None) -> str | None:
    """The region of the environment, or of the profile; that of a given profile comes first."""
    named = text_of(variables, *REGION_VARIABLES)
    if profile is None and named is not None:
        return named
    name = profile or text_of(variables, *_PROFILE_VARIABLES) or "default"
    return profiles(variables).get(name, {}).get("region") or named


class AwsChain:
    """The source of keys: those given, those of a profile, or those that the environment has; with
    a `role`, those of the role that is assumed with them. Blocks: call it in a thread. Files are
    read again at each call: other programs write them."""

    def __init__(
        self,
        variables: SecretVariables,
        region: str | None = None,
        profile: str | None = None,
        *,
        keys: AwsKeys | None = None,
        role: Role | None = None,
        proxy: Secret | None = None,
        ca: str | None = None,
    ) -> None:
        """`proxy` and `ca` are for calls of STS."""
        self._variables = variables
        self._region = region
        self._profile = profile
        self._given = keys
        self._role = role
        self._proxy, self._ca = proxy, ca

    def __repr__(self) -> str:
        return "<AwsChain>"

    def __call__(self) -> Fetched[AwsKeys]:
        keys = self._given
        if keys is None and self._profile is None:
            keys = _in_variables(self._variables)
        found = self._find() if keys is None else Fetched(keys, None)
        return found if self._role is None else self._assume(found.value, self._role)

    def _find(self) -> Fetched[AwsKeys]:
        profile = self._profile
        named = profile or text_of(self._variables, *_PROFILE_VARIABLES)
        if named is not None:
            self._check(require_profile(self._variables, named), named)
        elif not self._variables.is_process and "default" not in profiles(self._variables):
            raise MissingSecret(f"no AWS credentials in these variables: {_ADVICE}")
        if not self._variables.is_process:  # for a named profile, botocore reads no variables
            profile = named or "default"
        session = self._session(profile, "no AWS key pair is in the environment")
        credentials = _asked(session.get_credentials)
        if credentials is None:
            raise MissingSecret(f"no AWS credentials: {_ADVICE}")
        return Fetched(*_asked(lambda: _frozen(credentials)))

    def _check(self, known: Mapping[str, Mapping[str, Any]], name: str) -> None:
        """Raises for a chain of profiles that needs a person, or the variables of this process."""
        passed: set[str] = set()
        while name in known and name not in passed:
            passed.add(name)
            if known[name].get("role_arn") and known[name].get("mfa_serial"):
                raise MissingSecret(
                    f"the profile {quoted(name)} needs a code of an MFA device, which only a person"
                    " has: use a profile with a session token"
                )
            if "credential_source" in known[name] and not self._variables.is_process:
                raise MissingSecret(
                    f"the profile {quoted(name)} has a credential_source, which is read from the"
                    f" environment of this process only; {_ADVICE}"
                )
            name = known[name].get("source_profile", "")

    def _assume(self, keys: AwsKeys, role: Role) -> Fetched[AwsKeys]:
        session = self._session(self._profile, "a role is assumed")
        asked = {"RoleArn": role.arn, "RoleSessionName": f"anaphora-{int(time.time())}"}
        if role.external_id is not None:
            asked["ExternalId"] = role.external_id

        def ask() -> Fetched[AwsKeys]:
            names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            client = session.create_client("sts", **dict(zip(names, keys.values(), strict=False)))
            got = client.assume_role(**asked)["Credentials"]
            made = AwsKeys(got["AccessKeyId"], got["SecretAccessKey"], got["SessionToken"])
            return Fetched(made, got["Expiration"].timestamp())

        return _asked(ask)

    def _session(self, profile: str | None, why: str) -> Any:
        session = _session(self._variables, profile, why)
        session.set_config_variable("region", self._region)
        if self._ca is not None:
            session.set_config_variable("ca_bundle", self._ca)
        if self._proxy is not None:
            from botocore.config import Config

            proxies = dict.fromkeys(("http", "https"), self._proxy.reveal())
            session.set_default_client_config(Config(proxies=proxies))
        return session


def _in_variables(variables: SecretVariables) -> AwsKeys | None:
    access = text_of(variables, "AWS_ACCESS_KEY_ID")
    if access is None:
        return None
    secret = variables.get("AWS_SECRET_ACCESS_KEY") or Secret("")
    if not secret.reveal():
        raise MissingSecret("AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not")
    return AwsKeys(access, secret.reveal(), text_of(variables, "AWS_SESSION_TOKEN"))


def _paths(variables: SecretVariables) -> dict[str, str]:
    """The files of profiles, by botocore's name for each."""
    home = text_of(variables, "HOME") or "~"
    return {
        name: os.path.expanduser(text_of(variables, variable) or f"{home}/.aws/{file}")
        for variable, (file, name) in _FILES.items()
    }


def _session(variables: SecretVariables, profile: str | None, why: str) -> Any:
    try:
        import botocore.session
    except ImportError:
        raise MissingExtra(
            f"{why}: this needs the package botocore: pip install 'anaphora[aws]'; without it, set"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK, and"
            " AWS_REGION",
            extra="aws",
        ) from None
    session = botocore.session.Session(profile=profile)
    for name, path in _paths(variables).items():
        session.set_config_variable(name, path)
    return session


def _frozen(credentials: Any) -> tuple[AwsKeys, float | None]:
    keys = credentials.get_frozen_credentials()
    expiry = getattr(credentials, "_expiry_time", None)
    end = None if expiry is None else expiry.timestamp()
    return AwsKeys(keys.access_key, keys.secret_key, keys.token), end


def _asked(ask: Callable[[], T]) -> T:
    """Errors of botocore become ours, without what they hold."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    failure: AnaphoraError
    try:
        with _unlogged():
            return ask()
    except ResponseParserError:  # its text is the answer, which may hold keys
        failure = Transport("AWS credentials: the answer cannot be read", phase="body")
    except (BotoCoreError, ClientError) as error:
        failure = _failure(error)
    raise failure


@contextmanager
def _unlogged() -> Iterator[None]:
    """Botocore logs whole requests and answers, keys included: not those of this thread."""
    own = threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != own

    loggers = [logging.getLogger(f"botocore.{name}") for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(is_of_another)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_another)


def _failure(error: Any) -> AnaphoraError:
    from botocore import exceptions as those

    answer = getattr(error, "response", {})
    code = answer.get("Error", {}).get("Code")
    text = f"AWS credentials: {code or type(error).__name__}: {shown_text(str(error))}"[:400]
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 401)
    gone = (those.HTTPClientError, those.ConnectionError, those.MetadataRetrievalError)
    if status >= 500 or isinstance(error, gone):
        return Transport(text)
    written = (
        *(those.InvalidConfigError, those.ConfigParseError, those.ProfileNotFound),
        *(those.PartialCredentialsError, those.UnknownCredentialError, those.NoRegionError),
        *(those.ValidationError, those.ParamValidationError),
    )
    if isinstance(error, written):
        return MissingSecret(text)
    return Unauthenticated(text, status=status, code=code)
