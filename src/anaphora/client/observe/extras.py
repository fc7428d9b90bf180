"""What to say when the package behind a watcher is not installed."""

from __future__ import annotations


def explained(
    problem: ModuleNotFoundError, what: str, *, module: str, package: str
) -> ModuleNotFoundError:
    """The error to raise instead: it says what to install, unless something else is amiss."""
    if problem.name is None or problem.name.partition(".")[0] != module:
        return problem
    message = f"{what} need {package}; install it with: pip install 'anaphora[observe]'"
    return ModuleNotFoundError(message, name=module)
