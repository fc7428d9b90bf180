"""The credentials of a provider entry: those it names, or those that its cloud's SDK would find."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from anaphora.client.config import Key
from anaphora.client.config.accounts import AwsAccount, CloudCredentials
from anaphora.client.config.secrets import (
    Credentials,
    ResolvedProvider,
    Secret,
    SecretVariables,
)
from anaphora.errors import InvalidConfig, MissingExtra
from anaphora.yaml_values import Origin

from .tokens import EntraClient, azure_credentials, google_credentials

AMBIENT = CloudCredentials(ambient=True)
_HERE = re.compile(r"localhost|::1|127(\.\d{1,3}){3}")


class CredentialSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the credentials of a configuration's providers are found."""

    origin: Origin
    folder: Path
    variables: SecretVariables
    find_key: Callable[[Key, tuple[str, ...]], Secret]
    """The secret at a place, for the field of that path."""
    ambient_by_default: bool = True

    def of(self, one: ResolvedProvider) -> Credentials | None:
        """The credentials of an entry; None: it has a key, or needs none."""
        cloud, given = one.cloud, one.provider.credentials
        if given is None:
            # Ambient credentials are never sent without encryption.
            plain = one.base_url.lower().startswith("http:")
            if cloud is None or one.provider.key is not None:
                return None
            if plain and not (cloud.kind == "aws" and self._signs_here(one.base_url)):
                return None
            if not self.ambient_by_default:
                self._fail(one, f"name the credentials, or a `key`: {CloudCredentials.example}")
            given = AMBIENT
        elif one.provider.key is not None:
            self._fail(one, "there is also a `key`; name one of the two")
        elif cloud is None:
            self._fail(one, f"{one.wire} takes a `key`, and no credentials of a cloud")
        if given.clouds and given.clouds != (cloud.kind,):
            self._fail(one, f"{one.wire} takes credentials of {cloud.kind}", *given.clouds)
        if cloud.kind == "aws":
            return self._aws(one, given.aws or AwsAccount(ambient=True), cloud.service)
        if cloud.scope:
            return azure_credentials(cloud.scope, self._entra(one, given))
        return google_credentials(self._google_file(one, given))

    def _signs_here(self, url: str) -> bool:
        """Whether requests to a server on this machine are signed: a daemon or an emulator, with
        the key pair in the variables. A signature does not contain the secret."""
        if not self.ambient_by_default or self.variables.get("AWS_ACCESS_KEY_ID") is None:
            return False
        return _HERE.fullmatch(urlsplit(url).hostname or "") is not None

    def _fail(self, one: ResolvedProvider, reason: str, *path: str) -> NoReturn:
        raise self.origin.error(
            reason, "providers", one.id, "credentials", *path, kind=InvalidConfig
        ) from None

    def _key(self, one: ResolvedProvider, key: Key | None, *path: str) -> Secret | None:
        return None if key is None else self.find_key(key, ("providers", one.id, *path))

    def _aws(self, one: ResolvedProvider, given: AwsAccount, service: str) -> Credentials:
        from .aws import AwsCredentials
        from .aws_keys import AwsChain, Role, region_of
        from .sigv4 import AwsKeys

        config, keys = one.provider, None
        if (given.profile or given.role) and find_spec("botocore.session") is None:
            what = "a profile" if given.profile else "a role"
            raise MissingExtra(
                f"providers.{one.id}.credentials: {what} of AWS needs the package botocore: pip"
                " install 'anaphora[aws]'",
                extra="aws",
            )
        region = config.region or config.account.get("region")
        region = region or region_of(self.variables, given.profile)
        if region is None:
            self._fail(one, "a signature names a region: set `region`, or AWS_REGION")
        place = ("credentials", "aws")
        access = self._key(one, given.access_key, *place, "access_key")
        secret = self._key(one, given.secret_key, *place, "secret_key")
        token = self._key(one, given.session_token, *place, "session_token")
        if access is not None and secret is not None:
            keys = AwsKeys(
                access.reveal(), secret.reveal(), None if token is None else token.reveal()
            )
        role = None if given.role is None else Role(given.role, given.external_id)
        chain = AwsChain(
            self.variables,
            region,
            given.profile,
            keys=keys,
            role=role,
            proxy=one.proxy,
            ca=config.ca if one.proxy else None,
        )
        return AwsCredentials(chain, region, service)

    def _google_file(self, one: ResolvedProvider, given: CloudCredentials) -> str | None:
        if given.google is None or given.google.file is None:
            found = self.variables.get("GOOGLE_APPLICATION_CREDENTIALS")
            return None if found is None or self.variables.is_process else found.reveal()
        file = self.folder / given.google.file
        if not file.is_file():
            self._fail(one, f"there is no file {file}", "google", "file")
        return str(file)

    def _entra(self, one: ResolvedProvider, given: CloudCredentials) -> EntraClient | None:
        azure = given.azure
        if azure is None or azure.client_id is None:
            return None
        secret = self._key(one, azure.client_secret, "credentials", "azure", "client_secret")
        return EntraClient(azure.client_id, azure.tenant, secret, azure.authority)
