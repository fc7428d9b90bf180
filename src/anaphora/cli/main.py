"""The entry point: runs a command, and turns whatever goes wrong into one line and an exit code.

    0   ok
    1   a check found something, or the request could not be fulfilled
    2   usage: the command line, or input that cannot be right
    7   a precondition is not met: a key is not where llm.yaml says
    64  internal: a bug of ours
    130 interrupted

No click up here: it belongs to an extra, and to say so there must be something that runs without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from anaphora.errors import AnaphoraError, InvalidConfig, InvalidRequest, MissingSecret

OK, FOUND, USAGE, UNMET, INTERNAL, INTERRUPTED = 0, 1, 2, 7, 64, 130

_EXTRA = ("click", "rich")


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that cannot show ✓ shows ? instead; that is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except AnaphoraError as problem:
        _say(str(problem))
        return _code(problem)
    except OSError as problem:
        _say(str(problem))
        return FOUND
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError) and _package(problem) in _EXTRA:
            _say(
                f"the command line needs {_package(problem)}; "
                "install it with: pip install 'anaphora[cli]'"
            )
            return USAGE
        _say_internal(problem)
        return INTERNAL


def _run(args: Sequence[str] | None) -> int:
    """What click's own `main` does, which has exit codes of its own for some of what happens."""
    import click
    from click.shell_completion import shell_complete

    from ._group import COMPLETE, NAME, anaphora

    if asked := os.environ.get(COMPLETE):
        return shell_complete(anaphora, {}, NAME, COMPLETE, asked)
    try:
        with anaphora.make_context(NAME, list(sys.argv[1:] if args is None else args)) as context:
            anaphora.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    return OK


def _code(problem: AnaphoraError) -> int:
    if isinstance(problem, MissingSecret):
        return UNMET
    return USAGE if isinstance(problem, InvalidRequest | InvalidConfig) else FOUND


def _package(problem: ModuleNotFoundError) -> str:
    return (problem.name or "").partition(".")[0]


def _say_internal(problem: Exception) -> None:
    debugging = os.environ.get("ANAPHORA_DEBUG", "") not in ("", "0")
    if debugging:
        import traceback

        traceback.print_exception(problem)
    _say(f"internal error: {type(problem).__name__}: {' '.join(str(problem).split())}")
    if not debugging:
        _say("set ANAPHORA_DEBUG=1 to see the traceback")


def _say(message: str) -> None:
    print(f"anaphora: {message}", file=sys.stderr)
