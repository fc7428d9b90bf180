"""Tools with `defer_loading`: in the body, but not in the prompt until a message refers to them.

Claude Code with tool search adds such tools in mid-conversation (CLIENTS.md); Anthropic's page on
tool use with prompt caching: they are not part of the prefix.
"""

from __future__ import annotations

import asyncio
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from support.emulated_client import LONG, connected
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.verdict import SentCall, judge, preflight
from anaphora.cli.common import anaphora
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, Params, PromptCachePlan, PromptIR, ToolMark
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.tools import ToolRegistry
from anaphora.values import CachePolicy, Conversation, Message, Tool, Usage
from anaphora.wire import anthropic, openai_responses
from anaphora.wire.cutting import cut

Json = dict[str, Any]

MODEL = "claude-sonnet-4-5"
PROFILE, RULES = catalog.profile("anthropic", MODEL), catalog.rules("anthropic", MODEL)
HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
MARKER = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {}}


def tool(name: str, *, deferred: bool = False, **more: Any) -> Json:
    made = {"name": name, "description": f"{name}: {LONG}", "input_schema": SCHEMA, **more}
    return {**made, "defer_loading": True} if deferred else made


LOADED, FIRST, SECOND = tool("a"), tool("x", deferred=True), tool("y", deferred=True)


def request(tools: list[Json], turns: int = 1, *more: Json) -> Json:
    messages: list[Json] = []
    for turn in range(turns):
        messages += [{"role": "assistant", "content": f"answer {turn}"}] if turn else []
        last = {"type": "text", "text": f"question {turn}"}
        if turn + 1 == turns and not more:
            last["cache_control"] = MARKER  # type: ignore[assignment]
        messages.append({"role": "user", "content": [last]})
    return {
        "model": MODEL,
        "max_tokens": 64,
        "tools": tools,
        "system": [{"type": "text", "text": LONG, "cache_control": MARKER}],
        "messages": [*messages, *more],
    }


def split(body: Json) -> Rendered:
    return cut(anthropic, json.dumps(body).encode())


def sent(body: Json, at: float, usage: Usage | None = None) -> SentCall:
    return SentCall(rendered=split(body), at=at, usage=usage)


