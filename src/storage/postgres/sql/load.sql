-- One point in time of a conversation: its head (0), its snapshot if $3 (1), the entries after that (2), and the address of a host other
-- than $4 that is alive and owns it (3).
WITH c AS (
    SELECT conv, epoch, head_seq, emptied, owner FROM callboard.conversation JOIN callboard.head USING (conv) WHERE tenant = $1 AND id = $2
),
s AS (
    SELECT upto, body, digest FROM callboard.snapshot JOIN c USING (conv) WHERE upto <= head_seq AND $3
)
SELECT 0::int8, head_seq, epoch, NULL::bytea, NULL::bytea FROM c
UNION ALL
SELECT 1, upto, 0, body, digest FROM s
UNION ALL
SELECT 2, seq, 0, CASE WHEN seq <= emptied THEN '' ELSE j.body END, j.digest FROM callboard.journal j JOIN c USING (conv)
WHERE seq > coalesce((SELECT upto FROM s), 0)
UNION ALL
SELECT 3, 0, 0, convert_to(address, 'UTF8'), NULL FROM c JOIN callboard.host h ON h.boot = c.owner
WHERE h.boot IS DISTINCT FROM $4 AND h.beat_at > now() - interval '12 seconds'
ORDER BY 1, 2
