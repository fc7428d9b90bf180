"""inspect_ai's evaluations on anaphora models, against the emulator."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel
from support.emulated_client import KEY, LONG, MODELS, settings
from support.framework_pages import installed_path
from support.unread_prefix import CALLS, assert_noticed, never_readable

import anaphora
import inspect_ai_adapter as adapter
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.values import Thinking

WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what inspect uses
]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What inspect leaves open is collected here, and not in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def client(emu: Emulator) -> Iterator[anaphora.Client]:
    config = {"providers": settings(emu.url, WIRES)}
    with anaphora.Client.from_config(config, environ={"KEY": KEY}) as client:
        yield client


def model_of(client: anaphora.Client, provider: str, model: str = "", **options: Any) -> Model:
    name = model or MODELS[provider]
    config = GenerateConfig(**options)
    return get_model(
        f"anaphora/{name}", provider=provider, client=client, memoize=False, config=config
    )


@tool
def weather() -> Any:
    async def execute(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        return f"sunny in {city}"

    return execute


def task_of(count: int, *solvers: Any) -> Task:
    samples = [Sample(input=f"What is {number}?", target="e") for number in range(count)]
    return Task(dataset=samples, solver=[*solvers, generate()], scorer=includes())


def log_of(task: Task, model: Model, folder: Path, **options: Any) -> Any:
    (log,) = evaluate(task, model=model, log_dir=str(folder), display="none", **options)
    assert log.status == "success", log.error
    return log


@pytest.mark.parametrize("provider", ["anthropic", "openai_responses", "gemini"])
def test_twenty_samples_write_the_prefix_at_most_twice(
    client: anaphora.Client, emu: Emulator, tmp_path: Path, provider: str
) -> None:
    task = task_of(20, system_message(LONG))
    log = log_of(task, model_of(client, provider, max_tokens=20), tmp_path)
    billed = [entry for entry in emu.requests() if "read" in entry]
    assert len(billed) == 20
    paid = [max(sum(e["written"].values()), e["uncached"]) > 1000 for e in billed]
    assert sum(paid) <= 2
    (usage,) = log.stats.model_usage.values()
    assert usage.input_tokens_cache_read == sum(e["read"] for e in billed)
    assert usage.total_cost == pytest.approx(sum(float(e["cost_usd"]) for e in billed))


def test_calls_that_did_not_read_the_prefix_say_so(
    client: anaphora.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_readable(monkeypatch)
    task = task_of(CALLS, system_message(LONG))
    log = log_of(task, model_of(client, "openai_responses", max_tokens=20), tmp_path)
    assert_noticed((each.output.metadata or {}).get("notices", ()) for each in log.samples)


@pytest.mark.parametrize("provider", WIRES)
def test_samples_call_tools(client: anaphora.Client, tmp_path: Path, provider: str) -> None:
    log = log_of(task_of(2, use_tools(weather())), model_of(client, provider), tmp_path)
    for sample in log.samples:
        roles = [message.role for message in sample.messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert "sunny" in sample.messages[2].text


@pytest.mark.parametrize("provider", WIRES)
def test_response_schema(client: anaphora.Client, provider: str) -> None:
    class Plan(BaseModel):
        city: str
        days: int

    schema = ResponseSchema(name="plan", json_schema=json_schema(Plan))
    model = model_of(client, provider)
    output = asyncio.run(model.generate("Rome?", config=GenerateConfig(response_schema=schema)))
    assert Plan.model_validate_json(output.completion)


def test_reasoning_goes_back_as_it_came(client: anaphora.Client) -> None:
    model = model_of(client, "anthropic", "claude-sonnet-5-5", reasoning_effort="high")

    async def main() -> tuple[Any, Any]:
        question = ChatMessageUser(content="What is the weather?")
        first = await model.generate([question])
        return first, await model.generate([question, first.message, question])

    first, second = asyncio.run(main())
    (reasoning,) = [c for c in first.message.content if isinstance(c, ContentReasoning)]
    assert reasoning.signature
    kept = adapter._assistant(ChatMessageAssistant.model_validate(first.message.model_dump()))
    assert any(isinstance(part, Thinking) for part in kept.parts)
    assert second.stop_reason == "stop"


def test_images_are_sent(client: anaphora.Client) -> None:
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    content = [ContentText(text="What is it?"), ContentImage(image=pixel)]
    output = asyncio.run(model_of(client, "anthropic").generate([ChatMessageUser(content=content)]))
    assert output.completion


def test_too_long_a_prompt_is_a_stop_reason(client: anaphora.Client) -> None:
    output = asyncio.run(model_of(client, "anthropic").generate("word " * 400_000))
    assert output.stop_reason == "model_length"


def test_wrong_options_are_named(client: anaphora.Client) -> None:
    with pytest.raises(InvalidRequest, match="num_choices: is not supported"):
        asyncio.run(model_of(client, "anthropic", num_choices=3).generate("Hello?"))
    with pytest.raises(InvalidRequest, match="api_key: belongs to a provider"):
        get_model("anaphora/gpt-5.2", api_key="sk-canary", memoize=False)
    with pytest.raises(InvalidRequest, match="model"):
        get_model("anaphora/no-such-model", client=client, memoize=False)


def test_the_command_finds_anaphora_models(emu: Emulator, tmp_path: Path) -> None:
    """`inspect eval --model anaphora/…` in a process that has imported nothing of ours."""
    (tmp_path / "task.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n\n\n"
        "@task\n"
        "def two():\n"
        "    return Task(dataset=[Sample(input='a?'), Sample(input='b?')], scorer=includes())\n"
    )
    environ = os.environ | {
        "PYTHONPATH": installed_path(tmp_path),
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_BASE_URL": emu.url,
    }
    command = [sys.executable, "-m", "inspect_ai", "eval", "task.py"]
    command += ["--model", "anaphora/claude-sonnet-5-5", "--display", "plain", "--no-log-samples"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([entry for entry in emu.requests() if "read" in entry]) == 2
