"""The process that serves the tiny model with llama.cpp's own server. `engine_server` starts it.

    python -m anaphora.cli._demo.engine_child MODEL.gguf

Writes the model, prints the address it listens at, and ends when its standard input does: so it
never outlives whoever started it. The log goes to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped]

from .engine_model import CONTEXT, write


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--aside", type=int, default=0, help="MiB for prompts without a slot")
    parser.add_argument("--template", type=Path)
    given = parser.parse_args()
    write(Path(given.model), given.template and given.template.read_text(encoding="utf-8"))
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = given.slots
    # The context is divided among the slots.
    params.n_ctx = CONTEXT * given.slots
    params.cache_ram_mib = given.aside
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    params.warmup = False
    params.sampling.temp = 0.0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Tearing the engine down takes longer than the operating system does.
    os._exit(0)


if __name__ == "__main__":
    main()
