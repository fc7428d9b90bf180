"""Signatures of fixture folders: Ed25519 over the index, in INDEX.toml.sig.

    key = SigningKey.generate("replay.key")      the private key, a file outside of the folder
    FixtureStore.open("recordings", create=True, sign=key)
    FixtureStore.open("recordings", signed_by=key.public)

Hashes detect accidental changes; a deliberate change can also replace the hash. A signature detects
that, if the public key comes from elsewhere: `signed_by`.

The signed text has the length and the BLAKE3 of the index without the line breaks at its end. While
the index is written there are several signatures: for the index before, and after each entry that
is added, since a kill may leave some of them."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from anaphora.errors import InvalidRequest, Io, MissingExtra, NewerSchema, SignatureMismatch

from .disk import FILE_MODE, FolderWriter, io_errors, locked, write_all
from .fixture import SCHEMA_VERSION
from .index import SIGNATURE
from .integrity import Track, check_folder, read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PUBLIC = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


class SigningKey:
    """A private key; its repr shows the public one."""

    def __init__(self, key: Ed25519PrivateKey, path: Path) -> None:
        """Use `read` or `generate`."""
        self._key = key
        self.path = path
        raw = key.public_key().public_bytes_raw()
        self.public = f"ed25519:{base64.b64encode(raw).decode()}"
        """The public key, `ed25519:…`."""

    def __repr__(self) -> str:
        return f"<SigningKey {self.public}>"

    @classmethod
    def generate(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Write a new key to a new file, which only the user can read."""
        require_cryptography()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        data = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        place = Path(path)
        try:
            file = os.open(place, _NEW, FILE_MODE)
        except FileExistsError:
            raise InvalidRequest("exists already; name another file", path=str(place)) from None
        except OSError as problem:
            raise Io(f"{place}: cannot be written: {problem.strerror}") from None
        with io_errors(place):
            try:
                write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)
        return cls(key, place)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SigningKey:
        """The key in a PEM file, as `generate` and `openssl genpkey -algorithm ed25519` write it.
        Raises if others can read the file."""
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        place = Path(path)
        with io_errors(place, "cannot be read"):
            data = place.read_bytes()
            mode = place.stat().st_mode
        if os.name != "nt" and mode & 0o077:
            raise InvalidRequest("other users can read it: chmod 600", path=str(place))
        try:
            key = load_pem_private_key(data, None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidRequest("not an Ed25519 key in PEM form", path=str(place))
        return cls(key, place)

    def check_place(self, folder: Path) -> None:
        """Raises if the key is in the folder that it signs."""
        if self.path.resolve().is_relative_to(folder.resolve()):
            raise InvalidRequest(
                "the private key must not be in the folder that it signs", path=str(self.path)
            )

    def signature(self, *states: IndexState) -> bytes:
        """The content of INDEX.toml.sig that is valid for each of these states of the index."""
        lines = [f'schema_version = {SCHEMA_VERSION}\npublic_key = "{self.public}"\n']
        for state in dict.fromkeys(states):
            signed = base64.b64encode(self._key.sign(state.message())).decode()
            lines.append(f'\n[[signature]]\nlength = {state.length}\ned25519 = "{signed}"\n')
        return "".join(lines).encode()


class IndexState:
    """The hash of an index, updated when it grows."""

    def __init__(self, data: bytes = b"") -> None:
        self._hasher = blake3()
        self._breaks = b""
        """Line breaks at the end, which are hashed when something follows."""
        self.length = 0
        self.add(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexState) and self.message() == other.message()

    def __hash__(self) -> int:
        return hash(self.message())

    def add(self, data: bytes) -> None:
        text = data.rstrip(b"\n")
        if not text:
            self._breaks += data
            return
        self._hasher.update(self._breaks + text)
        self.length += len(self._breaks) + len(text)
        self._breaks = data[len(text) :]

    def after(self, data: bytes) -> IndexState:
        made = IndexState()
        made._hasher, made._breaks, made.length = self._hasher.copy(), self._breaks, self.length
        made.add(data)
        return made

    def message(self) -> bytes:
        digest = self._hasher.hexdigest()
        return f"anaphora fixture index\n{self.length}\n{digest}\n".encode()


def public_key(text: str) -> str:
    """A public key: `ed25519:…`, or the name of a file that contains one."""
    if _PUBLIC.fullmatch(text):
        return text
    if text.startswith("ed25519:"):
        raise InvalidRequest("not a public key: ed25519: and 44 characters of base64", path=text)
    with io_errors(text, "cannot be read"):
        data = Path(text).read_bytes()
    try:
        key = data.decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if not _PUBLIC.fullmatch(key):
        raise InvalidRequest("contains no public key (ed25519:…)", path=text)
    return key


def signer_of(folder: Path, state: IndexState, expected: str | None) -> str:
    """The public key that signed this state of the index; empty if no key is expected and the
    folder is not signed, or cryptography is not installed. Raises `SignatureMismatch`."""
    place = folder / SIGNATURE
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise SignatureMismatch(f"{place}: must be a file, not a link, a folder or a pipe")
        data = read_file(str(place))
    except FileNotFoundError:
        if expected is None:
            return ""
        raise SignatureMismatch(f"{folder}: is not signed: there is no {SIGNATURE}") from None
    except OSError as problem:
        raise Io(f"{place}: cannot be read: {problem.strerror}") from None
    if expected is None and not _has_cryptography():
        return ""
    require_cryptography()
    key, signatures = _read(data, place)
    if expected is not None and key != expected:
        raise SignatureMismatch(f"{folder}: is signed with {key}, not with {expected}")
    signed = signatures.get(state.length, ())
    if not any(_is_valid(key, each, state.message()) for each in signed):
        raise SignatureMismatch(f"{folder}: the index has changed since it was signed with {key}")
    return key


def sign_folder(
    folder: str | os.PathLike[str], key: SigningKey, *, track: Track | None = None
) -> int:
    """Sign a valid folder, and return the number of its fixtures."""
    path = Path(folder)
    key.check_place(path)
    if not path.is_dir():
        raise Io(f"{path}: there is no such folder")
    with io_errors(path), locked(path, exclusive=True):
        checked = check_folder(path, track=track)
        checked.raise_problems()
        writer = FolderWriter(path, sync=True)
        writer.replace(SIGNATURE, key.signature(IndexState(checked.index)))
    return len(checked.entries)


def is_signed(folder: Path) -> bool:
    return os.path.lexists(folder / SIGNATURE)


def _read(data: bytes, place: Path) -> tuple[str, dict[int, list[bytes]]]:
    """The key, and the signatures by the length of the index."""
    signatures: dict[int, list[bytes]] = {}
    try:
        table = tomllib.loads(data.decode())
        version = table["schema_version"]
        if type(version) is int and version > SCHEMA_VERSION:
            raise NewerSchema(str(place), version=version, known=SCHEMA_VERSION)
        key = table["public_key"]
        if not isinstance(key, str) or not _PUBLIC.fullmatch(key):
            raise ValueError
        for row in table["signature"]:
            signed = base64.b64decode(row["ed25519"], validate=True)
            signatures.setdefault(int(row["length"]), []).append(signed)
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise SignatureMismatch(f"{place}: is not a signature") from None
    return key, signatures


def _is_valid(key: str, signed: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = base64.b64decode(key.removeprefix("ed25519:"))
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signed, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def require_cryptography() -> None:
    if not _has_cryptography():
        raise MissingExtra(
            "signatures need cryptography; install it with: pip install 'anaphora[sign]'",
            extra="sign",
        )


def _has_cryptography() -> bool:
    return importlib.util.find_spec("cryptography") is not None
