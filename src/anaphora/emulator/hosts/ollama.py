"""Ollama's own API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from anaphora.cache.simulator import Outcome
from anaphora.canonical import dumps
from anaphora.catalog import Capability, Profile
from anaphora.emulator.billing import ModelFacts
from anaphora.emulator.exchange import NDJSON
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.strict.ollama import CHECKS
from anaphora.errors import RequestRejected
from anaphora.values import Message, Reply, Usage
from anaphora.wire.ollama.stream import timestamp

from .host import MODELS_CREATED, Host, Operation, ReplyContext, RoutedRequest

_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/chat"): "generate",
    ("GET", "/tags"): "models",
    ("POST", "/show"): "show",
    ("GET", "/version"): "version",
}
_VERSION = dumps({"version": "0.0.0-emulator"})
#: What Ollama calls the capabilities of the catalog. A model of which no source lists any has all:
#: the emulator takes tools, images and `think` with every model.
_CAPABILITIES: dict[Capability, str] = {
    "tools": "tools", "images": "vision", "reasoning": "thinking"
}  # fmt: skip


class OllamaHost(Host):
    wire = "ollama"
    checks = CHECKS
    root = "/api"
    generate_path = "/chat"
    stream_type = NDJSON
    event_end = b"\n"
    unknown_event = (
        "",
        b'{"model":"","created_at":"1970-01-01T00:00:00Z",'
        b'"message":{"role":"assistant","content":""},"done":false,"emulator_unknown":{}}',
    )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        operation = _OPERATIONS.get((method, path))
        return None if operation is None else (operation, "")

    def model_error(self, model: str) -> str:
        return f"model '{model}' not found"

    def handle(self, request: RoutedRequest) -> bytes:
        if request.route.operation == "version":
            return _VERSION
        model = request.value("model", request.value("name"))
        if not isinstance(model, str) or not model:
            raise RequestRejected("model is required", status=400, param="model")
        profile = self.billing.facts(request.route.provider, self.wire, model).profile
        family, window = profile.tokenizer.value, profile.context_tokens
        info: dict[str, Any] = {"general.architecture": family}
        if window is not None:
            info[f"{family}.context_length"] = window.value
        fields = {"details": _details(profile), "model_info": info}
        return dumps({**fields, "capabilities": _capabilities(profile)})

    def immediate_reply(self, request: RoutedRequest) -> bytes | None:
        """A request without messages only loads the model."""
        messages = request.fields.get("messages")
        if messages is not None and bytes(messages) != b"[]":
            return None
        reply = Reply(
            id="",
            model=str(request.value("model", "")),
            message=Message(role="assistant", parts=()),
            stop_reason="other",
            stop_reason_raw="load",
            usage=Usage(),
            extras={self.wire: dumps({"created_at": timestamp(request.now)}).decode()},
        )
        return request.route.codec.write_reply(reply)

    def usage(
        self, outcome: Outcome, facts: ModelFacts, replies: Sequence[GeneratedReply]
    ) -> Usage:
        counts = [reply.tokens(facts.profile) for reply in replies]
        return Usage(uncached=outcome.total, output=sum(output for output, _ in counts))

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        return {"created_at": timestamp(context.request.now)}

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        return {
            "name": profile.id,
            "model": profile.id,
            "modified_at": MODELS_CREATED,
            "size": 1,
            "digest": blake3(profile.id.encode()).hexdigest(),
            "details": _details(profile),
        }


def _details(profile: Profile) -> dict[str, Any]:
    family = profile.tokenizer.value
    return {"format": "gguf", "family": family, "families": [family]}


def _capabilities(profile: Profile) -> list[str]:
    listed = profile.capabilities
    named = _CAPABILITIES.items()
    return ["completion", *(name for own, name in named if listed is None or own in listed.value)]
