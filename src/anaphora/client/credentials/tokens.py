"""Google Cloud and Azure: bearer tokens of their SDKs, in the extras `google` and `azure`."""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.errors import MissingExtra, MissingSecret, Transport, Unauthenticated
from anaphora.redaction import shown_text

from .refreshing import Fetched, RefreshedValue

#: The module of google-auth for each type of file, and what makes its credentials.
_GOOGLE_FILES = {
    "service_account": ("oauth2.service_account", "from_service_account_info"),
    "authorized_user": ("oauth2.credentials", "from_authorized_user_info"),
    "external_account": ("auth.identity_pool", "from_info"),
    "impersonated_service_account": (
        "auth.impersonated_credentials",
        "from_impersonated_service_account_info",
    ),
}
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_CODE = re.compile(r"(\bAADSTS[0-9]{5,8}\b)")
#: Seconds before its expiry at which each SDK fetches a token again.
_GOOGLE_AHEAD = 225.0
_AZURE_AHEAD = 300.0


class Token(NamedTuple):
    secret: Secret
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers that go with the token."""


class TokenCredentials:
    """A bearer token, fetched by a source that may block."""

    def __init__(self, source: Callable[[], Fetched[Token]], *, ahead: float, name: str) -> None:
        self._tokens = RefreshedValue(source, ahead=ahead)
        self._name = name

    def __repr__(self) -> str:
        return f"<TokenCredentials of {self._name}>"

    async def headers(
        self,
        method: str,  # noqa: ARG002
        url: str,  # noqa: ARG002
        headers: SecretHeaders,  # noqa: ARG002
        body: bytes,  # noqa: ARG002
    ) -> SecretHeaders:
        token = await self._tokens.get()
        bearer = ("authorization", f"Bearer {token.secret.reveal()}")
        return SecretHeaders((bearer, *token.headers))

    def renews(self, status: int, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Drops a token that is refused, if it is not new."""
        history = self._tokens.history
        return status == 401 and bool(history) and self._tokens.drop(history[0])

    def secrets(self) -> Iterable[str]:
        return [token.secret.reveal() for token in self._tokens.history]


def google_credentials(file: str | None = None) -> TokenCredentials:
    """Google's application default credentials, or those of a file: a service account, a workload
    identity, an authorized user."""
    return TokenCredentials(GoogleTokens(file), ahead=_GOOGLE_AHEAD, name="Google")


class GoogleTokens:
    """Tokens of google-auth; its credentials are loaded at the first one."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._credentials: Any = None

    def __call__(self) -> Fetched[Token]:
        try:
            import google.auth
            from google.auth import exceptions
            from google.auth.transport.requests import Request
        except ImportError:
            raise MissingExtra(
                "Google's credentials need the package google-auth: pip install 'anaphora[google]'",
                extra="google",
            ) from None
        try:
            if self._credentials is None:
                self._credentials = self._load(google.auth)
            self._credentials.refresh(Request())
        except exceptions.DefaultCredentialsError as error:
            failure: Exception = MissingSecret(
                "no credentials of Google Cloud were found: run `gcloud auth application-default"
                " login`, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"
                f"{_more_than_missing(error)}"
            )
        except exceptions.TransportError as error:
            failure = Transport(f"Google's token service: {_first_line(error)}")
        except exceptions.GoogleAuthError as error:
            text = f"Google refused a token: {_first_line(error)}"
            retry = getattr(error, "retryable", False)
            failure = Transport(text) if retry else Unauthenticated(text, status=401)
        else:
            return self._token()
        raise failure

    def _load(self, auth: Any) -> Any:
        if self._file is None:
            return auth.default(scopes=[GOOGLE_SCOPE])[0]
        fields = Secret(Path(self._file).read_text(encoding="utf-8"))
        try:
            kind = json.loads(fields.reveal()).get("type")
            module, make = _GOOGLE_FILES[kind]
        except (ValueError, AttributeError, LookupError):
            kinds = ", ".join(_GOOGLE_FILES)
            raise MissingSecret(
                f"not a file of Google's credentials, whose `type` is one of {kinds}",
                file=self._file,
            ) from None
        source = import_module(f"google.{module}").Credentials
        return getattr(source, make)(json.loads(fields.reveal()), scopes=[GOOGLE_SCOPE])

    def _token(self) -> Fetched[Token]:
        found = self._credentials
        project = getattr(found, "quota_project_id", None)
        headers = () if not project else (("x-goog-user-project", project),)
        expiry = found.expiry
        end = None if expiry is None else expiry.replace(tzinfo=datetime.UTC).timestamp()
        return Fetched(Token(Secret(found.token), headers), end)


class EntraClient(NamedTuple):
    """An application of Entra; without a secret, a managed identity."""

    client_id: str
    tenant: str | None = None
    secret: Secret | None = None
    authority: str | None = None


def azure_credentials(scope: str, client: EntraClient | None = None) -> TokenCredentials:
    """Tokens for a scope: of azure-identity's default chain, or of a client."""
    return TokenCredentials(AzureTokens(scope, client), ahead=_AZURE_AHEAD, name="Azure")


