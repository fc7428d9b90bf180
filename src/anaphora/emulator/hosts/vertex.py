"""Claude at Vertex AI: Anthropic's API, with the model in the path and the version in the body."""

from __future__ import annotations

import re

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import NULL, decode_value
from anaphora.emulator.strict import rejected

from .anthropic import AnthropicHost
from .host import Operation, RoutedRequest

_PATH = re.compile(r"/models/([^/:]+):(?:rawPredict|streamRawPredict)")
_VERSION = "2023-06-01"


class VertexHost(AnthropicHost):
    surface = "vertex"

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        found = _PATH.fullmatch(path) if method == "POST" else None
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
