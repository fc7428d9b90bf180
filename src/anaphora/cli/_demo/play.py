"""The tour from beginning to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from anaphora import emulator
from anaphora.emulator.options import EmulatorOptions
from anaphora.errors import AnaphoraError

from . import story
from .engine import Measured, cold_and_warm, why_not
from .places import Place
from .report import Report
from .script import script
from .stage import Audience
from .tour import tour


def play(places: Sequence[Place], audience: Audience, *, engine: bool) -> Report:
    """Takes the tour, and tells whoever looks."""
    begun = time.monotonic()
    try:
        audience.opens(len(places))
        with emulator.running(EmulatorOptions(script=script())) as emu:
            lanes, broken = asyncio.run(tour(emu, places, audience.taken))
        audience.broke(broken)
        served, unserved = _serve(audience) if engine else (None, "Left out, as was asked for.")
        report = Report(
            turns=len(story.STEPS),
            calls=sum(len(lane.usual.turns) + len(lane.anaphora.turns) for lane in lanes)
            + len(story.AFTERWARDS),
            seconds=time.monotonic() - begun,
            lanes=lanes,
            broken=broken,
            served=served,
            unserved=unserved,
        )
        audience.closes(report)
        return report
    finally:
        audience.leave()


def _serve(audience: Audience) -> tuple[Measured | None, str]:
    """What llama.cpp's server did, or why there is none."""
    if (missing := why_not()) is not None:
        return None, f"Left out: {missing}. In the repository, `make setup` installs it."
    audience.serving()
    try:
        return asyncio.run(cold_and_warm()), ""
    except (AnaphoraError, OSError, RuntimeError) as problem:
        # A machine that cannot run it has still seen the rest.
        return None, f"It was tried, and failed: {str(problem).partition(chr(10))[0]}"
