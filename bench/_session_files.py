"""Recorded sessions as hostile input: many rewinds, many copies of one line, long request logs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from anaphora.analysis import trace
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, numbered
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.verdicts import judge_traces
from anaphora.traffic import log_traces

Json = dict[str, Any]
TEXT = "lorem ipsum dolor " * 6


def claude_code(turns: int, *, rewound: bool) -> Iterator[Json]:
    parent = None
    for at in range(turns):
        question, answer = f"u{at}", f"a{at}"
        usage = {"input_tokens": 5, "cache_read_input_tokens": 20_000 + at, "output_tokens": 5}
        yield _line("user", question, parent, at, {"content": TEXT})
        for id in (answer, f"{answer}x")[: 1 + rewound]:
            message = {"id": id, "model": "claude-sonnet-4-5", "content": TEXT, "usage": usage}
            yield _line("assistant", id, question, at, message)
        parent = answer


def _line(kind: str, id: str, parent: str | None, at: int, message: Json) -> Json:
    place = {"uuid": id, "parentUuid": parent, "timestamp": 1e9 + at}
    return {"type": kind, "sessionId": "s", "message": message, **place}


def gemini_cli(turns: int, *, rewound: bool) -> Iterator[Json]:
    yield {"sessionId": "s", "projectHash": "h"}
    for at in range(turns):
        yield {"id": f"u{at}", "type": "user", "content": TEXT, "timestamp": 1e9 + at}
        for id in (f"x{at}", f"a{at}")[1 - rewound :]:
            tokens = {"input": 10_000 + at, "output": 5, "cached": 9_000}
            sent = {"type": "gemini", "content": TEXT, "model": "gemini-2.5-pro"}
            yield {"id": id, **sent, "tokens": tokens, "timestamp": 1e9 + at}
            if id.startswith("x"):
                yield {"$rewindTo": id}


def codex(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Rewound: compacted after each reply."""
    yield {"type": "turn_context", "payload": {"model": "gpt-5.1"}}
    for at in range(turns):
        for role in ("user", "assistant"):
            item = {"type": "message", "role": role, "content": [{"text": TEXT}]}
            yield {"timestamp": 1e9 + at, "type": "response_item", "payload": item}
        usage = {"input_tokens": 10_000 + at, "cached_input_tokens": 9_000, "output_tokens": 5}
        info = {"last_token_usage": usage, "total_token_usage": {"total_tokens": at}}
        payload = {"type": "token_count", "info": info}
        yield {"timestamp": 1e9 + at, "type": "event_msg", "payload": payload}
        if rewound:
            yield {"timestamp": 1e9 + at, "type": "compacted", "payload": {"message": "x"}}


def copilot(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Rewound: each answer is taken back once."""
    before = None
    usage = {"model": "claude-sonnet-4-5", "cacheReadTokens": 9_000, "outputTokens": 5}
    for at in range(turns):
        events: list[tuple[str, Json]] = [("user.message", {"content": TEXT})]
        asked = f"e{at}.0"
        for id in (f"x{at}", f"a{at}")[1 - rewound :]:
            billed = {**usage, "apiCallId": id, "inputTokens": 10_000 + at}
            events.append(("session.usage_record", {"usage": billed}))
            events.append(("assistant.message", {"content": TEXT, "apiCallId": id}))
            if id.startswith("x"):
                events.append(("session.snapshot_rewind", {"upToEventId": asked}))
        for number, (kind, data) in enumerate(events):
            line = {"type": kind, "data": data, "id": f"e{at}.{number}", "parentId": before}
            yield {**line, "timestamp": 1e9 + at}
            before = line["id"]


def pi(turns: int, *, rewound: bool) -> Iterator[Json]:
    yield {"type": "session", "id": "s", "timestamp": 1e9, "cwd": "/"}
    parent = None
    usage = {"input": 5, "cacheRead": 9_000, "output": 5}
    model = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    for at in range(turns):
        asked = {"role": "user", "content": TEXT}
        place = {"type": "message", "timestamp": 1e9 + at}
        yield {**place, "id": f"u{at}", "parentId": parent, "message": asked}
        for id in (f"a{at}", f"x{at}")[: 1 + rewound]:
            answer = {"role": "assistant", "content": TEXT, "usage": usage, "responseId": id}
            yield {**place, "id": id, "parentId": f"u{at}", "message": {**answer, **model}}
        parent = f"a{at}"


def opencode(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Rewound: compacted after each reply."""
    messages = []
    for at in range(turns):
        time = {"created": 1e12 + at}
        tokens = {"input": 5, "output": 5, "cache": {"read": 9_000 + at, "write": 5}}
        model = {"providerID": "anthropic", "modelID": "claude-sonnet-4-5", "tokens": tokens}
        for role in ("user", "assistant"):
            info = {"id": f"{at} {role}", "role": role, "time": time, **model, "summary": rewound}
            messages.append({"info": info, "parts": [{"type": "text", "text": TEXT}]})
    yield {"info": {"id": "s"}, "messages": messages}


def traces(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Rewound: a conversation for each turn."""
    usage = {"input": 100, "cache_read": 9_000}
    for _ in range(turns if rewound else 1):
        length = 1 if rewound else turns
        messages = [{"role": "user", "content": TEXT}] * length
        calls = [{"messages": at + 1, "t": 1e9 + at, "usage": usage} for at in range(length)]
        given = {"provider": "openai", "model": "gpt-5.1", "messages": messages, "calls": calls}
        yield {"id": "s", **given}


def requests(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Rewound: requests that begin alike and end differently."""
    usage = {"prompt_tokens": 2_000, "completion_tokens": 5, "total_tokens": 2_005}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}}
    response = {"id": "r", "model": "gpt-5.1", "choices": [choice], "usage": usage}
    for at in range(turns):
        end = f"{at} {TEXT}" if rewound else TEXT
        sent = [{"role": "system", "content": TEXT}, {"role": "user", "content": end}]
        request = {"model": "gpt-5.1", "messages": sent}
        yield {"request": request, "response": response, "time": 1e9 + at}


