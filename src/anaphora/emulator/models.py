"""The models of an emulated provider on a day, and its error for other names.

A date that is later than the catalog is an announcement, which providers postpone: it counts once
the emulator's clock is moved beyond it. So a suite of tests does not fail overnight.
"""

from __future__ import annotations

import datetime

import msgspec

from anaphora import catalog
from anaphora.catalog import Profile
from anaphora.catalog.request_errors import unknown_model
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.yaml_values import nearest

#: A clock that is moved by less only lets cache entries expire.
_MOVED = 86_400.0
#: How alike an unknown name and one of the catalog must be for the error to name it.
_ALIKE = 0.5
_NOT_FOUND = "model_not_found"


class ModelClock(msgspec.Struct, frozen=True):
    """The day by which models retire."""

    now: float
    """In seconds since 1970, by the emulator's clock."""
    offset: float = 0.0
    """How far that is ahead of the real time."""

    def has_retired(self, profile: Profile) -> bool:
        if profile.retires is None:
            return False
        day = datetime.datetime.fromtimestamp(self.now, datetime.UTC).date()
        if abs(self.offset) < _MOVED:
            day = min(day, catalog.models_date(profile.provider))
        return profile.retires.value <= day

    def models(self, provider: str) -> tuple[Profile, ...]:
        """The catalog's models of a provider that have not retired."""
        return tuple(each for each in catalog.models(provider) if not self.has_retired(each))


def check_model(profile: Profile, wire: str, clock: ModelClock, asked: str = "") -> None:
    """Raises the provider's error for a model that it has retired, or never had: one that the
    catalog does not know, and that is not named like a later version of the provider's models.
    Hosts of other makers' models have any, but for misspellings of those that the catalog lists.
    `asked` is the name in the request, which may have a date."""
    provider, model = profile.provider, profile.id
    retired = clock.has_retired(profile)
    if not retired and catalog.may_serve(provider, model) and not _is_misspelled(provider, model):
        return
    near = _nearest(provider, model, clock)
    hints = [f"Did you mean {near}?"] if near else []
    if retired and profile.retires is not None:
        hints.insert(0, f"It retired on {profile.retires.value}.")
    hints.append("With --any-model, any_model=True in Python, the emulator takes any name.")
    raise model_error(profile, wire, " ".join(hints), retired=retired, asked=asked)


def _is_misspelled(provider: str, model: str) -> bool:
    return not catalog.serves_own_only(provider) and catalog.is_misspelled(provider, model)


def model_error(
    profile: Profile, wire: str, hint: str = "", *, retired: bool = False, asked: str = ""
) -> Upstream:
    """How the provider refuses a model, with a hint of the emulator behind it."""
    row = unknown_model(profile.provider, wire)
    message = row.write(asked or profile.id, retired=retired)
    # Other codes of a 400 mean a bad request to those who read them.
    kind = NotFound if row.status == 404 or row.code == _NOT_FOUND else RequestRejected
    text = f"{message} ({hint})" if hint else message
    return kind(text, status=row.status, code=row.code, param=row.param)


def _nearest(provider: str, model: str, clock: ModelClock) -> str:
    """The available model that the name may stand for; empty if none is like it."""
    known = {each.id.lower(): each.id for each in clock.models(provider)}
    similar = catalog.similar_model(provider, model)
    if similar.lower() in known:
        return similar
    return known.get(nearest(model.lower().removeprefix("models/"), known, alike=_ALIKE), "")
