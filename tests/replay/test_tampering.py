"""Ways to tamper with a fixture folder; each is found by the check that claims it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from blake3 import blake3
from support.recordings import recorded_folder, small_fixture

from anaphora.cli.main import main
from anaphora.errors import FixtureIntegrityFailed, OtherSchema, SignatureMismatch
from anaphora.replay.fixture import from_file, to_file
from anaphora.replay.index import FixtureEntry, file_name, written
from anaphora.replay.signing import SigningKey, sign_folder
from anaphora.replay.store import FixtureStore

RULES = '[[rule]]\npattern = "T-[0-9]+"\nplaceholder = "<ticket>"\n'

Change: TypeAlias = Callable[[Path, list[Path]], None]


def edit_index(folder: Path, old: str, new: str, count: int = 1) -> None:
    index = folder / "INDEX.toml"
    text = index.read_text()
    assert old in text
    index.write_text(text.replace(old, new, count))


def hash_of(file: Path) -> str:
    return blake3(file.read_bytes()).hexdigest()


def flip_byte(folder: Path, files: list[Path]) -> None:
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)


def append_byte(folder: Path, files: list[Path]) -> None:
    files[0].write_bytes(files[0].read_bytes() + b"\n")


def empty_file(folder: Path, files: list[Path]) -> None:
    files[0].write_bytes(b"")


def change_hash(folder: Path, files: list[Path]) -> None:
    found = hash_of(files[0])
    edit_index(folder, found, ("0" if found[0] != "0" else "1") + found[1:])


def swap_files(folder: Path, files: list[Path]) -> None:
    first, second = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(second)
    files[1].write_bytes(first)


def swap_paths(folder: Path, files: list[Path]) -> None:
    """Paths and hashes of two entries: every hash is right, the keys are not."""
    text = (folder / "INDEX.toml").read_text()
    lines = [f'path = "{file.name}"\nblake3 = "{hash_of(file)}"' for file in files[:2]]
    text = text.replace(lines[0], "first").replace(lines[1], lines[0]).replace("first", lines[1])
    (folder / "INDEX.toml").write_text(text)


def change_key(folder: Path, files: list[Path]) -> None:
    key = re.findall(r'key = "(\w+)"', (folder / "INDEX.toml").read_text())[0]
    edit_index(folder, f'key = "{key}"', f'key = "{"0" * 64}"')


def change_number(folder: Path, files: list[Path]) -> None:
    edit_index(folder, "number = 0", "number = 1")


def change_digest(folder: Path, files: list[Path]) -> None:
    """Another request would be answered without being compared."""
    edit_index(folder, 'exact = ""', f'exact = "{"0" * 64}"')


def rename_file(folder: Path, files: list[Path]) -> None:
    files[0].rename(folder / "other.json")


def delete_file(folder: Path, files: list[Path]) -> None:
    files[0].unlink()


def delete_entry(folder: Path, files: list[Path]) -> None:
    text = (folder / "INDEX.toml").read_text()
    entry = text[text.rindex("[[fixture]]") :]
    edit_index(folder, entry, "")


def delete_index(folder: Path, files: list[Path]) -> None:
    (folder / "INDEX.toml").unlink()


def empty_index(folder: Path, files: list[Path]) -> None:
    (folder / "INDEX.toml").write_text("")


def cut_index_off(folder: Path, files: list[Path]) -> None:
    data = (folder / "INDEX.toml").read_bytes()
    (folder / "INDEX.toml").write_bytes(data[:-40])


def add_unlisted(folder: Path, files: list[Path]) -> None:
    (folder / "extra.json").write_bytes(files[0].read_bytes())


def add_unlisted_below(folder: Path, files: list[Path]) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "extra.json").write_bytes(files[0].read_bytes())


def add_program(folder: Path, files: list[Path]) -> None:
    (folder / "run.sh").write_text("#!/bin/sh")


def link_out(folder: Path, files: list[Path]) -> None:
    outside = folder.parent / "outside.json"
    files[0].rename(outside)
    files[0].symlink_to(outside)


def link_in(folder: Path, files: list[Path]) -> None:
    moved = folder / ".hidden.json"
    files[0].rename(moved)
    files[0].symlink_to(moved.name)


def link_folder(folder: Path, files: list[Path]) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    files[0].rename(outside / files[0].name)
    (folder / "sub").symlink_to(outside)
    edit_index(folder, f'"{files[0].name}"', f'"sub/{files[0].name}"')


def link_index(folder: Path, files: list[Path]) -> None:
    outside = folder.parent / "INDEX.toml"
    (folder / "INDEX.toml").rename(outside)
    (folder / "INDEX.toml").symlink_to(outside)


def leave_folder(folder: Path, files: list[Path]) -> None:
    files[0].rename(folder.parent / files[0].name)
    edit_index(folder, f'"{files[0].name}"', f'"../{files[0].name}"')


def leave_folder_inside(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'"{files[0].name}"', f'"sub/../{files[0].name}"')


def leave_with_backslashes(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'"{files[0].name}"', f"'..\\{files[0].name}'")


def absolute_path(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'"{files[0].name}"', f'"{files[0]}"')


def drive_path(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'"{files[0].name}"', f'"C:{files[0].name}"')


def other_case(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'"{files[0].name}"', f'"{files[0].name.upper().replace("JSON", "json")}"')


def both_cases(folder: Path, files: list[Path]) -> None:
    """Two entries that are one file where case does not count."""
    name = files[0].name.upper().replace("JSON", "json")
    (folder / name).write_bytes(files[0].read_bytes())
    entry = FixtureEntry(name, hash_of(files[0]), from_file(files[0].read_bytes(), "").key, 0)
    with (folder / "INDEX.toml").open("ab") as index:
        index.write(written(entry))


def listed_twice(folder: Path, files: list[Path]) -> None:
    text = (folder / "INDEX.toml").read_text()
    (folder / "INDEX.toml").write_text(text + text[text.rindex("[[fixture]]") :])


def same_number(folder: Path, files: list[Path]) -> None:
    """A second answer for a key, with the number of the first."""
    data = files[0].read_bytes()
    (folder / "copy.json").write_bytes(data)
    key = from_file(data, "").key
    with (folder / "INDEX.toml").open("ab") as index:
        index.write(written(FixtureEntry("copy.json", hash_of(files[0]), key, 0)))


def folder_for_file(folder: Path, files: list[Path]) -> None:
    files[0].unlink()
    files[0].mkdir()


def pipe_for_file(folder: Path, files: list[Path]) -> None:
    files[0].unlink()
    os.mkfifo(files[0])


def unlisted_pipe(folder: Path, files: list[Path]) -> None:
    os.mkfifo(folder / "pipe")


def linked_rules(folder: Path, files: list[Path]) -> None:
    (folder.parent / "rules.toml").write_text("")
    (folder / "replay.toml").symlink_to(folder.parent / "rules.toml")


def unlisted_rules(folder: Path, files: list[Path]) -> None:
    (folder / "replay.toml").write_text(RULES)


def changed_rules(folder: Path, files: list[Path]) -> None:
    unlisted_rules(folder, files)
    assert FixtureStore.open(folder, changed_rules=True).accept_rules()
    (folder / "replay.toml").write_text(RULES.replace("ticket", "city"))


def removed_rules(folder: Path, files: list[Path]) -> None:
    changed_rules(folder, files)
    (folder / "replay.toml").unlink()


def hash_of_rules_that_is_no_hash(folder: Path, files: list[Path]) -> None:
    edit_index(folder, "schema_version = 1\n", 'schema_version = 1\nreplay_toml = "x"\n')


def pipe_for_readme(folder: Path, files: list[Path]) -> None:
    os.mkfifo(folder / "README.md")


def enormous_file(folder: Path, files: list[Path]) -> None:
    """Without its content: it would not fit on the disk, nor into memory."""
    os.truncate(files[0], 2**40)


def upper_case_hash(folder: Path, files: list[Path]) -> None:
    edit_index(folder, hash_of(files[0]), hash_of(files[0]).upper())


def short_hash(folder: Path, files: list[Path]) -> None:
    edit_index(folder, hash_of(files[0]), hash_of(files[0])[:32])


def no_hash(folder: Path, files: list[Path]) -> None:
    edit_index(folder, f'blake3 = "{hash_of(files[0])}"\n', "")


def through_hard_link(folder: Path, files: list[Path]) -> None:
    os.link(files[0], folder.parent / "outside")
    (folder.parent / "outside").write_bytes(b"changed")


def rehashed_body(folder: Path, files: list[Path]) -> None:
    """The answer is changed and the index has the new hash; raw_hash is still the old one."""
    old = hash_of(files[0])
    files[0].write_bytes(files[0].read_bytes().replace(b"answer 0", b"answer X"))
    edit_index(folder, old, hash_of(files[0]))


def not_a_fixture(folder: Path, files: list[Path]) -> None:
    old = hash_of(files[0])
    files[0].write_bytes(b"[1, 2, 3]")
    edit_index(folder, old, hash_of(files[0]))


def index_of_another_kind(folder: Path, files: list[Path]) -> None:
    (folder / "INDEX.toml").write_text('schema_version = 1\nfixture = "none"\n')


def pretended_interruption(folder: Path, files: list[Path]) -> None:
    """`.pending-NAME` excuses only a file that has no entry."""
    (folder / f".pending-{files[0].name}").touch()
    flip_byte(folder, files)


def reindexed(folder: Path, file: Path, old: bytes, new: bytes) -> None:
    before = hash_of(file)
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new))
    edit_index(folder, before, hash_of(file))


def impossible_status(folder: Path, files: list[Path]) -> None:
    """A server cannot send it."""
    reindexed(folder, files[0], b'"status": 200', b'"status": 42')


def header_with_a_line_break(folder: Path, files: list[Path]) -> None:
    header = b'[["x-a","b\\r\\nset-cookie: c"]]'
    reindexed(folder, files[0], b'"headers": []', b'"headers": ' + header)


FOUND: list[tuple[Change, str]] = [
    (flip_byte, "hash"),
    (append_byte, "hash"),
    (empty_file, "hash"),
    (change_hash, "hash"),
    (swap_files, "hash"),
    (through_hard_link, "hash"),
    (pretended_interruption, "hash"),
    (swap_paths, "key"),
    (change_key, "key"),
    (change_number, "key"),
    (change_digest, "key"),
    (rename_file, "missing"),
    (delete_file, "missing"),
    (other_case, "missing"),
    (delete_entry, "unlisted"),
    (empty_index, "unlisted"),
    (add_unlisted, "unlisted"),
    (add_unlisted_below, "unlisted"),
    (add_program, "unlisted"),
    (delete_index, "index"),
    (cut_index_off, "index"),
    (link_index, "index"),
    (upper_case_hash, "index"),
    (short_hash, "index"),
    (no_hash, "index"),
    (index_of_another_kind, "index"),
    (link_out, "link"),
    (link_in, "link"),
    (link_folder, "link"),
    (linked_rules, "link"),
    (unlisted_rules, "unlisted"),
    (changed_rules, "hash"),
    (removed_rules, "missing"),
    (hash_of_rules_that_is_no_hash, "index"),
    (leave_folder, "path"),
    (leave_folder_inside, "path"),
    (leave_with_backslashes, "path"),
    (absolute_path, "path"),
    (drive_path, "path"),
    (both_cases, "duplicate"),
    (listed_twice, "duplicate"),
    (same_number, "duplicate"),
    (folder_for_file, "kind"),
    (pipe_for_file, "kind"),
    (unlisted_pipe, "kind"),
    (pipe_for_readme, "kind"),
    (enormous_file, "kind"),
    (rehashed_body, "format"),
    (not_a_fixture, "format"),
    (impossible_status, "format"),
    (header_with_a_line_break, "format"),
]

name = lambda value: getattr(value, "__name__", value)  # noqa: E731


@pytest.mark.parametrize("change, check", FOUND, ids=name)
def test_change_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, check: str
) -> None:
    folder = tmp_path / "recordings"
    files = recorded_folder(folder)
    assert main(["replay", "verify", str(folder)]) == 0
    capsys.readouterr()
    change(folder, files)
    assert main(["replay", "verify", str(folder), "--json"]) == 5
    printed = capsys.readouterr()
    problems = json.loads(printed.out)["problems"]
    assert check in {one["check"] for one in problems}
    named = [one["path"] for one in problems]
    assert len(named) == len(set(named)), "one line for each file"
    assert "failed its integrity check" in printed.err
    assert main(["replay", "verify", str(folder)]) == 5
    assert check in capsys.readouterr().out
    with pytest.raises(FixtureIntegrityFailed):
        serve_all(folder)


def serve_all(folder: Path) -> None:
    """Nothing is served; only a wrong raw_hash is found when its fixture is."""
    store = FixtureStore.open(folder)
    for entry in store.entries:
        store.fixture(entry.path)


@pytest.mark.parametrize("change, check", [row for row in FOUND if row[1] != "format"], ids=name)
def test_folder_is_not_opened_for_any_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, check: str
) -> None:
    folder = tmp_path / "recordings"
    files = recorded_folder(folder)
    change(folder, files)
    with pytest.raises(FixtureIntegrityFailed):
        FixtureStore.open(folder)
    for words in (["list", str(folder)], ["show", str(folder), "x"]):
        assert main(["replay", *words]) == 5
        assert capsys.readouterr().out == ""


def newer_index(folder: Path, files: list[Path]) -> None:
    edit_index(folder, "schema_version = 1", "schema_version = 2")


def newer_fixture(folder: Path, files: list[Path]) -> None:
    old = hash_of(files[0])
    data = files[0].read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2')
    files[0].write_bytes(data.replace(b'"status": 200', b'"status": "new form"'))
    edit_index(folder, old, hash_of(files[0]))


@pytest.mark.parametrize("change", [newer_index, newer_fixture], ids=name)
def test_newer_version_is_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change
) -> None:
    change(tmp_path, recorded_folder(tmp_path))
    assert main(["replay", "verify", str(tmp_path)]) == 4
    assert "schema_version 2 is newer" in capsys.readouterr().err
    assert main(["replay", "verify", str(tmp_path), "--json"]) == 4
    assert "schema_version 2" in json.loads(capsys.readouterr().out)["schema_problem"]
    with pytest.raises(OtherSchema):
        FixtureStore.open(tmp_path)


def rewritten(folder: Path, files: list[Path]) -> None:
    """The answer is changed, and every hash with it: only a signature finds that."""
    old = files[0].read_bytes()
    changed = small_fixture("0", "another answer")
    files[0].write_bytes(to_file(changed))
    edit_index(folder, blake3(old).hexdigest(), hash_of(files[0]))


def added(folder: Path, files: list[Path]) -> None:
    """A fixture with an entry, as a recording without the key would add it."""
    one = small_fixture("new")
    path = folder / file_name(one.key, 0)
    path.write_bytes(to_file(one))
    with (folder / "INDEX.toml").open("ab") as index:
        index.write(written(FixtureEntry(path.name, hash_of(path), one.key, 0)))


def removed(folder: Path, files: list[Path]) -> None:
    delete_entry(folder, files)
    files[-1].unlink()


def commented(folder: Path, files: list[Path]) -> None:
    index = folder / "INDEX.toml"
    index.write_text(index.read_text() + "# a comment\n")


def without_signature(folder: Path, files: list[Path]) -> None:
    rewritten(folder, files)
    (folder / "INDEX.toml.sig").unlink()


def signed_with_another_key(folder: Path, files: list[Path]) -> None:
    rewritten(folder, files)
    sign_folder(folder, SigningKey.generate(folder.parent / "another.key"))


def other_public_key(folder: Path, files: list[Path]) -> None:
    """Signed with another key, in the name of the first."""
    signature = folder / "INDEX.toml.sig"
    before = re.findall(r"ed25519:\S+=", signature.read_text())[0]
    signed_with_another_key(folder, files)
    signature.write_text(re.sub(r"ed25519:\S+=", before, signature.read_text()))


def broken_signature(folder: Path, files: list[Path]) -> None:
    (folder / "INDEX.toml.sig").write_text("public_key = 1")


def everything_removed(folder: Path, files: list[Path]) -> None:
    for file in folder.iterdir():
        file.unlink()


SIGNED = [
    rewritten,
    added,
    removed,
    commented,
    without_signature,
    signed_with_another_key,
    other_public_key,
    broken_signature,
    everything_removed,
]


@pytest.mark.parametrize("change", SIGNED, ids=name)
def test_deliberate_change_of_a_signed_folder_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change
) -> None:
    folder, key = tmp_path / "recordings", SigningKey.generate(tmp_path / "replay.key")
    files = recorded_folder(folder)
    assert main(["replay", "sign", str(folder), "--key", str(key.path)]) == 0
    pinned = tmp_path / "replay.pub"
    pinned.write_text(f"{key.public}\n")
    verify = ["replay", "verify", str(folder), "--signed-by", str(pinned)]
    assert main(verify) == 0
    change(folder, files)
    capsys.readouterr()
    assert main(verify) == 3
    assert (
        "signed with" in (output := capsys.readouterr()).err
        or "not a signature" in output.err
        or ("is not signed" in output.err)
    )
    with pytest.raises(SignatureMismatch):
        FixtureStore.open(folder, signed_by=key.public)


@pytest.mark.parametrize("change", [without_signature, signed_with_another_key], ids=name)
def test_only_a_pinned_key_finds_what_was_signed_again(tmp_path: Path, change: Change) -> None:
    folder, key = tmp_path / "recordings", SigningKey.generate(tmp_path / "replay.key")
    files = recorded_folder(folder)
    sign_folder(folder, key)
    change(folder, files)
    assert main(["replay", "verify", str(folder)]) == 0


def hidden_file(folder: Path, files: list[Path]) -> None:
    (folder / ".gitignore").touch()
    (folder / ".git").mkdir()
    (folder / ".git" / "config.json").touch()


def notes(folder: Path, files: list[Path]) -> None:
    (folder / "README.md").touch()


def other_toml_form(folder: Path, files: list[Path]) -> None:
    rows = "".join(f"[[fixture]]\nblake3='{hash_of(f)}'\npath='{f.name}'\n" for f in files)
    (folder / "INDEX.toml").write_text(f"# by hand\n{rows}")


def in_a_subfolder(folder: Path, files: list[Path]) -> None:
    (folder / "sub").mkdir()
    files[0].rename(folder / "sub" / "one two.json")
    edit_index(folder, f'"{files[0].name}"', '"sub/one two.json"')


@pytest.mark.parametrize("change", [hidden_file, notes, other_toml_form, in_a_subfolder], ids=name)
def test_allowed_changes_are_no_problem(tmp_path: Path, change: Change) -> None:
    files = recorded_folder(tmp_path)
    before = [from_file(file.read_bytes(), "") for file in files]
    change(tmp_path, files)
    assert main(["replay", "verify", str(tmp_path)]) == 0
    store = FixtureStore.open(tmp_path)
    for one in before:
        assert list(store.by_key(one.key)) == [one]
    store.add(small_fixture("0", "again"))
    assert [one.number for one in FixtureStore.open(tmp_path).by_key(before[0].key)] == [0, 1]
    store.remove([store.entries[0].path])
    assert main(["replay", "verify", str(tmp_path)]) == 0


# ── Match rules ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_changed_rules_are_served_once_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signed: bool
) -> None:
    folder, sign = tmp_path / "recordings", []
    recorded_folder(folder)
    if signed:
        key = SigningKey.generate(tmp_path / "key")
        sign_folder(folder, key)
        sign = ["--sign", str(key.path)]
    for text in (RULES, RULES.replace("ticket", "city"), None):
        if text is None:
            (folder / "replay.toml").unlink()
        else:
            (folder / "replay.toml").write_text(text)
        assert main(["replay", "verify", str(folder)]) == 5
        printed = capsys.readouterr().out.replace("\n", " ")
        assert "anaphora replay accept-rules" in " ".join(printed.split())
        if signed:
            assert main(["replay", "accept-rules", str(folder)]) == 2
            assert "give the key that signs it" in capsys.readouterr().err
        assert main(["replay", "accept-rules", str(folder), "--json", *sign]) == 0
        accepted = json.loads(capsys.readouterr().out)
        assert accepted["changed"]
        assert accepted["rules"] == (text and hash_of(folder / "replay.toml"))
        assert main(["replay", "verify", str(folder)]) == 0
        assert len(FixtureStore.open(folder)) == 4
    assert main(["replay", "accept-rules", str(folder), *sign]) == 0


def test_accepting_rules_accepts_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = recorded_folder(tmp_path)
    (tmp_path / "replay.toml").write_text("[[rules]]")
    assert main(["replay", "accept-rules", str(tmp_path)]) == 2
    assert "unknown field `rules`" in capsys.readouterr().err
    (tmp_path / "replay.toml").write_text(RULES)
    append_byte(tmp_path, files)
    assert main(["replay", "accept-rules", str(tmp_path)]) == 5
    assert "replay_toml" not in (tmp_path / "INDEX.toml").read_text()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_rules_of_a_new_folder_are_listed_by_the_first_recording(
    tmp_path: Path, signed: bool
) -> None:
    key = SigningKey.generate(tmp_path / "key") if signed else None
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "replay.toml").write_text(RULES)
    FixtureStore.open(folder, create=True, sign=key).add(small_fixture("0"))
    assert (
        f'replay_toml = "{hash_of(folder / "replay.toml")}"' in (folder / "INDEX.toml").read_text()
    )
    assert main(["replay", "verify", str(folder)]) == 0
    (folder / "replay.toml").write_text("")
    assert main(["replay", "verify", str(folder)]) == 5
