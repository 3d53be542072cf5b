-- The head of a conversation (0), and at most $4 entries after $3 (2), until their bytes reach $5.
WITH c AS (
    SELECT conv, epoch, head_seq, emptied FROM callboard.conversation JOIN callboard.head USING (conv) WHERE tenant = $1 AND id = $2
)
SELECT 0::int8, head_seq, epoch, NULL::bytea, NULL::bytea FROM c
UNION ALL
(SELECT 2, seq, 0, body, digest FROM (
    SELECT seq, e.body, e.digest, sum(octet_length(e.body)) OVER (ORDER BY seq) - octet_length(e.body) AS bytes_before
    FROM (
        SELECT seq, CASE WHEN seq <= emptied THEN '' ELSE j.body END AS body, j.digest
        FROM callboard.journal j JOIN c USING (conv) WHERE seq > $3 ORDER BY seq LIMIT $4
    ) e
) page WHERE bytes_before < $5)
ORDER BY 1, 2
