-- Gives conversations up that belong to the host $3. One whose round runs stays with it, so that others find the round when the host is gone.
UPDATE callboard.head h SET owner = NULL
FROM unnest($1::text[], $2::text[]) AS w (tenant, id) JOIN callboard.conversation c ON c.tenant = w.tenant AND c.id = w.id
WHERE h.conv = c.conv AND h.owner = $3
  AND NOT EXISTS (SELECT FROM callboard.open_round r WHERE r.conv = h.conv AND r.kind = 1)
