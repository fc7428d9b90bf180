"""The bound of a call is at least the price of all its bytes as text, but for inline media that stand
where the wire shows them to the model: those count by the catalog's maximum, whatever the nesting."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.daemon import TestedDaemon, running_daemon
from support.delegation import PATHS
from support.exchanges import all_records, needs_exchanges
from support.request_facts import facts_in
from support.scripted_provider import ScriptedProvider, scripted_provider
from support.targets import target_of
from support.typed_paths import texts

from anaphora import wire as wires
from anaphora.catalog.api_limits import bounds_of
from anaphora.client.costs.bounds import cost_bound, nano_usd
from anaphora.client.target import Target
from anaphora.errors import InvalidRequest
from anaphora.wire.cutting import cut

Json = dict[str, Any]

AT = 1_794_826_800.0
MODELS = {
    "anthropic": "claude-opus-4-5",
    "openai_chat": "gpt-5.2",
    "openai_responses": "gpt-5.2",
    "gemini": "gemini-2.5-pro",
}
GEMINI_PATH = f"/v1beta/models/{MODELS['gemini']}:generateContent"
EVERY_WIRE = pytest.mark.parametrize("wire", MODELS)

# ── What may be excepted ─────────────────────────────────────────────────────────────────────────

_USER = r"messages/\*(<[^<>/]*>)?/content(/\*)?"
_INSIDE = r"(<tool_result>/content(/\*)?|<web_fetch_tool_result>/content<web_fetch_result>/content)"
_ITEM = r"input/\*(<(user|assistant|system|developer|message)>/content|<(function|custom_tool)_call_output>/output)"
_CONVERSE = r"messages/\*(<[^<>/]*>)?/content/\*(<[^<>/]*>)?(/toolResult/content/\*)?"
#: Typed paths of the data of media, for each wire, with the kind.
SHOWN: dict[str, list[tuple[str, str]]] = {
    "anthropic": [(rf"{_USER}{_INSIDE}?<image>/source<base64>/data", "image"),
        (rf"{_USER}{_INSIDE}?<document>/source<base64>/data", "document"),
        (rf"{_USER}{_INSIDE}?<document>/source<content>/content(/\*)?<image>" "/source<base64>/data",
        "image")],
    "openai_chat": [(r"messages/\*<(user|tool)>/content(/\*)?<image_url>/image_url(/url)?",
        "image"), (r"messages/\*<(user|tool)>/content(/\*)?<video_url>/video_url(/url)?",
        "document"), (r"messages/\*<(user|tool)>/content(/\*)?<file>/file(<file>)?/file_data",
        "document"), (r"messages/\*<(user|tool)>/content(/\*)?<input_audio>/input_audio/data",
        "audio")],
    "openai_responses": [(rf"{_ITEM}(/\*)?<input_image>/image_url", "image"),
        (rf"{_ITEM}(/\*)?<input_file>/file_data", "document"),
        (rf"{_ITEM}(/\*)?<input_audio>/input_audio/data", "audio"),
        (r"input/\*<computer_call_output>/output<computer_screenshot>/image_url", "image"),
        (r"input/\*<image_generation_call>/result", "image")],
    "gemini": [(r"contents(/\*)?(<[^<>/]*>)?/parts(/\*)?" r"(/function_?[rR]esponse/parts(/\*)?)?/inline_?[dD]ata/data",
        "any")],
    "bedrock": [(rf"{_CONVERSE}/image/source/bytes", "image"),
        (rf"{_CONVERSE}/document/source/bytes", "document"),
        (rf"{_CONVERSE}/(audio|video)/source/bytes", "audio")],
}  # fmt: skip
PATTERNS = {
    wire: [(re.compile(pattern), kind) for pattern, kind in rows] for wire, rows in SHOWN.items()
}


def excepted(wire: str, body: bytes) -> Iterator[tuple[str, int]]:
    """The kinds and bytes of all texts that may be excepted."""
    for path, text in texts(json.loads(body)):
        kinds = [kind for pattern, kind in PATTERNS[wire] if pattern.fullmatch(path)]
        if kinds and (not path.endswith("url") or text.startswith("data:")):
            yield kinds[0], size_in(body, text) - 2


def size_in(body: bytes, value: Any) -> int:
    """The bytes of a value without white space, written as in the body."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len((text.replace("/", "\\/") if b"\\/" in body else text).encode())


