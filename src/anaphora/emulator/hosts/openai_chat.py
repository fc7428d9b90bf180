"""OpenAI's Chat Completions API, and the many hosts that speak it."""

from __future__ import annotations

from typing import Any

from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import nested
from anaphora.emulator.replies import count_text
from anaphora.emulator.replies.text import SeededRandom
from anaphora.emulator.strict.openai import CHAT_CHECKS
from anaphora.prompt.call import Reasoning
from anaphora.values import Reply, Thinking
from anaphora.wire.openai_chat.reply import write_choice

from .host import ReplyContext, RoutedRequest, Thought, thinking_text
from .openai import OpenAIHost

#: Hosts that report usage in every stream, without `include_usage`.
_ALWAYS_COUNTED = ("mistral", "xai", "zai", "moonshot", "google")


class OpenAIChatHost(OpenAIHost):
    wire = "openai_chat"
    checks = CHAT_CHECKS
    generate_path = "/chat/completions"
    reply_id_prefix = "chatcmpl-"
    choices_field = "choices"
    unknown_event = (
        "",
        b'{"id":"","object":"emulator.unknown","created":0,"model":"","choices":[]}',
    )

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if not profile.can("reasoning"):
            return None, 0
        field = profile.reasoning_field
        if field is None or not field.value:
            return None, random.between(16, 64)
        return self._shown(thinking_text(random), field.value), 0

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        field = profile.reasoning_field
        if field is None or not field.value:
            return None, max(1, count_text(text, profile))
        return self._shown(text, field.value), 0

    def _shown(self, text: str, field: str) -> Thinking:
        extras = {self.wire: dumps({"field": field}).decode()}
        return Thinking(text, provider=self.wire, extras=extras)

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        fields: dict[str, Any] = {"created": int(context.request.now)}
        if context.request.route.provider in ("openai", "azure"):
            fields["service_tier"] = "default"
        return fields

    def write_choice(self, reply: Reply, index: int) -> bytes:
        return write_choice(reply, index)

    def reports_stream_usage(self, request: RoutedRequest) -> bool:
        if request.route.provider in _ALWAYS_COUNTED:
            return True
        return nested(request.value("stream_options"), "include_usage") is True
