"""Signatures of fixture folders: Ed25519 over the index, in INDEX.toml.sig.

    key = SigningKey.generate("replay.key")      the private key, a file outside of the folder
    FixtureStore.open("recordings", create=True, sign=key)
    FixtureStore.open("recordings", signed_by=key.public)

Hashes detect accidental changes; a deliberate change can also replace the hash. A signature detects
that, if the public key comes from elsewhere: `signed_by`.

The signature is that of the bytes of the index. While a change is written, that of the next index
is beside it in `.pending-INDEX.toml.sig`: a kill leaves one of the two valid."""

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

from anaphora.errors import InvalidRequest, Io, MissingExtra, OtherSchema, SignatureMismatch

from .disk import FILE_MODE, FolderWriter, io_errors, locked, write_all
from .fixture import SCHEMA_VERSION
from .index import SIGNATURE
from .integrity import Track, check_folder, pending_name, read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PENDING_SIGNATURE = pending_name(SIGNATURE)
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

    def signature(self, index: bytes) -> bytes:
        """The content of INDEX.toml.sig for this index."""
        signed = base64.b64encode(self._key.sign(index)).decode()
        fields = f'public_key = "{self.public}"\ned25519 = "{signed}"\n'
        return f"schema_version = {SCHEMA_VERSION}\n{fields}".encode()


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


def signer_of(folder: Path, index: bytes, expected: str | None) -> str:
    """The public key that signed this index; empty if no key is expected and the folder is not
    signed, or cryptography is not installed. Raises `SignatureMismatch`."""
    data = _content(folder / SIGNATURE)
    if data is None and expected is None:
        return ""
    if data is None:
        raise SignatureMismatch(f"{folder}: is not signed: there is no {SIGNATURE}")
    if expected is None and not _has_cryptography():
        return ""
    require_cryptography()
    key, signed = _read(data, folder / SIGNATURE)
    if expected is not None and key != expected:
        raise SignatureMismatch(f"{folder}: is signed with {key}, not with {expected}")
    if _is_valid(key, signed, index):
        return key
    data = _content(folder / PENDING_SIGNATURE)
    if data is None or not _is_valid(key, _read(data, folder / PENDING_SIGNATURE)[1], index):
        raise SignatureMismatch(f"{folder}: the index has changed since it was signed with {key}")
    return key


def _content(place: Path) -> bytes | None:
    """None if there is no such file."""
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise SignatureMismatch(f"{place}: must be a file, not a link, a folder or a pipe")
        return read_file(str(place))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise Io(f"{place}: cannot be read: {problem.strerror}") from None


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
        writer.replace(SIGNATURE, key.signature(checked.index))
    return len(checked.entries)


def is_signed(folder: Path) -> bool:
    return os.path.lexists(folder / SIGNATURE)


def _read(data: bytes, place: Path) -> tuple[str, bytes]:
    """The key and the signature."""
    try:
        table = tomllib.loads(data.decode())
        version = table["schema_version"]
        if type(version) is int and version > SCHEMA_VERSION:
            raise OtherSchema(str(place), version=version, known=SCHEMA_VERSION)
        key = table["public_key"]
        if not isinstance(key, str) or not _PUBLIC.fullmatch(key):
            raise ValueError
        return key, base64.b64decode(table["ed25519"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise SignatureMismatch(f"{place}: is not a signature") from None


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
