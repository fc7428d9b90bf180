"""Signs requests of a program again, with the program's own AWS credentials.

A signature covers `host`, so a request to the proxy is not valid at AWS, even unchanged. The
credentials are those of the environment that the program gets. A request is never signed with keys
of another identity than the one that signed it: it is refused instead. Whether a signature is valid
cannot be checked without the program's keys, so the address that the program gets has a secret, and
only requests there are signed: others on this machine reach the proxy as well.

SDKs of AWS send a bearer token (AWS_BEARER_TOKEN_BEDROCK) only over TLS. So the program does not
get it: it signs with its own keys or with placeholders, and the proxy sends the token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.client.config.secrets import Secret, SecretHeaders, SecretVariables
from anaphora.client.credentials.aws import AwsCredentials
from anaphora.client.credentials.aws_keys import AwsChain, profiles, region_of, text_of
from anaphora.client.credentials.refreshing import Fetched
from anaphora.client.credentials.sigv4 import AwsKeys, Scope, scope_in
from anaphora.errors import AnaphoraError, Forbidden, MissingSecret, TooLarge, Transport
from anaphora.traffic.accounts import SIGNED_SCHEME
from anaphora.traffic.calls import UpstreamRequest, header_of

BEARER = "AWS_BEARER_TOKEN_BEDROCK"
#: The key pair of a program without one.
PLACEHOLDER_KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAANAPHORA00000000",
    "AWS_SECRET_ACCESS_KEY": "anaphora-placeholder",
}
#: Variables that hold AWS credentials or say where they are.
_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: Services that take the token.
_WITH_BEARER = ("bedrock", "bedrock-mantle")
#: Headers of a signature.
_SIGNATURE = ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256")
#: Key ids, regions and services whose credentials are kept: temporary keys have ever new ids.
_MOST_SCOPES = 64
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NOT_THE_PROGRAM = (
    "the proxy signs requests of its own command only: use the address that the command has in"
    " AWS_ENDPOINT_URL_BEDROCK_RUNTIME or ANTHROPIC_BEDROCK_BASE_URL, with all of its path"
)
_UNWATCHED = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true leaves the calls of AWS SDKs unwatched"


def program_credentials(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables to set and to remove for a program whose bearer token the proxy holds."""
    if not environ.get(BEARER):
        return {}, ()
    return ({} if has_aws_credentials(environ) else PLACEHOLDER_KEYS), (BEARER,)


def has_aws_credentials(environ: Mapping[str, str]) -> bool:
    """Whether a program finds keys of its own, those of the machine aside."""
    if any(environ.get(name) for name in _SOURCES):
        return True
    try:
        return "default" in profiles(SecretVariables(environ))
    except AnaphoraError:  # the program says what is wrong with its files
        return True


def known_region(environ: Mapping[str, str]) -> str:
    """The AWS region of an environment; empty if it has none."""
    try:
        return region_of(SecretVariables(environ)) or ""
    except AnaphoraError:
        return ""


class RequestSigner:
    """Signs with the credentials of an environment: that of this process, unless given."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = SecretVariables(variables)
        bearer = text_of(self._variables, BEARER)
        self._bearer = None if bearer is None else Secret(bearer)
        self._credentials = BoundedMap[tuple[Scope, bool], AwsCredentials](_MOST_SCOPES)

    def __repr__(self) -> str:
        return "<RequestSigner>"

    async def signed(
        self, request: UpstreamRequest
    ) -> tuple[UpstreamRequest, AwsCredentials | None]:
        """The request as the provider accepts it, and the credentials that signed it; None if it
        had no signature. Raises `Forbidden` if it cannot be signed."""
        authorization = header_of(request.headers, "authorization")
        scope = scope_in(authorization)
        if scope is None:
            if (
                authorization.startswith(SIGNED_SCHEME)
                or "x-amz-signature=" in request.query.lower()
            ):
                raise _refused("the proxy cannot read the signature of this request")
            return request, None
        if not request.route.signs:
            raise _refused(_NOT_THE_PROGRAM)
        if not isinstance(request.body, bytes):
            raise TooLarge("the request is too large to be signed again", status=413)
        temporary = bool(header_of(request.headers, "x-amz-security-token"))
        rest = tuple(pair for pair in request.headers if pair[0] not in _SIGNATURE)
        if self._bearer is not None and scope.service in _WITH_BEARER:
            _check_encrypted(request.route.upstream)
            token = ("authorization", f"Bearer {self._bearer.reveal()}")
            return replace(request, headers=(*rest, token)), None
        query = f"?{request.query}" if request.query else ""
        url = f"{request.route.upstream}{request.path}{query}"
        credentials = self._of(scope, temporary=temporary)
        try:
            added = await credentials.headers(
                request.method, url, SecretHeaders(rest), request.body
            )
        except Transport:
            raise
        except AnaphoraError as problem:
            reason = f"the proxy cannot sign this request again: {problem}. {_UNWATCHED}"
            raise _refused(reason) from None
        return replace(request, headers=(*rest, *added.items())), credentials

    def _of(self, scope: Scope, *, temporary: bool) -> AwsCredentials:
        found = self._credentials.use((scope, temporary))
        if found is None:
            keys = _KeysOf(scope, temporary, self._variables)
            found = AwsCredentials(keys, scope.region, scope.service)
            self._credentials[scope, temporary] = found
        return found


class _KeysOf:
    """The keys with an id: of the environment or a profile; or, for temporary ones, those of the
    environment's role, which have another id each time."""

    def __init__(self, scope: Scope, temporary: bool, variables: SecretVariables) -> None:
        self._access_key = scope.access_key
        self._temporary = temporary
        self._variables = variables
        self._chain = AwsChain(variables, scope.region)

    def __call__(self) -> Fetched[AwsKeys]:
        keys = self._with_id()
        if keys is not None:
            return Fetched(keys, None)
        if self._temporary:
            found = self._chain()
            if found.value.token is not None:
                return found
        what = "temporary keys" if self._temporary else "keys"
        raise MissingSecret(
            f"it was signed with {what} that are neither in the environment of the command nor in"
            " AWS's files, so they are in its code; name a profile there (AWS_PROFILE)"
        )

    def _with_id(self) -> AwsKeys | None:
        secret = text_of(self._variables, "AWS_SECRET_ACCESS_KEY")
        if secret and text_of(self._variables, "AWS_ACCESS_KEY_ID") == self._access_key:
            token = text_of(self._variables, "AWS_SESSION_TOKEN")
            return AwsKeys(self._access_key, secret, token)
        for fields in profiles(self._variables).values():
            if fields.get("aws_access_key_id") == self._access_key:
                names = ("aws_secret_access_key", "aws_session_token")
                held = (fields.get(name) or Secret("") for name in names)
                return AwsKeys(self._access_key, *(one.reveal() for one in held))
        return None


def _refused(reason: str) -> Forbidden:
    return Forbidden(reason, status=403, code="AccessDeniedException")


def _check_encrypted(upstream: str) -> None:
    parts = urlsplit(upstream)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise _refused(f"{BEARER} is not sent without TLS, and {upstream} has none")


def child_variables(assigned: Mapping[str, str]) -> Mapping[str, str] | None:
    """The environment of a command for `RequestSigner`: None if it is that of this process, whose
    other sources of keys (SSO, a process) then work as well."""
    return {**os.environ, **assigned} if any(name.startswith("AWS_") for name in assigned) else None
