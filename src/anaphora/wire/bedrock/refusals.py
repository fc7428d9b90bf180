"""What a model on Converse answers with a 400, refused before it is sent: blocks that its family
does not take, alone or beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.rendered import ChunkRun
from anaphora.values import (
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    ToolCall,
    ToolResult,
)
from anaphora.wire.parts import own_members

from .params import refusals_of
from .types import WIRE

#: Features that are checked message by message.
_FEATURES: frozenset[Feature] = frozenset(
    {
        "calls_without_tools",
        "parts_beside_results",
        "images_in_results",
        "documents_in_results",
        "binary_documents_in_results",
        "stored_images",
        "video",
        "citations",
    }
)
_Refused: TypeAlias = tuple[Feature, int, str]


def message_check(
    call: Call, profile: Profile, *, has_tools: bool
) -> Callable[[Message, bool], None] | None:
    """The check of a message, given whether it is beside tool results; None if the model is not
    known to refuse anything."""
    refused = refusals_of(profile) & _FEATURES
    if not refused:
        return None

    def check(message: Message, beside: bool) -> None:
        for feature, index, what in _used(message, beside, has_tools):
            if feature in refused:
                reason = f"{call.model} refuses {what}"
                raise InvalidRequest(reason, path=f"parts[{index}]")

    return check


def check_first(runs: list[ChunkRun], call: Call, profile: Profile) -> None:
    """Raise if the conversation begins with the assistant, and the model refuses that."""
    if "assistant_first" in refusals_of(profile) and runs[0].log.roles[0] == "assistant":
        reason = f"{call.model} refuses a conversation that does not begin with the user"
        raise InvalidRequest(reason, path="ir")


def _used(message: Message, beside: bool, has_tools: bool) -> Iterator[_Refused]:
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolCall | ToolResult):
            if not has_tools:
                what = "tool calls in the history of a request without tools; pass the tools"
                yield "calls_without_tools", index, what
            if isinstance(part, ToolResult):
                yield from _in_result(part, index)
            continue
        if beside:
            yield "parts_beside_results", index, "anything beside tool results in one message"
        yield from _in_part(part, index)


def _in_result(result: ToolResult, index: int) -> Iterator[_Refused]:
    for part in () if isinstance(result.content, str) else result.content:
        if isinstance(part, Image):
            yield "images_in_results", index, "images in tool results"
        elif isinstance(part, Document):
            yield "documents_in_results", index, "documents in tool results"
            media_type = part.source.media_type or ""
            if not media_type.startswith("text/"):
                what = "documents in tool results that are not text"
                yield "binary_documents_in_results", index, what
        yield from _in_part(part, index)


def _in_part(part: Part, index: int) -> Iterator[_Refused]:
    if isinstance(part, Opaque) and part.provider == WIRE and part.kind == "video":
        yield "video", index, "videos"
    if isinstance(part, Image) and isinstance(part.source, FileId):
        yield "stored_images", index, "images in S3; give the bytes"
    if isinstance(part, Document) and part.extras is not None:
        document = own_members(part.extras, WIRE).get("document")
        if document is not None and b'"citations"' in bytes(document):
            yield "citations", index, "citations of documents"