def check_bound(wire: str, name: str, body: bytes, path: str, target: Target) -> str:
    """Holds a request to the law; returns why it has no bound, or nothing."""
    facts = facts_in(name, body, path)
    allowed = list(excepted(wire, body))
    assert facts.media.inline <= sum(size for _, size in allowed), (facts.media, allowed)
    rendered = cut(target.endpoint.wire, body, path)
    bound = cost_bound(facts, rendered, target, at=AT)
    if not bound.input_tokens:
        return bound.reason
    most = bounds_of(target.endpoint.system, target.model).media
    # Gemini's kinds are told by MIME types: the smallest maximum is due for each of them.
    least = {"image": most.image, "document": most.document, "audio": 0, "any": most.image}
    window = target.profile.context_tokens
    documents = sum(least[kind] for kind, _ in allowed if kind == "document")
    if window is not None:
        documents = min(documents, window.value)
    # White space between the outermost members is no part of the prompt.
    tokens = size_in(body, json.loads(body)) - sum(size for _, size in allowed) + documents
    tokens += sum(least[kind] for kind, _ in allowed if kind != "document")
    assert bound.input_tokens >= tokens, (bound, tokens, allowed)
    price = target.price(AT, facts.service_tier)
    if bound.nano_usd is not None and price is not None:
        assert price.input is not None
        assert price.output is not None
        usd = (tokens * price.input + bound.output_tokens * price.output) / Decimal(1_000_000)
        assert bound.nano_usd >= nano_usd(usd)
    return "" if bound.nano_usd is not None else bound.reason


# ── Generated requests ───────────────────────────────────────────────────────────────────────────

data = st.sampled_from(["QUJD" * 40, "Q/+D" * 300, "QUJDRA==" * 9, "tea " * 30, "short"])
words = st.sampled_from(["Hi", "QUJD" * 40, "Q/+D" * 300, '"source":{"data":"' + "QUJD" * 40])


def source(kind: str, value: Any) -> Json:
    return {"type": kind, "media_type": "image/png", "data": value}


kinds = st.sampled_from(["base64", "base64", "base64", "image", "text", "file", "content"])
sources = st.builds(source, kinds, data)


def url(value: str) -> str:
    return f"data:image/png;base64,{value}"


def anthropic_blocks() -> st.SearchStrategy[Any]:
    media = st.builds(
        lambda kind, held: {"type": kind, "source": held},
        st.sampled_from(["image", "document", "search_result", "audio", "hologram"]),
        sources,
    )
    text = st.builds(lambda text: {"type": "text", "text": text}, words)

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        listed = st.lists(inner, max_size=3)
        one = {"tool_use_id": "t"}
        return st.one_of(
            listed.map(lambda blocks: {"type": "tool_result", "content": blocks, **one}),
            listed.map(lambda blocks: {"type": "search_result", "content": blocks, **one}),
            listed.map(
                lambda blocks: {
                    "type": "document",
                    "source": {"type": "content", "content": blocks},
                }
            ),
            inner.map(lambda block: {"type": "image", "source": block}),
            inner.map(lambda block: {"type": "tool_result", "source": block, **one}),
            inner.map(
                lambda block: {
                    "type": "web_fetch_tool_result",
                    "content": {"type": "web_fetch_result", "content": block},
                    **one,
                }
            ),
            inner.map(lambda block: {"type": "text", "text": "a", "citations": [block]}),
            inner.map(lambda block: {"type": "tool_use", "name": "a", "id": "t", "input": block}),
            listed.map(lambda blocks: {"type": "hologram", "content": blocks}),
        )

    return st.recursive(media | text, around, max_leaves=5)


def chat_parts() -> st.SearchStrategy[Any]:
    return st.one_of(
        words.map(lambda text: {"type": "text", "text": text}),
        data.map(lambda each: {"type": "image_url", "image_url": {"url": url(each)}}),
        data.map(lambda each: {"type": "image_url", "image_url": url(each)}),
        data.map(lambda each: {"type": "image_url", "image_url": {"url": each}}),
        data.map(lambda each: {"type": "image_url", "image_url": {"data": url(each)}}),
        data.map(lambda each: {"type": "file", "file": {"file_data": each}}),
        data.map(lambda each: {"type": "file", "file": {"type": "file", "file_data": each}}),
        data.map(lambda each: {"type": "text", "text": "a", "image_url": {"url": url(each)}}),
    )


def item_parts() -> st.SearchStrategy[Any]:
    return st.one_of(
        words.map(lambda text: {"type": "input_text", "text": text}),
        data.map(lambda each: {"type": "input_image", "image_url": url(each)}),
        data.map(lambda each: {"type": "input_image", "image_url": {"url": url(each)}}),
        data.map(lambda each: {"type": "input_file", "file_data": each}),
        data.map(lambda each: {"type": "input_file", "file": {"file_data": each}}),
        data.map(lambda each: {"type": "hologram", "content": [{"image_url": url(each)}]}),
    )


