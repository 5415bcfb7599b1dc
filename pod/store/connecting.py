"""How connections to PostgreSQL are made: nobody waits for ever for a server that is cut off, and no client that is gone keeps a lock."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

CONNECT = 10
"""Seconds until a server that does not answer is given up."""

SILENT = 10
"""Seconds after which a connection is given up over which nothing comes back, on both sides."""

IDLE = 10.0
"""Seconds that a transaction may stand open with nothing being asked, at most: a frozen client's locks are free after that."""

_PORT = re.compile(r"[0-9,]*")


def settings(url: str, *, schema: str, name: str, ttl: float, statement: float | None = None) -> dict[str, Any]:
    """What `psycopg.connect(url, ...)` is given. `ttl` are the seconds of a lease: a frozen client's locks are free well within them;
    `statement` bounds one statement, seconds. Raises `ValueError` where the URL is none. What the URL says itself is left as it is.
    """
    try:
        known = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ValueError("not a URL of a PostgreSQL database") from error
    # An @, : or / of the password that is not written as %40, %3A or %2F: what stands behind it would be named to everybody.
    if "@" in f"{known.get('host')}{known.get('dbname')}" or not _PORT.fullmatch(str(known.get("port") or "")):
        raise ValueError("a part of the password stands where host, port or database should")
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT, "keepalives_idle": SILENT // 2, "keepalives_interval": 2, "keepalives_count": 3,
        "tcp_user_timeout": SILENT * 1000,
    }  # fmt: skip
    server = {
        "search_path": schema,
        "idle_in_transaction_session_timeout": f"{int(max(min(IDLE, ttl / 3), 1.0) * 1000)}ms",
        "tcp_keepalives_idle": SILENT // 2,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
    }
    if statement is not None:
        server["statement_timeout"] = f"{int(statement * 1000)}ms"
    options = " ".join(f"-c {key}={value}" for key, value in server.items())
    return {
        **{key: value for key, value in wanted.items() if key not in known},
        "application_name": name,
        "options": f"{options} {known.get('options') or ''}".strip(),
    }


def where(url: str) -> str:
    """A database as people know it: without user and password."""
    known = conninfo_to_dict(url)
    return f"postgresql://{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"


def keeps_commits(connection: psycopg.Connection[Any]) -> None:
    """A commit that was acknowledged survives the server's death, also where the server is set not to care."""
    connection.execute(
        "SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'"
    )


AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
"""What is raised where the server went away, or ended a session that stood still."""
