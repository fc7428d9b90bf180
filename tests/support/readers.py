"""What each reader of requests sees in a body, and where two of them disagree.

    for body in disagreements("anthropic"):
        print(body.name, body.reasons)

Each reader gets the same bytes. Where two of them accept a body, they see the same functions,
markers, roles, ids and inline bytes; and what a field with text holds is in a chunk, or in the
parameters of the cache.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from anaphora import wire as wires
from anaphora.daemon.endpoints.body import parse_object
from anaphora.emulator import strict
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.journal import Billing
from anaphora.emulator.strict import CheckedRequest, anthropic
from anaphora.emulator.strict.anthropic import CHECKS as ANTHROPIC_CHECKS
from anaphora.emulator.strict.bedrock import CHECKS as BEDROCK_CHECKS
from anaphora.emulator.strict.gemini import CHECKS as GEMINI_CHECKS
from anaphora.emulator.strict.openai import CHAT_CHECKS
from anaphora.emulator.strict.responses import RESPONSES_CHECKS
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call
from anaphora.rendered import Kind, Plan, Rendered
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Opaque,
    Part,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.wire.bedrock.fields import TABLE as BEDROCK
from anaphora.wire.cutting import cut
from anaphora.wire.gemini.types import camel
from anaphora.wire.openai_responses.fields import APP_ITEMS
from anaphora.wire.openai_responses.items import CLOSED
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.permissions.stored import stored_id

from .request_facts import facts_in
from .rich_bodies import PATHS, RICH, Json, changed_bodies

T = TypeVar("T")


class SeenBody(NamedTuple):
    """A body, and what two readers see differently in it."""

    name: str
    reasons: tuple[str, ...]


class Readings(NamedTuple):
    """What each reader makes of a body; None where it does not accept it."""

    call: Call | None
    rendered: Rendered | None
    facts: CallFacts | None
    checked: CheckedRequest | None


def disagreements(wire: str) -> Iterator[SeenBody]:
    """All changed bodies of a wire, each with what is seen differently."""
    plain = read(wire, RICH[wire])
    assert plain.rendered is not None
    for name, body in changed_bodies(wire):
        readings = read(wire, body)
        reasons = [reason for compare in _LAWS for reason in compare(wire, readings, body)]
        if name != "as it is":
            reasons += _texts(wire, name, body, readings.rendered, plain.rendered)
        yield SeenBody(name, tuple(reasons))


def count(wire: str) -> tuple[int, int]:
    """How many bodies of a wire are seen differently, and how many there are."""
    seen = list(disagreements(wire))
    return sum(bool(each.reasons) for each in seen), len(seen)


# ── The readers ──────────────────────────────────────────────────────────────────────────────────

_CHECKS = {
    "anthropic": ANTHROPIC_CHECKS,
    "openai_chat": CHAT_CHECKS,
    "openai_responses": RESPONSES_CHECKS,
    "gemini": GEMINI_CHECKS,
    "bedrock": BEDROCK_CHECKS,
}
_BILLING = Billing()


def read(wire: str, body: Json) -> Readings:
    data, path, codec = _bytes(body), PATHS[wire], wires.get(wire)
    members = _accepted(lambda: parse_object(data))
    facts = None
    if members is not None:
        facts = _accepted(lambda: facts_in(wire, data, path))
    return Readings(
        call=_accepted(lambda: codec.parse(data, path)),
        rendered=_accepted(lambda: cut(codec, data, path)),
        facts=facts,
        checked=_accepted(lambda: _checked(wire, body, data)),
    )


def _bytes(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _accepted(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except AnaphoraError:
        return None


def _checked(wire: str, body: Json, data: bytes) -> CheckedRequest | None:
    """The request that the emulator does not refuse."""
    if wire not in _CHECKS:
        return None
    model = body.get("model") or "gemini-2.5-flash"
    model = model if isinstance(model, str) else "x"
    facts = _BILLING.facts(wires.PROVIDERS[wire], wire, model)
    headers = {"anthropic-version": "2023-06-01"}
    http = EmulatorRequest(method="POST", path=PATHS[wire], headers=headers, body=data)
    return strict.check(_CHECKS[wire], http, facts)


# ── The laws ─────────────────────────────────────────────────────────────────────────────────────


def _functions(wire: str, seen: Readings, _: Json) -> Iterator[str]:
    facts = None
    if seen.facts is not None:
        listed = ("tools", "toolConfig.tools")
        facts = {name for param, name in seen.facts.tools if param.startswith(listed)}
    if seen.call is not None and facts is not None:
        own = {tool.name for tool in seen.call.tools if isinstance(tool, Tool)}
        named = {tool.name for tool in seen.call.tools}
        # A tool may hold others, and is sent with them.
        kept = [each.extras if isinstance(each, Tool) else each.json for each in seen.call.tools]
        inside = repr(kept)
        missing = [name for name in facts - named if json.dumps(name) not in inside]
        if missing or not own <= facts:
            yield f"functions: parse {sorted(named)}, facts {sorted(facts)}"
    if seen.rendered is not None:
        tools = _tool_bytes(seen.rendered)
        parsed = [] if seen.call is None else seen.call.tools
        names = {tool.name for tool in parsed if isinstance(tool, Tool)} | (facts or set())
        names.discard("")
        missing = [name for name in names if json.dumps(name).encode() not in tools]
        if missing:
            yield f"functions: not in the chunks of split: {missing}"


def _tool_bytes(rendered: Rendered) -> bytes:
    runs = [run for run in rendered.runs if run.section == "tools"]
    deferred = [tool.data for run in runs for tool in run.deferred]
    return b"".join([bytes(run.log.buffer) for run in runs] + deferred)


def _markers(wire: str, seen: Readings, body: Json) -> Iterator[str]:
    rendered = seen.rendered
    split = None if rendered is None else [mark.ttl for mark in rendered.marks]
    if split is not None and seen.call is not None:
        parsed = [mark.ttl for mark in seen.call.ir.cache.marks]
        # A block that parse keeps whole keeps its markers.
        kept = sum(_kept_markers(wire, part) for part in _parts(seen.call))
        # So are system blocks of other kinds than text.
        kept += (seen.call.extras or {}).get("bedrock", "").count('"cachePoint":{')
        most = len(parsed) + kept
        if not len(parsed) <= len(split) <= most or not set(parsed) <= set(split):
            yield f"markers: parse {parsed}, split {split}"
    if rendered is not None and seen.call is not None and wire == "anthropic":
        automatic = rendered.automatic, seen.call.ir.cache.automatic
        if automatic[0] != automatic[1]:
            yield f"markers: automatic of split and parse {automatic}"
    if split is not None and seen.facts is not None:
        facts, own = set(seen.facts.cache_ttls), set(split)
        # Of Converse's tools, facts read markers at any depth.
        if not (own <= facts if wire == "bedrock" else facts <= own):
            yield f"markers: facts {seen.facts.cache_ttls}, split {split}"
    if split is not None and seen.checked is not None and wire == "anthropic":
        marked = [block.get("cache_control") for _, block, _ in anthropic._slots(seen.checked)]
        found = [str(each.get("ttl") or "5m") for each in marked if each]
        if found != split:
            yield f"markers: strict {found}, split {split}"
    if rendered is not None and rendered.marks:
        yield from _spliced(wire, rendered, _bytes(body))


def _spliced(wire: str, rendered: Rendered, data: bytes) -> Iterator[str]:
    """Markers that are taken out and put in again are the same."""
    path = PATHS[wire]
    try:
        bare = wires.splice(data, Plan(), wire=wire, path=path, rendered=rendered, replace=True)
        again = cut(wires.get(wire), bare.body, path)
        if again.marks:
            yield f"markers: splice leaves {again.marks}"
            return
        plan = Plan(marks=rendered.marks)
        marked = wires.splice(bare.body, plan, wire=wire, path=path, rendered=again, replace=True)
        if cut(wires.get(wire), marked.body, path).marks != rendered.marks:
            yield "markers: splice puts them elsewhere"
    except AnaphoraError:
        return  # the caller's marker is where none is accepted


def _kept_markers(wire: str, part: Part) -> int:
    field = MARKER_FIELDS.get(wire)
    if field is None or not isinstance(part, Opaque):
        return 0
    return part.json.count(f'"{field}":{{')


MARKER_FIELDS = {
    "anthropic": "cache_control",
    "openai_chat": "prompt_cache_breakpoint",
    "openai_responses": "prompt_cache_breakpoint",
    "bedrock": "cachePoint",
}
_SAME_ROLE = {"developer": "system", "model": "assistant", "function": "tool"}


def _roles(wire: str, seen: Readings, _: Json) -> Iterator[str]:
    if seen.call is None or seen.rendered is None:
        return
    ir = seen.call.ir
    parsed = ["system"] if ir.system_blocks and wire == "openai_chat" else []
    for segment in ir.segments:
        parsed += [each.role for each in segment.messages if _has_content(each.parts)]
    if wire == "openai_responses":
        leads = [run for run in seen.rendered.runs if run.section == "system"]
        if leads and leads[0].place != "instructions":
            parsed = ["system", *parsed] if ir.system_blocks else parsed
    split = list(_split_roles(wire, seen.rendered))
    if wire in ("gemini", "openai_responses"):  # results are of the app, like all that it says
        parsed = ["user" if each == "tool" else each for each in parsed]
        split = ["user" if each == "tool" else each for each in split]
    if _merged(parsed) != _merged(split):
        yield f"roles: parse {parsed}, split {split}"


def _has_content(parts: tuple[Part, ...]) -> bool:
    """Whether a message holds more than fields that are not known."""
    return any(not isinstance(part, Opaque) or '"content":null' not in part.json for part in parts)


def _merged(roles: list[str]) -> list[str]:
    return [role for at, role in enumerate(roles) if at == 0 or roles[at - 1] != role]


def _split_roles(wire: str, rendered: Rendered) -> Iterator[str]:
    """The role of each message. Items that are no messages are of the app or of the model."""
    for run in rendered.runs:
        if run.section == "system" and run.place and run.place[-9:] == "].content":
            yield "system"
        if run.section != "messages":
            continue
        first = 0
        for end in run.log.message_ends:
            if end > first and first < run.count:
                role = run.log.role_of(first)
                kind = run.log.kinds[first]
                if wire == "openai_responses" and kind is Kind.TOOL_RESULT:
                    role = "tool"
                elif wire == "openai_responses" and role == CLOSED:
                    role = _item_role(run.log.slice(run.log.start(first), run.log.ends[first]))
                elif wire == "gemini" and role == "function":
                    role = "user"
                role = _SAME_ROLE.get(role, role)
                is_known = wire != "openai_responses" or role in ("user", "assistant", "system")
                yield role if is_known else "user"  # parse keeps such a message whole
            first = end


def _item_role(chunk: bytes) -> str:
    item = json.loads(chunk[chunk.index(b"{") :])
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "message":
        role = item.get("role")
        return {"assistant": "assistant", "system": "system"}.get(role, "user")
    return "user" if kind in APP_ITEMS or kind == "function_call_output" else "assistant"


def _ids(wire: str, seen: Readings, _: Json) -> Iterator[str]:
    facts = None
    if seen.facts is not None:
        named = [(kind, stored_id(kind, id)) for _, kind, id in seen.facts.handles]
        facts = {(kind, id) for kind, id in named if id}
    if seen.call is not None and facts is not None:
        files = [part.source.id for part in _media(seen.call) if isinstance(part.source, FileId)]
        own = {stored_id("file", id) for id in files if id} - {None}
        if not own <= {id for _, id in facts}:
            yield f"ids: parse {sorted(map(str, own))}, facts {sorted(facts)}"
    if seen.call is not None and seen.checked is not None:
        parsed = list(_call_ids(seen.call))
        found = list(_raw_call_ids(wire, seen.checked))
        if sorted(parsed) != sorted(found):
            yield f"ids: parse {parsed}, strict {found}"


def _parts(call: Call) -> Iterator[Part]:
    for segment in call.ir.segments:
        for message in segment.messages:
            for part in message.parts:
                yield part
                if isinstance(part, ToolResult) and not isinstance(part.content, str):
                    yield from part.content


def _media(call: Call) -> list[Image | Document | Audio]:
    return [part for part in _parts(call) if isinstance(part, Image | Document | Audio)]


def _call_ids(call: Call) -> Iterator[str]:
    for part in _parts(call):
        if isinstance(part, ToolCall):
            yield part.id
        elif isinstance(part, ToolResult):
            yield part.call_id


def _raw_call_ids(wire: str, checked: CheckedRequest) -> Iterator[str]:
    """The ids of calls and results as the emulator's checks read them."""
    for _, message in checked.messages:
        if wire == "anthropic":
            for _, block in strict.objects(message.get("content")):
                if block.get("type") == "tool_use":
                    yield str(block.get("id"))
                elif block.get("type") == "tool_result":
                    yield str(block.get("tool_use_id"))
        elif wire == "openai_chat":
            for _, call in strict.objects(message.get("tool_calls")):
                yield str(call.get("id"))
            if message.get("role") == "tool":
                yield str(message.get("tool_call_id"))
        elif wire == "openai_responses":
            if message.get("type") in ("function_call", "function_call_output"):
                yield str(message.get("call_id"))
        elif wire == "bedrock":
            for _, block in strict.objects(message.get("content")):
                called = block.get("toolUse") or block.get("toolResult")
                kinds = sum(key in BEDROCK.blocks for key in block)
                if isinstance(called, dict) and called.get("toolUseId") and kinds == 1:
                    yield str(called["toolUseId"])
        elif wire == "gemini":
            for _, part in strict.objects(message.get("parts")):
                for name in ("functionCall", "functionResponse"):
                    called = part.get(name) or part.get(_snake(name))
                    if isinstance(called, dict) and called.get("id"):
                        yield str(called["id"])


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def _inline(wire: str, seen: Readings, body: Json) -> Iterator[str]:
    if seen.call is None or seen.facts is None:
        return
    opaque = any(isinstance(part, Opaque) for part in _parts(seen.call))
    media = _media(seen.call)
    parsed = {
        "images": sum(isinstance(part, Image) for part in media),
        "audio": sum(isinstance(part, Audio) for part in media),
        "documents": sum(
            isinstance(part, Document)
            and not (isinstance(part.source, Bytes) and part.source.media_type == "text/plain")
            for part in media
        ),
    }
    counts = {kind: getattr(seen.facts.media, kind) for kind in parsed}
    # What is not known may be anything: it counts, to be safe.
    kept = seen.call.extras or any(getattr(part, "extras", None) for part in _parts(seen.call))
    is_less = any(counts[kind] < number for kind, number in parsed.items())
    if is_less or (not opaque and not kept and counts != parsed):
        yield f"inline: parse {parsed}, facts {counts}"
    most = sum(
        len(base64.b64encode(part.source.data)) for part in media if isinstance(part.source, Bytes)
    )
    if not opaque and seen.facts.media.inline > most:
        yield f"inline: parse {most}, facts {seen.facts.media.inline}"


