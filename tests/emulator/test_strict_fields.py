"""The lists of known fields equal those of the official SDKs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from anthropic import types as anthropic_types
from anthropic.types import beta as anthropic_beta
from anthropic.types.beta.message_count_tokens_params import (
    MessageCountTokensParams as BetaCountTokensParams,
)
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsNonStreaming as BetaMessageParams,
)
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as MessageParams
from google.genai import models as google_models
from google.genai import types as google_types
from openai.types import chat as openai_chat
from openai.types import responses as openai_responses
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from anaphora.emulator.strict import SAMPLING, anthropic, gemini, members_by_type, openai, responses
from anaphora.wire.gemini import fields as gemini_fields
from anaphora.wire.tables import request_table


def members(kind: Any) -> Iterator[Any]:
    """The typed dicts of a union."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Union:
        for each in get_args(kind):
            yield from members(each)
    elif hasattr(kind, "__total__"):
        yield kind


def fields(kind: Any) -> set[str]:
    return set(get_type_hints(kind))


def tags(kind: Any, field: str = "type") -> set[str]:
    """The values of a field of literals."""
    found: set[str] = set()

    def look(hint: Any) -> None:
        if get_origin(hint) is Literal:
            found.update(value for value in get_args(hint) if value)
        for each in get_args(hint):
            look(each)

    look(get_type_hints(kind)[field])
    return found


def by_tag(union: Any, field: str = "type") -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kind in members(union):
        for tag in tags(kind, field):
            found.setdefault(tag, set()).update(fields(kind))
    return found


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def test_anthropic() -> None:
    assert fields(MessageParams) == anthropic.TOP
    # The types no longer have `output_format`, which is accepted (PROVIDERS.md, November 2026).
    older = {"output_format"}
    assert fields(BetaMessageParams) - anthropic.TOP | older == anthropic.BETA_TOP
    assert not anthropic.TOP & set(SAMPLING)
    assert fields(MessageCountTokensParams) == anthropic.COUNT
    assert fields(BetaCountTokensParams) - anthropic.COUNT | older == anthropic.BETA_COUNT
    messages = [fields(kind) for kind in members(anthropic_types.MessageParam)]
    assert frozenset().union(*messages) == anthropic.MESSAGE
    beta = [fields(kind) for kind in members(anthropic_beta.BetaMessageParam)]
    assert set().union(*beta) - anthropic.MESSAGE == anthropic.BETA_MESSAGE
    assert frozenset(fields(anthropic_types.ToolParam)) == anthropic.CUSTOM_TOOL
    blocks = by_tag(anthropic_types.ContentBlockParam)
    assert blocks == anthropic.BLOCKS
    in_beta = {kind for kind, row in request_table("anthropic").blocks.items() if row.beta}
    assert by_tag(anthropic_beta.BetaContentBlockParam).keys() - blocks == in_beta


def test_openai_chat() -> None:
    assert fields(CompletionCreateParamsNonStreaming) == openai.CHAT
    messages = by_tag(openai_chat.ChatCompletionMessageParam, "role")
    messages["assistant"] |= openai_chat.ChatCompletionMessage.model_fields.keys()
    assert messages == openai.MESSAGES
    parts = by_tag(openai_chat.ChatCompletionContentPartParam)
    parts |= by_tag(openai_chat.ChatCompletionContentPartRefusalParam)
    assert parts == members_by_type(request_table("openai_chat").blocks)


def test_openai_responses() -> None:
    assert fields(ResponseCreateParamsNonStreaming) == responses.RESPONSES
    assert fields(InputTokenCountParams) == responses.INPUT_TOKENS
    assert by_tag(openai_responses.ResponseInputItemParam) == responses.ITEMS


def test_gemini() -> None:
    put = [
        getattr(google_models, f"_GenerateContent{what}_to_{api}")
        for what in ("Config", "Parameters")
        for api in ("mldev", "vertex")
    ]
    source = "".join(inspect.getsource(each) for each in put)
    top = set(re.findall(r"setv\(\s*parent_object,\s*\['(\w+)'", source))
    assert top | {"contents", "generationConfig", "model"} == gemini.TOP
    assert frozenset(map(camel, google_types.Content.model_fields)) == gemini.CONTENT
    assert {camel(name) for name in google_types.Part.model_fields} == gemini_fields.PART
    config = {camel(name) for name in google_types.GenerationConfig.model_fields}
    source = "".join(inspect.getsource(each) for each in put[:2])
    config |= set(re.findall(r"setv\(\s*to_object,\s*\['(\w+)'", source))
    assert config == gemini_fields.GENERATION_CONFIG
