"""Recorded exchanges with the clouds, as test cases. They live beside the repository (see their
README), and are never copied into it."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.exchanges import FILE

Json = dict[str, Any]
CLOUDS = FILE.with_name("clouds.jsonl.gz")
needs_clouds = pytest.mark.skipif(
    not CLOUDS.exists(), reason=f"no recorded exchanges of the clouds at {CLOUDS}"
)


@functools.cache
def all_records() -> tuple[Json, ...]:
    if not CLOUDS.exists():
        return ()
    with gzip.open(CLOUDS, "rt", encoding="utf-8") as lines:
        return tuple(map(json.loads, lines))


def records(cloud: str, wire: str) -> Iterator[Json]:
    return (each for each in all_records() if (each["cloud"], each["wire"]) == (cloud, wire))


def stream_of(record: Json) -> bytes:
    return base64.b64decode(record["response_base64"])
