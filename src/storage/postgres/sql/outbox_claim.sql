-- Claims up to $2 messages of a tenant for $3 milliseconds. Another host that claims at the same time gets others.
WITH due AS (
    SELECT n FROM callboard.outbox WHERE tenant = $1 AND due_at <= now() ORDER BY due_at, n LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE callboard.outbox o SET tries = o.tries + 1, due_at = now() + $3 * interval '1 millisecond'
FROM due WHERE o.n = due.n
RETURNING o.n, o.id, o.conversation, o.at, o.body, o.tries
