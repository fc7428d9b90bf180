"""Gateways that are measured beside the daemon, in their own environments below the user's cache
folder.

    with portkey(upstream_port) as server, ...
    install()       what is missing

`missing` says why one cannot be measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from _lent import KEY, MODEL
from _served import Child, free_port, started

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "anaphora-bench"
_PORTKEY = CACHE / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build/start-server.js"
_LITELLM = CACHE / "litellm" / "bin" / "litellm"
_LITELLM_KEY = "sk-litellm"
#: Seconds that LiteLLM may take to start.
_PATIENCE = 180.0


@contextlib.contextmanager
def portkey(upstream_port: int) -> Iterator[Child]:  # noqa: ARG001 - a header names it
    port = free_port()
    command = ["node", str(_PORTKEY), f"--port={port}", "--headless"]
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
    """One worker, as everything here has one process; without a database."""
    port = free_port()
    params = {
        "model": f"openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{upstream_port}/v1",
        "api_key": KEY,
    }
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": params}],
        "general_settings": {"master_key": _LITELLM_KEY},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(config))
        # Under load it takes longer than the usual five seconds to read from a connection.
        options = f"--port {port} --num_workers 1 --keepalive_timeout {_PATIENCE:.0f}".split()
        command = [str(_LITELLM), "--config", str(file), *options]
        environ = os.environ | {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        environ.pop("PYTHONPATH", None)
        with started(
            command,
            port,
            seconds=_PATIENCE,
            env=environ,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            yield server


def litellm_headers(upstream_port: int) -> dict[str, str]:  # noqa: ARG001 - its file names it
    return {"authorization": f"Bearer {_LITELLM_KEY}"}


class Gateway(NamedTuple):
    start: Callable[[int], contextlib.AbstractContextManager[Child]]
    headers: Callable[[int], dict[str, str]]
    file: Path


GATEWAYS = {
    "portkey": Gateway(portkey, portkey_headers, _PORTKEY),
    "litellm": Gateway(litellm, litellm_headers, _LITELLM),
}


def missing(name: str) -> str:
    """Why a gateway cannot be measured; empty where it can."""
    if name == "portkey" and shutil.which("node") is None:
        return "node is not installed"
    if not GATEWAYS[name].file.exists():
        return f"not installed in {CACHE}; run with --install"
    return ""


def install() -> None:
    """Installs what is missing; what cannot be installed stays missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if missing("portkey") and shutil.which("npm") is not None:
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(CACHE / "portkey")]
        subprocess.run([*words, "@portkey-ai/gateway"], check=False)
    if missing("litellm"):
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / "litellm")], check=False)
        pip = str(CACHE / "litellm" / "bin" / "pip")
        subprocess.run([pip, "install", "-q", "litellm[proxy]"], check=False)