class AzureTokens:
    """Tokens of azure-identity; its credential is made at the first one."""

    def __init__(self, scope: str, client: EntraClient | None) -> None:
        self._scope = scope
        self._client = client
        self._credential: Any = None

    def __call__(self) -> Fetched[Token]:
        try:
            import azure.identity
            from azure.core import exceptions
        except ImportError:
            raise MissingExtra(
                "Entra's credentials need the package azure-identity:"
                " pip install 'anaphora[azure]'; or set the key of the resource",
                extra="azure",
            ) from None
        try:
            if self._credential is None:
                self._credential = self._make(azure.identity)
            found = self._credential.get_token(self._scope)
        except azure.identity.CredentialUnavailableError as error:
            failure: Exception = MissingSecret(f"no credentials of Azure: {_first_line(error)}")
        except exceptions.ClientAuthenticationError as error:
            failure = Unauthenticated(f"Entra refused a token: {_first_line(error)}", status=401)
            if self._client is None and not _CODE.search(str(error)):  # no source of the chain
                failure = MissingSecret(
                    "no credentials of Azure were found: run `az login`, or set AZURE_TENANT_ID,"
                    " AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or the key of the resource"
                )
        except exceptions.AzureError as error:
            failure = Transport(f"Entra's token service: {_first_line(error)}")
        else:
            return Fetched(Token(Secret(found.token)), float(found.expires_on))
        raise failure

    def _make(self, identity: Any) -> Any:
        client = self._client
        if client is None:
            # A program that sets up no logging would get all attempts on standard error.
            logging.getLogger("azure.identity").addHandler(logging.NullHandler())
            return identity.DefaultAzureCredential()
        if client.secret is None:
            return identity.ManagedIdentityCredential(client_id=client.client_id)
        options: dict[str, Any] = {}
        if client.authority is not None:  # of a private cloud, which Entra does not know
            options = {"authority": client.authority, "disable_instance_discovery": True}
        return identity.ClientSecretCredential(
            client.tenant, client.client_id, client.secret.reveal(), **options
        )


def _more_than_missing(error: Exception) -> str:
    """What an error of google-auth tells beyond that there are no credentials."""
    line = _first_line(error).partition(": ")[2].partition(" To set up ")[0]
    return "" if line.startswith("Your default credentials were not found") else f" ({line})"


def _first_line(error: Exception) -> str:
    """The error without what could be a secret; codes such as AADSTS700016 stay."""
    lines = str(error).strip().splitlines() or [""]
    line = next(filter(_CODE.search, lines), lines[0]).strip()
    words = [part if _CODE.fullmatch(part) else shown_text(part) for part in _CODE.split(line)]
    return f"{type(error).__name__}: {''.join(words)}"[:400]
