"""The models that an emulated provider has at a time, and its error for any other."""

from __future__ import annotations

import datetime

from anaphora import catalog
from anaphora.catalog import Profile
from anaphora.catalog.request_errors import unknown_model
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.yaml_values import nearest

#: How alike an unknown name and one of the catalog must be for the error to name it.
_ALIKE = 0.5
_NOT_FOUND = "model_not_found"


def available_models(provider: str, now: float) -> tuple[Profile, ...]:
    """The catalog's models of a provider that have not retired; `now` in seconds since 1970."""
    return tuple(each for each in catalog.models(provider) if not has_retired(each, now))


def has_retired(profile: Profile, now: float) -> bool:
    return profile.retires is not None and profile.retires.value <= _day(now)


def check_model(profile: Profile, wire: str, now: float) -> None:
    """Raises the provider's error for a model that it has retired, or never had: one that the
    catalog does not know, and that is not named like a later version of the provider's models.
    Hosts of other makers' models have any, but for misspellings of those that the catalog lists."""
    provider, model = profile.provider, profile.id
    served = catalog.may_serve(provider, model) and not _is_misspelled(provider, model)
    if served and not has_retired(profile, now):
        return
    near = _nearest(provider, model, now)
    hints = [f"Did you mean {near}?"] if near else []
    if has_retired(profile, now) and profile.retires is not None:
        hints.insert(0, f"It retired on {profile.retires.value}.")
    hints.append("With --any-model, any_model=True in Python, the emulator takes any name.")
    raise model_error(profile, wire, now, " ".join(hints))


def _is_misspelled(provider: str, model: str) -> bool:
    return not catalog.serves_own_only(provider) and catalog.is_misspelled(provider, model)


def model_error(profile: Profile, wire: str, now: float, hint: str = "") -> Upstream:
    """How the provider refuses a model, with a hint of the emulator behind it."""
    row = unknown_model(profile.provider, wire)
    message = row.write(profile.id, retired=has_retired(profile, now))
    # Other codes of a 400 mean a bad request to those who read them.
    kind = NotFound if row.status == 404 or row.code == _NOT_FOUND else RequestRejected
    text = f"{message} ({hint})" if hint else message
    return kind(text, status=row.status, code=row.code, param=row.param)


def _nearest(provider: str, model: str, now: float) -> str:
    """The available model that the name may stand for; empty if none is like it."""
    known = {each.id.lower(): each.id for each in available_models(provider, now)}
    similar = catalog.similar_model(provider, model)
    if similar.lower() in known:
        return similar
    return known.get(nearest(model.lower().removeprefix("models/"), known, alike=_ALIKE), "")


def _day(now: float) -> datetime.date:
    return datetime.datetime.fromtimestamp(now, datetime.UTC).date()
