"""Database URLs: a password is in no output, however it is written, error messages included."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tenure as tenure_package
from tenure.errors import InvalidInput
from tenure.stores import migrations_for, store_for
from tenure.stores.database_url import parse_postgres_url, shown_url
from tenure.stores.postgres.connections import Address
from tests.support.command import tenure

PIECES = st.lists(st.text(max_size=6), min_size=2, max_size=4)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
HOSTS = st.sampled_from(
    ["", "db", "db:5432", "db.example.org", "127.0.0.1:6432", "[::1]:5432", "a:1,b:2", "%2Fvar%2Frun%2Fpostgresql"]
)
OPTIONS = st.sampled_from(["", "?sslmode=require", "?pooler=transaction", "?host=/var/run/postgresql", "?x=1&y=2"])
MARK = "Zq9"
"""In every piece of a password, and nowhere else."""


def outputs(url: str) -> list[str]:
    """All that is printed of a URL, or raised because of it."""
    found = [shown_url(url)]
    for use in (store_for, migrations_for, parse_postgres_url, Address.from_url):
        try:
            used = use(url)
        except InvalidInput as refusal:
            found += [str(refusal), repr(refusal), repr(refusal.__cause__)]
        else:
            found += [repr(used) if use is store_for else "", used.shown if isinstance(used, Address) else ""]
    return found


@given(user=NAMES, pieces=PIECES, host=HOSTS, name=NAMES, options=OPTIONS, encoded=st.booleans())
@example(user="ada", pieces=["5", "5"], host="db", name="jobs", options="", encoded=False)
def test_no_piece_of_a_password_is_shown(
    user: str, pieces: list[str], host: str, name: str, options: str, encoded: bool
) -> None:
    for separator in "/#?@:%&= \n[]":
        password = separator.join(f"{MARK}{piece}" for piece in pieces)
        written = quote(password, safe="") if encoded else password
        for scheme in ("postgresql", "postgres", "sqlite", "mysql"):
            for url in (f"{scheme}://{user}:{written}@{host}/{name}{options}", f"{scheme}://:{written}@{host}/{name}"):
                assert all(MARK not in output for output in outputs(url)), url


@given(pieces=PIECES, separator=st.sampled_from("/#?:"), digits=st.integers(0, 99_999))
def test_a_password_that_begins_like_a_port_is_not_shown(pieces: list[str], separator: str, digits: int) -> None:
    rest = separator.join(f"{MARK}{piece}" for piece in pieces)
    url = f"postgresql://ada:{digits}{separator}{rest}@db/jobs"
    assert all(MARK not in output and f"ada:{digits}" not in output for output in outputs(url)), url


@given(pieces=PIECES, name=st.sampled_from(["password", "PASSWORD", "sslpassword", "listen"]))
def test_no_secret_option_is_shown(pieces: list[str], name: str) -> None:
    secret = quote("/".join(f"{MARK}{piece}" for piece in pieces), safe="")
    value = f"postgresql://u:{secret}@db/x" if name == "listen" else secret
    for url in (f"postgresql://db/jobs?{name}={value}", f"postgresql://ada@db/jobs?sslmode=require&{name}={value}"):
        assert all(MARK not in output for output in outputs(url)), url


@given(path=st.text(min_size=1))
def test_the_path_of_a_file_is_shown_as_it_is(path: str) -> None:
    assert shown_url(f"sqlite:////{path}") == f"sqlite:////{path}"


@given(text=st.text())
def test_what_is_no_url_is_not_shown(text: str) -> None:
    assert MARK not in shown_url(f"{MARK}{text.replace('://', '')}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@db/jobs", "postgresql://ada:p%40ss@db/jobs", "postgresql:///jobs", "postgresql://db",
        "postgres://ada:s%2Fs@a:1,b:2/jobs?sslmode=require", "postgresql:///jobs?host=/var/run/postgresql",
        "postgresql://ada@[::1]:5432/jobs", "postgresql://u:p@%2Fvar%2Frun/jobs", "postgresql:///?user=ada",
        "postgresql://u:p@db/jobs?pooler=transaction&listen=postgresql://u:p@direct/jobs",
    ],
)  # fmt: skip
def test_a_url_that_a_driver_can_use_is_accepted(url: str) -> None:
    assert "***" in shown_url(url) or shown_url(url) == url
    Address.from_url(url)


COMMANDS = [("doctor",), ("jobs", "ls"), ("worker", "app:app")]


@pytest.mark.parametrize("password", ["Zq9/Zq9", "Zq9#Zq9", "5?Zq9=Zq9", "Zq9@Zq9", "Zq9[Zq9", "Zq9]"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_a_password_that_is_not_encoded(
    password: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("from tenure import App\napp = App()\n@app.job()\ndef one() -> None: ...\n")
    answer = tenure(*command, "--database", f"postgresql://ada:{password}@localhost/jobs", cwd=tmp_path)
    assert answer.code == 2
    assert MARK not in answer.out + answer.err
    assert "percent-encode" in answer.err


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql+asyncpg://ada@db/shop", "PostgresStore"),
        ("postgresql+psycopg://ada@db/shop", "PostgresStore"),
        ("sqlite+aiosqlite:///jobs.db", "SqliteStore"),
    ],
)
def test_a_driver_in_the_scheme_is_accepted_and_left_out(url: str, kind: str) -> None:
    assert type(store_for(url)).__name__ == kind
    assert migrations_for(url)
    assert "+" not in tenure_package.App(url).database
