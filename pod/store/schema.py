"""The tables of sessions in PostgreSQL, by versions: each migration is one transaction, and is never changed once released.

Bodies are `bytea`: `jsonb` and `text` refuse or rewrite bytes. Names sort by bytes (`COLLATE "C"`). `entry.upto` is the size of
the log up to and with an entry, so that a log's length is one look-up. No foreign keys: whoever writes holds the session's row,
and whoever removes it takes the rest along.
"""

from __future__ import annotations

LOCK = 0x706F64  # 'pod'
"""The advisory lock under which the schema is made: two that begin at once would trip over each other."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE session (
      id text COLLATE "C" PRIMARY KEY,
      epoch bigint NOT NULL DEFAULT 0,
      owner text NOT NULL DEFAULT '',
      state text NOT NULL DEFAULT '',
      beat timestamptz NOT NULL DEFAULT now(),
      created timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX session_state ON session (state, id);

    CREATE TABLE entry (
      session text COLLATE "C" NOT NULL,
      log text COLLATE "C" NOT NULL,
      seq bigint NOT NULL,
      epoch bigint NOT NULL,
      upto bigint NOT NULL,
      body bytea NOT NULL,
      PRIMARY KEY (session, log, seq)
    );

    CREATE TABLE file (
      session text COLLATE "C" NOT NULL,
      name text COLLATE "C" NOT NULL,
      size bigint NOT NULL,
      body bytea NOT NULL,
      PRIMARY KEY (session, name)
    );

    CREATE TABLE command (
      session text COLLATE "C" NOT NULL,
      id text COLLATE "C" NOT NULL,
      number bigint GENERATED ALWAYS AS IDENTITY,
      body bytea NOT NULL,
      PRIMARY KEY (session, id)
    );
    CREATE INDEX command_number ON command (session, number);

    -- Whether the lease counts; the row is locked until the end, so that no one acquires in between. Raises 'fenced'.
    CREATE FUNCTION hold(s text, e bigint, o text) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE found_epoch bigint; found_owner text;
    BEGIN
      SELECT epoch, owner INTO found_epoch, found_owner FROM session WHERE id = s FOR SHARE;
      IF found_epoch IS DISTINCT FROM e OR found_owner IS DISTINCT FROM o THEN
        RAISE EXCEPTION 'fenced' USING ERRCODE = 'PD001', DETAIL = coalesce(found_owner, '');
      END IF;
    END $$;

    -- How many entries were made: all `n`, or none of them. Raises 'conflict'.
    CREATE FUNCTION whole(made bigint, n bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
      IF made NOT IN (0, n) THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'PD002';
      END IF;
      RETURN made;
    END $$;
    """,
    """
    CREATE TABLE document (
      kind text COLLATE "C" NOT NULL,
      name text COLLATE "C" NOT NULL,
      body bytea NOT NULL,
      PRIMARY KEY (kind, name)
    );
    """,
)
"""What makes version 1, 2, ... of the schema out of the one before."""
