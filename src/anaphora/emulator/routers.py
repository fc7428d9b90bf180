"""Routers with several hosts, each with a cache of its own. A request goes to the hosts that it
asks for, in their order, and then to the others at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.catalog import Dialect
from anaphora.errors import NotFound
from anaphora.values import Message, Opaque

from .exchange import nested
from .hosts.host import RoutedRequest
from .replies.text import SeededRandom


class RouterHosts:
    """The hosts behind every router of one engine."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self._names = tuple(names)
        self._seed = seed
        self._requests = 0

    def route(self, request: RoutedRequest) -> tuple[RoutedRequest, tuple[str, ...]]:
        """The request without a host in its model's name, and the hosts to try, the first one
        first; no hosts if the provider is no router."""
        router = request.route.dialect.router
        if router is None or not self._names:
            return request, ()
        if not router.pin:
            return self._by_model(request)
        first, *levels = router.pin.split(".")[:-1]
        asked = nested({first: request.value(first)}, first, *levels) or {}
        only = self._known(nested(asked, "only"))
        order = self._known(nested(asked, router.pin.rpartition(".")[2]))
        others = [name for name in only or self._names if name not in order]
        others = self._shuffled(others)
        if nested(asked, "allow_fallbacks") is False:
            others = [] if order else others[:1]
        return request, (*order, *others)

    def _by_model(self, request: RoutedRequest) -> tuple[RoutedRequest, tuple[str, ...]]:
        model, _, host = str(request.value("model", "")).partition(":")
        if not host:
            return request, tuple(self._shuffled(self._names))
        fields = {**request.fields, "model": msgspec.Raw(dumps(model))}
        if not (asked := self._known([host])):
            raise NotFound(f"{host!r} does not serve this model", status=404)
        return request.with_body(msgspec.json.encode(fields)), tuple(asked)

    def _shuffled(self, names: Sequence[str]) -> list[str]:
        self._requests += 1
        draw = SeededRandom(b"hosts %d %d" % (self._seed, self._requests))
        return sorted(names, key=lambda _: draw.below(1 << 32))

    def _known(self, asked: Any) -> list[str]:
        """The hosts of a list, which may have names or slugs."""
        slugs = {name.lower().replace(" ", "-"): name for name in self._names}
        known = slugs | {name: name for name in self._names}
        wanted = asked if isinstance(asked, list) else []
        return [known[name] for name in wanted if isinstance(name, str) and name in known]


def name_host(
    host: str, dialect: Dialect, message: Message, fields: dict[str, Any], headers: dict[str, str]
) -> Message:
    """Names the host in the fields of a reply or in its headers; returns the message, which has
    the field at some routers."""
    router = dialect.router
    assert router is not None
    if router.answer_header:
        headers[router.answer_header] = host
        return message
    first, *levels = router.answer.split(".")
    value: Any = host
    for level in reversed(levels):
        value = {level: value}
    if first not in dialect.reply_fields:
        fields[first] = value
        return message
    part = Opaque(dialect.wire, "message", dumps({first: value}).decode())
    return msgspec.structs.replace(message, parts=(*message.parts, part))
