"""Hooks for the official SDKs: verdicts on the calls of an unchanged program.

    client = anaphora.observe(anthropic.Anthropic())     the same object
    with anaphora.observing(on_verdict=print): ...        everything in a block
    anthropic.DefaultHttpxClient(transport=transport())   a transport to pass on

They work below the SDKs, at the transport: the request is read as it is sent, and the response as
it arrives. Methods, stream helpers and raw responses of an SDK do not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from anaphora.client.observe import Watcher
from anaphora.errors import InvalidRequest
from anaphora.traffic.sums import JudgedCall

from . import http_client_hooks, httpx_transport
from .httpx_transport import ObservedTransport
from .observation import Observation, OnVerdict, activate
from .replaced import HOOKS, Hook

__all__ = ["JudgedCall", "Observation", "transport"]

T = TypeVar("T")

#: Attributes in which SDKs and frameworks keep their HTTP clients.
_PLACES = (
    "_client",
    "_async_client",
    "root_client",
    "root_async_client",
    "client",
    "async_client",
    "_api_client",
    "_httpx_client",
    "_async_httpx_client",
    "sdk_configuration",
    "_endpoint",
    "http_session",
    "http",
    "_http",
)
#: How deep to search: a framework's model, the SDK's client in it, its configuration.
_DEPTH = 3


def observe(
    client: T,
    *,
    on_verdict: OnVerdict | None = None,
    watchers: Iterable[Watcher] = (),
    mark: bool = False,
    provider: str = "",
    addresses: Mapping[str, str] = {},
) -> T:
    """Observes the calls of an SDK's client, and returns it.

    `on_verdict` gets each call that has a verdict; `watchers` get a `Record` of every call, like
    those of `anaphora.Client`. Without either, verdicts are logged to `anaphora.observe`: a warning
    if a prefix broke. `mark=True` places cache markers in requests. `provider` names the provider
    of a base URL that the catalog does not know; `addresses` maps base URLs to providers.
    """
    observation = Observation(
        on_verdict=on_verdict,
        watchers=watchers,
        mark=mark,
        provider=provider,
        addresses=addresses,
        of_client=True,
    )
    found = list(_http_clients(client))
    for one in found:
        one(observation)
    if not found:
        raise InvalidRequest(
            "no HTTP client of httpx, httpx2, aiohttp, requests, urllib3, botocore or httplib2"
            f" found in {type(client).__qualname__}; wrap the calls in"
            " `with anaphora.observing(…)` instead",
            path="client",
        )
    return client


def transport(
    inner: Any = None,
    *,
    on_verdict: OnVerdict | None = None,
    watchers: Iterable[Watcher] = (),
    mark: bool = False,
    provider: str = "",
    addresses: Mapping[str, str] = {},
) -> Any:
    """A transport for a client of httpx or httpx2, sync or async, around `inner`. Without `inner`
    it makes its own, with the proxies of the environment. The options are those of `observe`."""
    observation = Observation(
        on_verdict=on_verdict,
        watchers=watchers,
        mark=mark,
        provider=provider,
        addresses=addresses,
        of_client=True,
    )
    methods = ("handle_request", "handle_async_request")
    if inner is not None and not any(hasattr(inner, name) for name in methods):
        reason = f"must be a transport of httpx or httpx2, not {type(inner).__name__}"
        raise InvalidRequest(reason, path="inner")
    return ObservedTransport(inner, observation)


@contextmanager
def observing(
    *,
    on_verdict: OnVerdict | None = None,
    watchers: Iterable[Watcher] = (),
    mark: bool = False,
    addresses: Mapping[str, str] = {},
) -> Iterator[Observation]:
    """Observes everything on httpx, httpx2, aiohttp and `http.client` (requests, urllib3, botocore,
    google-auth) in this block: calls to hosts of the catalog and to configured addresses. Per
    context: other threads and tasks are not observed, tasks that are started in the block are. The
    block's value has the calls and their sums.

    Configured are `addresses`, base URLs with their provider, and those of the environment
    (`ANTHROPIC_BASE_URL`, `OPENAI_BASE_URL`, …).
    """
    observation = Observation(
        on_verdict=on_verdict, watchers=watchers, mark=mark, addresses=addresses
    )
    with HOOKS.in_use(_hooks), HOOKS.in_use(http_client_hooks.hooks):
        deactivate = activate(observation)
        try:
            yield observation
        finally:
            deactivate()


# ── Functions that are replaced in a block ───────────────────────────────────────────────────────


def _hooks() -> Iterator[Hook]:
    from . import aiohttp_hooks

    yield from httpx_transport.hooks()
    yield from aiohttp_hooks.hooks()


# ── The HTTP clients of an SDK ───────────────────────────────────────────────────────────────────


def _http_clients(client: Any, depth: int = _DEPTH) -> Iterator[Callable[[Observation], None]]:
    """For each HTTP client of an object, a function that observes it."""
    if httpx_transport.is_client(client):
        yield functools.partial(httpx_transport.observe_client, client)
        return
    if _is_session(client):
        from .aiohttp_hooks import observe_session

        yield functools.partial(observe_session, client)
        return
    if http_client_hooks.sender_of(client) is not None:
        yield functools.partial(http_client_hooks.observe_sender, client)
        return
    if callable(getattr(client, "_get_aiohttp_session", None)):
        yield functools.partial(_observe_sessions, client)
    if depth:
        for name in _PLACES:
            inner = getattr(client, name, None)
            if inner is not None and not isinstance(inner, str | bytes | int | type):
                yield from _http_clients(inner, depth - 1)


def _is_session(value: Any) -> bool:
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    return "aiohttp.client.ClientSession" in names


def _observe_sessions(api: Any, observation: Observation) -> None:
    """Observes the aiohttp sessions that google-genai makes for each event loop on demand."""
    from .aiohttp_hooks import observe_session

    original = getattr(api._get_aiohttp_session, "__wrapped__", api._get_aiohttp_session)

    @functools.wraps(original)
    async def get_session() -> Any:
        session = await original()
        inner = session
        for name in ("_auth_request", "_session"):  # google-auth's session wraps another one
            inner = inner if _is_session(inner) else getattr(inner, name, inner)
        if _is_session(inner):
            observe_session(inner, observation)
        return session

    api._get_aiohttp_session = get_session
