-- Renews an artifact with the same content. Returns how many were renewed, and how many have another content.
WITH renewed AS (
    UPDATE callboard.artifact SET tool_call_id = $5, created_at = $6, accessed_at = $6
    WHERE tenant = $1 AND conversation = $2 AND id = $3 AND digest = $4
    RETURNING 1
)
SELECT (SELECT count(*) FROM renewed),
       (SELECT count(*) FROM callboard.artifact WHERE tenant = $1 AND conversation = $2 AND id = $3 AND digest <> $4)
