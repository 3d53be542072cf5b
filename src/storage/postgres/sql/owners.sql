-- Of these conversations, those that a host other than $3 owns that is alive, with its address.
SELECT w.n, o.address
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (tenant, id, n)
JOIN callboard.conversation c ON c.tenant = w.tenant AND c.id = w.id JOIN callboard.head h USING (conv)
JOIN callboard.host o ON o.boot = h.owner
WHERE o.boot IS DISTINCT FROM $3 AND o.beat_at > now() - interval '12 seconds'
