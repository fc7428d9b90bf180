"""Every feature of a call, one at a time: a call that uses it, and the view that shows whether a
request that was read back still has it.

Provider-specific features (signed reasoning, provider tools, unknown fields) are listed twice: for
the target's own provider and for another one.
"""

from __future__ import annotations

from msgspec.structs import replace
from support import call_views as views
from support import feature_calls as calls
from support.feature import Feature, rows

from anaphora.prompt import BlockMark, Continuation, ToolMark
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Image,
    Message,
    Opaque,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)

_TEXT_FILE = Document(Bytes(b"plain", "text/plain"))
_PNG_URL, _PDF_URL = Url("https://example.invalid/a.png"), Url("https://example.invalid/a.pdf")


FEATURES: list[Feature] = [
    *rows(
        "Parameters",
        ("max tokens", calls.params(max_tokens=77), views.param("max_tokens"), "params.max_tokens"),
        (
            "temperature",
            calls.params(temperature=0.5),
            views.param("temperature"),
            "params.temperature",
        ),
        ("top_p", calls.params(top_p=0.5), views.param("top_p"), "params.top_p"),
        ("top_k", calls.params(top_k=5), views.param("top_k"), "params.top_k"),
        ("stop sequences", calls.params(stop=("END", "STOP")), views.param("stop"), "params.stop"),
        ("seed", calls.params(seed=7), views.param("seed"), "params.seed"),
        ("n", calls.params(n=2), views.param("n"), "params.n"),
        (
            "frequency penalty",
            calls.params(frequency_penalty=0.5),
            views.param("frequency_penalty"),
            "params.frequency_penalty",
        ),
        (
            "presence penalty",
            calls.params(presence_penalty=0.5),
            views.param("presence_penalty"),
            "params.presence_penalty",
        ),
        ("verbosity", calls.params(verbosity="low"), views.param("verbosity"), "params.verbosity"),
        ("user id", calls.params(user="u-1"), views.param("user"), "params.user"),
        (
            "metadata",
            calls.params(metadata={"team": "blue"}),
            views.param("metadata"),
            "params.metadata",
        ),
        (
            "service tier `flex`",
            calls.params(service_tier="flex"),
            views.param("service_tier"),
            "params.service_tier",
        ),
        (
            "service tier `standard_only`",
            calls.params(service_tier="standard_only"),
            views.param("service_tier"),
            "params.service_tier",
        ),
        ("store", calls.params(store=True), views.param("store"), "params.store"),
        ("store off", calls.params(store=False), views.param("store"), "params.store"),
        (
            "include",
            calls.params(include=("reasoning.encrypted_content",)),
            views.param("include"),
            "params.include",
        ),
        (
            "truncation",
            calls.params(truncation="auto"),
            views.param("truncation"),
            "params.truncation",
        ),
        ("a stream", calls.params(stream=True), views.param("stream"), "params.stream"),
        ("fields with no name here, its own", calls.unknown_field, views.extras),
        (
            "fields with no name here, another wire's",
            calls.foreign(calls.unknown_field),
            views.extras,
        ),
    ),
    *rows(
        "Tools",
        (
            "tools",
            lambda _: calls.base(tools=(calls.LOOK,)),
            views.tools("name", "description", "schema"),
        ),
        (
            "strict tool",
            lambda _: calls.base(tools=(replace(calls.LOOK, strict=True),)),
            views.tools("strict"),
            "tools[0].strict",
        ),
        ("tool choice auto", calls.choice("auto"), views.mode),
        (
            "tool choice none",
            calls.choice("none"),
            views.param("tool_choice.mode"),
            "params.tool_choice.mode",
        ),
        (
            "tool choice required",
            calls.choice("required"),
            views.param("tool_choice.mode"),
            "params.tool_choice.mode",
        ),
        (
            "forced tool",
            calls.choice("tool", "look"),
            views.param("tool_choice.name"),
            "params.tool_choice.name",
        ),
        (
            "parallel calls off",
            calls.choice("auto", None, False),
            views.param("tool_choice.parallel"),
            "params.tool_choice.parallel",
        ),
        ("provider tools, its own", calls.provider_tool, views.provider_tools),
        ("provider tools, another's", calls.foreign(calls.provider_tool), views.provider_tools),
        ("tool result", calls.result("found"), views.results),
        ("tool error flag", calls.result("no", error=True), views.parts(ToolResult, "error")),
        (
            "tool result with texts",
            calls.result((Text("a"), Text("b"))),
            views.parts(ToolResult, "content"),
        ),
        (
            "tool result with image",
            calls.result((Text("a"), Image(calls.PNG))),
            views.inside_results(Image),
        ),
        (
            "tool result with document",
            calls.result((Document(calls.PDF),)),
            views.inside_results(Document),
        ),
        (
            "arguments that are no JSON",
            calls.messages(
                Message.user("hello"),
                Message.assistant(ToolCall("c1", "look", "cut {")),
                Message.tool("c1", "no"),
            ),
            views.parts(ToolCall, "arguments"),
        ),
    ),
    *rows(
        "Output and reasoning",
        ("output schema", calls.output(), views.param("output.schema"), "params.output.schema"),
        (
            "name of the schema",
            calls.output(name="weather"),
            views.name_of_schema,
            "params.output.name",
        ),
        (
            "description of the schema",
            calls.output(description="d"),
            views.param("output.description"),
            "params.output.description",
        ),
        (
            "schema without strict",
            calls.output(strict=False),
            views.param("output.strict"),
            "params.output.strict",
        ),
        (
            "effort `low`",
            calls.reasoning(effort="low"),
            views.param("reasoning.effort"),
            "params.reasoning.effort",
        ),
        (
            "effort `max`",
            calls.reasoning(effort="max"),
            views.param("reasoning.effort"),
            "params.reasoning.effort",
        ),
        (
            "thinking off",
            calls.reasoning(mode="disabled"),
            views.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "adaptive thinking",
            calls.reasoning(mode="adaptive"),
            views.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "thinking between tools",
            calls.reasoning(mode="between_tools"),
            views.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "reasoning budget",
            calls.reasoning(mode="enabled", budget_tokens=2048),
            views.param("reasoning.budget_tokens"),
            "params.reasoning.budget_tokens",
        ),
        (
            "thinking shown",
            calls.reasoning(mode="adaptive", display="summarized"),
            views.param("reasoning.display"),
            "params.reasoning.display",
        ),
        (
            "reasoning summary",
            calls.reasoning(summary="auto"),
            views.param("reasoning.summary"),
            "params.reasoning.summary",
        ),
        (
            "thinking replayed, its own",
            lambda name: calls.base(messages=calls.thought(name), tools=(calls.LOOK,)),
            views.parts(Thinking, "text", "signature", "data"),
        ),
        (
            "thinking replayed, another's",
            lambda name: calls.base(
                messages=calls.thought(calls.another(name)), tools=(calls.LOOK,)
            ),
            views.parts(Thinking, "text", "signature", "data"),
        ),
    ),
    *rows(
        "Content",
        ("image bytes", calls.user(Image(calls.PNG)), views.sources(Image)),
        ("image by URL", calls.user(Image(_PNG_URL)), views.sources(Image)),
        ("image detail", calls.user(Image(calls.PNG, "low")), views.parts(Image, "detail")),
        ("file id, another's", calls.foreign(calls.file_id), views.sources(Image)),
        ("PDF bytes", calls.user(Document(calls.PDF)), views.sources(Document)),
        ("PDF by URL", calls.user(Document(_PDF_URL)), views.sources(Document)),
        ("text file", calls.user(_TEXT_FILE), views.sources(Document)),
        (
            "document title",
            calls.user(Document(calls.PDF, "a.pdf")),
            views.parts(Document, "title"),
        ),
        (
            "document context",
            calls.user(Document(calls.PDF, None, "c")),
            views.parts(Document, "context"),
        ),
        ("audio bytes", calls.user(Audio(calls.WAV)), views.sources(Audio)),
        (
            "system message in the conversation",
            calls.messages(
                Message.user("hello"),
                Message.assistant("ok"),
                Message.user("go on"),
                Message.system("In French."),
            ),
            views.roles_of("In French."),
        ),
        (
            "refusal replayed",
            calls.messages(
                Message.user("hello"), Message.assistant(Refusal("no")), Message.user("well")
            ),
            views.roles_of("no"),
        ),
        (
            "prefilled answer",
            calls.messages(Message.user("hello"), Message.assistant("Sure")),
            views.roles_of("Sure"),
        ),
        ("part fields (citations), its own", calls.cited, views.extras_of_parts),
        ("part fields (citations), another's", calls.foreign(calls.cited), views.extras_of_parts),
        ("unknown block, its own", calls.opaque, views.parts(Opaque, "json")),
        ("unknown block, another's", calls.foreign(calls.opaque), views.parts(Opaque, "json")),
    ),
    *rows(
        "Caching and state",
        ("5m mark on a message", calls.mark_on_message("5m"), views.marks),
        ("1h mark on a message", calls.mark_on_message("1h"), views.marks),
        ("5m mark on a system block", calls.mark(BlockMark(0)), views.marks),
        ("5m mark on a tool", calls.mark(ToolMark("look")), views.marks),
        (
            "5m automatic mark",
            calls.plan(automatic="5m"),
            views.cache("automatic"),
            "cache.automatic",
        ),
        (
            "30m automatic mark",
            calls.plan(automatic="30m"),
            views.cache("automatic"),
            "cache.automatic",
        ),
        ("explicit marks only", calls.plan(mode="explicit"), views.cache("mode"), "cache.mode"),
        ("cache key", calls.plan(key="k-1"), views.cache("key"), "cache.key"),
        ("retention", calls.plan(retention="24h"), views.cache("retention"), "cache.retention"),
        ("prewarm", calls.plan(prewarm=True), views.cache("prewarm"), "cache.prewarm"),
        ("diagnosis, its own", calls.earlier, views.compares),
        ("diagnosis, another's", calls.foreign(calls.earlier), views.compares),
        (
            "continuation",
            lambda _: calls.base(continuation=Continuation("r_1")),
            lambda call: call.ir.continuation,
        ),
    ),
]
