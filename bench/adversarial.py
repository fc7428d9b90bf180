"""CPU of hostile input: whether the time grows in proportion to its size, or faster.

    python bench/adversarial.py [--largest 4194304] [--only PART_OF_A_NAME] [--list]

Every case is a function of bytes or text that comes from outside: prompts, requests, replies,
streams, errors, headers, session files. Its input is doubled up to `--largest` bytes; growth is
what a doubling costs, the median of the last three. 2 is proportional. A case whose next doubling
would take longer than `--seconds` ends before it, with the growth so far.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from _session_files import replay_cases, session_cases

from anaphora import Call, Message, Params, PromptIR, Text, Tool, ToolCall, catalog, wire
from anaphora.analysis.lint.checks import lint_request, lint_text
from anaphora.cache.verdict import SentCall, judge
from anaphora.client.structured import output_of
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor, could_be_secret, shown_text, shown_url
from anaphora.rendered import Plan, Rendered
from anaphora.rendered.media import not_text
from anaphora.serving.app import HostGuard
from anaphora.tokens import Counts
from anaphora.values import Image, Reply, Usage
from anaphora.values.stability import Kind
from anaphora.wire.cutting import cut
from anaphora.wire.errors import overflow_class
from anaphora.wire.message_dicts import read_message
from anaphora.wire.replies import reply_events
from anaphora.wire.response_headers import read_limits, retry_after

LARGEST = 4 * 1024 * 1024
DOUBLINGS = 4
#: Shorter times are mostly overhead.
SHORTEST = 0.04
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.1",
    "openai_responses": "gpt-5.1",
    "gemini": "gemini-2.5-flash",
}

Run = Callable[[], object]
Make = Callable[[int], Run]

#: Texts that made a pattern of ours, or one like it, begin anew at each of their words.
TEXTS = {
    "words": "lorem ipsum ",
    "hyphens": "a-",
    "digits and hyphens": "a1-",
    "dots": "a.",
    "slashes": "/tmp/a",
    "temporary folders": "C:\\Temp\\",
    "host names": "hostnameis-",
    "computers": "desktop-",
    "pods": "-12345678-abcde",
    "thousands": "1,",
    "numbers": "1 ",
    "clocks": "t1:11",
    "dates": "today is 2026-01-02\n",
    "ids": "session id 3f2a91bc7d\n",
    "months": "may ",
    "spaces": " ",
    "line breaks": "\n",
    "placeholders": "{{now(",
    "formats": "{now:",
    "templates": "<%now",
    "shell": "$(date",
    "quotes": '"',
    "backslashes": "\\",
    "brackets": "[{",
    "fences": "```json\n",
    "keys": "sk-",
    "assignments": "password = ",
    "masked keys": "sk-ant-***",
    "parts of keys": "sk-ant-api03-9aF3xLq8Rb5kMx ",
    "mixed case": "aB",
    "user names": "a@",
    "limits": "r=1;t=1,",
    "suppressions": "anaphora: ignore[volatile-date] because\n",
}


#: For readers with few patterns.
SHORT_LIST = (
    "hyphens", "dots", "slashes", "spaces", "masked keys", "parts of keys", "mixed case",
    "user names", "limits", "base64",
)  # fmt: skip


def repeated(text: str, size: int) -> str:
    return (text * (size // len(text) + 1))[:size]


def base64_text(size: int) -> str:
    return base64.urlsafe_b64encode(random.Random(size).randbytes(size * 3 // 4)).decode()


def hostile_texts() -> Iterator[tuple[str, Callable[[int], str]]]:
    for name, text in TEXTS.items():
        yield name, lambda size, text=text: repeated(text, size)  # type: ignore[misc]
    yield "base64", base64_text


def quietly(run: Run) -> Run:
    """Input that is refused is a result too."""

    def refused() -> object:
        try:
            return run()
        except AnaphoraError as error:
            return error

    return refused


# ── Prompts ──────────────────────────────────────────────────────────────────────────────────────


def render(name: str, call: Call) -> Rendered:
    return wire.get(name).render(call, catalog.profile(wire.provider_of(name), call.model))


def call_of(name: str, *messages: Message, system: str = "Be brief.", tool: str = "Looks.") -> Call:
    return Call(
        ir=PromptIR.chat(messages, system=system),
        model=MODELS[name],
        tools=(Tool("look", tool),),
        params=Params(max_tokens=99),
    )


def verdict_case(text: Callable[[int], str]) -> Make:
    """The tool's description changed in front of the text."""

    def make(size: int) -> Run:
        earlier, later = (
            SentCall(
                rendered=render("anthropic", call_of("anthropic", Message.user("Hi."), tool=tool)),
                at=at,
                usage=Usage(uncached=9, read=0, output=1),
            )
            for at, tool in ((0.0, f"one {text(size)}"), (1.0, f"two {text(size)}"))
        )
        rules = catalog.rules("anthropic", MODELS["anthropic"])
        return lambda: str(judge(earlier, later, rules))

    return make


