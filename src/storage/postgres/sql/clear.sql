-- Deletes at most $2 entries of a journal, until their bytes reach $3. Returns whether they were the last.
WITH piece AS (
    SELECT seq, octet_length(body)::int8 AS bytes, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before
    FROM callboard.journal WHERE conv = $1 ORDER BY seq LIMIT $2
),
chosen AS (
    SELECT seq, bytes FROM piece WHERE bytes_before < $3
),
removed AS (
    DELETE FROM callboard.journal j USING chosen WHERE j.conv = $1 AND j.seq = chosen.seq
)
SELECT count(*) < $2 AND coalesce(sum(bytes), 0) < $3 FROM chosen
