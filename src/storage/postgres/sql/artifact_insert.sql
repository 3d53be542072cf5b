-- Adds an artifact whose chunks are stored. Returns no row if its conversation has one of this id.
WITH made AS (
    INSERT INTO callboard.artifact (artifact, tenant, conversation, id, digest, tool_call_id, created_at, accessed_at, bytes)
    VALUES ($7, $1, $2, $3, $4, $5, $6, $6, $8)
    ON CONFLICT (tenant, conversation, id) DO NOTHING
    RETURNING bytes
)
UPDATE callboard.artifact_tenant total SET bytes = total.bytes + made.bytes, count = total.count + 1
FROM made WHERE total.tenant = $1
RETURNING 1
