"""A stream of Converse, and botocore's reader of it: bytes to parsed events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from _wire_streams import EVENTS, Reads

from anaphora.wire.eventstream import encode_event, padded


def bedrock_stream() -> list[bytes]:
    """One piece for each event, each with padding as Bedrock sends it."""

    def event(kind: str, **fields: Any) -> bytes:
        return encode_event(kind, padded(json.dumps(fields).encode()))

    words = [
        event("contentBlockDelta", contentBlockIndex=0, delta={"text": f" word{at}"})
        for at in range(EVENTS)
    ]
    counts = {"inputTokens": 10, "outputTokens": EVENTS, "totalTokens": EVENTS + 10}
    return [
        event("messageStart", role="assistant"),
        *words,
        event("contentBlockStop", contentBlockIndex=0),
        event("messageStop", stopReason="end_turn"),
        event("metadata", usage=counts, metrics={"latencyMs": 1}),
    ]


class _Body:
    """What botocore reads a stream from."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def stream(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None: ...


def botocore_reads(pieces: list[bytes]) -> Reads | None:
    """botocore's EventStream with its parser; None if botocore is not installed."""
    try:
        import botocore.session
        from botocore.eventstream import EventStream
        from botocore.parsers import EventStreamJSONParser
    except ImportError:
        return None
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = model.operation_model("ConverseStream").get_event_stream_output()

    def read() -> None:
        stream = EventStream(_Body(pieces), shape, EventStreamJSONParser(), "ConverseStream")
        assert sum(1 for _ in stream) > EVENTS

    return read


#: Why the figure is missing.
NO_BOTOCORE = "botocore is not installed: pip install 'anaphora[aws]'"
Compare = Callable[[str, list[bytes], Reads], float]


def compared(compare: Compare) -> float | None:
    """How many times our CPU botocore takes, by the worse of two cuts."""
    pieces = bedrock_stream()
    whole = b"".join(pieces)
    worst = float("inf")
    large = [whole[at : at + 65536] for at in range(0, len(whole), 65536)]
    for cut, given in (("per event", pieces), ("large reads", large)):
        theirs = botocore_reads(given)
        if theirs is None:
            print(f"bedrock      not measured: {NO_BOTOCORE}")
            return None
        worst = min(worst, compare(cut, given, theirs))
    return round(worst, 1)
