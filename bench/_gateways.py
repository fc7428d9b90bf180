"""Gateways that are measured beside the daemon, in the environments of soak/strangers.

    with GATEWAYS["portkey"].start(upstream_port) as server, ...
    install()       what is missing

`missing` says why one cannot be measured. What each does with a request is in `DOES`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from _lent import CLAUDE, KEY, MESSAGES_PATH, MODEL, PATH
from _served import Child, free_port, started

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))

from strangers import environment
from strangers.environment import Unavailable

_LITELLM_KEY = "sk-litellm"
#: Seconds that LiteLLM may take to start, and that Bifrost may take to download its binary.
_PATIENCE, _DOWNLOAD = 180.0, 60.0
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextlib.contextmanager
def portkey(upstream_port: int) -> Iterator[Child]:  # noqa: ARG001 - a header names it
    port = free_port()
    program = str(environment.programs("npm-gateways", install=False) / "gateway")
    command = ["node", program, f"--port={port}", "--headless"]
    environ = os.environ | {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production"}
    with started(command, port, env=environ, stdout=subprocess.DEVNULL) as server:
        yield server


def portkey_headers(upstream_port: int) -> dict[str, str]:
    return {
        "authorization": f"Bearer {KEY}",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
    }


@contextlib.contextmanager
def litellm(upstream_port: int) -> Iterator[Child]:
    """One worker, as everything here has one process; without a database. Claude's requests take
    the path through its Rust core."""
    port = free_port()
    host = f"http://127.0.0.1:{upstream_port}"
    openai = {"model": f"openai/{MODEL}", "api_base": f"{host}/v1", "api_key": KEY}
    claude = {"model": f"anthropic/{CLAUDE}", "api_base": host, "api_key": KEY, "rust": True}
    config = {
        "model_list": [
            {"model_name": MODEL, "litellm_params": openai},
            {"model_name": CLAUDE, "litellm_params": claude},
        ],
        "general_settings": {"master_key": _LITELLM_KEY},
    }
    program = environment.programs("gateways", install=False) / "litellm"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(config))
        # Under load it takes longer than the usual five seconds to read from a connection.
        options = f"--port {port} --num_workers 1 --keepalive_timeout {_PATIENCE:.0f}".split()
        command = [str(program), "--config", str(file), *options]
        environ = os.environ | {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        environ.pop("PYTHONPATH", None)
        with started(command, port, seconds=_PATIENCE, env=environ, cwd=folder, **_QUIET) as server:
            yield server


def litellm_headers(upstream_port: int) -> dict[str, str]:  # noqa: ARG001 - its file names it
    return {"authorization": f"Bearer {_LITELLM_KEY}", "anthropic-version": "2023-06-01"}


@contextlib.contextmanager
def sglang(upstream_port: int) -> Iterator[Child]:
    """In front of an API of OpenAI's form."""
    port = free_port()
    program = environment.programs("sglang-gateway", install=False) / "smg"
    where = ["--worker-urls", f"http://127.0.0.1:{upstream_port}", "--port", str(port)]
    own = ["--prometheus-port", str(free_port()), "--log-level", "error"]
    command = [str(program), "launch", "--backend", "openai", *where, *own]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with started(command, port, env=environ, **_QUIET) as server:
        yield server


@contextlib.contextmanager
def bifrost(upstream_port: int) -> Iterator[Child]:
    """Its npm package downloads the binary from a host of its own."""
    port = free_port()
    program = str(environment.programs("npm-gateways", install=False) / "bifrost")
    try:
        subprocess.run(
            ["node", program, "-version"], check=True, capture_output=True, timeout=_DOWNLOAD
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        reason = "its npm package downloads the binary from a host that does not answer here"
        raise Unavailable(reason) from None
    provider = {
        "keys": [{"name": "bench", "value": KEY, "models": ["*"], "weight": 1.0}],
        "network_config": {"base_url": f"http://127.0.0.1:{upstream_port}"},
    }
    config = {"providers": {"openai": provider}, "config_store": {"enabled": False}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        options = f"-app-dir {folder} -port {port} -log-level error".split()
        with started(["node", program, *options], port, **_QUIET) as server:
            below = server.pids[1:]
            yield server
            # The package's script does not pass signals on.
            for pid in below:
                os.kill(pid, signal.SIGTERM)


def key_headers(upstream_port: int) -> dict[str, str]:  # noqa: ARG001 - its options name it
    return {"authorization": f"Bearer {KEY}"}


class Gateway(NamedTuple):
    """A gateway, and how it is asked: the environment and the package that it comes from."""

    start: Callable[[int], contextlib.AbstractContextManager[Child]]
    headers: Callable[[int], dict[str, str]]
    family: str
    package: str
    path: str = PATH
    model: str = MODEL


GATEWAYS = {
    "portkey": Gateway(portkey, portkey_headers, "npm-gateways", "@portkey-ai/gateway"),
    "litellm": Gateway(litellm, litellm_headers, "gateways", "litellm"),
    "litellm_rust": Gateway(litellm, litellm_headers, "gateways", "litellm", MESSAGES_PATH, CLAUDE),
    "sglang": Gateway(sglang, key_headers, "sglang-gateway", "sglang-router"),
    "bifrost": Gateway(
        bifrost, key_headers, "npm-gateways", "@maximhq/bifrost", model=f"openai/{MODEL}"
    ),
}


def missing(name: str) -> str:
    """Why a gateway cannot be measured; empty if it can."""
    family = GATEWAYS[name].family
    if family.startswith("npm") and shutil.which("node") is None:
        return "node is not installed"
    try:
        environment.programs(family, install=False)
    except Unavailable as problem:
        return str(problem)
    return ""


def version(name: str) -> str:
    return environment.version(GATEWAYS[name].family, GATEWAYS[name].package)


def install() -> None:
    """Installs what is missing; what cannot be installed stays missing."""
    for family in sorted({gateway.family for gateway in GATEWAYS.values()}):
        try:
            environment.programs(family)
        except Unavailable as problem:
            print(f"{family}: {problem}", file=sys.stderr)
