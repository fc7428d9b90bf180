"""A daemon in a thread, with apps that call the emulator, or another server, through it.

with daemon_at(emulator.url, folder) as served:
    openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.token("app"))
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from anaphora.daemon import home as homes
from anaphora.daemon.server import Daemon, ServeOptions, running

KEY = "sk-canary-provider-4711"

#: By the id of the provider in llm.yaml: its wire, and a model of it.
PROVIDERS = {
    "anthropic": ("anthropic", "claude-sonnet-4-5"),
    "chat": ("openai_chat", "gpt-5.2"),
    "responses": ("openai_responses", "gpt-5.6"),
    "google": ("gemini", "gemini-2.5-flash"),
    "local": ("ollama", "qwen3:0.6b"),
}
ALL = """
  capabilities_grant: [llm_complete, llm_stream]
  llm:
    providers: [anthropic, chat, responses, google, local]
    models: ["*"]
    tools: ["*"]
    max_tokens: 512
    usd_per_day: unlimited
    allow: [stored_responses, background, server_tools, {betas: [files-api-2025-04-14]}]
"""


class ServedDaemon(msgspec.Struct, frozen=True):
    url: str
    tokens: Mapping[str, str]
    daemon: Daemon

    def token(self, app: str = "app") -> str:
        return self.tokens[app]


@contextlib.contextmanager
def daemon_at(
    upstream: str,
    folder: Path,
    apps: Mapping[str, str] | None = None,
    *,
    extra: str = "",
) -> Iterator[ServedDaemon]:
    """A daemon whose providers are all at `upstream`. `apps` are sections of extensions.yaml;
    `extra` is added to llm.yaml."""
    apps = apps or {"app": ALL, "other": ALL}
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    lines = ["providers:"]
    for id, (wire, model) in PROVIDERS.items():
        lines.append(f"  {id}:\n    wire: {wire}\n    base_url: {upstream}")
        lines.append(f"    model: {model}\n    retry: {{max_attempts: 1}}")
        if wire != "ollama":
            lines.append("    key: {secret: PROVIDER_KEY}")
    lines.append("daemon: {port: 0, audit: false}")
    (folder / "llm.yaml").write_text("\n".join(lines) + "\n" + extra)
    (folder / "extensions.yaml").write_text("".join(f"{app}:{text}" for app, text in apps.items()))
    homes.init(folder)
    secret = folder / "secrets" / "PROVIDER_KEY.txt"
    secret.write_text(KEY)
    secret.chmod(0o600)
    with running(ServeOptions(home=folder)) as daemon:
        tokens = {}
        for app in apps:
            made = daemon.services.directory.create_token(app)
            new = asyncio.run_coroutine_threadsafe(made, daemon._loop).result(10)
            tokens[app] = new.token.reveal()
        yield ServedDaemon(daemon.url, tokens, daemon)
