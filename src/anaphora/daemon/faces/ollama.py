"""Ollama, whose streams are lines of JSON."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from anaphora.canonical import dumps
from anaphora.daemon.values import GrantedModel
from anaphora.values import Thinking

from .face import MODELS_CREATED, Face, Operations
from .framing import LastObject, StreamFrame


class OllamaFace(Face):
    wire = "ollama"
    models_at_root = False
    operations: ClassVar[Operations] = {
        ("POST", "/api/chat"): "generate",
        ("GET", "/api/tags"): "models",
        ("POST", "/api/show"): "show",
        ("GET", "/api/version"): "version",
    }
    own_paths = re.compile("/api/")
    keeps_objects = False
    stream_default = True
    stream_type = "application/x-ndjson"
    event_ends = (b"\n",)
    reasoning = Thinking(provider="ollama")
    ends_texts_late = True
    limit_place = ("options", "num_predict")

    def full_path(self, path: str) -> str | None:
        return path if path.startswith("/api/") else None

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        return LastObject((b"\n",), b'"done":true', b'"done": true')

    def model_row(self, one: GrantedModel) -> dict[str, Any]:
        details = {"format": "", "family": "", "parameter_size": "", "quantization_level": ""}
        row = {"name": one.model, "model": one.model, "modified_at": MODELS_CREATED, "size": 0}
        return row | {"digest": "", "details": details}

    def models_body(self, rows: list[dict[str, Any]]) -> bytes:
        return dumps({"models": rows})

    def model_body(self, one: GrantedModel) -> bytes:
        info = {} if one.context is None else {"general.context_length": one.context}
        shown = {"details": {}, "model_info": info, "capabilities": ["completion", "tools"]}
        return dumps(shown)
