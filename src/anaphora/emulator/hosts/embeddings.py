"""Embeddings: vectors of length 1 that depend only on the texts, and token counts."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any, TypeAlias

from blake3 import blake3

from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.replies import count_text
from anaphora.emulator.strict import rejected
from anaphora.errors import Forbidden

from .host import RoutedRequest

EmbeddedInput: TypeAlias = str | list[int]
"""A text, or its tokens."""

#: How many inputs a request takes.
MAX_INPUTS = 2048
#: The longest vectors of OpenAI's models; those of others have the default length.
_DIMENSIONS = {"text-embedding-3-large": 3072}
_DEFAULT_DIMENSIONS = 1536
#: Models whose vectors can be shortened.
_SHORTENED = "text-embedding-3-"
_MOST_TOKENS = 8192


def unit_vector(value: EmbeddedInput, size: int) -> list[float]:
    data = value.encode() if isinstance(value, str) else dumps(value)
    digest = blake3(data).digest(size)
    values = [byte - 127.5 for byte in digest]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def openai_embeddings(request: RoutedRequest, model: str, profile: Profile) -> bytes:
    """The answer of `/v1/embeddings`. `profile` is that of the model."""
    if profile.known:
        reason = f"You are not allowed to generate embeddings from this model: {model}"
        raise Forbidden(reason, status=403)
    inputs = _inputs(request.value("input"))
    size = _size(request.value("dimensions"), model)
    encoding = request.value("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        reason = f"Invalid value: {encoding!r}. Supported values are: 'float' and 'base64'."
        raise rejected(reason, param="encoding_format")
    counts = [count_text(one, profile) if isinstance(one, str) else len(one) for one in inputs]
    if max(counts) > _MOST_TOKENS:
        reason = f"This model's maximum context length is {_MOST_TOKENS} tokens per input"
        raise rejected(reason, param="input")
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(one, size, encoding)}
        for index, one in enumerate(inputs)
    ]
    usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
    return dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _encoded(value: EmbeddedInput, size: int, encoding: str) -> list[float] | str:
    vector = unit_vector(value, size)
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()


def _inputs(given: Any) -> list[EmbeddedInput]:
    """A text, a list of texts, the tokens of a text, or a list of such."""
    listed = given if isinstance(given, list) and given and not _are_tokens(given) else [given]
    if not all((isinstance(one, str) and one) or _are_tokens(one) for one in listed):
        raise rejected("'$.input' is invalid.", param="input")
    if len(listed) > MAX_INPUTS:
        reason = f"'$.input' is too long: it has at most {MAX_INPUTS:,} elements."
        raise rejected(reason, param="input")
    return listed


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _size(asked: Any, model: str) -> int:
    most = _DIMENSIONS.get(model, _DEFAULT_DIMENSIONS)
    if asked is None:
        return most
    if not model.startswith(_SHORTENED):
        raise rejected("This model does not support specifying dimensions.", param="dimensions")
    if type(asked) is not int or not 0 < asked <= most:
        raise rejected(f"dimensions must be between 1 and {most}.", param="dimensions")
    return asked