def gemini_parts() -> st.SearchStrategy[Any]:
    inline = st.builds(
        lambda name, kind, each: {name: {"mimeType": kind, "data": each}},
        st.sampled_from(["inlineData", "inline_data", "fileData", "blob"]),
        st.sampled_from(["image/png", "application/pdf"]),
        data,
    )
    text = words.map(lambda text: {"text": text})
    return st.recursive(
        inline | text,
        lambda inner: st.one_of(
            st.lists(inner, max_size=2).map(
                lambda parts: {"functionResponse": {"name": "a", "response": {}, "parts": parts}}
            ),
            inner.map(lambda part: {"functionResponse": {"name": "a", "response": part}}),
            inner.map(lambda part: {"functionCall": {"name": "a", "args": part}}),
            inner.map(lambda part: {"inlineData": {"mimeType": "image/png", "inlineData": part}}),
        ),
        max_leaves=4,
    )


@st.composite
def bodies(draw: st.DrawFn, wire: str) -> bytes:
    """A request with media where they belong, and where they do not."""
    body: Json = {}
    if wire == "anthropic":
        roles = st.sampled_from(["user", "assistant"])
        message = st.builds(
            lambda role, blocks: {"role": role, "content": blocks},
            roles,
            st.lists(anthropic_blocks(), min_size=1, max_size=3),
        )
        body = {"max_tokens": 50, "messages": draw(st.lists(message, min_size=1, max_size=3))}
        if draw(st.booleans()):
            body["system"] = draw(st.lists(anthropic_blocks(), max_size=2))
    elif wire == "openai_chat":
        roles = st.sampled_from(["user", "tool", "system", "developer", "System"])
        message = st.builds(
            lambda role, parts: {"role": role, "content": parts},
            roles,
            st.lists(chat_parts(), min_size=1, max_size=3),
        )
        messages = draw(st.lists(message, min_size=1, max_size=3))
        body = {"max_completion_tokens": 50, "messages": messages}
    elif wire == "openai_responses":
        listed = st.lists(item_parts(), min_size=1, max_size=3)
        item = st.one_of(
            listed.map(lambda parts: {"role": "user", "content": parts}),
            listed.map(
                lambda parts: {"type": "function_call_output", "call_id": "c", "output": parts}
            ),
            listed.map(lambda parts: {"type": "hologram", "output": parts}),
            data.map(lambda each: {"type": "image_generation_call", "id": "i", "result": each}),
            data.map(
                lambda each: {
                    "type": "computer_call_output",
                    "output": {"type": "computer_screenshot", "image_url": url(each)},
                }
            ),
        )
        body = {"max_output_tokens": 50, "input": draw(st.lists(item, min_size=1, max_size=3))}
    elif wire == "gemini":
        content = st.builds(
            lambda role, parts: {"role": role, "parts": parts},
            st.sampled_from(["user", "model"]),
            st.lists(gemini_parts(), min_size=1, max_size=3),
        )
        body = {
            "contents": draw(st.lists(content, min_size=1, max_size=3)),
            "generationConfig": {"maxOutputTokens": 50},
        }
        if draw(st.booleans()):
            parts = draw(st.lists(gemini_parts(), min_size=1, max_size=2))
            body["systemInstruction"] = {"parts": parts}
    else:
        message = st.builds(
            lambda role, text, images: {"role": role, "content": text, "images": images},
            st.sampled_from(["user", "assistant", "tool"]),
            words,
            st.lists(data | data.map(lambda each: [each]) | data.map(lambda each: {"data": each})),
        )
        body = {
            "messages": draw(st.lists(message, min_size=1, max_size=3)),
            "stream": False,
            "options": {"num_predict": 50},
        }
    if wire != "gemini":
        body["model"] = MODELS[wire]
    text = json.dumps(body, separators=(",", ":") if draw(st.booleans()) else None)
    return (text.replace("/", "\\/") if draw(st.booleans()) else text).encode()


@pytest.mark.parametrize("examples", [30, pytest.param(500, marks=pytest.mark.soak)])
@EVERY_WIRE
def test_every_generated_request_is_bounded_by_its_bytes(wire: str, examples: int) -> None:
    seen: Counter[str] = Counter()
    target = target_of(wire, MODELS[wire])
    path = GEMINI_PATH if wire == "gemini" else PATHS[wire]

    @settings(max_examples=examples)
    @given(bodies(wire))
    def holds(body: bytes) -> None:
        try:
            seen[check_bound(wire, wire, body, path, target)] += 1
        except InvalidRequest:
            seen["invalid"] += 1

    holds()
    assert seen.total() - seen["invalid"] > examples // 4, seen


