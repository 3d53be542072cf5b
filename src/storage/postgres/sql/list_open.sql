SELECT tenant, id FROM callboard.open_round JOIN callboard.conversation USING (conv)
WHERE kind = $5 AND failed IS NULL AND ($4::int8 IS NULL OR wake_at <= $4) AND (tenant, id) > ($1, $2)
ORDER BY tenant, id LIMIT $3
