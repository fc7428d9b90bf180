"""The models of an emulated provider on a day, and its error for other names.

A retirement date after the catalog's own date may be postponed by the provider, so it counts only
if the emulator's clock was moved past it. Tests therefore do not start to fail overnight.
"""

from __future__ import annotations

import datetime
import functools

import msgspec

from anaphora import catalog
from anaphora.catalog import Profile
from anaphora.catalog.names import HOSTED, is_aws_id
from anaphora.catalog.request_errors import unknown_model
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.wire.errors import overflow_class
from anaphora.yaml_values import nearest

#: Seconds. A clock that was moved by less affects cache entries, not models.
_MOVED = 86_400.0
#: Minimum similarity of an unknown name to the model that the error suggests.
_ALIKE = 0.5
_NOT_FOUND = "model_not_found"
#: Names of models that are remembered.
_NAMES = 1024


class ModelClock(msgspec.Struct, frozen=True):
    """Decides which models have retired."""

    now: float
    """In seconds since 1970, by the emulator's clock."""
    offset: float = 0.0
    """How far that is ahead of the real time."""

    def has_retired(self, profile: Profile) -> bool:
        if profile.retires is None:
            return False
        day = datetime.datetime.fromtimestamp(self.now, datetime.UTC).date()
        if abs(self.offset) < _MOVED:
            day = min(day, _date_of(profile.provider))
        return profile.retires.value <= day

    def models(self, provider: str) -> tuple[Profile, ...]:
        """The catalog's models of a provider that have not retired."""
        return tuple(each for each in catalog.models(provider) if not self.has_retired(each))


def check_model(profile: Profile, wire: str, clock: ModelClock, asked: str = "") -> None:
    """Raises the provider's error for a retired or unknown model. A name like a later version of
    the provider's models counts as known. Providers that serve other makers' models have any,
    except misspellings of listed ones. `asked` is the name in the request, which may have a
    date."""
    provider, model = profile.provider, profile.id
    retired = clock.has_retired(profile)
    if not retired and _may_serve(provider, model):
        return
    near = _nearest(provider, model, clock)
    hints = [f"Did you mean {near}?"] if near else []
    if retired and profile.retires is not None:
        hints.insert(0, f"It retired on {profile.retires.value}.")
    hints.append("`anaphora emulate --any-model`, or any_model=True in Python, accepts any name.")
    raise model_error(profile, wire, " ".join(hints), retired=retired, asked=asked)


@functools.lru_cache(_NAMES)
def _may_serve(provider: str, model: str) -> bool:
    return catalog.may_serve(provider, model) and (provider not in HOSTED or is_aws_id(model))


_date_of = functools.cache(catalog.models_date)


def model_error(
    profile: Profile, wire: str, hint: str = "", *, retired: bool = False, asked: str = ""
) -> Upstream:
    """The provider's error for a model, followed by a hint of the emulator."""
    row = unknown_model(profile.provider, wire)
    message = row.write(asked or profile.id, retired=retired)
    # Clients read a 400 with another code or message as a bad request.
    known = row.status == 404 or row.code == _NOT_FOUND
    kind = NotFound if known else overflow_class(RequestRejected, message)
    text = f"{message} ({hint})" if hint else message
    return kind(text, status=row.status, code=row.code, param=row.param)


def _nearest(provider: str, model: str, clock: ModelClock) -> str:
    """The most similar available model; empty if none is similar."""
    known = {each.id.lower(): each.id for each in clock.models(provider)}
    similar = catalog.similar_model(provider, model)
    if similar.lower() in known:
        return similar
    return known.get(nearest(model.lower().removeprefix("models/"), known, alike=_ALIKE), "")
