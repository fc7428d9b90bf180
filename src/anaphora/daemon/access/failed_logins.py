"""A limit of failed logins, so that tokens cannot be guessed."""

from __future__ import annotations

from anaphora.daemon.values import SOCKET, Peer
from anaphora.errors import GrantRateLimited
from anaphora.serving.connection_limits import network_of
from anaphora.serving.counts import NamedCounts

_MINUTE = 60.0


class FailedLogins:
    """Limits the failed logins of a peer per minute. Peers of one IPv6 network (/64) count as
    one."""

    def __init__(self, per_minute: int, counts: NamedCounts | None = None) -> None:
        """`counts` may be shared with other processes."""
        self._most = per_minute
        self._counts = counts or NamedCounts()

    def note(self, peer: Peer, now: float) -> None:
        """Counts a failed login. Raises `GrantRateLimited` if there are too many."""
        rate = self._most / _MINUTE
        used = self._counts.add_failure(f"logins {_peer_name(peer)}", now, rate, self._most)
        if used + 1 > self._most:
            raise GrantRateLimited(
                "too many failed logins from this address",
                limit="failed_logins",
                retry_after=(used + 1 - self._most) / rate,
            )


def _peer_name(peer: Peer) -> str:
    return f"uid {peer.uid}" if peer.address == SOCKET else network_of(peer.address)
