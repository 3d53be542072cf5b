-- The tenants with messages, and whether one is due. Jumps from tenant to tenant in the index, however many messages each has.
WITH RECURSIVE found (tenant) AS (
    SELECT min(tenant) FROM callboard.outbox
    UNION ALL
    SELECT (SELECT min(o.tenant) FROM callboard.outbox o WHERE o.tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL
)
SELECT tenant, EXISTS (SELECT FROM callboard.outbox o WHERE o.tenant = found.tenant AND o.due_at <= now())
FROM found WHERE tenant IS NOT NULL
