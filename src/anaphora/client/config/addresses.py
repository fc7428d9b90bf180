"""URLs of providers and proxies: placeholders and checks."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from anaphora.catalog import Dialect
from anaphora.values import Notice
from anaphora.yaml_values import Origin, nearest

from .values import ProviderConfig

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
#: A value may be part of a host or of a path segment, and cannot end either.
_VALUE = re.compile(r"[A-Za-z0-9._:-]+\Z")
_LEGAL = re.compile(r"[!-~]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+(%\w+)?\Z")
_REGION = ("region", "location")


def base_url(id: str, provider: ProviderConfig, row: Dialect, origin: Origin) -> str:
    """The URL that a request's path is appended to."""
    url = _filled(id, provider, provider.base_url or row.base_url, origin)
    try:
        parts = _split(url)
        if "{" in url or "}" in url:
            raise ValueError("has braces without a name; write {name}")
        if parts.username is not None:
            raise ValueError("contains a user; use `key` or `headers` instead")
        if "?" in url or "#" in url:
            raise ValueError("ends with a query or a fragment; it must end with a path")
        _check_not_doubled(parts.path, row)
    except ValueError as error:
        field = "dialect" if provider.base_url is None else "base_url"
        raise origin.invalid(str(error), "providers", id, field) from None
    return url.rstrip("/")


def check_proxy(id: str, provider: ProviderConfig, origin: Origin) -> None:
    """The URL is not quoted in errors: it may contain a password."""
    if provider.proxy is None:
        return
    try:
        parts = _split(provider.proxy)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("is more than a proxy's address: http://host:port")
    except ValueError as error:
        raise origin.invalid(str(error), "providers", id, "proxy") from None


def unused_placeholders(id: str, provider: ProviderConfig, row: Dialect) -> list[Notice]:
    """A notice for each configured value that the URL has no placeholder for."""
    names = set(_PLACEHOLDER.findall(provider.base_url or row.base_url))
    unused = [(name, f"account.{name}") for name in provider.account if name not in names]
    if provider.region is not None and not names.intersection(_REGION):
        unused.append(("region", "region"))
    return [
        Notice("fills_nothing", f"the URL has no {{{name}}}", f"providers.{id}.{field}")
        for name, field in unused
    ]


def _filled(id: str, provider: ProviderConfig, url: str, origin: Origin) -> str:
    values = dict(provider.account)
    if provider.region is not None:
        values = dict.fromkeys(_REGION, provider.region) | values

    def fill(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name not in values:
            near = nearest(name, provider.account)
            advice = f" (is {near} a misspelling?)" if near else ""
            field = "`region`" if name in _REGION else f"`account: {{{name}: …}}`"
            reason = f"the URL contains {{{name}}}; set it with {field}{advice}"
            raise origin.invalid(reason, "providers", id)
        if not _VALUE.match(values[name]):
            path = ("account", name) if name in provider.account else ("region",)
            reason = "is part of the URL: only letters, digits, dots, colons and dashes"
            raise origin.invalid(reason, "providers", id, *path)
        return values[name]

    return _PLACEHOLDER.sub(fill, url)


def _split(url: str) -> SplitResult:
    if not _LEGAL.match(url):
        raise ValueError("is not a URL: percent-encode spaces and non-ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL: invalid host or port") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("does not begin with https:// or http://")
    if not _HOST.match(parts.hostname or "") or port == 0:
        raise ValueError("has no valid host or port")
    return parts


def _check_not_doubled(path: str, row: Dialect) -> None:
    """Other clients want /v1 in the URL; here it is part of the wire's path."""
    end = [step for step in path.split("/") if step]
    start = [step for step in row.request_path.split("/") if step]
    for length in range(min(len(end), len(start)), 0, -1):
        if end[-length:] == start[:length]:
            doubled = "/" + "/".join(start[:length])
            raise ValueError(f"ends with {doubled}, which request paths begin with; leave it out")
