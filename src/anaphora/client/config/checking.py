"""What no type can say: names that have to exist elsewhere in the file, headers, models."""

from __future__ import annotations

import re

from anaphora.marked import nearest

from .origin import Origin
from .values import Config, Provider

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?\Z")

#: How long a body is, and how it comes, the transport knows.
_TRANSPORT = ("content-length", "transfer-encoding", "connection")


def check_headers(id: str, provider: Provider, auth: str, origin: Origin) -> None:
    """Names and values that can be sent. Values are never shown: they may be secrets."""
    seen: set[str] = set()
    for name, value in provider.headers.items():
        here = ("providers", id, "headers", name)
        if not _NAME.match(name):
            raise origin.invalid("is no name of a header", *here)
        if not _VALUE.match(value):
            raise origin.invalid("holds what no header may: line breaks, blanks around it", *here)
        if name.lower() == auth:
            raise origin.invalid("is where the key goes; say where that is with `key`", *here)
        if name.lower() in _TRANSPORT:
            raise origin.invalid("is set when the request is sent; leave it out", *here)
        if name.lower() in seen:
            raise origin.invalid("is given twice", *here)
        seen.add(name.lower())


def check_models(id: str, provider: Provider, origin: Origin) -> None:
    """Where models are listed, no other is named."""
    known = provider.known_models
    if not known:
        return
    if provider.model is not None and provider.model not in known:
        raise origin.invalid(_unlisted(provider.model, id, known), "providers", id, "model")
    for model in provider.limits.models:
        if model not in known:
            here = ("providers", id, "limits", "models", model)
            raise origin.invalid(_unlisted(model, id, known), *here)
    for model in provider.prices:
        if model != "*" and model not in known:
            raise origin.invalid(_unlisted(model, id, known), "providers", id, "prices", model)


def check_routes(config: Config, origin: Origin) -> None:
    for name, hops in config.routes.items():
        if name in config.providers:
            raise origin.invalid("is a provider's name, too; choose another", "routes", name)
        if not hops:
            raise origin.invalid("leads nowhere; name a provider", "routes", name)
        for index, hop in enumerate(hops):
            here = ("routes", name, index)
            provider = config.providers.get(hop.provider)
            if provider is None:
                near = nearest(hop.provider, config.providers)
                told = f"; did you mean {near}?" if near else ""
                raise origin.invalid(f"no provider {hop.provider!r}{told}", *here, "provider")
            known = provider.known_models
            if hop.model is not None and known and hop.model not in known:
                raise origin.invalid(_unlisted(hop.model, hop.provider, known), *here, "model")


def _unlisted(model: str, id: str, known: tuple[str, ...]) -> str:
    near = nearest(model, known)
    told = f"; did you mean {near}?" if near else f": {', '.join(known)}"
    return f"{model!r} is not among the known_models of {id}{told}"
