"""SPEC E4: every error there is, in one tree, with what a caller may branch on as attributes."""

from __future__ import annotations

import inspect
import re

from support.tables import each_row

from anaphora import errors

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.AnaphoraError)
}


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    """Drawn and defined alike: who hangs below whom is read off the drawing."""
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^( +(?:[│├└─ ]*))([A-Z]\w+)(?:\s{2,}\S|$)", line)
        if found is None or found[2] not in CLASSES:
            continue
        depth, name = len(found[1]), found[2]
        above = [(at, parent) for at, parent in above if at < depth]
        drawn[name] = above[-1][1] if above else "Exception"
        above.append((depth, name))
    assert drawn == {name: kind.__bases__[0].__name__ for name, kind in CLASSES.items()}


@each_row(
    "error, text, attributes",
    [
        (errors.Transport("refused"), "refused", {"retryable": True}),
        (errors.Upstream("no", status=500, request_id="r"), "no", {"status": 500}),
        (errors.InvalidRequest("is missing", path="a.b"), "a.b: is missing", {"path": "a.b"}),
        (errors.Timeout(250), "timeout after 250 ms", {"timeout_ms": 250}),
        (errors.Parse("is text", path="$.x"), "$.x: is text", {"path": "$.x"}),
        (
            errors.NoFixture(model="m", prompt_hash="h"),
            "no replay fixture for model=m prompt_hash=h",
            {"model": "m", "prompt_hash": "h"},
        ),
        (errors.FixtureIntegrityFailed("changed"), "changed", {"retryable": False}),
        (errors.Io("unreadable"), "unreadable", {"retryable": False}),
    ],
)
def test_e4_each_class_has_its_message(
    error: errors.AnaphoraError, text: str, attributes: dict[str, object]
) -> None:
    assert str(error) == text
    assert {name: getattr(error, name) for name in attributes} == attributes


def test_only_transient_errors_are_retryable() -> None:
    assert {name for name, kind in CLASSES.items() if kind.retryable} == {
        "Transport",
        "RateLimited",
        "Overloaded",
        "GrantRateLimited",
        "StoreUnavailable",
    }


def test_an_error_seen_from_further_out_keeps_its_class_and_reason() -> None:
    outer = errors.InvalidTool("no name", path="name").within("tools[3]")
    assert type(outer) is errors.InvalidTool
    assert (str(outer), outer.reason) == ("tools[3].name: no name", "no name")
