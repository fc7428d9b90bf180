"""The credentials of a cloud in `llm.yaml`: exactly one source, always named.

credentials: {aws: {profile: llm}}
credentials: {aws: {access_key: {secret: AWS_ID}, secret_key: {secret: AWS_SECRET}}}
credentials: {google: {file: secrets/vertex.json}}
credentials: {ambient: true}            what the cloud's SDK would find on this machine
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, TypeAlias, get_args

from .tables import Key, Name, Table

Cloud: TypeAlias = Literal["aws", "google", "azure"]


class AwsAccount(Table, frozen=True):
    """A profile of `~/.aws`, or a key pair; with `role`, the role that is assumed with it."""

    example: ClassVar[str] = (
        "write `aws: {profile: NAME}`, `aws: {access_key: {secret: NAME}, secret_key: {secret:"
        " NAME}}` or `aws: {ambient: true}`"
    )

    profile: Name | None = None
    access_key: Key | None = None
    secret_key: Key | None = None
    session_token: Key | None = None
    role: Name | None = None
    """The ARN of a role."""
    external_id: Name | None = None
    """Sent when the role is assumed."""
    ambient: bool = False

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together")
        if self.session_token is not None and self.access_key is None:
            raise ValueError("session_token belongs to access_key and secret_key")
        if (self.profile is not None) + (self.access_key is not None) + self.ambient != 1:
            raise ValueError("name one source of keys: " + self.example)
        if self.external_id is not None and self.role is None:
            raise ValueError("external_id belongs to a role")


class GoogleAccount(Table, frozen=True):
    """A file of credentials: a service account, a workload identity or an authorized user."""

    example: ClassVar[str] = "write `google: {file: PATH}` or `google: {ambient: true}`"

    file: Name | None = None
    """Relative to the folder of the configuration."""
    ambient: bool = False

    def __post_init__(self) -> None:
        if (self.file is not None) == self.ambient:
            raise ValueError("name one source: " + self.example)


class AzureAccount(Table, frozen=True):
    """An application of Entra: with a secret, or the managed identity of this machine."""

    example: ClassVar[str] = (
        "write `azure: {tenant: ID, client_id: ID, client_secret: {secret: NAME}}`,"
        " `azure: {client_id: ID}` for a managed identity, or `azure: {ambient: true}`"
    )

    client_id: Name | None = None
    tenant: Name | None = None
    client_secret: Key | None = None
    authority: Name | None = None
    """The host of a private cloud's sign-in."""
    ambient: bool = False

    def __post_init__(self) -> None:
        if (self.client_id is not None) == self.ambient:
            raise ValueError("name one source: " + self.example)
        if (self.tenant is None) != (self.client_secret is None):
            raise ValueError("tenant and client_secret belong together")
        if self.client_secret is None and self.authority is not None:
            raise ValueError("authority belongs to a client_secret")


class CloudCredentials(Table, frozen=True):
    """The credentials of one cloud."""

    example: ClassVar[str] = (
        "write `credentials: {aws: {profile: NAME}}`, `{google: {file: PATH}}`,"
        " `{azure: {client_id: ID}}` or `{ambient: true}`"
    )

    aws: AwsAccount | None = None
    google: GoogleAccount | None = None
    azure: AzureAccount | None = None
    ambient: bool = False
    """The credentials that the cloud's own SDK would find on this machine."""

    def __post_init__(self) -> None:
        if len(self.clouds) + self.ambient != 1:
            raise ValueError("name one source: " + self.example)

    @property
    def clouds(self) -> tuple[Cloud, ...]:
        """The clouds that are named."""
        return tuple(name for name in get_args(Cloud) if getattr(self, name) is not None)

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The texts in it, each with its path."""
        for cloud in self.clouds:
            account = getattr(self, cloud)
            for name in account.__struct_fields__:
                if isinstance(value := getattr(account, name), str):
                    yield value, ("credentials", cloud, name)
