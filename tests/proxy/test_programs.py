"""Which environment and command redirect a program, and where its calls go then."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.tables import each_row

from anaphora.errors import InvalidRequest
from anaphora.proxy import command_line
from anaphora.proxy.placeholders import PLACEHOLDER_KEY, with_placeholder_keys
from anaphora.proxy.programs import environment, exports, notices, owns_terminal, upstreams_from
from anaphora.proxy.routes import RouteTable, default_routes
from anaphora.proxy.server import Proxy
from anaphora.serving.server import ServerAddress

URL = "http://127.0.0.1:4711"
CODEX = f'openai_base_url="{URL}/openai/v1"'


def proxy_for(environ: dict[str, str], command: str = "") -> Proxy:
    routes = default_routes(upstreams_from(environ, command.split()))
    return Proxy(ServerAddress("127.0.0.1", 4711), RouteTable(routes))


def redirected(environ: dict[str, str], command: str = "") -> tuple[dict[str, str], str]:
    """Without the secrets in addresses of AWS."""
    proxy = proxy_for(environ, command)
    changed, words = environment(proxy, environ, command.split())
    for route in proxy.routes:
        if route.secret is not None:
            own = f"/{route.secret.reveal()}"
            assert own not in " ".join(words)
            changed = {name: value.replace(own, "") for name, value in changed.items()}
    return changed, " ".join(words)


def destination(environ: dict[str, str], variable: str, command: str = "") -> str:
    """The address that a program with this variable reaches in the end."""
    value = redirected(environ, command)[0][variable]
    found = RouteTable(default_routes(upstreams_from(environ, command.split()))).find(
        value.removeprefix(URL), {}
    )
    assert found is not None
    route, path = found
    return f"{route.upstream}{path}"


@each_row(
    "variable, value",
    [
        ("ANTHROPIC_BASE_URL", "/anthropic"),
        ("ANTHROPIC_API_URL", "/anthropic"),
        ("ANTHROPIC_API_BASE", "/anthropic"),
        ("OPENAI_BASE_URL", "/openai/v1"),
        ("OPENAI_API_BASE", "/openai/v1"),
        ("GOOGLE_GEMINI_BASE_URL", "/google"),
        ("GOOGLE_BASE_URL", "/google"),
        ("GEMINI_API_BASE", "/google/v1beta"),
        ("DEEPSEEK_API_BASE", "/deepseek"),
        ("OLLAMA_HOST", "/ollama/v1"),
        ("OLLAMA_API_BASE", "/ollama/v1"),
        ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "/bedrock"),
        ("ANTHROPIC_BEDROCK_BASE_URL", "/bedrock"),
        ("ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "/bedrock-mantle/anthropic"),
        ("AWS_BEDROCK_BASE_URL", "/bedrock-mantle/openai/v1"),
        ("ANTHROPIC_AWS_BASE_URL", "/anthropic-aws"),
        ("ANTHROPIC_VERTEX_BASE_URL", "/aiplatform.googleapis.com/v1"),
    ],
)
def test_variables_without_a_setting_of_the_user(variable: str, value: str) -> None:
    assert redirected({})[0][variable] == f"{URL}{value}"
    assert upstreams_from({}) == {}


def test_variables_that_only_the_user_can_set_stay_unset() -> None:
    changed = redirected({})[0]
    for name in (
        "INSPECT_EVAL_MODEL_BASE_URL",
        "AZURE_OPENAI_ENDPOINT",
        "ANTHROPIC_FOUNDRY_BASE_URL",
        "ANTHROPIC_GOOGLE_CLOUD_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "AWS_ENDPOINT_URL",
    ):
        assert name not in changed


def test_variables_of_clouds_that_need_another_one() -> None:
    changed = redirected({"GOOGLE_CLOUD_PROJECT": "p"})[0]
    assert changed["GOOGLE_VERTEX_BASE_URL"] == f"{URL}/aiplatform.googleapis.com"
    environ = {"ANTHROPIC_FOUNDRY_RESOURCE": "mine"}
    changed = redirected(environ)[0]
    assert changed["ANTHROPIC_FOUNDRY_BASE_URL"] == f"{URL}/foundry/anthropic"
    assert "ANTHROPIC_FOUNDRY_RESOURCE" not in changed  # the SDK takes one of the two
    assert upstreams_from(environ) == {"foundry": "https://mine.services.ai.azure.com"}


def test_endpoint_of_all_aws_services_is_read_and_not_changed() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://localstack:4566"}
    changed = redirected(environ)[0]
    assert changed["AWS_ENDPOINT_URL"] == "http://localstack:4566"
    assert changed["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] == f"{URL}/bedrock"
    assert "ANTHROPIC_BEDROCK_BASE_URL" not in changed
    assert upstreams_from(environ) == {"bedrock": "http://localstack:4566"}


@each_row(
    "environ, keys",
    [
        ({}, {"AWS_ACCESS_KEY_ID": "AKIAANAPHORA00000000"}),
        ({"AWS_ACCESS_KEY_ID": "mine"}, {"AWS_ACCESS_KEY_ID": "mine"}),
        ({"AWS_PROFILE": "work"}, {"AWS_PROFILE": "work"}),
    ],
)
def test_bearer_token_stays_with_the_proxy(environ: dict[str, str], keys: dict[str, str]) -> None:
    """The program signs with its own keys, or with placeholders if it has none."""
    home = {"HOME": "/nowhere", "AWS_BEARER_TOKEN_BEDROCK": "ABSK-canary"}
    changed = redirected({**home, **environ})[0]
    assert "canary" not in str(changed)
    found = {name: value for name, value in changed.items() if name.endswith(("_ID", "_PROFILE"))}
    assert found == keys


@each_row(
    "variable, value, provider",
    [
        ("ANTHROPIC_BASE_URL", "https://gateway.example", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://gateway.example/", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://gateway.example/v1", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://gateway.example/llm/anthropic", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://api.anthropic.com", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://api.anthropic.com/v1", "anthropic"),
        ("ANTHROPIC_BASE_URL", "https://api.deepseek.com/anthropic", "deepseek"),
        ("OPENAI_BASE_URL", "https://gateway.example/v1", "openai"),
        ("OPENAI_BASE_URL", "https://gateway.example/v1/", "openai"),
        ("OPENAI_BASE_URL", "https://gateway.example/openai", "openai"),
        ("OPENAI_BASE_URL", "http://127.0.0.1:8787/v1", "openai"),
        ("OPENAI_BASE_URL", "https://openrouter.ai/api/v1", "openrouter"),
        ("OPENAI_BASE_URL", "https://api.groq.com/openai/v1", "groq"),
        ("OPENAI_BASE_URL", "https://me.openai.azure.com/openai/v1", "azure"),
        ("OPENAI_API_BASE", "http://localhost:11434/v1", "ollama"),
        ("GOOGLE_GEMINI_BASE_URL", "https://gateway.example/google", "google"),
        ("GEMINI_API_BASE", "https://gateway.example/v1beta", "google"),
        ("OLLAMA_HOST", "http://gpu:11434", "ollama"),
        ("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com/", "azure"),
        ("INSPECT_EVAL_MODEL_BASE_URL", "https://api.x.ai/v1", "xai"),
        ("AZURE_OPENAI_ENDPOINT", "https://gateway.example/azure", "azure"),
        ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://vpce-1.example", "bedrock"),
        ("ANTHROPIC_BEDROCK_BASE_URL", "https://gateway.example/bedrock", "bedrock"),
        ("ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "https://gw.example/anthropic", "bedrock-mantle"),
        ("OPENAI_BASE_URL", "https://bedrock-mantle.us-east-1.api.aws/v1", "bedrock-mantle"),
        ("ANTHROPIC_VERTEX_BASE_URL", "https://gw.example/v1", "aiplatform.googleapis.com"),
        (
            "GOOGLE_VERTEX_BASE_URL",
            "https://europe-west4-aiplatform.googleapis.com",
            "aiplatform.googleapis.com",
        ),
        ("ANTHROPIC_FOUNDRY_BASE_URL", "https://me.services.ai.azure.com/anthropic", "foundry"),
    ],
)
def test_addresses_of_the_user_stay_the_destination(
    variable: str, value: str, provider: str
) -> None:
    """The path that the program appends reaches the address that it reached before, and the route
    has the provider by whose rules calls are judged."""
    environ = {variable: value}
    assert destination(environ, variable) == value.rstrip("/")
    assert redirected(environ)[0][variable].startswith(f"{URL}/{provider}")


@each_row(
    "value, upstream",
    [
        ("gpu:8000", "http://gpu:8000"),
        ("gpu", "http://gpu:11434"),
        ("https://ollama.example", "https://ollama.example"),
        ("https://ollama.example/me/v1/", "https://ollama.example/me/v1"),
        ("0.0.0.0", "http://localhost:11434"),
        (":11434", "http://localhost:11434"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(value: str, upstream: str) -> None:
    assert destination({"OLLAMA_HOST": value}, "OLLAMA_HOST") == upstream


def test_other_variables_of_the_provider_are_left_alone() -> None:
    """Unset, they mean another address than the gateway, or the program reads the one that is set."""
    changed = redirected({"ANTHROPIC_BASE_URL": "https://gateway.example"})[0]
    assert "ANTHROPIC_API_BASE" not in changed
    assert changed["OPENAI_BASE_URL"] == f"{URL}/openai/v1"


def test_two_addresses_for_one_provider_are_refused() -> None:
    both = {"OPENAI_BASE_URL": "https://a.example/v1", "OPENAI_API_BASE": "https://b.example/v1"}
    with pytest.raises(InvalidRequest, match="OPENAI_BASE_URL and OPENAI_API_BASE"):
        upstreams_from(both)
    same = {"OPENAI_BASE_URL": "https://a.example/v1", "OPENAI_API_BASE": "https://a.example"}
    assert upstreams_from(same) == {"openai": "https://a.example"}


@pytest.mark.parametrize("value", ["gateway", "ftp://gateway", "https://", "http://[::1"])
def test_values_that_are_no_address_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="OPENAI_BASE_URL: is not a base URL"):
        upstreams_from({"OPENAI_BASE_URL": value})


def test_secrets_in_addresses_are_not_shown() -> None:
    environ = {"OPENAI_BASE_URL": "https://user:canary-1234@gateway.example/v1"}
    with pytest.raises(InvalidRequest) as caught:
        default_routes(upstreams_from(environ))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
def test_loops_are_refused(host: str) -> None:
    environ = {"ANTHROPIC_BASE_URL": f"http://{host}:4711/anthropic"}
    with pytest.raises(InvalidRequest, match="is this proxy itself"):
        redirected(environ)
    # Another proxy on this machine is a gateway like any other.
    other = {"ANTHROPIC_BASE_URL": f"http://{host}:4712/anthropic"}
    assert upstreams_from(other) == {"anthropic": other["ANTHROPIC_BASE_URL"]}


# ── Programs ─────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "given, expected",
    [
        ("codex exec hi", f"codex -c {CODEX} exec hi"),
        ("/opt/bin/codex exec hi", f"/opt/bin/codex -c {CODEX} exec hi"),
        ("npx @openai/codex exec", f"npx @openai/codex -c {CODEX} exec"),
        ("npx -y @openai/codex@0.166.0 exec", f"npx -y @openai/codex@0.166.0 -c {CODEX} exec"),
        ("npx -y -p @openai/codex codex", f"npx -y -p @openai/codex codex -c {CODEX}"),
        ("npm exec @openai/codex -- exec", f"npm exec @openai/codex -- -c {CODEX} exec"),
        ("npm exec codex", f"npm exec codex -- -c {CODEX}"),
        ("pnpm dlx @openai/codex e", f"pnpm dlx @openai/codex -c {CODEX} e"),
        ("bunx codex e", f"bunx codex -c {CODEX} e"),
        ("env A=b -u C codex e", f"env A=b -u C codex -c {CODEX} e"),
        ("uv run --with x codex e", f"uv run --with x codex -c {CODEX} e"),
        ("timeout -k 5 60 nice -n 5 codex e", f"timeout -k 5 60 nice -n 5 codex -c {CODEX} e"),
        ("node /x/codex.js e", f"node /x/codex.js -c {CODEX} e"),
        ("codex -c model=x e", f"codex -c {CODEX} -c model=x e"),
        ("echo codex", "echo codex"),
        ("npm run codex", "npm run codex"),
        ("python agent.py codex", "python agent.py codex"),
    ],
)
def test_codex_gets_an_argument(given: str, expected: str) -> None:
    assert redirected({}, given)[1] == expected


@each_row(
    "setting",
    [
        "-c openai_base_url=https://gw.example/v1",
        '-c openai_base_url="https://gw.example/v1"',
        "-copenai_base_url=https://gw.example/v1",
        "--config openai_base_url=https://gw.example/v1",
        "--config=openai_base_url=https://gw.example/v1",
    ],
)
def test_codex_keeps_its_gateway(setting: str) -> None:
    command = f"codex exec {setting} -c model=x hi"
    assert upstreams_from({}, command.split()) == {"openai": "https://gw.example"}
    assert redirected({}, command)[1] == f"codex -c {CODEX} exec -c model=x hi"


def test_codex_does_not_read_the_variable_of_openai() -> None:
    """So its calls do not go where that leads, and programs that read it are not redirected."""
    environ = {"OPENAI_BASE_URL": "https://gw.example/v1"}
    assert upstreams_from(environ, ["codex"]) == {}
    assert redirected(environ, "codex")[0]["OPENAI_BASE_URL"] == "https://gw.example/v1"


@pytest.mark.parametrize(
    "login, environ, upstream",
    [
        ({"tokens": {"access_token": "canary"}}, {}, "https://chatgpt.com/backend-api/codex"),
        ({"tokens": {"access_token": "canary"}}, {"CODEX_API_KEY": "k"}, ""),
        ({"tokens": None, "OPENAI_API_KEY": "canary"}, {}, ""),
        ({"tokens": {"access_token": "canary"}, "OPENAI_API_KEY": "canary"}, {}, ""),
        ([], {}, ""),
    ],
)
def test_codex_signed_in_with_chatgpt(
    tmp_path: Path, login: object, environ: dict[str, str], upstream: str
) -> None:
    """Its tokens are for another address, at which paths begin with /responses."""
    (tmp_path / "auth.json").write_text(json.dumps(login))
    environ = {"CODEX_HOME": str(tmp_path), **environ}
    assert upstreams_from(environ, ["codex"]).get("openai", "") == upstream
    words = redirected(environ, "codex exec")[1]
    assert words == f'codex -c openai_base_url="{URL}/openai{"" if upstream else "/v1"}" exec'
    # Programs that Codex starts do not have its tokens.
    assert ("OPENAI_BASE_URL" in redirected(environ, "codex exec")[0]) is not bool(upstream)
    gateway = ["codex", "-c", "openai_base_url=https://gw.example/v1"]
    assert upstreams_from(environ, gateway) == {"openai": "https://gw.example"}


def test_login_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text("no JSON")
    assert upstreams_from({"CODEX_HOME": str(tmp_path)}, ["codex"]) == {}


def test_assignments_of_env_are_redirected() -> None:
    command = "env ANTHROPIC_BASE_URL=https://gw.example X=1 claude -p hi"
    assert upstreams_from({}, command.split()) == {"anthropic": "https://gw.example"}
    assert redirected({}, command)[1] == f"env ANTHROPIC_BASE_URL={URL}/anthropic X=1 claude -p hi"


def test_server_keeps_its_own_address() -> None:
    assert "OLLAMA_HOST" not in redirected({}, "ollama serve")[0]
    assert redirected({"OLLAMA_HOST": "0.0.0.0"}, "ollama serve")[0]["OLLAMA_HOST"] == "0.0.0.0"
    assert "OLLAMA_HOST" in redirected({}, "ollama run qwen3")[0]


@each_row(
    "given, expected",
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "intranet"}, "intranet,127.0.0.1,localhost"),
        ({"no_proxy": "intranet, 127.0.0.1"}, "intranet, 127.0.0.1,localhost"),
        ({"NO_PROXY": "localhost,127.0.0.1"}, "localhost,127.0.0.1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_this_machine_is_not_reached_through_a_proxy(given: dict[str, str], expected: str) -> None:
    changed = redirected(given)[0]
    assert (changed["NO_PROXY"], changed["no_proxy"]) == (expected, expected)


def test_the_rest_of_the_environment_stays() -> None:
    environ = {"PATH": "/bin", "ANTHROPIC_API_KEY": "k"}
    assert redirected(environ)[0].items() >= environ.items()
    assert "PATH" not in exports(proxy_for(environ), environ)
    assert exports(proxy_for(environ), environ)["OPENAI_BASE_URL"] == f"{URL}/openai/v1"


@each_row(
    "environ, command, text",
    [
        ({}, "llm -m gemini-2.5-pro hi", "llm-gemini has Google's address in its code"),
        ({}, "uv run llm --model=gemini/x hi", "llm-gemini has Google's address in its code"),
        ({}, "llm -m gpt-4o gemini", ""),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, "claude", ""),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "true"}, "python a.py", "GOOGLE_GENAI_USE_VERTEXAI is set"),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p"}, "python a.py", ""),
        ({"AWS_BEARER_TOKEN_BEDROCK": "canary"}, "python a.py", "is kept from the command"),
        ({"INSPECT_EVAL_MODEL_BASE_URL": "https://gw.example"}, "x", "INSPECT_EVAL_MODEL_BASE_URL"),
        ({}, "sudo -u me claude", "sudo: it resets the environment"),
        ({}, "claude", ""),
    ],
)
def test_what_cannot_be_redirected_is_said(
    environ: dict[str, str], command: str, text: str
) -> None:
    found = notices(environ, command.split())
    assert len(found) == bool(text)
    assert text in "".join(found)


def test_codex_in_a_script_of_the_shell_is_said() -> None:
    (text,) = notices({}, ["sh", "-c", "cd x && codex exec hi"])
    assert re.match("Codex in a shell script is not redirected", text)


@each_row(
    "command, owns",
    [
        ("claude", True),
        ("claude --continue", True),
        ("claude -p hi", False),
        ("npx @anthropic-ai/claude-code", True),
        ("codex", True),
        ("codex exec hi", False),
        ("gemini", True),
        ("gemini --prompt=hi", False),
        ("uvx --from aider-chat aider", True),
        ("python -m aider --message hi", False),
        ("qwen", True),
        ("npx @qwen-code/qwen-code -p hi", False),
        ("pi", True),
        ("pi -p hi", False),
        ("python agent.py", False),
        ("llm hi", False),
        ("", False),
    ],
)
def test_programs_that_own_the_terminal(command: str, owns: bool) -> None:
    assert owns_terminal(command.split()) is owns


def test_placeholders_for_keys(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "GOOGLE_API_KEY": "mine"}
    made = with_placeholder_keys(environ, ["python", "agent.py"])
    assert made["ANTHROPIC_API_KEY"] == made["OPENAI_API_KEY"] == PLACEHOLDER_KEY
    assert made["GOOGLE_API_KEY"] == "mine"
    assert "GEMINI_API_KEY" not in made
    assert with_placeholder_keys(environ, ["codex"])["CODEX_API_KEY"] == PLACEHOLDER_KEY
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    signed_in = with_placeholder_keys(environ, ["codex"])
    assert signed_in.items() >= environ.items()
    assert PLACEHOLDER_KEY not in signed_in.values()


def test_placeholders_for_the_keys_of_clouds(tmp_path: Path) -> None:
    """A region is added only if neither the environment nor the profile has one."""
    azure = {"AZURE_OPENAI_ENDPOINT": "http://proxy/azure", "AWS_PROFILE": "work"}
    made = with_placeholder_keys({"HOME": str(tmp_path), **azure}, ["python", "agent.py"])
    assert made["AZURE_OPENAI_API_KEY"] == PLACEHOLDER_KEY
    assert "ANTHROPIC_FOUNDRY_API_KEY" not in made
    assert made["AWS_ACCESS_KEY_ID"] == "AKIAANAPHORA00000000"
    assert made["AWS_REGION"] == made["AWS_DEFAULT_REGION"] == "us-east-1"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[profile work]\nregion = eu-west-1\n")
    assert "AWS_REGION" not in with_placeholder_keys({"HOME": str(tmp_path), **azure}, ["x"])
    own = {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"}
    assert with_placeholder_keys(own, ["x"])["AWS_ACCESS_KEY_ID"] == "mine"


def test_every_program_of_the_table_is_found_by_its_names() -> None:
    for program in command_line.TABLES.programs:
        for name in program.names:
            assert command_line.parse([name]).program == program


def test_every_variable_is_in_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
    assert [one.name for one in command_line.TABLES.variables if f"`{one.name}`" not in page] == []
