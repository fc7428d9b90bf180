"""Many waits, one timer: each expires at its own time, once, and not when it has ended."""

from __future__ import annotations

import asyncio

from support import virtual_time

from anaphora.client.transport.timer import SharedTimer


class Waiting:
    def __init__(self, name: str, expired: list[str]) -> None:
        self._name = name
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self._name)


def test_waits_expire_in_the_order_of_their_limits() -> None:
    expired: list[str] = []
    limits = {"late": 0.06, "early": 0.02, "middle": 0.04, "ended": 0.03, "far": 60.0}

    async def main() -> None:
        timer = SharedTimer(asyncio.get_running_loop())
        waits = {name: Waiting(name, expired) for name in limits}
        for name, seconds in limits.items():
            timer.begin(waits[name], seconds)
        timer.end(waits["ended"])
        timer.end(waits["ended"])  # may be called twice
        await asyncio.sleep(1)
        timer.close()

    virtual_time.run(main())
    assert expired == ["early", "middle", "late"]


def test_restarted_wait_has_its_full_time() -> None:
    expired: list[str] = []

    async def main() -> None:
        timer = SharedTimer(asyncio.get_running_loop())
        again, other = Waiting("again", expired), Waiting("other", expired)
        timer.begin(again, 0.02)
        timer.begin(other, 0.04)
        timer.begin(again, 0.06)
        await asyncio.sleep(1)
        timer.close()

    virtual_time.run(main())
    assert expired == ["other", "again"]


def test_nothing_expires_after_closing() -> None:
    expired: list[str] = []

    async def main() -> None:
        timer = SharedTimer(asyncio.get_running_loop())
        timer.begin(Waiting("closed", expired), 0.01)
        timer.close()
        await asyncio.sleep(1)

    virtual_time.run(main())
    assert expired == []


def test_expired_wait_may_begin_again() -> None:
    expired: list[str] = []

    async def main() -> None:
        timer = SharedTimer(asyncio.get_running_loop())

        class Twice(Waiting):
            def expire(self) -> None:
                super().expire()
                if len(expired) < 2:
                    timer.begin(self, 0.01)

        timer.begin(Twice("twice", expired), 0.01)
        await asyncio.sleep(1)
        timer.close()

    virtual_time.run(main())
    assert expired == ["twice", "twice"]
