"""What the same traffic would have cost on another model or provider, with another TTL or without
caching: by the simulator, from what an audit log keeps, with the range of each estimate."""

from __future__ import annotations

from .estimate import CostEstimate, ScenarioRow, SimulationCheck, TtlChoice, WhatIf, what_if
from .scenarios import ProviderModel, Scenario
from .selection import LEFT_OUT_TEXTS

__all__ = [
    "LEFT_OUT_TEXTS",
    "CostEstimate",
    "ProviderModel",
    "Scenario",
    "ScenarioRow",
    "SimulationCheck",
    "TtlChoice",
    "WhatIf",
    "what_if",
]
