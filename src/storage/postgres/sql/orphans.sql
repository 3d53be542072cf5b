-- Conversations whose round runs and whose owner is not alive.
SELECT c.tenant, c.id
FROM callboard.open_round r JOIN callboard.conversation c USING (conv) JOIN callboard.head h USING (conv)
WHERE r.kind = 1 AND c.failed IS NULL AND h.owner IS NOT NULL
  AND NOT EXISTS (SELECT FROM callboard.host o WHERE o.boot = h.owner AND o.beat_at > now() - interval '12 seconds')
ORDER BY c.tenant, c.id LIMIT $1
