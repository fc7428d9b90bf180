"""Checks the multipart body of an upload: a file and a few settings, and no id of another file."""

from __future__ import annotations

import re

from anaphora.errors import RequestRejected

_TYPE = re.compile(r'multipart/form-data; *boundary="?([\w\'()+,./:=?-]{1,200})"?', re.ASCII)
#: Fields of uploads; an object of this app or another is named by none of them.
_FIELDS = frozenset(("file", "purpose", "expires_after[anchor]", "expires_after[seconds]"))
_DISPOSITION = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="?([^";\r\n]*)"?'
    rb'((?:;[ \t]*filename\*?=[^\r\n]*)?)',
    re.IGNORECASE,
)  # fmt: skip
_SECOND_NAME = re.compile(rb'"[^"]*name[ \t]*\*?=|;[ \t]*name[ \t]*\*?[\d*]*=', re.IGNORECASE)
_OTHER_HEADER = re.compile(rb"content-(?:type|length):[^\r\n]*", re.IGNORECASE)


def check_upload(content_type: str, data: bytes) -> None:
    """Raises `RequestRejected` for a body that two readers could take differently."""
    match = _TYPE.fullmatch(content_type)
    if match is None:
        reason = "the content type must be multipart/form-data with a boundary"
        raise RequestRejected(reason, status=415)
    mark = b"--" + match[1].encode()
    if not data.startswith(mark + b"\r\n"):
        raise _invalid("it must begin with its boundary")
    *parts, end = (b"\r\n" + data).split(b"\r\n" + mark)
    if end.strip(b" \t\r\n") != b"--":
        raise _invalid("it must end with its boundary")
    if data.count(mark) != len(parts):
        raise _invalid("its boundary occurs in a part")
    for part in parts[1:]:
        head, found, _ = part.partition(b"\r\n\r\n")
        if not found or not head.startswith(b"\r\n"):
            raise _invalid("a part has no header")
        _check_part(head[2:].split(b"\r\n"))


def _check_part(lines: list[bytes]) -> None:
    names = []
    for line in lines:
        match = _DISPOSITION.fullmatch(line)
        if match is not None and _SECOND_NAME.search(match[2]) is None:
            names.append(match[1].decode("latin-1"))
        elif _OTHER_HEADER.fullmatch(line) is None:
            raise _invalid("a header of a part is not known")
    if len(names) != 1:
        raise _invalid("a part must have one name")
    if names[0] not in _FIELDS:
        raise _invalid(f"the field {names[0][:64]!r} is not one of {', '.join(sorted(_FIELDS))}")


def _invalid(reason: str) -> RequestRejected:
    return RequestRejected(f"the upload is not valid: {reason}", status=400, param="file")
