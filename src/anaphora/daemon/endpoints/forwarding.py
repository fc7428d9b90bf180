"""Sends requests about stored objects to a provider, with the daemon's key."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from anaphora import wire
from anaphora.client.config.secrets import ResolvedProvider, SecretHeaders
from anaphora.client.provider_errors import name_origin
from anaphora.client.target import Endpoint, Target
from anaphora.client.transport import HttpRequest, HttpTransport, read_answer
from anaphora.daemon.calls.translation import with_members
from anaphora.daemon.faces import face_of
from anaphora.errors import AnaphoraError
from anaphora.values import Notice
from anaphora.wire.reading import DECODE_ERRORS, decode_members

from .errors import without_accounts

#: Members of stored objects with a provider's text about a failure.
_ERROR_MEMBERS = ("error", "errors", "last_error", "status_details")
_ERROR_MARKS = (b'"error', b'"last_error"', b'"status_details"')


class ProviderResponse(msgspec.Struct, frozen=True, eq=False):
    """A successful response of a provider."""

    headers: tuple[tuple[str, str], ...]
    body: bytes
    notices: tuple[Notice, ...] = ()


class Forwarder:
    """Sends requests to providers. `providers` returns the currently configured ones."""

    def __init__(self, providers: Callable[[], Mapping[str, ResolvedProvider]]) -> None:
        self._providers = providers
        self._transports: dict[tuple[str | None, str | None], HttpTransport] = {}

    def provider_for(self, wire_name: str, granted: tuple[str, ...]) -> str | None:
        """The first granted provider that stores objects of a wire."""
        known = self._providers()
        for base in face_of(wire_name).keepers:
            for id in granted:
                if id in known and _base_wire(known[id]) == base:
                    return id
        return None

    async def send(
        self,
        provider: str,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        body: bytes = b"",
        at_root: bool = False,
        on_write: Callable[[], None] | None = None,
    ) -> ProviderResponse:
        """Raises the provider's error, without its secrets. `at_root`: the path starts at the
        provider's host, not at its base URL. `on_write` is called before anything is written to a
        connection."""
        resolved = self._providers()[provider]
        if at_root:
            origin = urlsplit(resolved.base_url)
            url = f"{origin.scheme}://{origin.netloc}{path}"
        elif path.startswith("/upload/"):
            url = resolved.base_url.removesuffix(resolved.path_start) + path
        else:
            url = resolved.base_url + path.removeprefix(resolved.path_start)
        request = HttpRequest(
            method=method,
            url=f"{url}?{query}" if query else url,
            headers=SecretHeaders([*_defaults(resolved), *headers, *resolved.headers().items()]),
            body=body,
            timeouts=resolved.provider.timeouts,
            max_response_bytes=resolved.provider.max_response_bytes,
            provider=resolved.system,
            path=path,
            credentials=resolved.credentials,
            on_write=on_write,
        )
        try:
            response = await self._transport(resolved).send(request)
            try:
                data = await read_answer(response)
            finally:
                await response.close()
            redactor = resolved.redactor()
            pairs = {name.lower(): redactor(value) for name, value in response.headers.items()}
            if response.status >= 300:
                now = datetime.datetime.now(datetime.UTC)
                error = wire.get(resolved.wire).read_error(response.status, pairs, data, now)
                name_origin(error, _base_wire(resolved), resolved.base_url)
                raise error
        except AnaphoraError as problem:
            resolved.redactor().clean(problem)
            raise
        return ProviderResponse(tuple(pairs.items()), data)

    def target(self, provider: str, model: str) -> Target:
        """A model at a provider, to look up its price."""
        resolved = self._providers()[provider]
        return Endpoint(resolved, self._transport(resolved)).target(model)

    def cleaned(self, provider: str, body: bytes) -> bytes:
        """The JSON of an object with errors without keys and account names."""
        if not any(mark in body for mark in _ERROR_MARKS):
            return body
        try:
            members = decode_members(body)
        except DECODE_ERRORS:
            return body
        redactor = self._providers()[provider].redactor()
        changes = {}
        for name in _ERROR_MEMBERS:
            text = bytes(members.get(name, b"null")).decode(errors="replace")
            if (shown := without_accounts(redactor(text))) != text:
                changes[name] = shown.encode()
        return with_members(body, members, changes)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()

    def _transport(self, resolved: ResolvedProvider) -> HttpTransport:
        from anaphora.client.transport.over_aiohttp import AiohttpTransport

        proxy = resolved.proxy
        key = (None if proxy is None else proxy.reveal(), resolved.provider.ca)
        if key not in self._transports:
            self._transports[key] = AiohttpTransport(proxy, resolved.provider.ca)
        return self._transports[key]


def _base_wire(resolved: ResolvedProvider) -> str:
    return resolved.wire if resolved.dialect is None else resolved.dialect.wire


def _defaults(resolved: ResolvedProvider) -> list[tuple[str, str]]:
    face = face_of(_base_wire(resolved))
    return [(face.version_header, face.default_version)] if face.version_header else []
