"""Requests that another program wrote, as chunks: those that `render` makes of the parsed call.

They are rendered with a profile that refuses nothing and changes nothing for the model: blank
texts, reasoning that nothing follows, system messages inside the history and markers stay where
they stand.
"""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.rendered import Rendered


class SentProfile(Profile, frozen=True, kw_only=True):
    """A model's profile for requests that are rendered as they were sent."""

    as_sent = True


def as_sent(profile: Profile) -> SentProfile:
    """The profile with which a call is rendered as it was read, on its own wire."""
    figures = {name: getattr(profile, name) for name in profile.__struct_fields__}
    figures["refusals"] = replace(profile.refusals, value=())
    figures["version_refusals"] = {}
    return SentProfile(**figures)


def check_kept(rendered: Rendered) -> None:
    """Raise for the first piece of a request that the rendering could not keep."""
    for notice in rendered.notices:
        raise InvalidRequest(f"cannot be sent unchanged: {notice.message}", path=notice.path)