class TestRequests:
    """Requests of other programs, as bytes."""

    @each_row("tools", [*permutations([LOADED, tool("b"), FIRST, SECOND])])
    def test_place_of_a_deferred_tool_changes_nothing_but_the_body(
        self, tools: tuple[Json, ...]
    ) -> None:
        rendered = split(request([*tools]))
        loaded = [each for each in tools if "defer_loading" not in each]
        assert rendered.data() == split(request(loaded)).data()
        plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
        body = json.loads(anthropic.assemble(rendered, plan).body.join())
        assert body["tools"] == [*tools]
        assert [rendered.chunk(at).path for at in range(2)] == [
            f"tools[{tools.index(each)}]" for each in loaded
        ]

    def test_added_tool_is_no_change(self) -> None:
        earlier, later = request([LOADED, FIRST]), request([LOADED, FIRST, SECOND], 2)
        assert preflight(split(earlier), split(later), RULES) == ()
        written = Usage(uncached=3, read=0, written={"5m": 20000}, output=5)
        read = Usage(uncached=3, read=20000, written={"5m": 50}, output=5)
        verdict = judge(sent(earlier, 0.0, written), sent(later, 9.0, read), RULES, profile=PROFILE)
        assert (verdict.result, verdict.lost, verdict.causes) == ("hit", 0, ())

    def test_tool_that_is_loaded_is_a_change(self) -> None:
        earlier, later = request([LOADED]), request([LOADED, tool("b")], 2)
        (notice,) = preflight(split(earlier), split(later), RULES)
        assert (notice.code, notice.path) == ("prefix_breaks", "tools[1]")

    def test_definition_counts_where_a_message_refers_to_it(self) -> None:
        use = {"type": "tool_use", "id": "t", "name": "a", "input": {}}
        names = [{"type": "tool_reference", "tool_name": name} for name in ("x", "unknown")]
        result = {"type": "tool_result", "tool_use_id": "t", "content": names}
        more: list[Json] = [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        tools = [LOADED, FIRST, SECOND]
        before, after = Counts(split(request(tools))), Counts(split(request(tools, 1, *more)))
        without = Counts(split(request([LOADED], 1, *more)))
        one = len(json.dumps(FIRST)) / split(request(tools)).bytes_per_token
        assert before.total == Counts(split(request([LOADED]))).total
        assert after.total - without.total == pytest.approx(one, rel=0.02)
        # The tools before it are as long as without the reference.
        assert after.tokens(2) == before.tokens(2)

    def test_server_side_search_counts_too(self) -> None:
        found = {"type": "tool_search_tool_search_result", "tool_references": [
            {"type": "tool_reference", "tool_name": "x"}]}  # fmt: skip
        block = {"type": "tool_search_tool_result", "tool_use_id": "s", "content": found}
        more: Json = {"role": "assistant", "content": [block]}
        tools = [LOADED, FIRST]
        added = Counts(split(request(tools, 1, more))).total
        assert added - Counts(split(request([LOADED], 1, more))).total > 3000

    def test_explain_finds_nothing(self, tmp_path: Path) -> None:
        files = []
        for at, body in enumerate((request([LOADED]), request([FIRST, LOADED], 2))):
            files.append(tmp_path / f"turn-{at}.json")
            files[-1].write_text(json.dumps(body))
        ran = CliRunner().invoke(anaphora, ["explain", *map(str, files), "--json"])
        assert ran.exit_code == 0, ran.output
        assert [turn["broke"] for turn in json.loads(ran.stdout)["turns"]] == [False, False]

    def test_trace_with_deferred_tools(self, tmp_path: Path) -> None:
        line = {
            "id": "one",
            "provider": "anthropic",
            "model": MODEL,
            "messages": [{"role": "user", "content": "q"}],
            "calls": [{"t": 0, "messages": 1, "breakpoints": [["tools", 1, "5m"]]}],
        }
        written = []
        for at, tools in enumerate(([FIRST, LOADED, SECOND], [SECOND, LOADED])):
            file = tmp_path / f"{at}.jsonl"
            file.write_text(json.dumps({**line, "tools": tools}))
            ran = CliRunner().invoke(anaphora, ["simulate", str(file), "--json"])
            written.append(json.loads(ran.stdout)["rows"][0]["predicted"]["written"])
        assert written[0] == written[1] > 3000


class TestEmulator:
    def post(self, emu: Emulator, body: Json) -> httpx.Response:
        return httpx.post(f"{emu.url}/v1/messages", json=body, headers=HEADERS)

    def usage(self, emu: Emulator, body: Json) -> Json:
        response = self.post(emu, body)
        assert response.status_code == 200, response.text
        found: Json = response.json()["usage"]
        return found

    def test_added_tool_keeps_the_cache_and_costs_nothing(self, emu: Emulator) -> None:
        first = self.usage(emu, request([LOADED]))
        second = self.usage(emu, request([FIRST, LOADED, SECOND], 2))
        assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"] > 0
        assert second["cache_creation_input_tokens"] < 100

    @pytest.mark.parametrize(
        "tools, reason",
        [
            (
                [LOADED, tool("x", deferred=True, cache_control=MARKER)],
                "Tool 'x' cannot have both defer_loading=true and cache_control set.",
            ),
            ([FIRST, SECOND], "At least one tool must be non-deferred."),
        ],
    )
    def test_rejected_tools(self, emu: Emulator, tools: list[Json], reason: str) -> None:
        response = self.post(emu, request(tools))
        assert response.status_code == 400
        assert reason in response.json()["error"]["message"]


class TestOpenAI:
    """The model still sees the names and descriptions of what it can search for (OpenAI's guide on
    tool search), so only the schemas of deferred functions are not counted."""

    @staticmethod
    def function(name: str, **more: Any) -> Json:
        properties = {f"{name}{at}": {"type": "string"} for at in range(400)}
        schema = {"type": "object", "properties": properties}
        return {"type": "function", "name": name, "parameters": schema, **more}

    def counted(self, emu: Emulator, *tools: Json) -> int:
        request = {"model": "gpt-5.6", "input": "hello", "tools": [{"type": "tool_search"}, *tools]}
        response = httpx.post(
            f"{emu.url}/v1/responses", json=request, headers={"authorization": "Bearer k"}
        )
        assert response.status_code == 200, response.text
        counted: int = response.json()["usage"]["input_tokens"]
        return counted

    def test_schema_of_a_deferred_function_is_not_billed(self, emu: Emulator) -> None:
        none, loaded = self.counted(emu), self.counted(emu, self.function("f"))
        deferred = self.counted(emu, self.function("f", defer_loading=True))
        described = self.counted(emu, self.function("f", defer_loading=True, description=LONG))
        assert loaded - none > 2000
        assert 0 < deferred - none < 60
        assert described - deferred > 2000

    def test_deferred_function_of_a_namespace_is_not_billed(self, emu: Emulator) -> None:
        space: Json = {"type": "namespace", "name": "crm", "description": "CRM tools."}
        inner = [self.function("f"), self.function("g", defer_loading=True, description=LONG)]
        one, both = ({**space, "tools": tools} for tools in (inner[:1], inner))
        assert 0 <= self.counted(emu, both) - self.counted(emu, one) < 20

    @pytest.mark.parametrize("deferred", [False, True])
    def test_added_function_is_a_change(self, deferred: bool) -> None:
        def rendered(*tools: Json) -> Rendered:
            body = {"model": "gpt-5.6", "input": "hello", "tools": [*tools]}
            return cut(openai_responses, json.dumps(body).encode())

        more = {"defer_loading": True} if deferred else {}
        first = self.function("f")
        (notice,) = preflight(rendered(first), rendered(first, self.function("g", **more)))
        assert notice.code == "prefix_breaks"


DEFERRED = Tool(
    "late", LONG, cache=CachePolicy.EPHEMERAL_1H, extras={"anthropic": '{"defer_loading": true}'}
)


class TestSession:
    def test_added_tool_is_read_from_the_cache(self, emu: Emulator) -> None:
        async def main() -> None:
            registry = ToolRegistry()
            registry.add(Tool("a", LONG, cache=CachePolicy.EPHEMERAL_1H))
            async with connected(emu, ["anthropic"]) as emulated:
                chat = emulated.client.session(
                    "anthropic", system=LONG, tools=registry, on_prefix_break="raise"
                )
                first = await chat.send("one", tool_choice="none")
                registry.add(DEFERRED)
                assert [one.code for one in chat.preview("two", tool_choice="none").notices] == []
                second = await chat.send("two", tool_choice="none")
                assert second.usage.read == first.usage.written_total
                assert second.verdict is not None
                assert second.verdict.result == "hit"
                body = json.loads(emulated.transport.bodies[-1])
                assert [each["name"] for each in body["tools"]] == ["a", "late"]
                # The last tool of the list is deferred, so the marker is on the one before it.
                assert [("cache_control" in each) for each in body["tools"]] == [True, False]

        asyncio.run(main())

    def test_mark_on_a_deferred_tool_is_left_out_with_a_notice(self) -> None:
        ir = PromptIR.chat(
            Conversation([Message.user("q")]),
            system=LONG,
            cache=PromptCachePlan(marks=(ToolMark("late", "5m"), ToolMark("a", "5m"))),
        )
        tools = (DEFERRED, Tool("a", LONG))
        call = Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=9))
        rendered = anthropic.render(call, PROFILE)
        (notice,) = [one for one in rendered.notices if one.code == "mark_left_out"]
        assert notice.message == "tool late is deferred, so it cannot be cached"
        assert [mark.chunk for mark in rendered.marks] == [0]
        body = anthropic.assemble(rendered, Plan(marks=rendered.marks)).body.join()
        first, second = json.loads(body)["tools"]
        assert (first["defer_loading"], second["cache_control"]) == (True, MARKER)

    def test_next_turn_renders_the_tools_once(self) -> None:
        tools = (Tool("a", LONG), DEFERRED)

        def render(turns: int, tools: tuple[Tool, ...], previous: Rendered | None) -> Rendered:
            messages = [Message.user(f"q{turn}") for turn in range(turns)]
            ir = PromptIR.chat(Conversation(messages), system=LONG)
            call = Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=9))
            return anthropic.render(call, PROFILE, previous)

        one = render(1, tools, None)
        two = render(2, tools, one)
        assert two.runs[0] is one.runs[0]
        three = render(3, (*tools, Tool("b", extras=DEFERRED.extras)), two)
        assert three.runs[0].log is one.runs[0].log
        assert [each.name for each in three.runs[0].deferred] == ["late", "b"]
        assert render(4, (tools[0],), three).runs[0].deferred == ()
