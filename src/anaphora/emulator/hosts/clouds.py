"""Claude at Vertex AI, with the model in the path and the version in the body, and Amazon Bedrock's
runtime: Converse, InvokeModel with the bodies of Claude, and CountTokens.

A model's id at Bedrock may be an ARN with slashes, so the operation is the last step of a decoded
path.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from anaphora import catalog, wire
from anaphora.cache.simulator import Outcome
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.catalog.names import base_model, is_aws_id, is_inference_profile, is_opaque
from anaphora.emulator.exchange import NULL, EmulatorResponse, decode_object, decode_value
from anaphora.emulator.journal import Billing, ModelFacts, UsageWindow
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.replies.text import IdGenerator, SeededRandom
from anaphora.emulator.strict import rejected
from anaphora.emulator.strict.bedrock import CHECKS, INVOKE_CHECKS
from anaphora.prompt import Reasoning
from anaphora.values import Reply, Thinking, Usage
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder, encode_event, padded
from anaphora.wire.reading import decode_members

from .anthropic import AnthropicHost
from .host import EmulatorRoute, Host, Operation, RoutedRequest, Thought, opaque, thinking_text

_PATH = re.compile(
    r"/model/(?P<model>.+)/"
    r"(?P<method>converse|converse-stream|invoke|invoke-with-response-stream|count-tokens)",
    re.DOTALL,
)
_HEADER = "x-amzn-bedrock-"
_VERTEX_PATH = re.compile(r"/models/([^/:]+):(?:rawPredict|streamRawPredict)")
_VERSION = "2023-06-01"


class VertexHost(AnthropicHost):
    surface = "vertex"

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        found = _VERTEX_PATH.fullmatch(path) if method == "POST" else None
        if found is None:
            return None
        return ("count", "") if found[1] == "count-tokens" else ("generate", found[1])

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        return own_request(request, stream=request.path.endswith(":streamRawPredict"))


def own_request(request: RoutedRequest, *, stream: bool) -> RoutedRequest:
    """A cloud's request as one of Anthropic's own API: with the model of the path, and with headers
    for the version and betas of the body."""
    fields, headers = dict(request.fields), {**request.headers}
    version = decode_value(fields.pop("anthropic_version", NULL), "anthropic_version")
    if not isinstance(version, str):
        raise rejected("anthropic_version: Field required", code="invalid_request_error")
    # The clouds' own versions stand for the first one.
    headers["anthropic-version"] = version if version[:2] == "20" else _VERSION
    betas = decode_value(fields.pop("anthropic_beta", NULL), "anthropic_beta")
    if isinstance(betas, list):
        headers["anthropic-beta"] = ",".join(map(str, betas))
    if request.route.name:
        fields["model"] = msgspec.Raw(dumps(request.route.name))
    if stream:
        fields["stream"] = msgspec.Raw(b"true")
    return request.with_body(msgspec.json.encode(fields), headers=headers)


def _is_claude(profile: Profile) -> bool:
    family = profile.converse_family
    return family is not None and family.value == "claude"


class RuntimeHost(Host):
    """What all operations have in common: ids of requests, and streams of frames."""

    stream_type = CONTENT_TYPE

    def headers(self, request: RoutedRequest, window: UsageWindow | None) -> dict[str, str]:
        return {"x-amzn-requestid": request.entry.request_id}

    def split_stream(self, written: bytes) -> list[bytes]:
        frames, at = [], 0
        while at < len(written):
            end = at + int.from_bytes(written[at : at + 4], "big")
            frames.append(written[at:end])
            at = end
        return frames


class InvokeHost(RuntimeHost, AnthropicHost):
    """InvokeModel with the bodies of Claude. Other models have bodies of their own, which the
    emulator does not know."""

    surface = "invoke"
    checks = INVOKE_CHECKS
    reply_id_prefix = "msg_bdrk_01"
    call_id_prefix = script_call_id_prefix = "toolu_bdrk_01"
    overloaded_code = "ServiceUnavailableException"
    spend_cap_code = "ServiceQuotaExceededException"

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        model, fields = request.route.name, request.fields
        claude = _is_claude(catalog.profile("bedrock", model))
        if not claude and is_aws_id(model) and not is_opaque(model):
            raise rejected(
                f"the emulator answers InvokeModel for the models of Anthropic only, and {model} "
                "has a body of its own: call it with Converse"
            )
        if "anthropic_version" not in fields:
            reason = "Malformed input request: #: required key [anthropic_version] not found"
            raise rejected(f"{reason}, please reformat your input and try again.")
        return own_request(request, stream=request.path.endswith("-stream"))

    def finish(
        self, request: RoutedRequest, _: tuple[bytes, ...], response: EmulatorResponse
    ) -> None:
        """Adds AWS's counts: to the headers, or to the last event of a stream."""
        assert request.entry.billed is not None
        outcome = request.entry.billed.outcome
        counts = {
            "input": outcome.uncached,
            "output": request.entry.output,
            "cacheReadInput": outcome.read,
            "cacheWriteInput": sum(outcome.written.values()),
        }
        if not response.stream:
            for name, count in counts.items():
                dashed = re.sub("([A-Z])", r"-\1", name).lower()
                response.headers[f"{_HEADER}{dashed}-token-count"] = str(count)
            response.headers[f"{_HEADER}invocation-latency"] = "0"
            return
        response.headers[f"{_HEADER}content-type"] = "application/json"
        (frame,) = FrameDecoder().feed(response.chunks[-1].data)
        event = decode_members(base64.b64decode(decode_members(frame.payload)["bytes"]))
        metrics = {f"{name}TokenCount": count for name, count in counts.items()}
        metrics |= {"invocationLatency": 0, "firstByteLatency": 0}
        event["amazon-bedrock-invocationMetrics"] = msgspec.Raw(dumps(metrics))
        data = base64.b64encode(msgspec.json.encode(event)).decode()
        response.chunks[-1].data = encode_event("chunk", padded(dumps({"bytes": data})))

    def reply_model(self, model: str) -> str:
        return base_model("bedrock", model).removeprefix("anthropic.")

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """There are no pings, and no diagnostics."""


