-- Removes the bytes of at most $4 entries after $2 and up to $3, until they reach $5. Returns the last of them and their bytes; $3 as
-- the last if no more are left.
WITH piece AS (
    SELECT seq, octet_length(body)::int8 AS bytes, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before
    FROM callboard.journal WHERE conv = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4
),
chosen AS (
    SELECT seq, bytes FROM piece WHERE bytes_before < $5
),
wiped AS (
    UPDATE callboard.journal j SET body = '' FROM chosen WHERE j.conv = $1 AND j.seq = chosen.seq AND chosen.bytes > 0
)
SELECT CASE WHEN count(*) < $4 AND coalesce(sum(bytes), 0) < $5 THEN $3 ELSE max(seq) END, coalesce(sum(bytes), 0)::int8
FROM chosen
