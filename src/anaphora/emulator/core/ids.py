"""Ids as each provider writes them. They depend on the seed and on which request it is."""

from __future__ import annotations

from .replies.dice import name_of, seed_of

_REPLIES = {
    "anthropic": "msg_01",
    "openai_chat": "chatcmpl-",
    "openai_responses": "resp_",
    "gemini": "",
    "ollama": "",
}


class Ids:
    def __init__(self, seed: int) -> None:
        self._seed = seed_of(b"%d" % seed)
        self._count = 0

    def reply(self, wire: str) -> str:
        return _REPLIES[wire] + self._next()

    def request(self) -> str:
        return "req_01" + self._next()

    def cache(self) -> str:
        return self._next().lower()

    def _next(self) -> str:
        self._count += 1
        return name_of(22, self._seed + seed_of(b"%d" % self._count))
