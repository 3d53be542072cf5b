-- Open conversations, except those that belong to a host other than $6 that is alive.
SELECT tenant, id FROM callboard.open_round JOIN callboard.conversation USING (conv)
WHERE kind = $5 AND failed IS NULL AND ($4::int8 IS NULL OR wake_at <= $4) AND (tenant, id) > ($1, $2)
  AND NOT EXISTS (SELECT FROM callboard.head h JOIN callboard.host o ON o.boot = h.owner
      WHERE h.conv = open_round.conv AND o.boot IS DISTINCT FROM $6 AND o.beat_at > now() - interval '12 seconds')
ORDER BY tenant, id LIMIT $3
