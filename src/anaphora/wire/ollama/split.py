"""A request to Ollama cut into chunks from its own bytes.

Nothing is healed on the way: the order of keys, the spelling of numbers and strings stay what they
were, so that a miss is explained by what was really sent. Only white space between the outermost
fields of the request and of its system message is taken out.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Rendered
from anaphora.values import CachePolicy, Conversation, Message, SegmentRole
from anaphora.wire.fields import Fields
from anaphora.wire.reading import Members, converts_errors, request_error

from .carried import WIRE
from .params import NO_MESSAGES, PATH
from .request import CLOSE, CLOSE_SYSTEM, MESSAGES, TOOLS, body_order

_CACHE_PARAMS = {"think": "thinking", "format": "output_format"}


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks."""
    fields = Fields(body, "$", request_error)
    model = fields.take("model", str)
    messages = _elements(fields, "messages")
    tools = _tools(_elements(fields, "tools"))
    system = _system(messages[0]) if messages else None
    conversation = _messages(messages[1:] if system is not None else messages, system is not None)
    if system is not None and conversation is None:
        system = msgspec.structs.replace(system, close=CLOSE_SYSTEM + CLOSE)
    runs = [run for run in (system, tools, conversation) if run is not None]
    rest = fields.rest()
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=Envelope(
            source=None,
            path=PATH,
            headers=headers,
            head=b'{"model":' + string(model) + b",",
            tail=(b"" if messages else NO_MESSAGES) + (b"," + rest if rest else b"") + b"}",
            cache_params=_cache_params(model, rest),
        ),
        body_order=body_order(runs),
        markers={},
    )


def _elements(fields: Fields, name: str) -> list[msgspec.Raw]:
    found: list[msgspec.Raw] | None = fields.maybe(name, list[msgspec.Raw])
    return found or []


def _system(raw: msgspec.Raw) -> ChunkRun | None:
    """The first message, when it is a system message with a text."""
    fields = Fields(raw, "$.messages[0]", request_error)
    role = fields.maybe("role", str)
    if role is None or role.lower() != "system" or not fields.known_text("content").strip():
        return None
    content = fields.raw("content") or b'""'
    rest = fields.rest()
    opening = b'{"role":' + string(role) + (b"," + rest if rest else b"") + b',"content":"'
    out = LogAppend()
    out.chunk(Kind.SYSTEM, content[1:-1], None)
    log = ChunkLog.of(out, ["system0"], [CachePolicy.NONE])
    place = "messages[0].content"
    return ChunkRun("system", log, 1, lead=MESSAGES + opening, source=("system0",), place=place)


def _tools(tools: list[msgspec.Raw]) -> ChunkRun | None:
    if not tools:
        return None
    out = LogAppend()
    labels = []
    for index, raw in enumerate(tools):
        function = Fields(raw, f"$.tools[{index}]", request_error).nested("function")
        name = function.maybe("name", str) if function is not None else None
        labels.append(f"tool {name}" if name else f"tools{index}")
        out.chunk(Kind.TOOL, b"," + bytes(raw) if index else bytes(raw), None)
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=TOOLS, close=b"],", source=tuple(labels))


def _messages(messages: list[msgspec.Raw], behind_system: bool) -> ChunkRun | None:
    if not messages:
        return None
    first = int(behind_system)
    out = LogAppend()
    for index, raw in enumerate(messages):
        fields = Fields(raw, f"$.messages[{index + first}]", request_error)
        role = fields.take("role", str).lower()
        out.open(role)
        out.chunk(_kind(role, fields), b"," + bytes(raw) if index else bytes(raw), None)
        out.end_message(f"m{index}")
    log = ChunkLog().append(out)
    return ChunkRun(
        "messages",
        log,
        len(log),
        role=SegmentRole.CONVERSATION,
        lead=CLOSE_SYSTEM + b"," if behind_system else MESSAGES,
        close=CLOSE,
        source=Conversation([Message(role="user", parts=())] * len(messages)),
        first_message=first,
    )


def _kind(role: str, fields: Fields) -> Kind:
    if role == "tool":
        return Kind.TOOL_RESULT
    if "tool_calls" in fields:
        return Kind.TOOL_CALL
    return Kind.IMAGE if "images" in fields else Kind.TEXT


def _cache_params(model: str, rest: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = Fields(b"{" + rest + b"}", "$", request_error)
    found = [(param, fields.raw(name)) for name, param in _CACHE_PARAMS.items()]
    told = [(param, raw) for param, raw in found if raw is not None and raw != b"null"]
    return (("model", string(model)), *told)