def prompt_cases() -> Iterator[tuple[str, Make]]:
    for name, text in hostile_texts():
        yield f"verdict, {name}", verdict_case(text)
        yield f"lint, {name}", lambda size, text=text: lint_run(text(size))  # type: ignore[misc]
        yield f"lint a request, {name}", lambda size, text=text: lint_request_run(text(size))  # type: ignore[misc]


def lint_run(text: str) -> Run:
    return lambda: len(list(lint_text(text, "prompt.txt")))


def lint_request_run(text: str) -> Run:
    rendered = render("anthropic", call_of("anthropic", Message.user("Hi."), system=text or "x"))
    return lambda: len(list(lint_request(rendered, "request.json")))


# ── Wires ────────────────────────────────────────────────────────────────────────────────────────


def messages_of(shape: str, size: int) -> list[Message]:
    if shape == "long text":
        return [Message.user("x" * size)]
    if shape == "many messages":
        roles = (Message.user, Message.assistant)
        return [roles[index % 2]("x" * 64) for index in range(size // 128 * 2 + 1)]
    if shape == "many parts":
        return [Message.user(*(Text("x" * 64) for _ in range(size // 128)))]
    calls = [ToolCall(f"c{index}", "look", '{"a":1}') for index in range(size // 256)]
    results = [Message.tool(call.id, "x" * 64) for call in calls]
    return [Message.user("Hi."), Message.assistant(*calls), *results]


SHAPES = ("long text", "many messages", "many parts", "many calls")


def body_of(name: str, shape: str, size: int) -> bytes:
    rendered = render(name, call_of(name, *messages_of(shape, size)))
    return wire.get(name).assemble(rendered, Plan()).body.join()


def with_unknown_fields(body: bytes, size: int) -> bytes:
    fields = "".join(f'"unknown{index}":{{"a":[1,2,3]}},' for index in range(size // 32))
    return b"{" + fields.encode() + body[1:]


def request_cases(name: str) -> Iterator[tuple[str, Make]]:
    codec = wire.get(name)
    for shape in SHAPES:

        def parse(size: int, shape: str = shape) -> Run:
            body = body_of(name, shape, size)
            return lambda: codec.parse(body)

        def split(size: int, shape: str = shape) -> Run:
            body = body_of(name, shape, size)
            return lambda: Counts(cut(codec, body)).total

        def rendering(size: int, shape: str = shape) -> Run:
            call = call_of(name, *messages_of(shape, size))
            return lambda: render(name, call)

        yield f"{name}: render {shape}", rendering
        yield f"{name}: parse {shape}", parse
        yield f"{name}: split {shape}", split

    def unknown(size: int) -> Run:
        body = with_unknown_fields(body_of(name, "long text", 1), size)
        return lambda: codec.parse(body)

    def brackets(size: int) -> Run:
        body = b'{"model":"m","messages":' + b"[" * size
        return lambda: codec.parse(body)

    yield f"{name}: parse unknown fields", unknown
    yield f"{name}: parse brackets", brackets


def reply_of(shape: str, size: int) -> Reply:
    if shape == "long text":
        parts: tuple[Text | ToolCall, ...] = (Text("x" * size),)
    elif shape == "long arguments":
        parts = (ToolCall("c", "look", json.dumps({"a": "x" * size})),)
    else:
        parts = tuple(ToolCall(f"c{index}", "look", '{"a":1}') for index in range(size // 128))
    message = Message.assistant(*parts)
    return Reply(id="r", model="m", message=message, stop_reason="end", usage=Usage(output=1))


def reply_cases(name: str) -> Iterator[tuple[str, Make]]:
    codec = wire.get(name)
    for shape in ("long text", "long arguments", "many calls"):

        def whole(size: int, shape: str = shape) -> Run:
            body = codec.write_reply(reply_of(shape, size))
            return lambda: codec.read_reply(body)

        yield f"{name}: reply, {shape}", whole
        for piece in (64, 1024, 16 * 1024):

            def streamed(size: int, shape: str = shape, piece: int = piece) -> Run:
                writer = codec.writer()
                data = b"".join(map(writer.write, reply_events(reply_of(shape, size))))
                return lambda: read_stream(codec.reader(), data, piece)

            yield f"{name}: stream, {shape} in pieces of {piece}", streamed

    def blank(size: int) -> Run:
        return lambda: read_stream(codec.reader(), b"\n" * size, 1024)

    def comments(size: int) -> Run:
        return lambda: read_stream(codec.reader(), b":\n" * (size // 2), 64)

    def lines(size: int) -> Run:
        return lambda: read_stream(codec.reader(), b"data: x\n" * (size // 8), 64)

    yield f"{name}: stream, blank lines", blank
    yield f"{name}: stream, comments", comments
    yield f"{name}: stream, one event of many lines", lines


def read_stream(reader: wire.Reader, data: bytes, piece: int) -> int:
    events = 0
    for begin in range(0, len(data), piece):
        events += len(reader.feed(data[begin : begin + piece]))
    return events + len(reader.close())


def error_cases(name: str) -> Iterator[tuple[str, Make]]:
    codec = wire.get(name)
    for title, text in hostile_texts():

        def error(size: int, text: Callable[[int], str] = text) -> Run:
            body = json.dumps({"error": {"type": "x", "message": text(size)}}).encode()
            return lambda: codec.read_error(400, {}, body)

        yield f"{name}: error, {title}", error

    def no_json(size: int) -> Run:
        return lambda: codec.read_error(500, {}, b"<" * size)

    yield f"{name}: error that is no JSON", no_json


# ── What else comes from outside ─────────────────────────────────────────────────────────────────


def other_cases() -> Iterator[tuple[str, Make]]:
    answer = output_of({"type": "object", "properties": {"a": {"type": "string"}}}, "answer")
    for name, text in hostile_texts():

        def output(size: int, text: Callable[[int], str] = text) -> Run:
            given = text(size)
            return lambda: answer.parse(given)

        yield f"structured output, {name}", output
    items = {"type": "array", "items": {"type": "integer"}}
    numbers = output_of({"type": "object", "properties": {"a": items}}, "numbers")

    def wrong_values(size: int) -> Run:
        given = json.dumps({"a": ["x"] * (size // 5)})
        return lambda: numbers.parse(given)

    yield "structured output, wrong values", wrong_values
    for value_of in ("1", "1s", "1.", "1, "):

        def header(size: int, value_of: str = value_of) -> Run:
            value = repeated(value_of, size)
            return lambda: retry_after({"retry-after": value, "x-ratelimit-reset": value})

        yield f"retry-after of {value_of!r} repeated", header

    def overflow(size: int) -> Run:
        message = repeated("maximum context length is 1 tokens, however ", size)
        return lambda: overflow_class(AnaphoraError, message)  # type: ignore[arg-type]

    yield "context overflow", overflow


def text_cases() -> Iterator[tuple[str, Make]]:
    """Readers of one text: redaction, headers, names, documents."""
    redactor = Redactor(
        ["sk-ant-api03-9aF3xLq8Rb5kMx7Hq2Zt9v", "sk-sk-sk-sk-sk-sk-sk-sk-ss", "a-a-a-a-ab"]
    )
    guard = HostGuard("127.0.0.1")
    readers: dict[str, Callable[[str], object]] = {
        "redactor": redactor,
        "name in a message": could_be_secret,
        "text in a message": shown_text,
        "URL in a message": lambda text: shown_url(f"https://{text}"),
        "Host": lambda text: guard.refusal("GET", "/", {"host": text}),
        "rate limits": lambda text: read_limits(
            {"ratelimit": text, "ratelimit-policy": text, "x-ratelimit-reset-requests": text}
        ),
        "document": lambda text: not_text(Kind.DOCUMENT, len(text), f'"data:text/{text}'.encode),
        "field of a message": lambda text: read_message({"role": "user", text: 1}, "message"),
        "type of a part": lambda text: read_message(
            {"role": "user", "content": [{"type": text}]}, "message"
        ),
        "model": lambda text: catalog.profile("openai", text),
    }
    texts = [(name, text) for name, text in hostile_texts() if name in SHORT_LIST]
    for (reader, read), (name, text) in itertools.product(readers.items(), texts):

        def make(
            size: int, read: Callable[[str], object] = read, text: Callable[[int], str] = text
        ) -> Run:
            given = text(size)
            return lambda: read(given)

        yield f"{reader}, {name}", make


def dict_cases() -> Iterator[tuple[str, Make]]:
    """Messages as dictionaries, with many parts."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
    messages: dict[str, tuple[str, str, object]] = {
        "texts": ("user", "content", {"type": "text", "text": "x"}),
        "images": ("user", "content", Image.from_bytes(b"\x89PNG\r\n\x1a\n")),
        "calls": ("assistant", "tool_calls", call),
        "results": ("user", "content", result),
    }
    for name, (role, field, part) in messages.items():

        def make(size: int, role: str = role, field: str = field, part: object = part) -> Run:
            message = {"role": role, field: [part] * (size // 128)}
            return lambda: read_message(message, "message")

        yield f"message as a dict, {name}", make


def piecewise_case(size: int) -> Run:
    """A string of Gemini's arguments that comes in many pieces."""

    def event(call: dict[str, object]) -> bytes:
        content = {"role": "model", "parts": [{"functionCall": call}]}
        return f"data: {json.dumps({'candidates': [{'content': content}]})}\r\n\r\n".encode()

    piece = {"jsonPath": "$.a", "stringValue": "x" * 32}
    more = event({"partialArgs": [piece], "willContinue": True})
    data = event({"name": "look", "willContinue": True}) + more * (size // 64) + event({})
    return lambda: read_stream(wire.get("gemini").reader(), data, 16 * 1024)


def cases() -> Iterator[tuple[str, Make]]:
    yield from prompt_cases()
    for name in wire.WIRES:
        yield from request_cases(name)
        yield from reply_cases(name)
        yield from error_cases(name)
    yield "gemini: stream, arguments in pieces", piecewise_case
    yield from text_cases()
    yield from dict_cases()
    yield from other_cases()
    yield from session_cases()
    yield from replay_cases()


def measured(run: Run) -> float:
    """CPU seconds; the best of three where that is quick."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
        if best > 0.5:
            break
    return best


def growth(make: Make, largest: int, seconds: float) -> tuple[float, float, int]:
    """What a doubling costs, the time of the largest input, and its size."""
    times: list[float] = []
    size = largest >> DOUBLINGS
    while size <= largest and not (times and times[-1] * 2 > seconds):
        times.append(measured(quietly(make(size))))
        size *= 2
    # Quick ones are mostly overhead, and their ratios noise.
    ratios = [after / before for before, after in itertools.pairwise(times) if before > SHORTEST]
    return statistics.median(ratios[-3:]) if ratios else 0.0, times[-1], size // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=LARGEST, help="bytes of the largest input")
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest single run")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the cases")
    chosen = parser.parse_args()
    worst, slowest, count = ("", 0.0), ("", 0.0), 0
    for name, make in cases():
        if chosen.only not in name:
            continue
        count += 1
        if chosen.list:
            print(name)
            continue
        ratio, seconds, size = growth(make, chosen.largest, chosen.seconds)
        print(f"{name:60} {size:>10,} bytes {seconds:8.3f} s   growth {ratio:.2f}")
        sys.stdout.flush()
        worst = max(worst, (name, ratio), key=lambda row: row[1])
        slowest = max(slowest, (name, seconds / size), key=lambda row: row[1])
    print(f"worst: {worst[0]}; slowest a byte: {slowest[0]}")
    print(json.dumps({"worst_growth": round(worst[1], 3), "cases": count}))


if __name__ == "__main__":
    main()
