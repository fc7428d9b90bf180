"""Where a request goes. The path names the model, and whether the answer comes as a stream."""

from __future__ import annotations

import functools
import re

from anaphora.errors import InvalidRequest

VERSION = "/v1beta/"
_ONCE, _STREAM = "generateContent", "streamGenerateContent"

#: Nothing in a model's name may end the path or change its meaning.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@~-]*(?:/[A-Za-z0-9][A-Za-z0-9._@~-]*)*\Z")


def resource(model: str) -> str:
    """The model as the API names it: `models/…`, or a tuned model as it came."""
    if not _NAME.match(model):
        raise InvalidRequest(
            "Gemini's path names the model, e.g. gemini-2.5-flash" if not model else "no model id",
            path="model",
        )
    return model if "/" in model else f"models/{model}"


def path_of(model: str, *, stream: bool) -> str:
    """The path to send a request to; what stands before it is the client's."""
    method = f"{_STREAM}?alt=sse" if stream else _ONCE
    return f"{VERSION}{resource(model)}:{method}"


@functools.lru_cache(maxsize=256)
def read_path(path: str) -> tuple[str, bool]:
    """The model a path names, and whether it asks for a stream; an empty path says neither."""
    if not path:
        return "", False
    address, _, method = path.partition("?")[0].rpartition(":")
    if method not in (_ONCE, _STREAM):
        raise InvalidRequest(
            f"ends neither in :{_ONCE} nor in :{_STREAM}, so it is no request of this wire",
            path="path",
        )
    return model_id(address), method == _STREAM


def model_id(name: str) -> str:
    """The model without what every name has in front. Tuned models and endpoints keep their
    collection, since that tells them apart."""
    *_, collection, model = ["", "models", *name.strip("/").split("/")][-2:]
    return model if collection == "models" else f"{collection}/{model}"
