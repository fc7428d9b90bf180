"""The wire of a path at a cloud.

Bedrock's paths name the model and the operation. InvokeModel takes the body of the model's maker;
only Claude's is read.
"""

from __future__ import annotations

import re

from anaphora.catalog.names import hosted_model, is_opaque

_BEDROCK = "bedrock"
#: The model may be an ARN with slashes.
_AT_BEDROCK = re.compile(
    r"/model/(.+)/(invoke|converse)(?:-with-response-stream|-stream)?\Z", re.DOTALL
)
_CLAUDE_AT_VERTEX = re.compile(
    r"/publishers/anthropic/models/(?!count-tokens:)[^/]+:(?:r|streamR)awPredict\Z"
)


def wire_of(path: str) -> str | None:
    """The wire of a model call at a decoded path of a cloud."""
    if _CLAUDE_AT_VERTEX.search(path) is not None:
        return "anthropic"
    found = _AT_BEDROCK.search(path)
    if found is None:
        return None
    return "anthropic" if found[2] == "invoke" and _may_be_claude(found[1]) else _BEDROCK


def unread_model(path: str) -> str:
    """The model of a call whose body is not read; empty for all others."""
    found = _AT_BEDROCK.search(path)
    if found is None or found[2] != "invoke" or _may_be_claude(found[1]):
        return ""
    return found[1]


def _may_be_claude(model: str) -> bool:
    hosted = hosted_model(_BEDROCK, model)
    return is_opaque(model) or (hosted is not None and hosted[0] == "anthropic")


def provider_at(path: str, provider: str) -> str:
    """The provider whose rules and prices hold for a call: at Vertex, Claude has Anthropic's."""
    return "anthropic" if provider == "google" and "/publishers/anthropic/" in path else provider
