"""Runs functions of the app that may block, such as tools and mappings, without blocking the event
loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(
    act: Callable[[], T], what: str, *, name: str, late: Callable[[], None] | None = None
) -> T:
    """The result of `act`, which runs in a daemon thread: in the loop's executor, a few functions
    that never return would block everything else that needs a thread, and the end of the program.

    `what` names the function in errors, `name` the thread. `late` is called in the loop when `act`
    ends after nothing waits for it any more.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(values: tuple[T, ...], problem: BaseException | None) -> None:
        if done.done():  # it was cancelled
            if late is not None:
                late()
        elif problem is None:
            done.set_result(*values)
        else:
            done.set_exception(problem)

    def run() -> None:
        values: tuple[T, ...] = ()
        problem: BaseException | None = None
        try:
            values = (context.run(act),)
        except StopIteration as stop:
            # A future cannot carry StopIteration; Python 3.11 would wait forever.
            problem = RuntimeError(f"{what} raised StopIteration")
            problem.__cause__ = stop
        except SystemExit as left:
            problem = RuntimeError(f"{what} left with {left.code!r}")
        except BaseException as raised:
            problem = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, values, problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
