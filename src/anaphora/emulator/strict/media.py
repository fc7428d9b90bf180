"""Inline media whose type a provider does not take, by the catalog's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from anaphora.catalog.request_errors import MediaKind, media_types
from anaphora.emulator.exchange import nested

from . import CheckedRequest, Object, objects, rejected

Found: TypeAlias = tuple[str, MediaKind, Any]
"""The path of a medium, its kind, and its type as it was given."""


def check_media(find: Callable[[CheckedRequest], Iterator[Found]]) -> Callable[..., None]:
    """A check of all media that `find` finds."""

    def check(request: CheckedRequest) -> None:
        provider, wire = request.facts.provider, request.facts.wire
        for path, kind, given in find(request):
            row = media_types(provider, wire, kind)
            if row is not None and isinstance(given, str) and not row.accepts(given):
                raise rejected(row.write(path, given[:100]), param=path, code=row.code)

    return check


def chat_media(request: CheckedRequest) -> Iterator[Found]:
    for index, message in request.messages:
        for place, part in objects(message.get("content")):
            path = f"messages[{index}].content[{place}]"
            yield f"{path}.image_url.url", "image", _of_data_url(nested(part, "image_url", "url"))
            yield f"{path}.file.file_data", "file", _of_data_url(nested(part, "file", "file_data"))


def responses_media(request: CheckedRequest) -> Iterator[Found]:
    for index, item in request.messages:
        for field in ("content", "output"):
            for place, part in objects(item.get(field)):
                path = f"input[{index}].{field}[{place}]"
                yield f"{path}.image_url", "image", _of_data_url(part.get("image_url"))
                yield f"{path}.file_data", "file", _of_data_url(part.get("file_data"))


def anthropic_media(request: CheckedRequest) -> Iterator[Found]:
    for index, message in request.messages:
        yield from _blocks(message.get("content"), f"messages.{index}.content")


def _blocks(content: Any, path: str) -> Iterator[Found]:
    """The media of a list of blocks, also inside tool results."""
    for place, block in objects(content):
        here, kind, source = f"{path}.{place}", block.get("type"), block.get("source")
        if kind == "tool_result":
            yield from _blocks(block.get("content"), f"{here}.content")
        elif kind in ("image", "document") and nested(source, "type") == "base64":
            media: MediaKind = "image" if kind == "image" else "file"
            yield f"{here}.source.base64.media_type", media, nested(source, "media_type")


def gemini_media(request: CheckedRequest) -> Iterator[Found]:
    for index, content in request.messages:
        for place, part in objects(content.get("parts")):
            given = _inline_type(part)
            kind: MediaKind = "image" if str(given).startswith("image/") else "file"
            yield f"contents[{index}].parts[{place}].inline_data.mime_type", kind, given


def _inline_type(part: Object) -> Any:
    for name in ("inlineData", "inline_data"):
        for field in ("mimeType", "mime_type"):
            if (given := nested(part, name, field)) is not None:
                return given
    return None


def _of_data_url(url: Any) -> str | None:
    """The type that a data URL states; None for other values."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    return url[5 : url.find(",")].partition(";")[0] or "text/plain"