def _texts(
    wire: str, name: str, body: Json, rendered: Rendered | None, plain: Rendered
) -> Iterator[str]:
    """A change of a field with text is seen in the chunks or the parameters."""
    path = name.partition(" ")[0] + "."
    if rendered is None or not any(path.startswith(f"{each}.") for each in TEXT_FIELDS[wire]):
        return
    changed, before = ({"": each} for each in (body, RICH[wire]))
    if wire == "gemini":
        changed, before = _camel(changed), _camel(before)
    if _without_markers(changed) == _without_markers(before):
        return
    if _fingerprint(rendered) == _fingerprint(plain):
        yield f"text: {name} is in no chunk"


#: The fields of each wire whose text a model reads.
TEXT_FIELDS = {
    "anthropic": ("system", "tools", "messages", "output_config.format"),
    "openai_chat": ("messages", "tools", "response_format"),
    "openai_responses": ("instructions", "input", "tools", "text.format"),
    "gemini": ("systemInstruction.parts", "contents", "tools", "generationConfig.responseSchema"),
    "bedrock": ("messages", "toolConfig.tools", "system", "outputConfig.textFormat"),
}


def _is_point(value: Any) -> bool:
    """A marker that is an element; one of another form is sent as it is."""
    point = value.get("cachePoint") if isinstance(value, dict) and len(value) == 1 else None
    return isinstance(point, dict) and point.get("type") in (None, "default")


def _without_markers(value: Any) -> Any:
    """A value without markers, unset members, and content in one form for a text and a list of it:
    what a provider reads the same."""
    if isinstance(value, list):
        return [_without_markers(each) for each in value if not _is_point(each)]
    if not isinstance(value, dict):
        return value
    marks = ("cache_control", "prompt_cache_breakpoint")
    return {
        key: _without_markers(each)
        for key, each in sorted(value.items())
        if key not in marks and each is not None
    }


def _camel(value: Any) -> Any:
    """A value with the names that Gemini reads it by."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if isinstance(value, dict):
        return {camel(key): _camel(each) for key, each in value.items()}
    return value


def _fingerprint(rendered: Rendered) -> tuple[Any, ...]:
    chunks = tuple(rendered.chunk(index).data for index in range(rendered.cacheable))
    deferred = tuple(tool.data for run in rendered.runs for tool in run.deferred)
    return chunks, deferred, rendered.envelope.cache_params


_LAWS = (_functions, _markers, _roles, _ids, _inline)
