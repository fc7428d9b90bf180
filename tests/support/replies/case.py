"""The tables of a wire's replies, streams and errors: bytes on one side, our values on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphora import wire
from anaphora.errors import Upstream


@dataclass(frozen=True, kw_only=True)
class ReplyCase:
    name: str

    # ── Single replies ──
    #: A reply, its stop reason, and the provider's word for it.
    stop_reasons: Sequence[tuple[bytes, str, str | None]]
    #: A malformed reply, and the path of what is wrong in it.
    malformed: Sequence[tuple[bytes, str]]
    #: A reply whose usage cannot be read, and the path of that.
    unreadable_usage: Sequence[tuple[bytes, str]]
    #: An error object with status 200, and its class; None where the wire has none.
    error_reply: tuple[bytes, type[Upstream]] | None

    # ── Streams ──
    #: The beginning of a stream, with the text "Hi".
    text: bytes
    #: A stream with that text that ends well, and others that are read the same.
    whole: bytes
    unusual: Mapping[str, bytes]
    #: A stream that fails, and the error. Some have the text "Hi" before the failure.
    broken: Sequence[tuple[bytes, str]]
    #: A beginning and a piece; the reader gives up after some of the pieces.
    endless: Sequence[tuple[bytes, bytes]]

    # ── Errors ──
    #: Status, body and class; every body that is an object has the message "why".
    errors: Sequence[tuple[int, bytes, type[Upstream]]]
    #: Bodies that are no error object: the status decides.
    bare_errors: Sequence[bytes]
    #: Classes that the wire has no word for: they are read as rejected requests.
    unnamed: tuple[type[Upstream], ...] = ()

    #: Whether a failure in a stream names its class; where not, its code decides.
    names_failures: bool = False

    @property
    def codec(self) -> Any:
        return wire.get(self.name)

    def events(self, *pieces: bytes) -> list[Any]:
        reader = self.codec.reader()
        return [*(event for piece in pieces for event in reader.feed(piece)), *reader.close()]
