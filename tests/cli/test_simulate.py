"""`anaphora simulate`: predictions compared with bills."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from anaphora.cli.common import anaphora

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SESSION = EXAMPLES / "session.jsonl"
SHARED = Path(__file__).parents[3] / "shared"

Json = dict[str, Any]


def simulate(*arguments: object) -> Any:
    return CliRunner().invoke(anaphora, ["simulate", *map(str, arguments)], catch_exceptions=False)


def simulated(*arguments: object) -> Json:
    ran = simulate(*arguments, "--json")
    assert ran.exit_code == 0, ran.stderr
    found: Json = json.loads(ran.stdout)
    return found


def usage(read: int, written: int) -> Json:
    return {"input": 3, "cache_read": read, "cache_write_5m": written, "output": 20}


def trace(**changed: Any) -> Json:
    """Three calls, of which the last misses for no reason."""
    messages = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": f"m{at}"} for at in range(5)
    ]
    calls = [
        {"t": 1000.0, "messages": 1, "usage": usage(0, 5000)},
        {"t": 1010.0, "messages": 3, "usage": usage(5000, 200)},
        {"t": 1020.0, "messages": 5, "usage": usage(0, 5300)},
    ]
    whole = {
        "id": "talk",
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "system_tokens_unknown": True,
        "messages": messages,
        "calls": calls,
    }
    return {**whole, **changed}


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Json | str, name: str = "log.jsonl") -> Path:
        file = tmp_path / name
        data = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        file.write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
        return file

    return write


def test_predicted_beside_billed(log: Callable[..., Path]) -> None:
    found = simulated(log(trace()))
    first, second, third = found["rows"]
    assert [row["predicted"]["read"] for row in (first, second, third)] == [0, 5000, 5200]
    assert [row["billed"]["read"] for row in (first, second, third)] == [0, 5000, 0]
    assert [row["exact"] for row in (first, second, third)] == [True, True, False]
    assert (third["cause"], third["pair"], first["pair"]) == ("unexplained", True, False)
    assert third["place"].endswith("log.jsonl:1")
    total = found["total"]
    assert (total["exact"], total["billed_calls"], total["right"], total["pairs"]) == (2, 3, 1, 2)
    assert total["billed"]["read"] == 5000
    assert found["causes"] == {"unexplained": 1}


def test_every_token_has_a_reason(log: Callable[..., Path]) -> None:
    for row in simulated(log(trace()))["rows"]:
        bill = row["predicted"]
        total = bill["read"] + bill["written"] + bill["uncached"]
        assert sum(span["end"] - span["start"] for span in row["spans"]) == total


def test_costs_are_exact_sums(log: Callable[..., Path]) -> None:
    """Sonnet 4.5: 3 dollars in, 15 out, reads a tenth, writes a quarter more."""
    total = simulated(log(trace()))["total"]
    billed = (9 * 3 + 5000 * 0.3 + 10_500 * 3.75 + 60 * 15) / 1e6
    assert float(total["billed"]["cost_usd"]) == pytest.approx(billed)
    without = ((9 + 5000 + 10_500) * 3 + 60 * 15) / 1e6
    assert float(total["without_cache"]) == pytest.approx(without)


def test_model_without_price_is_named(
    log: Callable[..., Path],
) -> None:
    file = log(trace(model="claude-fable-5-2"))
    assert "cost unknown: no price is known for anthropic/claude-fable-5-2" in re.sub(
        r"\s+", " ", simulate(file).stdout
    )
    found = simulated(file)
    assert found["unpriced"] == ["anthropic/claude-fable-5-2"]
    assert found["total"]["billed"]["cost_usd"] is None
    assert simulated(log(trace()))["unpriced"] == []


def test_text_names_causes_and_largest_differences(log: Callable[..., Path]) -> None:
    page = simulate(log(trace())).stdout
    assert re.search(r"talk +claude-sonnet-4-5 +3 +2/3 +1/2 +10,200 +5,000", page)
    assert "1  not explained by the recording" in page
    assert "talk call 2: 5,200 read expected, 0 billed, 10 s after the call before" in page
    assert "\x1b" not in page


def test_simulation_on_another_model(log: Callable[..., Path]) -> None:
    found = simulated(log(trace()), "--as", "anthropic/claude-opus-4-6")
    assert found["elsewhere"] == "anthropic/claude-opus-4-6"
    rows = found["rows"]
    assert [row["predicted"]["read"] for row in rows] == [0, 5003, 5203]
    assert {row["billed"] for row in rows} == {None}
    page = simulate(log(trace()), "--as", "deepseek/deepseek-v4-pro").stdout
    assert "The same calls on deepseek/deepseek-v4-pro" in page


@pytest.mark.parametrize(
    "value, message",
    [
        ("gpt-5.5", "not of the form provider/model"),
        ("nobody/model", "unknown provider 'nobody'"),
        ("anthropic/claude-99", "unknown model 'claude-99' of anthropic"),
    ],
)
def test_other_model_must_be_known(log: Callable[..., Path], value: str, message: str) -> None:
    ran = simulate(log(trace()), "--as", value)
    assert ran.exit_code == 2
    assert message in re.sub(r"\s+", " ", ran.stderr)


NEGATIVE = trace(calls=[{"messages": 1, "usage": usage(-5, 0)}])
BACKWARDS = trace(
    id="back",
    calls=[
        {"t": 1000.0, "messages": 1, "usage": usage(0, 5000)},
        {"t": 990.0, "messages": 3, "usage": usage(5000, 200)},
    ],
)
BAD: list[tuple[Json | str, str]] = [
    ('{"id": "talk", "calls": [', "truncated"),
    (NEGATIVE, "Expected `int` >= 0"),
    (BACKWARDS, "the clock runs backwards"),
]


@pytest.mark.parametrize("bad, reason", BAD, ids=[reason for _, reason in BAD])
def test_invalid_input_is_skipped_and_counted(
    log: Callable[..., Path], bad: Json | str, reason: str
) -> None:
    file = log(trace(), "", bad)
    ran = simulate(file)
    assert ran.exit_code == 0
    assert "Skipped: 1" in ran.stdout
    (skipped,) = simulated(file)["skipped"]
    assert skipped["place"] == f"{file}:3"
    assert reason in skipped["reason"]
    assert simulated(file)["total"]["exact"] >= 2  # the rest is played


@pytest.mark.parametrize("bad, reason", BAD, ids=[reason for _, reason in BAD])
def test_strict_fails_on_invalid_input(
    log: Callable[..., Path], run: Any, bad: Json | str, reason: str
) -> None:
    file = log(trace(), bad, '"also wrong"')
    ran = run("simulate", "--strict", str(file))
    assert ran.returncode == 2
    assert f"{file}:2" in ran.stderr
    assert "and 1 more" in ran.stderr
    assert ran.stdout == ""


def test_truncated_file_is_read_as_far_as_possible(tmp_path: Path) -> None:
    lines = "".join(json.dumps(trace(id=f"talk {at}")) + "\n" for at in range(300))
    file = tmp_path / "cut.jsonl.gz"
    packed = gzip.compress(lines.encode())
    file.write_bytes(packed[: len(packed) * 2 // 3])
    found = simulated(file)
    assert found["rows"]
    assert "cut off or damaged" in found["skipped"][0]["reason"]


def test_unknown_files(log: Callable[..., Path]) -> None:
    empty, other = log(name="empty.jsonl"), log({"hello": 1}, name="other.jsonl")
    ran = simulate(log(trace()), empty, other, "--json")
    assert ran.exit_code == 1
    reasons = {one["place"]: one["reason"] for one in json.loads(ran.stdout)["skipped"]}
    assert reasons[str(empty)] == "the file is empty"
    assert "pass --format" in reasons[str(other)]


def test_format_option(log: Callable[..., Path]) -> None:
    found = simulated(log({"hello": 1}, trace()), "--format", "trace")
    assert len(found["rows"]) == 3
    assert "missing required field" in found["skipped"][0]["reason"]


def test_folders_are_searched(log: Callable[..., Path], tmp_path: Path) -> None:
    log(trace(), name="a.jsonl")
    log(trace(), name="b.jsonl.gz")
    (tmp_path / "notes.txt").write_text("no log")
    found = simulated(tmp_path)
    # Equal names get the place appended.
    names = [one["conversation"] for one in found["conversations"]]
    assert names == ["talk", f"talk ({tmp_path / 'b.jsonl.gz'}:1)"]


def test_no_input_is_a_usage_error() -> None:
    ran = simulate()
    assert ran.exit_code == 2
    assert "Missing argument 'FILES...'" in ran.stderr


def test_sessions_are_recognised() -> None:
    found = simulated(SESSION)
    assert (found["total"]["calls"], found["total"]["exact"]) == (7, 6)
    assert found["causes"] == {"unexplained": 1}


class TestPlot:
    def drawn(self, tmp_path: Path, *arguments: object) -> ElementTree.Element:
        out = tmp_path / "out.svg"
        assert simulate(*arguments, "--plot", out).exit_code == 0
        return ElementTree.parse(out).getroot()

    @staticmethod
    def of(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
        return [one for one in root.iter() if one.get("class") == kind]

    def test_bars_are_in_proportion(self, log: Callable[..., Path], tmp_path: Path) -> None:
        root = self.drawn(tmp_path, log(trace()))
        read = [one for one in self.of(root, "read") if one.get("height") != "11"]
        written = [one for one in self.of(root, "written") if one.get("height") != "11"]
        assert (len(read), len(written)) == (1, 3)
        heights = [float(one.get("height", "")) for one in (*read, written[0])]
        assert heights[0] == pytest.approx(heights[1], rel=0.01)  # 5000 each

    def test_both_bills_rise_and_the_cached_one_is_the_lower(self, tmp_path: Path) -> None:
        root = self.drawn(tmp_path, SESSION)
        ends = {}
        for kind in ("bill", "full"):
            (line,) = (one for one in self.of(root, kind) if one.get("points"))
            heights = [float(point.split(",")[1]) for point in line.get("points", "").split()]
            assert heights == sorted(heights, reverse=True)
            ends[kind] = heights[-1]
        assert ends["full"] < ends["bill"]  # y grows downwards

    def test_text_is_escaped(self, log: Callable[..., Path], tmp_path: Path) -> None:
        root = self.drawn(tmp_path, log(trace(id="<script>&'\"")))
        title = next(one for one in root.iter() if one.tag.endswith("title"))
        assert title.text is not None
        assert title.text.startswith("<script>&'\"")

    def test_many_turns_share_a_bar(self, log: Callable[..., Path], tmp_path: Path) -> None:
        calls = [{"t": float(at), "messages": 1, "usage": usage(0, 5000)} for at in range(1000)]
        root = self.drawn(tmp_path, log(trace(calls=calls)))
        assert len(self.of(root, "written")) <= 240 + 1

    def test_without_prices_it_is_in_tokens(self, log: Callable[..., Path], tmp_path: Path) -> None:
        root = self.drawn(tmp_path, log(trace(model="claude-fable-5-2")))
        texts = {one.text for one in root.iter()}
        assert "input tokens at full price so far" in texts

    def test_nothing_to_draw_writes_no_file(self, log: Callable[..., Path], tmp_path: Path) -> None:
        assert simulate(log({"hello": 1}), "--plot", tmp_path / "out.svg").exit_code == 2
        assert not (tmp_path / "out.svg").exists()


def test_shell_completion(run: Any) -> None:
    line = "anaphora simulate --as anthropic/claude-opus-5-"
    found = run(_ANAPHORA_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert found.stdout == "plain,anthropic/claude-opus-5-5\n"


def test_recorded_exchanges_are_a_request_log() -> None:
    file = SHARED / "exchanges" / "exchanges.jsonl.gz"
    if not file.exists():
        pytest.skip(f"no recorded exchanges at {file}")
    found = simulated(file)
    assert found["total"]["billed_calls"] > 690
    assert found["total"]["exact"] / found["total"]["billed_calls"] > 0.9
    assert len(found["not_compared"]) == 10  # answered with an error
    assert {one["reason"] for one in found["skipped"]} == {
        "wire: no wire 'bedrock'; there are anthropic, openai_chat, openai_responses, ollama, gemini",
        "response: the stream ends in an error",
    }


def test_progress_bar_stays_out_of_the_report(
    log: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import click.testing

    from anaphora.cli import terminal

    file = log(trace())
    quiet = simulate(file, "--json")
    assert quiet.stderr == ""
    monkeypatch.setattr(terminal, "_LONG", 1)
    monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda _: True)
    shown = simulate(file, "--json")
    assert "simulating" in shown.stderr
    assert shown.stdout == quiet.stdout


def test_recorded_image_is_not_counted_as_text(tmp_path: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 40_000}
    image = [{"type": "image", "source": source}]
    messages = [{"role": "user", "content": image}]
    calls = [{"t": 1000.0, "messages": 1, "usage": None}]
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(trace(messages=messages, calls=calls, system_tokens_unknown=False)))
    (row,) = simulated(file)["rows"]
    assert 1000 < sum(row["predicted"][kind] for kind in ("read", "written", "uncached")) < 2000


@pytest.mark.parametrize("reasoning, read", [(0, 2304), (64, 1920), (None, 1920)])
def test_reply_is_predicted_where_no_reasoning_was_hidden(
    log: Callable[..., Path], reasoning: int | None, read: int
) -> None:
    """OpenAI before 5.6 caches the reply, unless hidden reasoning precedes it."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "q"},
    ]
    bills = [{"input": 2000, "output": 400, "reasoning": reasoning}, {"input": 2500, "output": 9}]
    calls = [
        {"t": 1000.0 + at, "messages": 1 + 2 * at, "usage": bill} for at, bill in enumerate(bills)
    ]
    gpt = trace(provider="openai", model="gpt-5.2", messages=messages, calls=calls)
    assert simulated(log(gpt))["rows"][1]["predicted"]["read"] == read


