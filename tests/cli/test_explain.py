"""`anaphora explain`: two requests of each wire, or a log, turn by turn."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.planted import PLACES, body, grown, spec
from support.three_calls import three_calls, usage

Json = dict[str, Any]
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def wrote(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def two(folder: Path, wire: str, plant: bool = True) -> tuple[str, str]:
    place = PLACES[wire]
    before, after = spec(), grown(spec())
    if plant:
        after["system"][0] = after["system"][0].replace("11-15", "11-16")
    return wrote(folder, "a.json", body(place, before)), wrote(folder, "b.json", body(place, after))


@pytest.mark.parametrize(
    "wire, options, path",
    [
        ("anthropic", (), "system[0].text"),
        ("openai_chat", (), "messages[0].content[0].text"),
        ("openai_responses", (), "input[0].content[0].text"),
        ("gemini", ("--model", "gemini-2.5-pro"), "systemInstruction.parts[0].text"),
        ("deepseek", ("--provider", "deepseek"), "messages[0].content[0].text"),
        ("minimax", ("--provider", "minimax"), "system[0].text"),
    ],
)
def test_two_requests_of_each_wire(
    run: Run, tmp_path: Path, wire: str, options: tuple[str, ...], path: str
) -> None:
    done = run("explain", *two(tmp_path, wire), *options)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"a date changed at character 57 of {path}" in " ".join(done.stdout.split())
    assert "- day is 2026-11-15.\n" in done.stdout
    assert "+ day is 2026-11-16.\n" in done.stdout
    assert "partial or missed because the prefix broke: 1 of 1" in done.stdout


def test_grown_conversation_is_a_hit(run: Run, tmp_path: Path) -> None:
    done = run("explain", *two(tmp_path, "anthropic", plant=False))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Hit: 6,096 tokens read, everything the previous call cached" in done.stdout


def test_json_output(run: Run, tmp_path: Path) -> None:
    done = run("explain", "--json", *two(tmp_path, "anthropic"))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    first, second = report["turns"]
    assert first["verdict"]["result"] == "first"
    assert second["broke"] is True
    change = second["verdict"]["change"]
    assert (change["kind"], change["path"]) == ("date", "system[0].text")
    assert second["verdict"]["causes"][0]["kind"] == "system_changed"
    assert report["summary"]["lost"] == second["verdict"]["lost"] > 0
    assert report["summary"]["broke"] == 1


def test_gap_option(run: Run, tmp_path: Path) -> None:
    files = two(tmp_path, "anthropic", plant=False)
    soon, late = run("explain", *files, "--gap", "60"), run("explain", *files, "--gap", "400")
    assert "Hit" in soon.stdout
    assert "expired 100 s ago" in late.stdout
    assert (soon.returncode, late.returncode) == (0, 0)  # a clock breaks no prefix


def test_request_that_fits_two_wires_is_of_that_of_the_others(run: Run, tmp_path: Path) -> None:
    plain = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    first, second = two(tmp_path, "anthropic")
    third = wrote(tmp_path, "c.json", plain)
    for files in ((first, third), (third, second)):
        done = run("explain", *files, "--json")
        assert done.returncode in (0, 1), done.stderr
        assert "read as" not in done.stderr
        assert {turn["provider"] for turn in json.loads(done.stdout)["turns"]} == {"anthropic"}


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("b.json", b"{", "not JSON"),
        ("b.json", b"[1]", "not a request of a known wire"),
        (
            "b.json",
            b'{"model":"m","messages":[],"system":"x","n":1}',
            "it has fields of both anthropic and openai_chat",
        ),
        ("b.json", b"\xff\xfe", "not JSON"),
        ("b.json", b'{"input":"hi","model":"gpt-5"}', "is for openai_responses, but"),
    ],
    ids=["cut off", "a list", "fields of two wires", "no text", "another wire"],
)
def test_unreadable_input_is_named(
    run: Run, tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    first, _ = two(tmp_path, "anthropic")
    done = run("explain", first, wrote(tmp_path, name, data))
    assert done.returncode == 2
    assert message in done.stderr
    assert str(tmp_path / name) in done.stderr
    assert "Traceback" not in done.stderr


def test_foreign_json_is_named_by_its_fields(run: Run, tmp_path: Path) -> None:
    file = wrote(tmp_path, "package.json", b'{"name":"shop","version":"1.0"}')
    for command in ("explain", "lint", "simulate"):
        done = run(command, file)
        assert done.returncode == 2
        assert "a JSON object with the fields `name`, `version`; expected `messages`" in done.stderr


# ── Logs ─────────────────────────────────────────────────────────────────────────────────────────


def exchange(prompt: Json, at: float, read: int, written: int, **more: Any) -> bytes:
    place = PLACES["anthropic"]
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": 9,
    }
    answer = {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": place.model,
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
        **more.pop("answer", {}),
    }
    line = {"request": json.loads(body(place, prompt)), "response": answer, "time": at, **more}
    return json.dumps(line).encode() + b"\n"


def log(folder: Path, *lines: bytes) -> str:
    return wrote(folder, "log.jsonl", b"".join(lines))


def test_request_log_turn_by_turn(run: Run, tmp_path: Path) -> None:
    one, two, three = spec(), grown(spec()), grown(grown(spec()))
    three["tools"].reverse()
    file = log(
        tmp_path,
        exchange(one, 1000, 0, 4500),
        exchange(two, 1060, 4500, 40),
        exchange(three, 1120, 0, 4600),
    )
    done = run("explain", "--json", file)
    assert done.returncode == 1
    turns = json.loads(done.stdout)["turns"]
    assert [turn["verdict"]["result"] for turn in turns] == ["first", "hit", "miss"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3]
    assert turns[2]["verdict"]["change"]["kind"] == "tool_moved"
    assert (turns[2]["verdict"]["predicted"], turns[2]["verdict"]["billed"]) == (0, 0)
    assert turns[2]["verdict"]["lost"] == 4540


def test_conversations_of_one_log_are_separated(run: Run, tmp_path: Path) -> None:
    other = spec()
    other["messages"] = [("user", ["Something else entirely."])]
    longer = grown(other)
    file = log(
        tmp_path,
        exchange(spec(), 1000, 0, 4500),
        exchange(other, 1010, 4400, 10),
        exchange(grown(spec()), 1060, 4500, 40),
        exchange(longer, 1070, 4410, 20),
    )
    done = run("explain", "--json", file)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert [turn["verdict"]["result"] for turn in report["turns"]] == [
        "first",
        "hit",  # a new conversation, which reads what it shares with the other
        "hit",
        "hit",
    ]
    assert [turn["turn"] for turn in report["turns"]] == [1, 1, 2, 2]
    assert len({turn["conversation"] for turn in report["turns"]}) == 2


@pytest.mark.parametrize("hint", [{}, {"headers": {"x-claude-code-session-id": "s"}}])
@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "deepseek"])
def test_edited_message_in_a_log_of_two_calls(
    run: Run, tmp_path: Path, wire: str, hint: Json
) -> None:
    """A long message whose beginning changes, with nothing else that two calls have in common
    but tools and system prompt."""
    letter = " ".join(f"Paragraph {number} says something." for number in range(1000))
    lines = []
    for at, day in enumerate(("Monday", "Tuesday")):
        prompt = {**spec(), "messages": [("user", [f"It is {day}. {letter}"])]}
        request = json.loads(body(PLACES[wire], prompt))
        paths = {"anthropic": "messages", "openai_responses": "responses"}
        path = f"/v1/{paths.get(wire, 'chat/completions')}"
        provider = PLACES[wire].provider
        line = {"request": request, "time": at * 60, "path": path, "provider": provider, **hint}
        lines.append(json.dumps(line).encode() + b"\n")
    done = run("explain", "--json", log(tmp_path, *lines))
    second = json.loads(done.stdout)["turns"][1]
    assert done.returncode == 1
    assert (second["turn"], second["verdict"]["causes"][0]["kind"]) == (2, "history_edited")
    assert second["verdict"]["change"]["path"].endswith(("content[0].text", "content"))
    assert second["verdict"]["lost"] > 4000


def test_each_call_is_counted_once_in_the_summary(run: Run, tmp_path: Path) -> None:
    """Calls whose edit lost nothing are hits and did not break; the others are one or the other."""
    place = PLACES["openai_chat"]
    prompts = [grown(spec()) for _ in range(4)]
    for turn, prompt in enumerate(prompts):
        prompt["messages"][-1] = ("user", [f"Question {turn}."])
    files = [wrote(tmp_path, f"{turn}.json", body(place, one)) for turn, one in enumerate(prompts)]
    done = run("explain", *files)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 calls: 3 hits, 0 partial, 0 missed, 1 first" in done.stdout
    assert "broke" not in done.stdout
    prompts[2]["system"][0] = "Another beginning."
    files[2] = wrote(tmp_path, "2.json", body(place, prompts[2]))
    done = run("explain", *files)
    assert done.returncode == 1
    assert "4 calls: 1 hit, 0 partial, 2 missed, 1 first" in done.stdout
    assert "partial or missed because the prefix broke: 2 of 2" in done.stdout


def test_short_conversation_is_not_a_miss(run: Run, tmp_path: Path) -> None:
    short = {**spec(), "system": ["Be brief."], "tools": [], "messages": [("user", ["Go."])]}
    edited = {**grown(short), "system": ["Be very brief."]}
    file = log(tmp_path, exchange(short, 1000, 0, 0), exchange(edited, 1000.5, 0, 0))
    done = run("explain", file)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "Not cached: the previous prompt was below the minimum of 1,024 tokens" in text
    assert "and the text was edited at character 3 of system[0].text" in text
    assert "2 calls: 0 hits, 0 partial, 0 missed, 1 first, 1 below the minimum" in text
    assert "not read" not in text
    assert "broke" not in text


def test_an_edit_at_the_end_shares_the_loss_with_the_provider(run: Run, tmp_path: Path) -> None:
    """Nothing was read, and the edit explains only what stands behind it."""
    one, two = spec(), spec()
    one["messages"][-1] = ("user", ["Which colour? " * 400])
    two["messages"][-1] = ("user", ["Which shape? " * 400])
    pair = exchange(one, 1000, 0, 7000), exchange(two, 1060, 0, 7000)
    files = [wrote(tmp_path, f"{turn}.json", data) for turn, data in enumerate(pair)]
    done = run("explain", "--json", *files)
    verdict = json.loads(done.stdout)["turns"][1]["verdict"]
    shares = {cause["kind"]: cause["tokens"] for cause in verdict["causes"]}
    assert set(shares) == {"provider_side", "history_edited"}
    # The shorter text is not billed again in full.
    assert sum(shares.values()) == verdict["lost"] == 6889
    assert shares["provider_side"] == verdict["predicted"]


def test_provider_diagnosis_is_merged(run: Run, tmp_path: Path) -> None:
    after = grown(spec())
    after["tools"].reverse()
    diagnosis = {"diagnostics": {"cache_miss_reason": {"type": "tools_changed"}}}
    file = log(
        tmp_path, exchange(spec(), 1000, 0, 4500), exchange(after, 1060, 0, 4600, answer=diagnosis)
    )
    done = run("explain", file)
    assert "The provider reports tools_changed, which agrees." in done.stdout.replace("\n", " ")


def test_traces_and_sessions(run: Run, tmp_path: Path) -> None:
    usage = {"input": 3, "cache_read": 0, "cache_write_5m": 5000, "output": 5}
    then = {"input": 3, "cache_read": 0, "cache_write_5m": 5100, "output": 5}
    trace = {
        "id": "talk",
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "calls": [
            {"messages": 1, "t": 1000, "usage": usage},
            {"messages": 3, "t": 1900, "usage": then},
        ],
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ],
        "system_tokens_unknown": True,
    }
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(trace).encode() + b"\n"))
    done = run("explain", str(packed))
    assert done.returncode == 0
    assert "expired 10 min ago" in done.stdout


def test_claude_code_session(run: Run, tmp_path: Path) -> None:
    def answer(number: int, parent: str, read: int, written: int, second: int) -> Json:
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 5,
        }
        content = [{"type": "text", "text": f"answer {number}"}]
        message = {"id": f"msg{number}", "role": "assistant", "model": "claude-sonnet-4-5"}
        return {
            "type": "assistant",
            "uuid": f"a{number}",
            "parentUuid": parent,
            "timestamp": f"2025-11-01T10:00:{second:02}Z",
            "message": {**message, "content": content, "usage": usage},
        }

    def ask(number: int, parent: str | None, second: int) -> Json:
        return {
            "type": "user",
            "uuid": f"u{number}",
            "parentUuid": parent,
            "timestamp": f"2025-11-01T10:00:{second:02}Z",
            "message": {"role": "user", "content": f"question {number}"},
        }

    lines = [
        ask(1, None, 0),
        answer(1, "u1", 0, 5000, 4),
        ask(2, "a1", 20),
        answer(2, "u2", 5000, 60, 24),
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    done = run("explain", "--json", wrote(tmp_path, "session.jsonl", data))
    assert (done.returncode, done.stderr) == (0, "")
    turns = json.loads(done.stdout)["turns"]
    assert [turn["verdict"]["result"] for turn in turns] == ["first", "hit"]


def test_documented_output(run: Run) -> None:
    docs = Path(__file__).parents[2] / "docs"
    files = (docs / "examples" / name for name in ("turn-1.json", "turn-2-next-day.json"))
    done = run("explain", *map(str, files))
    text = " ".join(done.stdout.split())
    shown = (docs / "verdict.md").read_text().split("```text\n")[1].split("```")[0]
    assert " ".join(shown.split()) in text


def test_broken_lines_are_named_and_skipped(run: Run, tmp_path: Path) -> None:
    file = log(
        tmp_path,
        exchange(spec(), 1000, 0, 4500),
        b"{nonsense\n",
        exchange(grown(spec()), 1060, 4500, 9),
    )
    done = run("explain", file)
    assert done.returncode == 0
    assert f"{file}:2" in done.stderr
    assert "1 hit," in done.stdout


def test_nothing_to_explain_is_an_error(run: Run, tmp_path: Path) -> None:
    done = run("explain", wrote(tmp_path, "log.jsonl", b"\n\n"))
    assert done.returncode == 2
    assert "the file is empty" in done.stderr


def test_headers_and_keys_are_never_shown(run: Run, tmp_path: Path) -> None:
    """A canary in every place where a secret may stand: headers, cache keys, a key in the text."""
    canary = "CANARY7f3d"
    before, after = spec(), grown(spec())
    before["params"] = {"metadata": {"user_id": f"user-{canary}"}}
    after["system"][0] = f"Authorization: Bearer {canary}-token-abcdef. " + after["system"][0]
    before["system"][0] = f"api_key={canary}abcdefgh " + before["system"][0]
    headers = {"authorization": f"Bearer {canary}", "x-api-key": canary}
    lines = [
        exchange(before, 1000, 0, 4500, headers=headers, host=f"{canary}.example.com"),
        exchange(after, 1060, 0, 4500, headers=headers, host=f"{canary}2.example.com"),
    ]
    chat = PLACES["openai_chat"]
    for name, data in (("c.json", "one"), ("d.json", "two")):
        keyed = {**spec(), "params": {"prompt_cache_key": f"{canary}{data}"}}
        wrote(tmp_path, name, body(chat, keyed))
    file = log(tmp_path, *lines)
    runs = [
        run("explain", file),
        run("explain", "--json", file),
        run("explain", str(tmp_path / "c.json"), str(tmp_path / "d.json")),
        run("explain", "--json", str(tmp_path / "c.json"), str(tmp_path / "d.json")),
    ]
    assert "the cache key changed" in runs[2].stdout
    for done in runs:
        assert done.returncode == 1
        assert canary not in done.stdout + done.stderr


def test_control_characters_are_escaped(run: Run, tmp_path: Path) -> None:
    place = PLACES["anthropic"]
    after = grown(spec())
    after["system"][0] = "You \x1b[31m are\nred"
    files = (
        wrote(tmp_path, "a.json", body(place, spec())),
        wrote(tmp_path, "b.json", body(place, after)),
    )
    assert "\x1b" not in run("explain", *files).stdout


def test_what_would_tell_is_said_once(run: Run, tmp_path: Path) -> None:
    """A trace has no bytes to compare: each miss is a short line, and the reason stands below."""
    lines = (three_calls(usage(0, 5300), id=f"talk {index}") for index in range(3))
    file = log(tmp_path, *(json.dumps(line).encode() + b"\n" for line in lines))
    done = run("explain", file)
    assert done.stdout.count("turn 3 (+10 s): Unknown: 0 of 5,200 cached tokens read.\n") == 3
    assert " ".join(done.stdout.split()).count("anaphora watch -- COMMAND") == 1
    assert "3 unknown: the bodies of the requests are not recorded" in done.stdout
    names = [line for line in done.stdout.splitlines() if line.startswith("talk")]
    assert names == ["talk 0", "talk 1", "talk 2"]  # each conversation whole, though they overlap
    turns = json.loads(run("explain", "--json", file).stdout)["turns"]
    assert sum("anaphora watch -- COMMAND" in turn["sentence"] for turn in turns) == 3


def test_losses_with_and_without_a_price(run: Run, tmp_path: Path) -> None:
    """What is known is summed; the rest is tokens."""
    lines = []
    for model in ("claude-opus-4-5", "claude-fable-5-2"):
        changed = three_calls(usage(0, 5300), id=model)
        changed["calls"][2]["note"] = f"model_change:{model}"
        lines.append(json.dumps(changed).encode() + b"\n")
    file = log(tmp_path, *lines)
    done = run("explain", file)
    assert "10,400 tokens not read: $" in done.stdout
    assert "lost, and 5,200 tokens at an unknown price" in done.stdout
    assert json.loads(run("explain", "--json", file).stdout)["summary"]["cost_usd"] is None


def test_model_without_price_is_named(run: Run, tmp_path: Path) -> None:
    unknown = ("--model", "claude-fable-5-2")
    done = run("explain", *two(tmp_path, "anthropic"), *unknown)
    assert "no price is known for anthropic/claude-fable-5-2" in done.stdout.replace("\n", " ")
    report = json.loads(run("explain", "--json", *two(tmp_path, "anthropic"), *unknown).stdout)
    assert report["unpriced"] == ["anthropic/claude-fable-5-2"]
    assert "no price" not in run("explain", *two(tmp_path, "anthropic")).stdout
