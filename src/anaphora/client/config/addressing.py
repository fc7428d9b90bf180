"""Addresses: what is filled into them, and what may not be in them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from anaphora.catalog import Dialect
from anaphora.marked import nearest
from anaphora.values import Notice

from .origin import Origin
from .values import Provider

#: Where each wire's requests go when a row does not say otherwise, as far as it is always the same.
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models",
    "ollama": "/api/chat",
}

_PLACE = re.compile(r"\{(\w*)\}")
#: What is filled in may be part of a host or of a path, and changes neither's bounds.
_FILLING = re.compile(r"[A-Za-z0-9._:-]+\Z")
_LEGAL = re.compile(r"[!-~]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+(%\w+)?\Z")
_REGION = ("region", "location")


def base_url(id: str, provider: Provider, row: Dialect, origin: Origin) -> str:
    """The address that a wire's path is put behind."""
    field = "dialect" if provider.base_url is None else "base_url"
    here = ("providers", id, field)
    address = _filled(id, provider, provider.base_url or row.base_url, origin)
    try:
        parts = _split(address)
        if "{" in address or "}" in address:
            raise ValueError("has braces that name nothing; write {name}")
        if parts.username is not None:
            raise ValueError("holds a user; a key goes to `key`, anything else to `headers`")
        if "?" in address or "#" in address:
            raise ValueError("ends with a query or a fragment; it has to be a path")
        _refuse_doubled(parts.path, row)
    except ValueError as problem:
        raise origin.invalid(str(problem), *here) from None
    return address.rstrip("/")


def check_proxy(id: str, provider: Provider, origin: Origin) -> None:
    """A proxy may ask for a user, so its address is not shown."""
    if provider.proxy is None:
        return
    try:
        parts = _split(provider.proxy)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("is more than the address of a proxy: http://host:port")
    except ValueError as problem:
        raise origin.invalid(str(problem), "providers", id, "proxy") from None


def idle_fillings(id: str, provider: Provider, row: Dialect) -> list[Notice]:
    """Names that are filled in nowhere."""
    places = set(_PLACE.findall(provider.base_url or row.base_url))
    given = [(name, f"account.{name}") for name in provider.account if name not in places]
    if provider.region is not None and not places.intersection(_REGION):
        given.append(("region", "region"))
    return [
        Notice("fills_nothing", f"the address has no {{{name}}}", f"providers.{id}.{at}")
        for name, at in given
    ]


def _filled(id: str, provider: Provider, address: str, origin: Origin) -> str:
    known = dict(provider.account)
    if provider.region is not None:
        known = dict.fromkeys(_REGION, provider.region) | known

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        at = ("account", name) if name in provider.account else ("region",)
        if name not in known:
            near = nearest(name, provider.account)
            told = f" (did you mean that by {near}?)" if near else ""
            field = "`region`" if name in _REGION else f"`account: {{{name}: …}}`"
            reason = f"the address has {{{name}}} in it; fill it with {field}{told}"
            raise origin.invalid(reason, "providers", id)
        if not _FILLING.match(known[name]):
            reason = "goes into the address: letters, digits, dots, colons and dashes"
            raise origin.invalid(reason, "providers", id, *at)
        return known[name]

    return _PLACE.sub(fill, address)


def _split(address: str) -> SplitResult:
    if not _LEGAL.match(address):
        raise ValueError("is no address: blanks and what is not ASCII have to be escaped")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ValueError("is no address: its host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("does not begin with https:// or http://")
    if not _HOST.match(parts.hostname or "") or port == 0:
        raise ValueError("names no host, or no port that there is")
    return parts


def _refuse_doubled(path: str, row: Dialect) -> None:
    """Other clients want /v1 in the address; here it is the wire's to say."""
    ours = [step for step in path.split("/") if step]
    theirs = [step for step in (row.path or PATHS[row.wire]).split("/") if step]
    for length in range(min(len(ours), len(theirs)), 0, -1):
        if ours[-length:] == theirs[:length]:
            twice = "/" + "/".join(theirs[:length])
            raise ValueError(f"ends with {twice}, which requests begin with; leave it out here")
