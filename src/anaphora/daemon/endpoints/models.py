"""Lists of models in the format of each wire: only what the app is granted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anaphora.canonical import dumps
from anaphora.daemon.access.granted_models import name_nearest
from anaphora.daemon.values import GrantedModel
from anaphora.errors import NotFound

#: Creation date of every model: the catalog has none, and clients expect one.
_CREATED = "2026-01-01T00:00:00Z"
_CREATED_SECONDS = 1_767_225_600
_GEMINI_METHODS = ["generateContent", "streamGenerateContent", "countTokens"]


def write_models(wire: str, models: Iterable[GrantedModel]) -> bytes:
    """The list of models; each once, also where several providers have it."""
    listed = {one.model: one for one in reversed(tuple(models))}
    rows = [_row(wire, one) for one in reversed(tuple(listed.values()))]
    if wire == "gemini":
        return dumps({"models": rows})
    if wire == "ollama":
        return dumps({"models": rows})
    if wire == "anthropic":
        first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
        return dumps({"data": rows, "has_more": False, "first_id": first, "last_id": last})
    return dumps({"object": "list", "data": rows})


def write_model(wire: str, models: Sequence[GrantedModel], name: str) -> bytes:
    """One model. Raises `NotFound` for one that is not granted."""
    name = name.removeprefix("models/")
    for one in models:
        if one.model == name:
            if wire == "ollama":
                return dumps(_shown(one))
            return dumps(_row(wire, one))
    reason = f"no model {name[:100]!r}{name_nearest(name, models)}"
    raise NotFound(reason, status=404, code="model_not_found", param="model")


def _row(wire: str, one: GrantedModel) -> dict[str, Any]:
    if wire == "anthropic":
        row: dict[str, Any] = {"type": "model", "id": one.model, "display_name": one.model}
        row["created_at"] = _CREATED
        return row | _limits(one, "max_input_tokens", "max_tokens")
    if wire == "gemini":
        row = {"name": f"models/{one.model}", "displayName": one.model, "version": "1"}
        row["supportedGenerationMethods"] = _GEMINI_METHODS
        return row | _limits(one, "inputTokenLimit", "outputTokenLimit")
    if wire == "ollama":
        details = {"format": "", "family": "", "parameter_size": "", "quantization_level": ""}
        row = {"name": one.model, "model": one.model, "modified_at": _CREATED, "size": 0}
        return row | {"digest": "", "details": details}
    return {
        "id": one.model,
        "object": "model",
        "created": _CREATED_SECONDS,
        "owned_by": one.provider,
    }


def _shown(one: GrantedModel) -> dict[str, Any]:
    info = {} if one.context is None else {"general.context_length": one.context}
    return {"details": {}, "model_info": info, "capabilities": ["completion", "tools"]}


def _limits(one: GrantedModel, context: str, output: str) -> dict[str, Any]:
    limits = {context: one.context, output: one.max_output}
    return {name: value for name, value in limits.items() if value is not None}
