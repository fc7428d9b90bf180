"""Names and URLs without what could be a secret, and provider texts without given secrets."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.catalog import shipped
from anaphora.errors import InvalidConfig, Upstream
from anaphora.redaction import (
    MASK,
    Redactor,
    could_be_secret,
    hides_arguments,
    looks_like_key,
    quoted,
    shown_url,
)

KEY = "sk-ant-api03-7Hq2Zt9vXw4LmPr8/+QA"

NAMES = [
    "anthropic-default", "azure-eu-2", "ANTHROPIC_API_KEY", "XAI_API_KEY", "HF_TOKEN", "OPENAI_KEY_2",
    "claude-sonnet-4-5-20250929", "gpt-4o-2024-08-06", "qwen3:0.6b", "MiniMax-M2.7", "v1beta1",
    "meta-llama/Llama-3.3-70B-Instruct-Turbo", "Qwen/Qwen3-235B-A22B-Instruct-2507", "us-east5",
    "mistralai/Mixtral-8x22B-Instruct-v0.1", "us.anthropic.claude-sonnet-4-20250514-v1:0", "",
    "accounts/fireworks/models/deepseek-v3p1", "xai-eu", "hf:zai-org/GLM-4.6", "compatible-mode",
]  # fmt: skip
KEYS = [
    KEY, "sk-proj-9aF3", "gsk_Xk3vT9qLmN2pR7sW1yZ5aB8c", "AIzaSyD-9tXk3vT9qLmN2pR7sW1yZ5aB8c",
    "xai-Xk3vT9qLmN2pR7sW1yZ5aB8c", "0f8fad5b-d9cb-469f-a165-70867728950e", "Bearer abc",
    "4bf92f3577b34da6a3ce929d0e0e4736", "XkvTqLmNpRsWyZaBcDeF", "eyJhbGciOiJIUzI1NiJ9.e30.x", "s3cr3t",
]  # fmt: skip


@each_row("name", NAMES)
def test_names_are_shown(name: str) -> None:
    assert not could_be_secret(name)
    assert quoted(name) == repr(name)
    assert not looks_like_key(name)


@each_row("key", KEYS)
def test_keys_are_not_shown(key: str) -> None:
    assert could_be_secret(key)
    assert quoted(key) == "'…'"


def test_models_of_the_catalog_are_shown() -> None:
    """In errors about them; only a few look like random text."""
    models = [model for provider in shipped().providers for model in _models(provider)]
    hidden = [model for model in models if could_be_secret(model)]
    assert len(models) > 100
    assert hidden == []
    assert not any(map(looks_like_key, models))


def _models(provider: str) -> list[str]:
    from anaphora import catalog

    return [profile.id for profile in catalog.models(provider)]


@each_row(
    "url, shown",
    [
        ("https://api.example/v1", "https://api.example/v1"),
        ("https://me:word@api.example:8443/v1", "https://…@api.example:8443/v1"),
        ("https://gateway.example/9aF3xLq8/openai/v1", "https://gateway.example/…/openai/v1"),
        ("https://h/sk-abc/v1?key=abc#d", "https://h/…/v1?…"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("not a URL", "not a URL"),
        ("", ""),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@each_row(
    "text, redacted",
    [
        (f"invalid x-api-key: {KEY}", f"invalid x-api-key: {MASK}"),
        (f"Bearer {KEY}.", f"Bearer {MASK}."),
        (f'{{"key":"{KEY}"}}', f'{{"key":"{MASK}"}}'),
        (KEY.upper(), MASK),
        (KEY.replace("/", "\\/"), MASK),
        (KEY.replace("/", "%2F").replace("+", "%2B"), MASK),
        ("Incorrect key: sk-ant-a*****QA. See", f"Incorrect key: {MASK} See"),
        ("key sk-ant-api03-7Hq... is wrong", f"key {MASK} is wrong"),
        ("key sk-ant-api03-7Hq2 is wrong", f"key {MASK} is wrong"),
        ("key ending in …vXw4LmPr8/+QA", f"key ending in {MASK}"),
        ("hunter2 is wrong, hunter22 is not", f"{MASK} is wrong, hunter22 is not"),
        # What providers say otherwise.
        ("ollama: model not found...", "ollama: model not found..."),
        ("wait 20s **now**. sk-other", "wait 20s **now**. sk-other"),
        ("messages.0.content: too long", "messages.0.content: too long"),
        ("", ""),
    ],
)
def test_redactor(text: str, redacted: str) -> None:
    assert Redactor([KEY, "hunter2", "ollama", "", "any"])(text) == redacted


@given(st.text(), st.text())
def test_texts_around_a_key_are_kept(before: str, after: str) -> None:
    text = Redactor([KEY])(f"{before} {KEY} {after}")
    assert KEY not in text
    assert MASK in text


@given(st.text(alphabet="aZ09 -*.…"))
def test_texts_without_secrets_are_kept(text: str) -> None:
    assert Redactor([])(text) == text
    assert Redactor(["q7Hq2Zt9vXw4LmPr8"])(text) == text


@pytest.mark.parametrize("piece", ["sk-ant-api03-", "a", "*", "sk-ant-***", ". ", "x" * 10])
def test_redaction_is_linear(piece: str) -> None:
    """A quadratic one would take minutes."""
    text = piece * (400_000 // len(piece))
    assert len(Redactor([KEY, KEY[::-1]])(text)) <= 8 * len(text)


def test_every_text_of_an_error_is_redacted() -> None:
    error = Upstream(f"no {KEY}", status=401, code=KEY, param=KEY, request_id=f"r-{KEY}")
    error.add_note(f"sent {KEY}")
    Redactor([KEY]).clean(error)
    assert str(error) == f"no {MASK}"
    assert (error.status, error.code, error.param) == (401, MASK, MASK)
    assert error.request_id == f"r-{MASK}"
    assert error.__notes__ == [f"sent {MASK}"]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_arguments_are_hidden(kind: str) -> None:
    def refuse(key: str) -> str:
        try:
            raise ValueError(key)
        except ValueError:
            raise InvalidConfig("wrong") from None

    @hides_arguments
    def fails(key: str) -> str:
        return refuse(key)

    @hides_arguments
    async def fails_later(key: str) -> str:
        await asyncio.sleep(0)
        return refuse(key)

    run = fails if kind == "function" else fails_later
    wait = str if kind == "function" else asyncio.run
    with pytest.raises(InvalidConfig, match="wrong") as raised:
        wait(run("canary"))  # type: ignore[arg-type]
    assert raised.value.__context__ is None
    trace = raised.value.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name != "test_arguments_are_hidden":
            assert "canary" not in repr(trace.tb_frame.f_locals)
        trace = trace.tb_next
