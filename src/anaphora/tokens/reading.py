"""One chunk of a prompt, counted: its texts by a tokenizer, what frames them by what was measured.

A chunk is a stretch of a JSON body that begins and ends outside of strings, glue first. So its
strings can be read one by one, without the brackets that other chunks hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from anaphora.catalog import Profile
from anaphora.rendered import Kind

from .count import NOTHING, Count
from .declaring import declaration
from .estimate import estimate
from .figures import Framing, figures
from .tokenizers import Tokenizer

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*+:)?', re.DOTALL)

#: Fields whose text the model reads. A chunk that is nothing but a text has its key in the glue.
_TEXTS = frozenset(
    [b"", *b'"text" "content" "arguments" "name" "output" "input" "instructions" "refusal"'.split()]
)
_MEDIA = frozenset((Kind.IMAGE, Kind.AUDIO, Kind.DOCUMENT))
#: A tuple: kinds are found in it by identity.
TEXT_ONLY = (Kind.TEXT, Kind.TOOL_CALL, Kind.THINKING, Kind.SYSTEM, Kind.OTHER)
_SCHEMAS = (b'"input_schema"', b'"parameters"', b'"parametersJsonSchema"', b'"function"')

#: What every wire writes beside bytes that stand in a body.
_CARRIERS = (b"base64", b"inlineData")
_LONG = 2000
_CARRIED = re.compile(rb"[A-Za-z0-9+/=_-]{%d,}+" % _LONG)


def shown(kind: Kind, size: int, data: Callable[[], bytes], profile: Profile) -> tuple[int, Count]:
    """How many bytes of a chunk are to be estimated as text, and the count of what is not text.
    Only where something else may stand in between are the bytes looked at."""
    if kind in TEXT_ONLY:
        return size, NOTHING
    if kind in _MEDIA or (kind is Kind.TOOL and not _is_function(data())):
        return 0, _media(size, profile)
    if kind is not Kind.TOOL_RESULT or size < _LONG:
        return size, NOTHING
    count, text = NOTHING, data()
    if any(carrier in text for carrier in _CARRIERS):
        for found in _CARRIED.finditer(text):
            carried = found.end() - found.start()
            count += _media(carried, profile)
            size -= carried
    return size, count


def read(
    kind: Kind, data: bytes, profile: Profile, framing: Framing, tokenizer: Tokenizer
) -> tuple[Count, Count]:
    """One chunk of an OpenAI wire: its texts with what frames them, and what is no text."""
    if kind is Kind.TOOL:
        return _tool(data, profile, framing, tokenizer)
    _, media = shown(kind, len(data), lambda: data, profile)
    text = NOTHING
    calls = messages = results = 0
    for key, literal in _strings(data):
        if key in _TEXTS and not _CARRIED.search(literal):
            text += tokenizer.count(msgspec.json.decode(literal, type=str))
        elif key == b'"encrypted_content"':
            media += figures().encrypted.about(len(literal))
        if key in (b'"role"', b'"instructions"'):
            messages += 1
        elif key == b'"tool_call_id"':
            results += 1
        elif key == b'"arguments"':
            calls += 1
        elif key == b'"call_id"':
            # Responses: calls and results are items of their own, each with its message around it.
            messages += 1
            results += b'_output"' in data
    if not profile.tokenizer.verified:
        # Counted with the family that stands in for one nobody published.
        text = Count.about(text.tokens, profile.token_error.value)
    frame = messages * framing.message + calls * framing.call + results * framing.result
    return text + framing.about(frame + (framing.parallel if calls > 1 else 0)), media


def answer_schema(knob: bytes) -> str:
    """The schema in an `output_format`, as compact as JSON can be; all of it when there is none."""
    value = msgspec.json.decode(knob)
    if isinstance(value, dict):
        value = value.get("json_schema", value)
    if isinstance(value, dict):
        value = value.get("schema", value)
    return msgspec.json.encode(value).decode()


def _tool(
    data: bytes, profile: Profile, framing: Framing, tokenizer: Tokenizer
) -> tuple[Count, Count]:
    tool: dict[str, Any] = msgspec.json.decode(data[data.index(b"{") :])
    function = tool.get("function", tool)
    if tool.get("type") != "function" or not isinstance(function, dict):
        # The provider's own tool: its name is all that stands here, and not what the model reads.
        return NOTHING, _media(len(data), profile)
    return framing.about(tokenizer.count(declaration(function)).tokens), NOTHING


def _is_function(data: bytes) -> bool:
    """A provider's own tool has no schema: it goes by its type, or by being there. A function of
    Gemini's may have none either, but it has a name and no type."""
    return any(field in data for field in _SCHEMAS) or (b'"name"' in data and b'"type"' not in data)


def _media(size: int, profile: Profile) -> Count:
    return figures().media.about(estimate(size, profile).tokens)


def _strings(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every string that is a value, with the key before it."""
    key = b""
    for found in _STRING.finditer(data):
        if found.group(1) is None:
            yield key, found.group()
        else:
            key = found.group()[: -len(found.group(1))]
