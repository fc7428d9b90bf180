"""Parameters of a call that its target takes differently, or not at all."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.client.target import Target
from anaphora.daemon.faces import face_of
from anaphora.errors import InvalidRequest
from anaphora.prompt import Params, Reasoning
from anaphora.values import Notice

#: The smallest budget of thinking that Anthropic takes.
_SMALLEST_BUDGET = 1024


class AdaptedParams:
    """What changes for one target. `wire` is that of the app's request; None: JSON-RPC."""

    def __init__(self, target: Target, wire: str | None) -> None:
        self._target = target
        self._wire = wire
        self.changes: dict[str, object] = {}
        self.notices: list[Notice] = []

    def adapt(self, params: Params, max_tokens: int) -> None:
        """`max_tokens` is what a call without a limit gets."""
        target = self._target
        if params.max_tokens is None:
            self.changes["max_tokens"] = max_tokens
            if self._wire is not None:
                text = f"the limit of the output was missing and set to {max_tokens} tokens"
                self.notices.append(Notice("max_tokens_set", text, "max_tokens"))
        highest = target.endpoint.max_temperature
        if params.temperature is not None and params.temperature > highest:
            self.changes["temperature"] = None
            text = f"{target.endpoint.id} takes a temperature up to {highest:g}; left out"
            self.notices.append(Notice("temperature_left_out", text, "temperature"))
        if self._wire is None or self._wire == target.endpoint.base_wire:
            return
        if params.n is not None and params.n > 1:
            reason = f"{target.endpoint.id} gives one choice a call here; asked for {params.n}"
            raise InvalidRequest(reason, path=face_of(self._wire).choices_field)
        face = face_of(target.endpoint.base_wire)
        if params.reasoning is not None and face.budgets_thinking:
            self._adapt_thinking(params.reasoning, params.max_tokens or max_tokens)

    def _adapt_thinking(self, reasoning: Reasoning, max_tokens: int) -> None:
        """Other wires switch thinking on and off; Claude models need a budget, or decide
        themselves."""
        mode, profile = reasoning.mode, self._target.profile
        if mode == "disabled" and profile.refuses("disabled_thinking"):
            self.changes["reasoning"] = replace(reasoning, mode=None)
            self._leave_out("reasoning", f"{self._target.model} always thinks; left out")
        elif mode != "enabled" or reasoning.budget_tokens is not None:
            return
        elif profile.refuses("budgeted_thinking"):
            self.changes["reasoning"] = replace(reasoning, mode="adaptive")
        elif max_tokens > _SMALLEST_BUDGET:
            budget = max(_SMALLEST_BUDGET, max_tokens // 2)
            self.changes["reasoning"] = replace(reasoning, budget_tokens=budget)
        else:
            self.changes["reasoning"] = replace(reasoning, mode=None)
            text = f"thinking needs a limit of the output above {_SMALLEST_BUDGET:,} tokens"
            self._leave_out("reasoning", f"{text}; left out")

    def _leave_out(self, name: str, text: str) -> None:
        self.notices.append(Notice("param_left_out", text, f"params.{name}"))