def openai_calls(count: int) -> Json:
    """Follow-ups that read all of the previous prompt; one in five reads half of it, or nothing."""
    calls, messages = [], []
    for at in range(count):
        read = 2048 + 128 * (at - 1)
        if at % 5 == 0:
            read = read // 256 * 128 if at % 20 else 0
        tokens = 2048 + 128 * at
        usage = {"input": tokens - read, "cache_read": read, "output": 9, "reasoning": 9}
        calls.append({"t": 1000.0 + 20 * at, "messages": 1 + 2 * at, "usage": usage})
        messages += [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": "a"}]
    return trace(provider="openai", model="gpt-5.2", messages=messages, calls=calls)


def test_random_misses_give_expected_reads_with_a_range(log: Callable[..., Path]) -> None:
    found = simulated(log(openai_calls(40)))
    total = found["total"]
    expected, predicted = total["expected_usage"], total["predicted"]
    read, cost = expected["read"], expected["cost_usd"]
    assert read["low"] < read["expected"] < read["high"] < predicted["read"]
    assert read["low"] < total["billed"]["read"] < read["high"]
    assert float(predicted["cost_usd"]) < float(cost["low"]) < float(cost["expected"])
    assert float(cost["low"]) < float(total["billed"]["cost_usd"]) < float(cost["high"])
    row = found["rows"][7]
    assert [(one["reason"], one["share"]) for one in row["chances"]] == [
        ("missed", 0.04),
        ("cut_short", 0.15),
    ]
    assert row["chances"][0]["read"] == 0
    assert float(row["chances"][0]["cost_usd"]) > float(row["predicted"]["cost_usd"])
    # The prediction itself is the most likely outcome, as it is where nothing is random.
    assert row["predicted"]["read"] == row["billed"]["read"]


def test_range_is_printed_with_its_reason(log: Callable[..., Path]) -> None:
    text = simulate(log(openai_calls(10))).stdout
    assert "Expected where providers miss at random, and the range of nine cases in ten" in text
    assert "openai/gpt-5.2: 4% of reads find nothing, 15% find a part" in text


def test_no_range_where_nothing_is_random(log: Callable[..., Path]) -> None:
    file = log(trace())
    assert "miss at random" not in simulate(file).stdout
    for row in simulated(file)["rows"]:
        read, tokens = row["expected_usage"]["read"], row["predicted"]["read"]
        assert (read["expected"], read["low"], read["high"]) == (tokens, tokens, tokens)
        assert row["expected_usage"]["cost_usd"]["low"] == row["predicted"]["cost_usd"]


def test_other_model_has_a_range_too(log: Callable[..., Path]) -> None:
    found = simulated(log(openai_calls(10)), "--as", "zai/glm-4.6")
    read = found["total"]["expected_usage"]["read"]
    assert read["low"] < read["expected"] < found["total"]["predicted"]["read"]


def test_write_that_may_not_be_visible_yet(log: Callable[..., Path]) -> None:
    """Anthropic: within 2.5 s of a write an older entry may be read."""
    calls = [
        {"t": 1000.0, "messages": 1, "usage": usage(0, 5000)},
        {"t": 1100.0, "messages": 3, "usage": usage(5000, 700)},
        {"t": 1101.0, "messages": 5, "usage": usage(5000, 900)},
    ]
    rows = simulated(log(trace(model="claude-sonnet-4-6", calls=calls)))["rows"]
    assert rows[1]["chances"] == []
    (chance,) = rows[2]["chances"]
    assert (chance["reason"], chance["share"], chance["read"]) == ("late_writes", 0.35, 5000)
    assert rows[2]["predicted"]["read"] == 5700
    assert rows[2]["expected_usage"]["read"]["expected"] == round(5700 - 0.35 * 700)


@pytest.mark.parametrize("gap, read", [(299, 5000), (308, 5000), (313, 0)])
@pytest.mark.parametrize("first", [{}, {"t_first": 1008.0}])
def test_lifetime_counts_from_the_response(
    log: Callable[..., Path], gap: int, read: int, first: Json
) -> None:
    """Anthropic, inside tool loops: 308 s after the request before an entry was alive, after 313 s
    gone. Where the start of the response is not recorded, it is assumed after 8 s."""
    calls = [
        {"t": 1000.0, "t_end": 1030.0, **first, "messages": 1, "usage": usage(0, 5000)},
        {"t": 1000.0 + gap, "messages": 3, "usage": usage(read, 5200 - read)},
    ]
    row = simulated(log(trace(calls=calls)))["rows"][1]
    assert (row["predicted"]["read"], row["exact"]) == (read, True)


def test_short_response_begins_before_it_ends(log: Callable[..., Path]) -> None:
    calls = [
        {"t": 1000.0, "t_end": 1002.0, "messages": 1, "usage": usage(0, 5000)},
        {"t": 1306.0, "messages": 3, "usage": usage(0, 5200)},
    ]
    assert simulated(log(trace(calls=calls)))["rows"][1]["predicted"]["read"] == 0


def thinking_session(*reads: int) -> Json:
    """A tool loop with thinking at each user turn; each turn begins with what was read."""
    messages: list[Json] = []
    calls: list[Json] = []
    for turn, read in enumerate(reads):
        messages.append({"role": "user", "content": f"question {turn} " * 50})
        size = 5000 + 1000 * turn
        now = 1000.0 + 60 * turn
        calls.append({"t": now, "messages": len(messages), "usage": usage(read, size - read)})
        thought = {"type": "thinking", "thinking": f"hm {turn} " * 50, "signature": "s"}
        call = {"type": "tool_use", "id": f"c{turn}", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": "found"}
        messages.append({"role": "assistant", "content": [thought, call]})
        messages.append({"role": "user", "content": [result]})
        bill = usage(size, 500)
        calls.append({"t": now + 10, "messages": len(messages), "usage": bill})
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    return trace(messages=messages, calls=calls)


def test_thinking_is_dropped_only_where_it_is_resent(log: Callable[..., Path]) -> None:
    """Whether a client resends thinking is not recorded: a loss at a user turn is a chance, until a
    bill has shown one."""
    kept = simulated(log(thinking_session(0, 5500, 6500)))["rows"]
    assert [row["predicted"]["read"] for row in kept] == [0, 5000, 5500, 6000, 6500, 7000]
    shares = [(one["reason"], one["share"]) for one in kept[2]["chances"]]
    assert shares == [("thinking_dropped", 0.28)]
    assert kept[2]["chances"][0]["read"] < 5500
    assert kept[3]["chances"] == []
    lost = simulated(log(thinking_session(0, 3000, 4000)))["rows"]
    assert (lost[2]["predicted"]["read"], lost[2]["billed"]["read"]) == (5500, 3000)
    assert lost[4]["predicted"]["read"] < 6500
    assert lost[4]["chances"] == []


def test_prompt_that_was_billed_shorter_than_its_text_is_simulated_elsewhere(
    log: Callable[..., Path],
) -> None:
    """Nothing is left for the beginning that is not recorded: it has no tokens."""
    billed = {"input": 3, "output": 5}
    messages = [{"role": "user", "content": "hello " * 20}]
    some = [
        trace(id=id, messages=messages, calls=[{"messages": 1, "t": at, "usage": billed}])
        for id, at in (("a", 1.0), ("b", 100.0))
    ]
    found = simulated(log(*some), "--as", "deepseek/deepseek-v4-pro")
    assert [row["predicted"]["uncached"] for row in found["rows"]] == [3, 3]
