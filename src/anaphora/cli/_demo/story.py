"""The story: what the user asks, what the model answers, and what goes wrong in turn 9."""

from __future__ import annotations

import json

import msgspec

IDENTITY = """\
You are Ledger, the engineer who looks after a company's billing code.

How you work
- Read before you write. Open every file that you are about to change, and the tests that cover it,
  and say in one sentence what you expect to find before you open it.
- Make the smallest change that is right. If the change wants to grow, stop and say why.
- Money is Decimal, from the edge of the system to the edge of the system. A float in an amount is a
  bug even where every test passes.
- Never round twice. Round where an amount leaves the system, in one place, with one rule, and name
  that rule where a reader will look for it.
- Run the tests after every edit, all of them before you say that you are done. Quote the line that
  proves it; do not paraphrase a test run.
- Keep a change and its reason together: the commit says what was wrong, what a customer saw of it,
  and which test would have caught it. If there was none, write that test first and see it fail.
- Look for the same mistake elsewhere before you call it fixed. Two places that compute one amount
  will disagree one day; say so when you find them, even where they agree today.
- A test that fails is information. Do not change what a test expects unless the user tells you that
  the expectation is wrong, and then write down who said so and when.

How you talk
- Short sentences, no praise, no apologies. The reader is an engineer in the middle of something.
- Amounts are written with their currency and both decimals, dates as year-month-day, rates as the
  fraction that the code holds and not as the percentage that people say.
- Name files and functions as they are named in the repository.
- When you are not sure, say what you would need to see to be sure, and go and look at it.
- When you are done, say what changed, what proves it, and what you did not look at.

What you leave alone
- Anything under archive/: those invoices have been sent, and the tax office has copies of them.
- The rates table: it comes from the tax office every January, and a script puts it in place.
- Public interfaces that the shop and the warehouse call. Propose a change there, do not make it.
- Credentials, customers' names and addresses: you do not need them, so do not print them.
"""

KNOWLEDGE = """\
Notes on this repository
- billing/invoice.py holds Invoice; billing/line.py holds Line; billing/credit_note.py holds
  CreditNote. Nothing else adds up amounts.
- Since 2021 invoices follow the commercial rule: half a cent goes up. Before that it was the
  banker's rule, half to even, and archive/ still has those.
- Tax is summed by rate and rounded once for each rate; this is what the tax office does, and the
  accountant checked it. Do not round by line.
- Discounts come off before tax.
- The tests are quick: run all of them.
- Customers notice a single cent. Most reports of that kind were right.
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is said between one call and the next: the model's words, then a tool or the user."""

    says: str = ""
    tool: str = ""
    arguments: str = "{}"
    user: str = ""
    clock_in: str = ""
    """Where this turn's prompt tells the time: nowhere, `identity` or `tail`."""
    freezes: bool = False
    """From here on the app counts everything said before as settled."""


def _use(says: str, tool: str, *, clock_in: str = "", **arguments: str) -> Step:
    return Step(says=says, tool=tool, arguments=json.dumps(arguments), clock_in=clock_in)


_FIX = {"old": "ROUND_HALF_EVEN", "new": "ROUND_HALF_UP"}

STEPS = (
    Step(user="A customer says that invoice 2024-117 is one cent too low. Are they right?"),
    _use("Rounding is the first suspect. I look for it.", "search", text="ROUND_"),
    _use("Two files round. The invoice first.", "read_file", path="billing/invoice.py"),
    _use(
        "It rounds half to even. What do the tests say?", "read_file", path="tests/test_invoice.py"
    ),
    _use("One test names this very invoice. I run it.", "run_tests"),
    _use(
        "They are right. The rule must be half up.", "edit_file", path="billing/invoice.py", **_FIX
    ),
    _use("Now all of the tests.", "run_tests"),
    Step(
        says="Fixed in billing/invoice.py: half a cent now goes up. `tests: 2 passed`.",
        user="Good. Do credit notes have the same mistake?",
        freezes=True,
    ),
    _use("I look where they round.", "search", text="quantize", clock_in="identity"),
    _use("There.", "read_file", path="billing/credit_note.py", clock_in="tail"),
    _use("The same mistake.", "edit_file", path="billing/credit_note.py", clock_in="tail", **_FIX),
    _use("And the tests again.", "run_tests", clock_in="tail"),
)


def clock(turn: int) -> str:
    """The time of a turn, told by nobody's clock."""
    seconds = 9 * 3600 + 35 * 60 + 41 * turn
    return f"Current time: {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def identity_with(line: str) -> str:
    """The identity as somebody changed it: one more line below the first."""
    first, rest = IDENTITY.split("\n", 1)
    return f"{first}\n{line}\n{rest}"


def state(step: Step, turn: int, failing: int, edited: list[str]) -> str:
    """The volatile tail: rebuilt at every call."""
    lines = [f"Turn {turn}. Tests failing: {failing}. Edited: {', '.join(edited) or 'nothing'}."]
    if step.clock_in == "tail":
        lines.append(clock(turn))
    return "\n".join(lines)
