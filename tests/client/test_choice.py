"""The provider of a call without one, the model's name there, and models of other makers."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from support.own_addresses import ToEmulator, ToNowhere
from support.tables import each_row

from anaphora import AsyncClient, Call, Client, PromptIR
from anaphora.client.choice import UnknownModelWarning
from anaphora.client.config.environment import Environment
from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError, InvalidConfig, InvalidRequest, MissingSecret, Transport
from anaphora.values import Message

PROXY = "http://proxy.example"

#: Configurations by name: `openai+groq` is both at their own addresses.
PROVIDERS: dict[str, dict[str, Any]] = {
    "openai": {"wire": "openai_chat"},
    "claude": {"wire": "anthropic"},
    "google": {"wire": "gemini"},
    "groq": {"dialect": "groq"},
    "openrouter": {"dialect": "openrouter"},
    "together": {"dialect": "together"},
    "azure": {"dialect": "azure", "account": {"resource": "me"}},
    "ollama": {"dialect": "ollama", "base_url": "http://gpu:11434"},
    "vllm": {"dialect": "vllm", "base_url": PROXY},
    "proxy": {"wire": "openai_chat", "base_url": PROXY},
    "listed": {"wire": "openai_chat", "base_url": PROXY, "known_models": ["mine", "org/mine"]},
    "default": {"wire": "openai_chat", "base_url": PROXY, "model": "claude-mine"},
    "alias": {"wire": "openai_chat", "model": "openai/gpt-5.2"},
}


def client_of(names: str, **options: Any) -> AsyncClient:
    llm = {
        "providers": {name: PROVIDERS[name] | {"key": {"env": "KEY"}} for name in names.split("+")},
        "routes": options.pop("routes", {}),
    }
    return AsyncClient.from_config(llm, environ={"KEY": "any"}, **options)


def requested(client: AsyncClient, **call: Any) -> tuple[str, str]:
    """The provider and the model of a call."""
    session = client.session(call.get("provider"), model=call.get("model"))
    return session.provider, session.model


@each_row(
    "names, model, provider, name",
    [
        # By the maker's way to name models, new ones included.
        ("openai+claude+google", "claude-sonnet-5-5", "claude", "claude-sonnet-5-5"),
        ("openai+claude+google", "claude-sonnet-99", "claude", "claude-sonnet-99"),
        ("openai+claude+google", "gpt-99", "openai", "gpt-99"),
        ("openai+claude+google", "models/gemini-3.8-flash", "google", "models/gemini-3.8-flash"),
        # By the configuration and by the rows of hosts, in their order.
        ("openai+listed", "mine", "listed", "mine"),
        ("openai+listed", "org/mine", "listed", "org/mine"),
        ("openai+claude+default", "claude-mine", "claude", "claude-mine"),
        ("openai+default", "claude-mine", "default", "claude-mine"),
        ("azure+openai", "gpt-5.2", "azure", "gpt-5.2"),
        ("openai+azure", "gpt-5.2", "openai", "gpt-5.2"),
        ("openai+groq", "llama-3.3-70b-versatile", "groq", "llama-3.3-70b-versatile"),
        ("openai+groq", "openai/gpt-oss-120b", "groq", "openai/gpt-oss-120b"),
        ("openai+ollama", "qwen3:0.6b", "ollama", "qwen3:0.6b"),
        # By a prefix: the id, the provider's name, or what other tools call it.
        ("openai+claude", "openai/gpt-5.2", "openai", "gpt-5.2"),
        ("openai+claude", "claude/claude-opus-5-5", "claude", "claude-opus-5-5"),
        ("openai+claude", "anthropic/claude-opus-5-5", "claude", "claude-opus-5-5"),
        ("openai+google", "gemini/gemini-3.8-flash", "google", "gemini-3.8-flash"),
        ("openai+openrouter", "openrouter/openai/o3", "openrouter", "openai/o3"),
        ("openai+openrouter", "openrouter/auto", "openrouter", "openrouter/auto"),
        ("openai+groq", "groq/some-model", "groq", "some-model"),
        ("openai+groq", "groq/compound-mini", "groq", "groq/compound-mini"),
        ("openai+ollama", "ollama/llama3.2", "ollama", "llama3.2"),
        ("openai+azure", "azure/my-deployment", "azure", "my-deployment"),
        ("openai+vllm", "vllm/Qwen/Qwen3-8B", "vllm", "Qwen/Qwen3-8B"),
        ("openai+proxy", "proxy/anything", "proxy", "anything"),
        ("claude+openrouter", "anthropic/claude-opus-5.5", "claude", "claude-opus-5.5"),
        # The only provider: names are left alone unless they begin with the provider's.
        ("openrouter", "anthropic/claude-new", "openrouter", "anthropic/claude-new"),
        ("together", "meta-llama/Llama-9", "together", "meta-llama/Llama-9"),
        ("proxy", "openai/gpt-oss-120b", "proxy", "openai/gpt-oss-120b"),
        ("proxy", "openai/gpt-5.2", "proxy", "openai/gpt-5.2"),
        ("proxy", "claude-sonnet-5-5", "proxy", "claude-sonnet-5-5"),
        ("openai", "my-model", "openai", "my-model"),
        # The only one that may be asked.
        ("openai+google+proxy", "claude-sonnet-5-5", "proxy", "claude-sonnet-5-5"),
        ("openai+listed", "my-model", "openai", "my-model"),
        ("default", None, "default", "claude-mine"),
        ("alias", None, "alias", "gpt-5.2"),
    ],
)
def test_provider_by_model(names: str, model: str | None, provider: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        client = client_of(names)
        assert requested(client, model=model) == (provider, name)
        assert requested(client, model=model) == (provider, name), "also the second time"


@each_row(
    "provider, model, name",
    [
        ("openai", "openai/gpt-5.2", "gpt-5.2"),
        ("claude", "claude/claude-opus-5-5", "claude-opus-5-5"),
        ("claude", "anthropic/claude-opus-5-5", "claude-opus-5-5"),
        ("google", "models/gemini-3.8-flash", "models/gemini-3.8-flash"),
        ("openrouter", "anthropic/claude-opus-5.5", "anthropic/claude-opus-5.5"),
        ("openrouter", "openrouter/anthropic/claude-opus-5.5", "anthropic/claude-opus-5.5"),
        ("openrouter", "openrouter/auto", "openrouter/auto"),
        ("groq", "openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("ollama", "ollama/llama3.2", "llama3.2"),
        # An address of the user's own gets every name as it is.
        ("proxy", "proxy/gpt-5.2", "proxy/gpt-5.2"),
        ("proxy", "openai/gpt-5.2", "openai/gpt-5.2"),
        ("listed", "org/mine", "org/mine"),
    ],
)
def test_name_at_a_named_provider(provider: str, model: str, name: str) -> None:
    assert requested(client_of(provider), provider=provider, model=model) == (provider, name)


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("openai", {"model": "claude-sonnet-5-5"}, "claude-sonnet-5-5 is a model of anthropic, and 'openai' has only those of openai"),
    ("openai", {"model": "claude-sonnet-99"}, "is a model of anthropic"),
    ("openai", {"model": "anthropic/claude-sonnet-99"}, "is a model of anthropic"),
    ("claude", {"model": "gpt-5.2"}, "gpt-5.2 is a model of openai, and 'claude' has only those of anthropic"),
    ("google", {"model": "grok-4.7"}, "is a model of xai"),
    ("openai+claude", {"provider": "openai", "model": "claude-opus-5"}, "is a model of anthropic"),
    ("listed", {"model": "min"}, "'min' is not among the known_models of listed; did you mean mine?"),
    ("openai+claude", {"provider": "opnai", "model": "gpt-5.2"}, "no provider 'opnai'; did you mean openai?"),
    ("openai+claude", {"provider": "anthropic", "model": "x"}, "no provider 'anthropic'; did you mean claude?"),
    ("openai+google", {"provider": "claude-opus-5"}, "no provider 'claude-opus-5'; for a model, write model='claude-opus-5'"),
    ("openai+google", {"provider": "zzz"}, "no provider 'zzz'; there are openai, google"),
    ("openai+google", {"provider": 7}, "must be the name of a provider or a route, not int"),
    ("openai+google", {"model": 7}, "must be the name of a model, not 7"),
    ("openai+google", {}, "or one of the providers openai, google"),
    ("openai+google", {"model": "zzz"}, "no provider is known to have zzz; name one of openai, google, as in openai/zzz"),
    ("openai+google", {"model": ""}, "model: must be the name of a model, not ''"),
    ("openai+google", {"model": "opnai/gpt-5.2"}, "model: no provider 'opnai'; did you mean openai/gpt-5.2?"),
    ("openai+google", {"model": "vercel/glm-5.3"}, "model: no provider 'vercel' is configured; there are openai, google"),
    ("openai+google", {"model": "org/glm-5.3"}, "no provider is known to have org/glm-5.3; name one of openai, google"),
    ("openai+google", {"model": "antropic/x"}, "model: no provider 'antropic'; did you mean anthropic/x?"),
    ("openai", {}, "no model is given for openai"),
]  # fmt: skip


@each_row("names, call, problem", ERRORS)
@each_row("way", ["session", "complete", "send"])
def test_errors_before_anything_is_sent(
    names: str, call: dict[str, Any], problem: str, way: str
) -> None:
    async def main() -> None:
        transport = ToNowhere()
        client = client_of(names, transport=transport)
        content = () if way == "session" else ("Hi",)
        with pytest.raises(InvalidRequest) as raised:
            await getattr(client, way)(*content, **call)
        assert problem in str(raised.value)
        assert not transport.sent

    asyncio.run(main())


@each_row("provider", ["proxy", "openrouter", "groq", "ollama", "azure", "vllm"])
def test_hosts_and_gateways_may_have_any_model(provider: str) -> None:
    async def main() -> None:
        transport = ToNowhere()
        client = client_of(provider, transport=transport)
        for model in ("claude-sonnet-5-5", "gpt-5.2", "claude-sonet-5-5"):
            with pytest.raises(Transport, match="refused"):
                await client.complete("Hi", model=model)
        assert len(transport.sent) == 3

    asyncio.run(main())


def test_the_model_of_a_call_chooses_its_provider() -> None:
    async def main() -> None:
        transport = ToNowhere()
        client = client_of("openai+claude", transport=transport)
        call = Call(ir=PromptIR.chat([Message.user("Hi")]), model="anthropic/claude-opus-5-5")
        with pytest.raises(Transport, match="refused"):
            await client.complete(call)
        (request,) = transport.sent
        assert request.url == "https://api.anthropic.com/v1/messages"
        assert b'"model":"claude-opus-5-5"' in request.body

    asyncio.run(main())


# ── Routes ───────────────────────────────────────────────────────────────────────────────────────


def hops(*names: str, **models: str) -> dict[str, Any]:
    hops = [
        {"provider": name} | ({"model": models[name]} if name in models else {}) for name in names
    ]
    return {"main": hops}


@each_row(
    "names, routes, model, targets",
    [
        # A maker is not asked for a model of another, and is left out without a default.
        ("openai+claude", hops("openai", "claude"), "claude-new", ["claude/claude-new"]),
        ("openai+claude", hops("openai", "claude"), "openai/gpt-new", ["openai/gpt-new"]),
        ("alias+claude", hops("claude", "alias"), "claude-new", ["claude/claude-new", "alias/gpt-5.2"]),
        ("openai+claude+proxy", hops("openai", "claude", "proxy"), "claude-new", ["claude/claude-new", "proxy/claude-new"]),
        ("openai+listed", hops("openai", "listed"), "gpt-new", ["openai/gpt-new"]),
        ("openai+claude", hops("openai", "claude", claude="claude-opus-5"), "gpt-5.2", ["openai/gpt-5.2", "claude/claude-opus-5"]),
        ("openai+claude", hops("openai", "claude", claude="anthropic/claude-opus-5"), "gpt-5.2", ["openai/gpt-5.2", "claude/claude-opus-5"]),
        # None is known to have it: all may be asked.
        ("openai+claude", hops("openai", "claude"), "mine", ["openai/mine", "claude/mine"]),
    ],
)  # fmt: skip
def test_routes_leave_out_providers_without_the_model(
    names: str, routes: dict[str, Any], model: str, targets: list[str]
) -> None:
    async def main() -> None:
        client = client_of(names, routes=routes, transport=ToNowhere())
        with pytest.raises(AnaphoraError) as raised:
            await client.complete("Hi", "main", model=model)
        tried = raised.value.attempts
        assert [f"{one.provider}/{one.model}" for one in tried] == targets

    asyncio.run(main())


def test_route_without_any_provider_of_the_model() -> None:
    client = client_of("openai+claude", routes=hops("openai", "claude"))
    with pytest.raises(InvalidRequest, match=r"no provider of the route 'main' has grok-4\.7"):
        client.session("main", model="grok-4.7")


def test_the_only_route_is_used() -> None:
    client = client_of("openai+alias", routes=hops("alias"))
    assert requested(client) == ("alias", "gpt-5.2")
    assert requested(client, model="main/gpt-5.1") == ("alias", "gpt-5.1")


# ── Unknown models ───────────────────────────────────────────────────────────────────────────────


def test_misspelled_model_is_sent_with_a_warning(emu: Emulator) -> None:
    async def main() -> None:
        transport = ToEmulator(emu)
        client = client_of("claude", transport=transport)
        with pytest.warns(UnknownModelWarning, match="did you mean claude-sonnet-5-5") as caught:
            turn = client.send("Hi", model="claude-sonet-5-5", max_tokens=100)
        assert [warning.filename for warning in caught] == [__file__]
        response = await turn
        # Once for each name; the notice is on every response.
        chat = client.session(model="claude-sonet-5-5", max_tokens=100)
        for one in (response, await chat.send("Hi")):
            (notice,) = [each for each in one.notices if each.code == "model_unknown"]
            assert "claude-sonet-5-5 is not among the models of anthropic" in notice.message
        assert all(b'"claude-sonet-5-5"' in request.body for request in transport.sent)
        await transport.close()

    asyncio.run(main())


def test_synchronous_client_warns_at_the_line_of_the_app() -> None:
    client = Client(client_of("claude", transport=ToNowhere()))
    with client, pytest.warns(UnknownModelWarning) as caught, pytest.raises(Transport):
        client.complete("Hi", model="claude-sonet-5-5", max_tokens=100)
    assert [warning.filename for warning in caught] == [__file__]


@each_row(
    "names, model",
    [
        ("claude", "claude-sonnet-5-5"),
        ("claude", "claude-sonnet-5-5-20260901"),
        ("claude", "claude-sonnet-5-5-latest"),
        ("claude", "claude-sonnet-5-6"),
        ("openai", "my-own-model"),
        ("google", "models/gemini-3.8-flash"),
        ("proxy", "claude-sonet-5-5"),
        ("openrouter", "openai/o33"),
    ],
)
def test_no_warning(names: str, model: str) -> None:
    client_of(names).session(model=model)


def test_google_spelling_has_a_price(emu: Emulator) -> None:
    async def main() -> None:
        transport = ToEmulator(emu)
        client = client_of("google", transport=transport)
        plain = await client.complete("Hi", model="gemini-3.8-flash")
        whole = await client.complete("Hi", model="models/gemini-3.8-flash")
        assert whole.cost_usd is not None
        assert whole.cost_usd == plain.cost_usd
        assert [each.code for each in whole.notices] == [each.code for each in plain.notices]
        await transport.close()

    asyncio.run(main())


# ── Keys in the environment ──────────────────────────────────────────────────────────────────────


@each_row(
    "variables, model, problem",
    [
        ("", "claude-sonnet-5-5", "set ANTHROPIC_API_KEY"),
        ("", "anthropic/claude-sonnet-5-5", "set ANTHROPIC_API_KEY"),
        ("", "gemini/gemini-3.8-flash", "set GEMINI_API_KEY"),
        ("", "azure/mine", "set AZURE_OPENAI_ENDPOINT or AZURE_RESOURCE_NAME"),
        ("", "bedrock/mine", "set AWS_REGION"),
        ("", "mine", "no key of a provider in the environment"),
        ("", "mine", "Without a key, call the local emulator: `anaphora emulate`"),
        ("OPENAI_API_KEY", "claude-sonnet-5-5", "claude-sonnet-5-5 is a model of anthropic, which has no key in the environment: set ANTHROPIC_API_KEY"),
        ("OPENROUTER_API_KEY", "claude-sonnet-5-5", "or name another provider: provider/claude-sonnet-5-5"),
        ("OPENAI_API_KEY", "groq/compound", "no key for groq in the environment: set GROQ_API_KEY"),
        ("OPENROUTER_API_KEY GROQ_API_KEY", "anthropic/claude-new", "set ANTHROPIC_API_KEY"),
    ],
)  # fmt: skip
def test_missing_key_names_the_variable(variables: str, model: str, problem: str) -> None:
    environment = Environment(dict.fromkeys(variables.split(), "sk-canary"))
    client = AsyncClient.of_environment(environment)
    with pytest.raises(MissingSecret) as raised:
        client.session(model=model)
    assert problem in str(raised.value)
    assert "sk-canary" not in str(raised.value)


@each_row(
    "variables, model, provider, name",
    [
        ("OPENROUTER_API_KEY", "anthropic/claude-new", "openrouter", "anthropic/claude-new"),
        ("OPENAI_API_KEY OPENROUTER_API_KEY", "google/gemini-9", "openrouter", "google/gemini-9"),
        ("GROQ_API_KEY", "llama-new", "groq", "llama-new"),
        ("GROQ_API_KEY", "ollama/llama3", "ollama", "llama3"),
        ("OPENAI_API_KEY GROQ_API_KEY", "openai/gpt-oss-120b", "groq", "openai/gpt-oss-120b"),
        ("", "ollama/llama3", "ollama", "llama3"),
        # A proxy may have any model.
        ("OPENAI_API_KEY OPENAI_BASE_URL", "claude-sonnet-5-5", "openai", "claude-sonnet-5-5"),
        ("OPENAI_API_KEY OPENAI_BASE_URL", "anthropic/claude-5", "openai", "anthropic/claude-5"),
        ("OPENAI_API_KEY OPENAI_BASE_URL", "openai/gpt-5.2", "openai", "gpt-5.2"),
    ],
)
def test_provider_by_model_from_the_environment(
    variables: str, model: str, provider: str, name: str
) -> None:
    client = AsyncClient.of_environment(Environment(dict.fromkeys(variables.split(), PROXY)))
    assert requested(client, model=model) == (provider, name)


# ── Constructors ─────────────────────────────────────────────────────────────────────────────────


@each_row("kind", [AsyncClient, Client])
@each_row("given, named", [((), "()"), (("claude-opus-5",), "('claude-opus-5')"), ((7,), "(int)")])
def test_constructor_without_a_configuration(kind: Any, given: tuple[Any, ...], named: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        kind(*given)
    name = kind.__name__
    for text in (
        f"{name}{named} has no providers",
        f"{name}.from_env()",
        f"{name}.from_config('llm.yaml')",
        "anaphora.complete(",
    ):
        assert text in str(raised.value)


def test_a_misspelled_provider_of_the_environment_is_named() -> None:
    with (
        Client.from_env({"OPENAI_API_KEY": "sk-none"}) as client,
        pytest.raises(InvalidRequest, match="no provider 'antropic'; did you mean anthropic"),
    ):
        client.session(provider="antropic", model="claude-sonnet-5-5")
