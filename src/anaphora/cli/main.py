"""The entry point: runs a command, and turns every error into one line and an exit code.

    0   ok
    1   a check found something, or the request could not be fulfilled
    2   usage: the command line or the input is invalid
    3   integrity: an anchor or a signature does not match
    4   the answer does not conform to a schema, or a file has another schema_version
    5   a folder of recordings failed its integrity check
    6   the chain of an audit log is broken
    7   a precondition is not met: a key or a package is missing
    64  internal error
    130 interrupted

click is loaded when a command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from anaphora.errors import (
    AnaphoraError,
    AnchorMismatch,
    ChainBroken,
    FixtureIntegrityFailed,
    InvalidConfig,
    InvalidRequest,
    Io,
    MissingExtra,
    MissingSecret,
    OtherSchema,
    SignatureMismatch,
    StoreRefused,
    Unauthenticated,
)

OK, FOUND, USAGE, INTEGRITY, MISMATCH, QUARANTINED, CHAIN = 0, 1, 2, 3, 4, 5, 6
UNMET, INTERNAL, INTERRUPTED = 7, 64, 130

#: The exit code of each class of errors; the first that fits.
_CODES: tuple[tuple[type[AnaphoraError], int], ...] = (
    (MissingSecret, UNMET),
    (StoreRefused, UNMET),
    (Unauthenticated, UNMET),
    (MissingExtra, UNMET),
    (AnchorMismatch, INTEGRITY),
    (SignatureMismatch, INTEGRITY),
    (OtherSchema, MISMATCH),
    (FixtureIntegrityFailed, QUARANTINED),
    (ChainBroken, CHAIN),
    (InvalidRequest, USAGE),
    (InvalidConfig, USAGE),
    (Io, USAGE),
)

#: Options that other tools have.
_KEY_OPTIONS = ("--key", "--api-key", "--api_key", "--apikey", "--token", "--secret")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _prepare_streams()
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe; buffered output must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        _print_error("interrupted")
        return INTERRUPTED
    except (AnaphoraError, OSError) as problem:
        _print_error(str(problem))
        return exit_code(problem)
    except Exception as problem:
        _print_internal(problem)
        return INTERNAL


def _prepare_streams() -> None:
    """Output to a closed stream is dropped; a stream without ✓ shows ? instead."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def exit_code(problem: AnaphoraError | OSError) -> int:
    return next((code for kind, code in _CODES if isinstance(problem, kind)), FOUND)


def _run(args: Sequence[str] | None) -> int:
    """Replaces click's `main`, which has other exit codes."""
    import click
    from click.shell_completion import shell_complete

    from .common import COMPLETE, NAME, anaphora

    if instruction := os.environ.get(COMPLETE):
        return shell_complete(anaphora, {}, NAME, COMPLETE, instruction)
    try:
        with anaphora.make_context(NAME, list(sys.argv[1:] if args is None else args)) as context:
            anaphora.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as problem:
        problem.show()
        if isinstance(problem, click.NoSuchOption) and problem.option_name in _KEY_OPTIONS:
            _print_error(
                "a key is never an argument: other users of the machine could see it. Set the"
                " provider's environment variable, or name one in llm.yaml: key: {env: NAME}"
            )
        return problem.exit_code
    return OK


def _print_internal(problem: Exception) -> None:
    debugging = os.environ.get("ANAPHORA_DEBUG", "") not in ("", "0")
    if debugging:
        import traceback

        traceback.print_exception(problem)
    _print_error(f"internal error: {type(problem).__name__}: {' '.join(str(problem).split())}")
    if not debugging:
        _print_error("set ANAPHORA_DEBUG=1 to see the traceback")


def _print_error(message: str) -> None:
    from anaphora.wording import visible

    print(f"anaphora: {visible(message)}", file=sys.stderr)
