"""A limit of failed logins, so that tokens cannot be guessed."""

from __future__ import annotations

from anaphora.bounded import BoundedMap
from anaphora.daemon.values import SOCKET, Peer
from anaphora.errors import GrantRateLimited
from anaphora.serving.connection_limits import network_of

_MINUTE = 60.0
#: Maximum number of peers with failures; the one without a failure for longest is dropped.
_MOST_PEERS = 10_000


class FailedLogins:
    """Limits the failed logins of a peer per minute. Peers of one IPv6 network (/64) count as
    one."""

    def __init__(self, per_minute: int) -> None:
        self._most = per_minute
        self._failures = BoundedMap[str, tuple[float, float]](_MOST_PEERS)
        """The failures of each peer, less those that have expired, and since when."""

    def note(self, peer: Peer, now: float) -> None:
        """Counts a failed login. Raises `GrantRateLimited` if there are too many."""
        rate, name = self._most / _MINUTE, _peer_name(peer)
        used, since = self._failures.pop(name, (0.0, now))
        used = max(0.0, used - max(0.0, now - since) * rate)
        refuses = used + 1 > self._most
        self._failures[name] = (used if refuses else used + 1, now)
        if refuses:
            raise GrantRateLimited(
                "too many failed logins from this address",
                limit="failed_logins",
                retry_after=(used + 1 - self._most) / rate,
            )


def _peer_name(peer: Peer) -> str:
    return f"uid {peer.uid}" if peer.address == SOCKET else network_of(peer.address)
