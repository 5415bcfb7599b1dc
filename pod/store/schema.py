"""The tables of sessions in PostgreSQL, by versions: each migration is one transaction, and is never changed once released.

Bodies are `bytea`: `jsonb` and `text` refuse or rewrite bytes. Names sort by bytes (`COLLATE "C"`). `entry.upto` is the size of
the log up to and with an entry, so that a log's length is one look-up.
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
      session text COLLATE "C" NOT NULL REFERENCES session ON DELETE CASCADE,
      log text COLLATE "C" NOT NULL,
      seq bigint NOT NULL,
      epoch bigint NOT NULL,
      upto bigint NOT NULL,
      body bytea NOT NULL,
      PRIMARY KEY (session, log, seq)
    );

    CREATE TABLE file (
      session text COLLATE "C" NOT NULL REFERENCES session ON DELETE CASCADE,
      name text COLLATE "C" NOT NULL,
      size bigint NOT NULL,
      body bytea NOT NULL,
      PRIMARY KEY (session, name)
    );

    CREATE TABLE command (
      session text COLLATE "C" NOT NULL REFERENCES session ON DELETE CASCADE,
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

    -- Appends entries, all or none, and returns the number of the last command. Raises 'fenced', 'conflict'.
    CREATE FUNCTION append(s text, e bigint, o text, l text, first bigint, bodies bytea[]) RETURNS bigint
    LANGUAGE plpgsql AS $$
    DECLARE found_epoch bigint; found_owner text; before bigint; made bigint; n bigint := cardinality(bodies);
    BEGIN
      SELECT epoch, owner INTO found_epoch, found_owner FROM session WHERE id = s FOR SHARE;
      IF found_epoch IS DISTINCT FROM e OR found_owner IS DISTINCT FROM o THEN
        RAISE EXCEPTION 'fenced' USING ERRCODE = 'PD001', DETAIL = coalesce(found_owner, '');
      END IF;
      IF n > 0 THEN
        before := CASE WHEN first = 1 THEN 0
          ELSE (SELECT upto FROM entry WHERE session = s AND log = l AND seq = first - 1) END;
        IF before IS NULL THEN
          RAISE EXCEPTION 'conflict' USING ERRCODE = 'PD002';
        END IF;
        IF n = 1 THEN
          INSERT INTO entry (session, log, seq, epoch, upto, body)
          VALUES (s, l, first, e, before + length(bodies[1]), bodies[1])
          ON CONFLICT (session, log, seq) DO UPDATE SET seq = excluded.seq
          WHERE entry.epoch = excluded.epoch AND entry.body = excluded.body;
        ELSE
          INSERT INTO entry (session, log, seq, epoch, upto, body)
          SELECT s, l, first + k - 1, e, before + sum(length(b)) OVER (ORDER BY k), b
          FROM unnest(bodies) WITH ORDINALITY AS u(b, k)
          ON CONFLICT (session, log, seq) DO UPDATE SET seq = excluded.seq
          WHERE entry.epoch = excluded.epoch AND entry.body = excluded.body;
        END IF;
        GET DIAGNOSTICS made = ROW_COUNT;
        IF made <> n THEN
          RAISE EXCEPTION 'conflict' USING ERRCODE = 'PD002';
        END IF;
      END IF;
      RETURN coalesce((SELECT max(number) FROM command WHERE session = s), 0);
    END $$;
    """,
)
"""What makes version 1, 2, ... of the schema out of the one before."""
