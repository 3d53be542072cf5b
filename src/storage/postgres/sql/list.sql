SELECT id, epoch, head_seq, coalesce(kind, 0)::int8, wake_at, created_at, updated_at, failed
FROM callboard.conversation JOIN callboard.head USING (conv) LEFT JOIN callboard.open_round USING (conv)
WHERE tenant = $1 AND id > $2 AND ($3::int8 IS NULL OR coalesce(kind, 0) = $3) AND ($5 OR NOT starts_with(id, $6))
ORDER BY id LIMIT $4