_FORMATS: dict[trace.Format, Callable[..., Iterator[Json]]] = {
    "claude_code": claude_code,
    "gemini_cli": gemini_cli,
    "codex": codex,
    "copilot": copilot,
    "pi": pi,
    "opencode": opencode,
    "trace": traces,
}


def session_cases() -> Iterator[tuple[str, Callable[[int], Callable[[], object]]]]:
    """The readers of recorded calls, by the size of the file."""
    for rewound in (False, True):
        kind = "rewound" if rewound else "in order"
        for name, lines in _FORMATS.items():

            def make(
                size: int,
                name: trace.Format = name,
                lines: Callable[..., Iterator[Json]] = lines,
                rewound: bool = rewound,
            ) -> Callable[[], object]:
                data = _encoded(size, lines, rewound=rewound)
                return lambda: list(trace.read(name, numbered(data, "file")))

            yield f"session file, {name}, {kind}", make
            if not rewound:
                yield f"session file, {name}, out of order", _out_of_order(name, lines)
                yield f"session files, {name}, a copy at each turn", _copies(name, lines)

        def make_log(size: int, rewound: bool = rewound) -> Callable[[], object]:
            data = _encoded(size, requests, rewound=rewound)
            return lambda: list(log_traces.read(numbered(data, "file")))

        yield f"session file, request log, {kind}", make_log


def _out_of_order(
    name: trace.Format, lines: Callable[..., Iterator[Json]]
) -> Callable[[int], Callable[[], object]]:
    def make(size: int) -> Callable[[], object]:
        data = _encoded(size, lines, rewound=False)[::-1]
        return lambda: list(trace.read(name, numbered(data, "file")))

    return make


def _copies(
    name: trace.Format, lines: Callable[..., Iterator[Json]]
) -> Callable[[int], Callable[[], object]]:
    """A session in so many files that together they have the size."""

    def make(size: int) -> Callable[[], object]:
        turns = max(1, int((size // 512) ** 0.5))
        files = [
            [json.dumps(line).encode() for line in lines(end, rewound=False)]
            for end in range(1, turns + 1)
        ]

        def run() -> object:
            index = AnswerIndex()
            read = [list(trace.read(name, numbered(data, str(n)))) for n, data in enumerate(files)]
            for n, entries in enumerate(read):
                index.add_all(str(n), entries)
            return [list(index.once(str(n), entries)) for n, entries in enumerate(read)]

        return run

    return make


def alternating(turns: int, *, rewound: bool) -> Iterator[Json]:
    """Calls that send the first message alone and all messages in turn; rewound: the length of each
    is drawn."""
    draw = random.Random(turns)
    messages = [{"role": "user", "content": f"{at} {TEXT}"} for at in range(turns)]
    lengths = [draw.randrange(turns) if rewound else at % 2 * (turns - 1) for at in range(turns)]
    bills = [{"input": 100, "cache_read": 9_000 + 30 * n} for n in lengths]
    calls = [
        {"messages": n + 1, "t": 1e9 + at, "usage": usage}
        for at, (n, usage) in enumerate(zip(lengths, bills, strict=True))
    ]
    given = {"provider": "openai", "model": "gpt-5.1", "messages": messages, "calls": calls}
    yield {"id": "s", **given}


_PLAYED: dict[str, Callable[[list[Trace]], object]] = {
    "simulated": lambda traces: list(Predictor().play(traces)),
    "explained": lambda traces: list(judge_traces(traces)),
}


def replay_cases() -> Iterator[tuple[str, Callable[[int], Callable[[], object]]]]:
    """What the commands do with the recorded calls, without reading the file."""
    formats: list[tuple[str, trace.Format, Callable[..., Iterator[Json]]]]
    formats = [(name, name, lines) for name, lines in _FORMATS.items()]
    for title, name, lines in [*formats, ("trace, alternating", "trace", alternating)]:
        for rewound in (False, True):
            for played, play in _PLAYED.items():

                def make(
                    size: int,
                    name: trace.Format = name,
                    lines: Callable[..., Iterator[Json]] = lines,
                    rewound: bool = rewound,
                    play: Callable[[list[Trace]], object] = play,
                ) -> Callable[[], object]:
                    found = trace.read(name, numbered(_encoded(size, lines, rewound=rewound), "f"))
                    traces = [one.trace for one in found if isinstance(one, FoundTrace)]
                    return lambda: play(traces)

                yield (
                    f"recorded calls, {title}, {'rewound' if rewound else 'in order'}: {played}",
                    make,
                )


def _encoded(size: int, lines: Callable[..., Iterator[Json]], *, rewound: bool) -> list[bytes]:
    return [json.dumps(line).encode() for line in lines(max(1, size // 512), rewound=rewound)]