@needs_exchanges
def test_every_recorded_request_is_bounded_by_its_bytes() -> None:
    seen: Counter[str] = Counter()
    for record in all_records():
        wire = record["wire"]
        if wire not in wires.WIRES:
            continue
        try:
            facts = facts_in(wire, record["request"].encode(), record["path"])
            target = target_of(wire, facts.model)
            seen[check_bound(wire, wire, record["request"].encode(), record["path"], target)] += 1
        except (InvalidRequest, ValueError):
            seen["invalid"] += 1
    assert seen[""] > 400, seen
    assert seen["invalid"] < 100, seen


# ── Through a daemon ─────────────────────────────────────────────────────────────────────────────

LONG = "QUJD" * 150_000
IMAGE = source("base64", LONG)
URL = url(LONG)
NESTED = {"mimeType": "image/png", "data": LONG}


def user(*blocks: Json) -> Json:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def result(**members: Any) -> Json:
    return user({"type": "tool_result", "tool_use_id": "t", **members})


#: Requests with a medium of 600,000 bytes, and whether it is shown to the model there.
PLACES: dict[str, tuple[str, Json, bool]] = {
    "an image": ("anthropic", user({"type": "image", "source": IMAGE}), True),
    "an image in a result": ("anthropic", result(content=[{"type": "image", "source": IMAGE}]),
        True),
    "an image in the source of a result": ("anthropic", result(content=[{"type": "text",
        "text": "Hi"}], source={"type": "image", "source": IMAGE}), False),
    "an image as the source of an image": ("anthropic", user({"type": "image",
        "source": {"type": "image", "data": LONG}}), False),
    "an image around an image": ("anthropic", user({"type": "image", "source": {"type": "image",
        "source": IMAGE}}), False),
    "an image in a system text": ("gemini", {"contents": [{"parts": [{"text": "Hi"}]}],
        "systemInstruction": {"parts": [{"inlineData": {"mimeType": "image/png", "data": LONG}}]}},
        False),
    "an image of Chat": ("openai_chat", user({"type": "image_url", "image_url": {"url": URL}}),
        True),
    "an image in a text": ("openai_chat", user({"type": "text", "text": "Hi",
        "image_url": {"type": "image_url", "image_url": URL}}), False),
    "an image of the system": ("openai_chat", {"messages": [{"role": "system",
        "content": [{"type": "image_url", "image_url": {"url": URL}}]}, {"role": "user",
        "content": "Hi"}]}, False),
    "an image of Responses": ("openai_responses", {"input": [{"role": "user",
        "content": [{"type": "input_image", "image_url": URL}]}]}, True),
    "an image in a new item": ("openai_responses", {"input": [{"type": "program",
        "content": [{"type": "input_image", "image_url": URL}]}]}, False),
    "an image of Gemini": ("gemini", {"contents": [{"parts": [{"inlineData": {
        "mimeType": "image/png", "data": LONG}}]}]}, True),
    "an image in an image of Gemini": ("gemini", {"contents": [{"parts": [{"inlineData": {
        "mimeType": "image/png", "inlineData": NESTED}}]}]}, False),
    "an image in the arguments of a call": ("gemini", {"contents": [{"role": "model",
        "parts": [{"functionCall": {"name": "a", "args": {"inlineData": {"data": LONG}}}}]}]},
        False),
}  # fmt: skip
LIMITS: dict[str, Json] = {
    "anthropic": {"model": "claude-opus-4-5", "max_tokens": 16},
    "openai_chat": {"model": "gpt-5.2", "max_completion_tokens": 16},
    "openai_responses": {"model": "gpt-5.2", "max_output_tokens": 16},
    "gemini": {"generationConfig": {"maxOutputTokens": 16}},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    with scripted_provider() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    provider: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    """600,000 bytes of text cost more than 35 cents at each model."""
    grants = {
        wire: {
            "capabilities_grant": ["llm_complete"],
            "llm": {
                "providers": ["anthropic", "openai", "openai-chat", "gemini"],
                "models": ["*"],
                "usd_per_day": 0.35,
                "allow": [{"fields": ["*"]}, "stored_responses"],
            },
        }
        for wire in LIMITS
    }
    folder: Path = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, provider, extensions=grants) as running:
        yield running


@pytest.mark.parametrize("name", PLACES)
def test_medium_that_is_not_shown_is_held_as_text(
    name: str, daemon: TestedDaemon, provider: ScriptedProvider
) -> None:
    provider.reset()
    wire, body, shown = PLACES[name]
    path = GEMINI_PATH if wire == "gemini" else PATHS[wire]
    owner = {"openai_chat": "openai-chat", "openai_responses": "openai"}.get(wire, wire)
    with daemon.client(wire) as client:
        headers = {"anaphora-provider": owner}
        response = client.post(path, json=body | LIMITS[wire], headers=headers)
    refused = 400 if name == "an image of the system" else 402  # Chat has no place for it
    assert response.status_code == (200 if shown else refused), response.text[:500]
    assert len(provider.bodies) == shown
