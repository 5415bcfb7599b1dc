"""The longer statements that the store of sessions in PostgreSQL asks."""

from __future__ import annotations

from typing import LiteralString

INFO: LiteralString = (
    "SELECT id, epoch, owner, state, extract(epoch FROM clock_timestamp() - beat)::float8 FROM session"
)


ALL_LOGS: LiteralString = (
    "SELECT s.id, held.log, held.seq, held.upto FROM unnest(%s::text[]) AS s(id) CROSS JOIN LATERAL ("
    "WITH RECURSIVE name(log) AS ("
    "(SELECT log FROM entry WHERE session = s.id ORDER BY log LIMIT 1) UNION ALL "
    "SELECT (SELECT log FROM entry WHERE session = s.id AND log > name.log ORDER BY log LIMIT 1) FROM name "
    "WHERE name.log IS NOT NULL) "
    "SELECT name.log, last.seq, last.upto FROM name CROSS JOIN LATERAL ("
    "SELECT seq, upto FROM entry WHERE session = s.id AND log = name.log ORDER BY seq DESC LIMIT 1) last) held "
    "ORDER BY s.id, held.log"
)
ALL_FILES: LiteralString = "SELECT session, name, size, CASE WHEN size <= %s THEN body END FROM file WHERE session = ANY(%s) ORDER BY session, name"
ALL_POSTED: LiteralString = (
    "SELECT session, number, id, body FROM command WHERE session = ANY(%s) ORDER BY session, number"
)
ALL_ENTRIES: LiteralString = (
    "SELECT entry.session, entry.log, seq, body FROM unnest(%s::text[], %s::text[]) AS wanted(session, log) "
    "JOIN entry ON entry.session = wanted.session AND entry.log = wanted.log ORDER BY 1, 2, 3"
)
MARKS: LiteralString = (
    "SELECT id, epoch, owner, (SELECT max(number) FROM command WHERE command.session = session.id), "
    "(SELECT count(*) FROM command WHERE command.session = session.id) FROM session WHERE id = ANY(%s)"
)

FENCE: LiteralString = (
    "WITH held AS (SELECT id, CASE WHEN %(first)s = 1 THEN 0 ELSE "
    "(SELECT upto FROM entry WHERE session = %(session)s AND log = %(log)s AND seq = %(first)s - 1) END AS before "
    "FROM session WHERE id = %(session)s AND epoch = %(epoch)s AND owner = %(owner)s FOR SHARE)"
)
ONCE: LiteralString = (
    " WHERE held.before IS NOT NULL ON CONFLICT (session, log, seq) DO UPDATE SET seq = excluded.seq "
    "WHERE entry.epoch = excluded.epoch AND entry.body = excluded.body"
)
APPEND_ONE: LiteralString = (
    f"{FENCE} INSERT INTO entry (session, log, seq, epoch, upto, body) "
    f"SELECT id, %(log)s, %(first)s, %(epoch)s, before + length(%(body)b::bytea), %(body)b FROM held{ONCE}"
)
APPEND: LiteralString = (
    f"{FENCE}, made AS (INSERT INTO entry (session, log, seq, epoch, upto, body) "
    "SELECT id, %(log)s, %(first)s + k - 1, %(epoch)s, before + sum(length(b)) OVER (ORDER BY k), b "
    f"FROM held CROSS JOIN unnest(%(body)b::bytea[]) WITH ORDINALITY AS u(b, k){ONCE} RETURNING 1) "
    "SELECT whole(count(*), %(n)s) FROM made"
)
"""An append: fenced by the session's row, which stays locked until it ends; the same one again hits its own rows."""
