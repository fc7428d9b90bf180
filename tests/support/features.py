"""Everything that a call may ask for, one feature at a time: how to ask, and how to see whether a
request that was read back still asks.

What belongs to one provider (reasoning it wants back, tools it brings along, fields with no name
here) is there twice: as the target's own, and as somebody else's.
"""

from __future__ import annotations

from msgspec.structs import replace
from support import call_views as see
from support import feature_calls as ask
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
        ("max tokens", ask.params(max_tokens=77), see.param("max_tokens"), "params.max_tokens"),
        (
            "temperature",
            ask.params(temperature=0.5),
            see.param("temperature"),
            "params.temperature",
        ),
        ("top_p", ask.params(top_p=0.5), see.param("top_p"), "params.top_p"),
        ("top_k", ask.params(top_k=5), see.param("top_k"), "params.top_k"),
        ("stop sequences", ask.params(stop=("END", "STOP")), see.param("stop"), "params.stop"),
        ("seed", ask.params(seed=7), see.param("seed"), "params.seed"),
        ("n", ask.params(n=2), see.param("n"), "params.n"),
        (
            "frequency penalty",
            ask.params(frequency_penalty=0.5),
            see.param("frequency_penalty"),
            "params.frequency_penalty",
        ),
        (
            "presence penalty",
            ask.params(presence_penalty=0.5),
            see.param("presence_penalty"),
            "params.presence_penalty",
        ),
        ("verbosity", ask.params(verbosity="low"), see.param("verbosity"), "params.verbosity"),
        ("user id", ask.params(user="u-1"), see.param("user"), "params.user"),
        (
            "metadata",
            ask.params(metadata={"team": "blue"}),
            see.param("metadata"),
            "params.metadata",
        ),
        (
            "service tier `flex`",
            ask.params(service_tier="flex"),
            see.param("service_tier"),
            "params.service_tier",
        ),
        (
            "service tier `standard_only`",
            ask.params(service_tier="standard_only"),
            see.param("service_tier"),
            "params.service_tier",
        ),
        ("store", ask.params(store=True), see.param("store"), "params.store"),
        ("store off", ask.params(store=False), see.param("store"), "params.store"),
        (
            "include",
            ask.params(include=("reasoning.encrypted_content",)),
            see.param("include"),
            "params.include",
        ),
        ("truncation", ask.params(truncation="auto"), see.param("truncation"), "params.truncation"),
        ("a stream", ask.params(stream=True), see.param("stream"), "params.stream"),
        ("fields with no name here, its own", ask.unheard_of, see.extras),
        ("fields with no name here, another wire's", ask.foreign(ask.unheard_of), see.extras),
    ),
    *rows(
        "Tools",
        (
            "tools",
            lambda _: ask.base(tools=(ask.LOOK,)),
            see.tools("name", "description", "schema"),
        ),
        (
            "strict tool",
            lambda _: ask.base(tools=(replace(ask.LOOK, strict=True),)),
            see.tools("strict"),
            "tools[0].strict",
        ),
        ("tool choice auto", ask.choice("auto"), see.mode),
        (
            "tool choice none",
            ask.choice("none"),
            see.param("tool_choice.mode"),
            "params.tool_choice.mode",
        ),
        (
            "tool choice required",
            ask.choice("required"),
            see.param("tool_choice.mode"),
            "params.tool_choice.mode",
        ),
        (
            "forced tool",
            ask.choice("tool", "look"),
            see.param("tool_choice.name"),
            "params.tool_choice.name",
        ),
        (
            "parallel calls off",
            ask.choice("auto", None, False),
            see.param("tool_choice.parallel"),
            "params.tool_choice.parallel",
        ),
        ("provider tools, its own", ask.provider_tool, see.provider_tools),
        ("provider tools, another's", ask.foreign(ask.provider_tool), see.provider_tools),
        ("tool result", ask.result("found"), see.results),
        ("tool error flag", ask.result("no", error=True), see.parts(ToolResult, "error")),
        (
            "tool result with texts",
            ask.result((Text("a"), Text("b"))),
            see.parts(ToolResult, "content"),
        ),
        (
            "tool result with image",
            ask.result((Text("a"), Image(ask.PNG))),
            see.inside_results(Image),
        ),
        (
            "tool result with document",
            ask.result((Document(ask.PDF),)),
            see.inside_results(Document),
        ),
        (
            "arguments that are no JSON",
            ask.talk(
                Message.user("hello"),
                Message.assistant(ToolCall("c1", "look", "cut {")),
                Message.tool("c1", "no"),
            ),
            see.parts(ToolCall, "arguments"),
        ),
    ),
    *rows(
        "Output and reasoning",
        ("output schema", ask.output(), see.param("output.schema"), "params.output.schema"),
        (
            "name of the schema",
            ask.output(name="weather"),
            see.name_of_schema,
            "params.output.name",
        ),
        (
            "description of the schema",
            ask.output(description="d"),
            see.param("output.description"),
            "params.output.description",
        ),
        (
            "schema without strict",
            ask.output(strict=False),
            see.param("output.strict"),
            "params.output.strict",
        ),
        (
            "effort `low`",
            ask.reasoning(effort="low"),
            see.param("reasoning.effort"),
            "params.reasoning.effort",
        ),
        (
            "effort `max`",
            ask.reasoning(effort="max"),
            see.param("reasoning.effort"),
            "params.reasoning.effort",
        ),
        (
            "thinking off",
            ask.reasoning(mode="disabled"),
            see.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "adaptive thinking",
            ask.reasoning(mode="adaptive"),
            see.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "thinking between tools",
            ask.reasoning(mode="between_tools"),
            see.param("reasoning.mode"),
            "params.reasoning.mode",
        ),
        (
            "reasoning budget",
            ask.reasoning(mode="enabled", budget_tokens=2048),
            see.param("reasoning.budget_tokens"),
            "params.reasoning.budget_tokens",
        ),
        (
            "thinking shown",
            ask.reasoning(mode="adaptive", display="summarized"),
            see.param("reasoning.display"),
            "params.reasoning.display",
        ),
        (
            "reasoning summary",
            ask.reasoning(summary="auto"),
            see.param("reasoning.summary"),
            "params.reasoning.summary",
        ),
        (
            "thinking replayed, its own",
            lambda name: ask.base(talk=ask.thought(name), tools=(ask.LOOK,)),
            see.parts(Thinking, "text", "signature", "data"),
        ),
        (
            "thinking replayed, another's",
            lambda name: ask.base(talk=ask.thought(ask.another(name)), tools=(ask.LOOK,)),
            see.parts(Thinking, "text", "signature", "data"),
        ),
    ),
    *rows(
        "Content",
        ("image bytes", ask.user(Image(ask.PNG)), see.sources(Image)),
        ("image by URL", ask.user(Image(_PNG_URL)), see.sources(Image)),
        ("image detail", ask.user(Image(ask.PNG, "low")), see.parts(Image, "detail")),
        ("file id, another's", ask.foreign(ask.file_id), see.sources(Image)),
        ("PDF bytes", ask.user(Document(ask.PDF)), see.sources(Document)),
        ("PDF by URL", ask.user(Document(_PDF_URL)), see.sources(Document)),
        ("text file", ask.user(_TEXT_FILE), see.sources(Document)),
        ("document title", ask.user(Document(ask.PDF, "a.pdf")), see.parts(Document, "title")),
        (
            "document context",
            ask.user(Document(ask.PDF, None, "c")),
            see.parts(Document, "context"),
        ),
        ("audio bytes", ask.user(Audio(ask.WAV)), see.sources(Audio)),
        (
            "system message in the conversation",
            ask.talk(
                Message.user("hello"),
                Message.assistant("ok"),
                Message.user("go on"),
                Message.system("In French."),
            ),
            see.who_says("In French."),
        ),
        (
            "refusal replayed",
            ask.talk(Message.user("hello"), Message.assistant(Refusal("no")), Message.user("well")),
            see.who_says("no"),
        ),
        (
            "prefilled answer",
            ask.talk(Message.user("hello"), Message.assistant("Sure")),
            see.who_says("Sure"),
        ),
        ("part fields (citations), its own", ask.cited, see.extras_of_parts),
        ("part fields (citations), another's", ask.foreign(ask.cited), see.extras_of_parts),
        ("unknown block, its own", ask.opaque, see.parts(Opaque, "json")),
        ("unknown block, another's", ask.foreign(ask.opaque), see.parts(Opaque, "json")),
    ),
    *rows(
        "Caching and state",
        ("5m mark on a message", ask.mark_on_message("5m"), see.marks),
        ("1h mark on a message", ask.mark_on_message("1h"), see.marks),
        ("5m mark on a system block", ask.mark(BlockMark(0)), see.marks),
        ("5m mark on a tool", ask.mark(ToolMark("look")), see.marks),
        ("5m automatic mark", ask.plan(automatic="5m"), see.cache("automatic"), "cache.automatic"),
        (
            "30m automatic mark",
            ask.plan(automatic="30m"),
            see.cache("automatic"),
            "cache.automatic",
        ),
        ("explicit marks only", ask.plan(mode="explicit"), see.cache("mode"), "cache.mode"),
        ("cache key", ask.plan(key="k-1"), see.cache("key"), "cache.key"),
        ("retention", ask.plan(retention="24h"), see.cache("retention"), "cache.retention"),
        ("prewarm", ask.plan(prewarm=True), see.cache("prewarm"), "cache.prewarm"),
        ("diagnosis, its own", ask.earlier, see.compares),
        ("diagnosis, another's", ask.foreign(ask.earlier), see.compares),
        (
            "continuation",
            lambda _: ask.base(continuation=Continuation("r_1")),
            lambda call: call.ir.continuation,
        ),
    ),
]
