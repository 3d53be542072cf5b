-- Removes messages of a tenant from before $2, and the oldest beyond $3.
WITH removed AS (
    DELETE FROM callboard.outbox
    WHERE tenant = $1 AND (at < $2 OR n IN (SELECT n FROM callboard.outbox WHERE tenant = $1 ORDER BY n DESC OFFSET $3))
    RETURNING 1
)
SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM callboard.outbox WHERE tenant = $1)
