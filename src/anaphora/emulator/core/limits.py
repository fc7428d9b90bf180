"""The headers that tell an account what is left of its minute, and who answered."""

from __future__ import annotations

import datetime
import functools
from collections import OrderedDict

import msgspec

_MINUTE = 60.0
_ACCOUNTS = 1000
#: A generous tier: what is refused is refused by a fault that somebody asked for.
REQUESTS, TOKENS, OUTPUT = 4_000, 4_000_000, 800_000


#: The headers of each of Anthropic's limits, and the limit.
_ANTHROPIC = [
    (f"{said}-limit", f"{said}-remaining", f"{said}-reset", limit)
    for said, limit in (
        ("anthropic-ratelimit-requests", REQUESTS),
        ("anthropic-ratelimit-input-tokens", TOKENS),
        ("anthropic-ratelimit-output-tokens", OUTPUT),
        ("anthropic-ratelimit-tokens", TOKENS + OUTPUT),
    )
]


class Spent(msgspec.Struct):
    """What an account used in the minute that began at `since`."""

    since: float
    requests: int = 0
    input: int = 0
    output: int = 0


class Limits:
    def __init__(self) -> None:
        self._spent: OrderedDict[tuple[str, str], Spent] = OrderedDict()

    def spend(
        self, place: tuple[str, str], at: float, input_tokens: int = 0, output_tokens: int = 0
    ) -> Spent:
        """Counts one request of an account at a provider."""
        spent = self._spent.get(place)
        if spent is None or not 0 <= at - spent.since < _MINUTE:
            spent = self._spent[place] = Spent(at)
            if len(self._spent) > _ACCOUNTS:
                self._spent.popitem(last=False)
        self._spent.move_to_end(place)
        spent.requests += 1
        spent.input += input_tokens
        spent.output += output_tokens
        return spent


def headers(wire: str, request_id: str, spent: Spent | None, at: float) -> dict[str, str]:
    """As the provider names them; those who say nothing of the kind get none."""
    if wire == "anthropic":
        return {"request-id": request_id, **(_anthropic(spent) if spent is not None else {})}
    if wire in ("openai_chat", "openai_responses"):
        about = {
            "x-request-id": request_id,
            "openai-version": "2020-10-01",
            "openai-processing-ms": "1",
            "openai-organization": "emulator",
        }
        return {**about, **(_openai(spent, at) if spent is not None else {})}
    return {}


def _anthropic(spent: Spent) -> dict[str, str]:
    when = _moment(int(spent.since + _MINUTE))
    done = (spent.requests, spent.input, spent.output, spent.input + spent.output)
    said = {}
    for (limit_of, remaining, reset, limit), used in zip(_ANTHROPIC, done, strict=True):
        said[limit_of] = str(limit)
        said[remaining] = str(max(0, limit - used))
        said[reset] = when
    return said


@functools.lru_cache(maxsize=64)
def _moment(seconds: int) -> str:
    """The same one for all requests of a minute."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _openai(spent: Spent, at: float) -> dict[str, str]:
    left = max(0, round((spent.since + _MINUTE - at) * 1000))
    reset = f"{left}ms" if left < 1000 else f"{left / 1000:g}s"
    return {
        "x-ratelimit-limit-requests": str(REQUESTS),
        "x-ratelimit-remaining-requests": str(max(0, REQUESTS - spent.requests)),
        "x-ratelimit-reset-requests": reset,
        "x-ratelimit-limit-tokens": str(TOKENS),
        "x-ratelimit-remaining-tokens": str(max(0, TOKENS - spent.input - spent.output)),
        "x-ratelimit-reset-tokens": reset,
    }
