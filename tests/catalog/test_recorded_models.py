"""Every model in the recorded traffic is in the catalog, under the provider whose host it was.

The recordings live beside the repository (see their README) and are never copied into it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from anaphora import catalog

FILE = Path(__file__).parents[3] / "shared" / "exchanges" / "exchanges.jsonl.gz"

HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "*.openai.azure.com": "azure",
    "generativelanguage.googleapis.com": "google",
    "aiplatform.googleapis.com": "google",
    "api.cerebras.ai": "cerebras",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.inference.crusoecloud.com": "crusoe",
    "api.mistral.ai": "mistral",
    "api.z.ai": "zai",
    "bedrock-mantle.*.api.aws": "bedrock",
    "*.snowflakecomputing.com": "snowflake",
    "ollama.com": "ollama",
    "openrouter.ai": "openrouter",
    "router.huggingface.co": "huggingface",
}
#: Not a host of its own (a proxy, a local server), or a wire that is still to come.
PASSED_OVER = {"localhost", "bedrock-runtime.us-east-1.amazonaws.com"}


def recorded() -> Iterator[tuple[str, str]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["host"] not in PASSED_OVER and (model := model_of(record)):
                yield record["host"], model


def model_of(record: dict[str, Any]) -> str:
    if in_path := re.search("/models/([^:/]+):", record["path"]):
        return in_path[1]
    body = json.loads(record["request"] or "{}")
    return str(body.get("model", "")) if isinstance(body, dict) else ""


def cases() -> list[Any]:
    if not FILE.exists():
        reason = f"no recorded exchanges at {FILE}"
        return [pytest.param("", "", id="none", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(*pair, id="-".join(pair)) for pair in sorted(set(recorded()))]


@pytest.mark.parametrize(("host", "model"), cases())
def test_recorded_model_is_known(host: str, model: str) -> None:
    [provider] = [name for pattern, name in HOSTS.items() if fnmatchcase(host, pattern)]
    assert catalog.profile(provider, model).known
