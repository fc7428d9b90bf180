"""What a changed parameter voids."""

from __future__ import annotations

from anaphora.catalog import Knob
from anaphora.values import Section

from .evidence import Ask, Evidence, after
from .seen import Seen


def invalidates(param: Knob) -> Ask:
    """Asks calls before which that parameter changed, and no other."""

    def ask(call: Seen, value: tuple[Section, ...]) -> Evidence | None:
        if not _changed(call, param):
            return None
        assert call.before is not None
        read, left = call.billed.cache_read, call.before.floor
        if read >= left:
            holds = "messages" not in value
        elif read:
            holds = "messages" in value and len(value) < len(call.rules.hash_order.value)
        else:
            holds = "messages" in value
        voided = ", ".join(value) or "nothing"
        return Evidence(holds, f"{after(call)}, {param} changed", f"a change voids {voided}")

    return ask


def _changed(call: Seen, param: Knob) -> bool:
    """Whether it alone changed, by notes and not by guess, while what was there still lived."""
    before, gap = call.before, call.gap
    if before is None or gap is None or before.life is None or not before.left:
        return False
    names = before.cache_params.keys() | call.cache_params.keys()
    changed = [
        name for name in names if before.cache_params.get(name) != call.cache_params.get(name)
    ]
    if changed != [param] or not call.appended or call.billed.total < before.billed.total:
        return False
    if param == "thinking" and not call.noted:
        return False
    return gap.most <= before.life
