"""The process that serves a tiny model with llama.cpp's own server. `support.llama` starts it.

    cd tests && python -m support.llama_child MODEL.gguf

Writes the model, prints the address it listens at, and ends when its standard input does: so it
never outlives whoever started it. The log goes to standard error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped]
from support.tiny_model import CONTEXT, write


def main(model: str) -> None:
    write(Path(model))
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT
    # One slot and nothing kept beside it: what was cached is the last conversation's prompt.
    params.n_parallel = 1
    params.cache_ram_mib = 0
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
    main(sys.argv[1])
