"""Requests that another program wrote, as chunks: those that `render` makes of the parsed call.

    cut(codec, body, path) -> Rendered

They are rendered with a profile that refuses nothing and changes nothing for the model: blank
texts, reasoning that nothing follows, system messages inside the history and markers stay where
they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora import catalog
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.rendered import Rendered

if TYPE_CHECKING:
    from . import Wire
    from .known_requests import RequestReading


def as_sent(profile: Profile) -> Profile:
    """The profile with which a call is rendered as it was read, on its own wire."""
    refusals = replace(profile.refusals, value=())
    return replace(profile, as_sent=True, refusals=refusals, version_refusals={})


def check_kept(rendered: Rendered) -> None:
    """Raise for the first piece of a request that the rendering could not keep."""
    for notice in rendered.notices:
        raise InvalidRequest(f"cannot be sent unchanged: {notice.message}", path=notice.path)


def cut(codec: Wire, body: bytes, path: str = "") -> Rendered:
    """The chunks of a request, and its markers as marks. Raises `InvalidRequest`."""
    return cut_call(codec, codec.parse(body, path))


def cut_call(codec: Wire, call: Call, previous: Rendered | None = None) -> Rendered:
    """The chunks of a call that was read from a request. `previous` is as for `render`."""
    profile = catalog.profile(codec.provider, call.model)
    return codec.render(call, as_sent(profile), previous)


def cut_reading(codec: Wire, reading: RequestReading) -> Rendered:
    """The chunks of a request that was read, which continue those of the turn before."""
    rendered = cut_call(codec, reading.call, reading.previous)
    reading.keep_rendered(rendered)
    return rendered
