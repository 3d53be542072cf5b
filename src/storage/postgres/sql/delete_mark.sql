-- Notes that a conversation was deleted, and forgets a few deletions of more than ten minutes ago.
WITH old AS (
    DELETE FROM callboard.deleted WHERE (tenant, id) IN (
        SELECT tenant, id FROM callboard.deleted
        WHERE deleted_at < now() - interval '10 minutes' AND (tenant, id) <> ($1, $2)
        ORDER BY deleted_at LIMIT 4 FOR UPDATE SKIP LOCKED)
)
INSERT INTO callboard.deleted AS d (tenant, id, epoch, deleted_at) VALUES ($1, $2, $3, now())
ON CONFLICT (tenant, id) DO UPDATE SET epoch = greatest(d.epoch, excluded.epoch), deleted_at = excluded.deleted_at
