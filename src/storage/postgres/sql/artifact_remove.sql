-- Removes artifacts of a tenant, whose row in `artifact_tenant` is locked. The condition follows from the caller.
WITH gone AS (
    DELETE FROM callboard.artifact WHERE tenant = $1 AND (CONDITION) RETURNING artifact, bytes
), chunks AS (
    DELETE FROM callboard.artifact_chunk chunk USING gone WHERE chunk.artifact = gone.artifact
), sums AS (
    SELECT count(*) AS count, coalesce(sum(bytes), 0)::int8 AS bytes FROM gone
), counted AS (
    UPDATE callboard.artifact_tenant total
    SET bytes = greatest(total.bytes - sums.bytes, 0), count = greatest(total.count - sums.count, 0)
    FROM sums WHERE total.tenant = $1
)
SELECT count, bytes FROM sums
