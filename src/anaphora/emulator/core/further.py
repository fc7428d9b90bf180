"""More answers to one request: Chat's `n`, Gemini's `candidateCount`."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import Call
from anaphora.values import Message, Reply
from anaphora.wire.gemini.reply import write_candidate, write_content
from anaphora.wire.openai_chat.reply import write_choice

from .replies import Said, invent
from .replies.dice import seed_of

#: What each wire calls its list of answers.
LISTS = {"openai_chat": "choices", "gemini": "candidates"}


def further(call: Call, wire: str, profile: Profile, seed: bytes) -> list[Said]:
    """The answers after the first, each another one."""
    if wire not in LISTS:
        return []
    count = call.params.n or 1
    others = [seed + seed_of(b"%d" % index) for index in range(1, count)]
    return [invent(call, wire, profile, other) for other in others]


def written(wire: str, said: list[Said]) -> list[Any]:
    """They as the wire writes them."""
    found = []
    for index, one in enumerate(said, 1):
        message = Message(role="assistant", parts=one.parts)
        reply = Reply(id="", model="", message=message, stop=one.stop)
        if wire == "gemini":
            data = write_candidate(reply, {}, write_content(message), index)
        else:
            data = write_choice(reply, index)
        found.append(msgspec.json.decode(data))
    return found
