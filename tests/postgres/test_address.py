"""Addresses of PostgreSQL: what is accepted, what is refused, and that no password is shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from support.certificates import write_certificate
from support.tables import each_row

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidConfig
from anaphora.postgres.address import PostgresAddress

CANARY = "hunter2-CANARY-0123456789"


@each_row(
    "url, expected, text",
    [
        ("postgresql://app@db.example/ledger", ("db.example", 5432, "app", "ledger", "verify-full"),
         "postgresql://db.example/ledger"),
        ("postgres://app@db.example:6432/ledger?sslmode=require",
         ("db.example", 6432, "app", "ledger", "require"), "postgresql://db.example:6432/ledger"),
        ("postgresql://app@/ledger?host=/run/postgresql",
         ("/run/postgresql", 5432, "app", "ledger", "prefer"),
         "postgresql:///ledger?host=/run/postgresql"),
        ("postgresql://app@/ledger?host=/run/postgresql&port=5433",
         ("/run/postgresql", 5433, "app", "ledger", "prefer"),
         "postgresql:///ledger?host=/run/postgresql"),
        ("postgresql://a%40b@127.0.0.1/x%2Fy", ("127.0.0.1", 5432, "a@b", "x/y", "prefer"),
         "postgresql://127.0.0.1/x/y"),
        ("postgresql://app@[::1]/ledger", ("::1", 5432, "app", "ledger", "prefer"),
         "postgresql://[::1]/ledger"),
        ("postgresql://app@10.0.0.7/", ("10.0.0.7", 5432, "app", "app", "verify-full"),
         "postgresql://10.0.0.7/app"),
    ],
)  # fmt: skip
def test_an_address_is_read(url: str, expected: tuple[object, ...], text: str) -> None:
    found = PostgresAddress.parse(url)
    assert (found.host, found.port, found.user, found.database, found.sslmode) == expected
    assert str(found) == text


@each_row(
    "url, reason",
    [
        ("mysql://db/x", "must begin with postgresql://"),
        ("/var/lib/store", "must begin with postgresql://"),
        ("postgresql://db:port/x", "is not a URL"),
        ("postgresql://db/x?port=many", "is not a URL"),
        ("postgresql://[::1/x", "is not a URL"),
        ("postgresql://db/x#y", "contains a #"),
        ("postgresql://db/x?host=/run", "names a host twice"),
        ("postgresql:///x?host=a,b", "names several hosts"),
        (
            "postgresql://db/x?sslmode=always",
            "has sslmode=always; known are disable, allow, prefer",
        ),
        (
            "postgresql://db/x?pool=9",
            "has the unknown parameter 'pool'; known are host, port, sslmode",
        ),
        (f"postgresql://app:{CANARY}@db/x", "contains a password; remove it from the URL"),
        (f"postgresql://app@db/x?password={CANARY}", "contains a password; store it with"),
        (f"postgresql://app@db/x?{CANARY}=1", "has the unknown parameter '…'"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        PostgresAddress.parse(url)
    assert str(refused.value).startswith(f"the address of PostgreSQL {reason}")
    assert CANARY not in str(refused.value)
    frames = refused.traceback[1:]
    assert CANARY not in repr([frame.frame.f_locals for frame in frames])


def test_no_password_is_shown() -> None:
    address = PostgresAddress.parse("postgresql://app@db.example/ledger", Secret(CANARY))
    assert CANARY not in f"{address} {address!r}"


def test_certificates_are_verified_unless_the_address_says_otherwise(tmp_path: Path) -> None:
    own = write_certificate(tmp_path, "own")

    def context(query: str) -> ssl.SSLContext:
        found = PostgresAddress.parse(f"postgresql://app@db.example/x?{query}").ssl_options()
        assert isinstance(found, ssl.SSLContext)
        return found

    full = context(f"sslrootcert={own.cert}&sslcert={own.cert}&sslkey={own.key}")
    assert (full.verify_mode, full.check_hostname) == (ssl.CERT_REQUIRED, True)
    authority = context(f"sslmode=verify-ca&sslrootcert={own.cert}")
    assert (authority.verify_mode, authority.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert context("sslmode=require").verify_mode == ssl.CERT_NONE
    given = context(f"sslmode=require&sslrootcert={own.cert}")
    assert (given.verify_mode, given.check_hostname) == (ssl.CERT_REQUIRED, False)
    plain = PostgresAddress.parse("postgresql://app@db.example/x?sslmode=disable")
    assert plain.ssl_options() is False
    with pytest.raises(InvalidConfig, match=r"TLS cannot be used: no such file: /missing\.pem"):
        context("sslrootcert=/missing.pem")
