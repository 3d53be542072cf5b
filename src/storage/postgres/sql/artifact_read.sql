-- Notes a use of an artifact that is not too old, and reads its bytes from $6 to $7.
WITH used AS (
    UPDATE callboard.artifact SET accessed_at = greatest(accessed_at, $4)
    WHERE tenant = $1 AND conversation = $2 AND id = $3 AND created_at >= $5
    RETURNING artifact, bytes
)
SELECT used.bytes,
       substring(chunk.bytes FROM (greatest($6 - chunk.n * 262144, 0) + 1)::int4
           FOR (least($7 - chunk.n * 262144, 262144) - greatest($6 - chunk.n * 262144, 0))::int4)
FROM used LEFT JOIN callboard.artifact_chunk chunk
    ON chunk.artifact = used.artifact AND $6 < $7 AND chunk.n BETWEEN $6 / 262144 AND ($7 - 1) / 262144
ORDER BY chunk.n