class BedrockHost(RuntimeHost):
    """Converse and CountTokens; `route` also finds InvokeModel."""

    wire = "bedrock"
    checks = CHECKS
    call_id_prefix = script_call_id_prefix = "tooluse_"
    reports_writes = True

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._invoke = InvokeHost(billing, ids)

    def route(self, method: str, path: str) -> EmulatorRoute | None:
        found = _PATH.fullmatch(path) if method == "POST" else None
        if found is None:
            return None
        if found["method"].startswith("invoke"):
            return self._invoke_route(path, found["model"])
        operation: Operation = "count" if found["method"] == "count-tokens" else "generate"
        row = catalog.dialects().find("bedrock", self.wire, "")
        return EmulatorRoute(self, row, wire.codec_for(row), operation, path, found["model"])

    def _invoke_route(self, path: str, model: str) -> EmulatorRoute:
        row = catalog.dialects().find("bedrock", "anthropic", "invoke")
        return EmulatorRoute(self._invoke, row, wire.codec_for(row), "generate", path, model)

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        """A request that counts tokens as the request that it counts."""
        if request.route.operation != "count":
            return request
        model = request.route.name
        if is_inference_profile(model):
            reason = "The provided model doesn't support counting tokens."
            raise rejected(f"{reason} (Give the id of the model itself, not that of a profile.)")
        given = decode_object(request.fields.get("input", msgspec.Raw(b"{}")))
        if "converse" in given:
            path = f"/model/{model}/converse"
            route = msgspec.structs.replace(request.route, path=path)
            return request.with_body(bytes(given["converse"]), route=route)
        invoked = decode_object(given.get("invokeModel", msgspec.Raw(b"{}")))
        try:
            body = base64.b64decode(decode_value(invoked["body"], "body"), validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            reason = "input must have converse, or invokeModel with a body in base64"
            raise rejected(reason, param="input") from None
        route = self._invoke_route(f"/model/{model}/invoke", model)
        return self._invoke.rewrite(request.with_body(body, route=route))

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if wanted is None or profile.converse_family is None:
            return None, 0
        if _is_claude(profile) and wanted.mode is None:
            return None, 0
        shown = "" if wanted.display == "omitted" else thinking_text(random)
        return self.script_thinking(shown, profile, random)

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        """Only Claude's is signed."""
        signature = opaque(random) if _is_claude(profile) else None
        return Thinking(text, signature=signature, provider=self.wire), 0

    def usage(
        self, outcome: Outcome, facts: ModelFacts, replies: Sequence[GeneratedReply]
    ) -> Usage:
        """Only Claude counts a cache that was not used."""
        usage = super().usage(outcome, facts, replies)
        if usage.read or usage.written or _is_claude(facts.profile):
            return usage
        return msgspec.structs.replace(usage, read=None, written=None)

    def stream_usage(self, request: RoutedRequest, usage: Usage) -> Usage:
        """Streams of OpenAI's models count cached tokens as input a second time:
        maximhq/bifrost#6942."""
        if not base_model("bedrock", request.route.name).startswith("openai."):
            return usage
        return msgspec.structs.replace(usage, uncached=usage.input)

    def count_body(self, tokens: int) -> bytes:
        return dumps({"inputTokens": tokens})
