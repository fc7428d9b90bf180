"""What holds for every log and every change of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit_logs import envelope

from anaphora.audit import AuditLog, verify
from anaphora.audit.chain import ChainChecker, ChainHead, seal
from anaphora.audit.envelope import decode
from anaphora.errors import AnaphoraError, ChainBroken


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("law") / "audit"
    with AuditLog(path, segment_bytes=1500) as log:
        for number in range(12):
            log.append(envelope(number))
            log.flush()
    return path


@settings(max_examples=150)
@given(data=st.data())
def test_any_changed_byte_is_found(log: Path, data: st.DataObject) -> None:
    """Also one that is added or taken away."""
    file = data.draw(st.sampled_from(sorted(log.iterdir())))
    before = file.read_bytes()
    index = data.draw(st.integers(0, len(before) - 1))
    new = data.draw(st.binary(max_size=2).filter(lambda new: new != before[index : index + 1]))
    changed = before[:index] + new + before[index + 1 :]
    if changed == before:  # one of two equal bytes was taken away, and then added
        return
    try:
        file.write_bytes(changed)
        with pytest.raises(AnaphoraError) as found:
            verify(log)
    finally:
        file.write_bytes(before)
    if isinstance(found.value, ChainBroken):
        first = next(line for line in before.splitlines() if line)
        assert found.value.row >= 1
        assert found.value.row >= decode(first).seq or file.name == "000001.jsonl"


@pytest.mark.parametrize(
    "new", [b"", b'"', b"}", b'"}', b'"}"}', b" ", b"\r", b"\t}", b"\n\n", b"\n\r"]
)
def test_a_changed_line_break_is_found(log: Path, new: bytes) -> None:
    """In every segment, also one that makes the end of the row look whole."""
    for file in sorted(log.iterdir()):
        before = file.read_bytes()
        try:
            file.write_bytes(before.removesuffix(b"\n") + new)
            with pytest.raises(ChainBroken):
                verify(log)
        finally:
            file.write_bytes(before)
    assert verify(log).rows


@given(
    texts=st.lists(st.text(max_size=20), max_size=4),
    amounts=st.lists(st.integers(0, 10**18), min_size=1, max_size=5),
)
def test_rows_are_decoded_as_they_were_sealed(texts: list[str], amounts: list[int]) -> None:
    head = ChainHead()
    lines, contents = [], []
    for amount in amounts:
        encodable = tuple(text.encode("utf-8", "replace").decode() for text in texts)
        contents.append(envelope(amount % 97, labels=encodable, cost_nano_usd=amount))
        line, head = seal(head, contents[-1])
        lines.append(line)
        assert b"\n" not in line
    assert [decode(line).content for line in lines] == contents
    checker = ChainChecker(ChainHead())
    assert list(checker.check(lines, str)) == []
    assert checker.head == head
