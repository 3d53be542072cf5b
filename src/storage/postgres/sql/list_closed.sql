SELECT tenant, id FROM callboard.conversation LEFT JOIN callboard.open_round USING (conv)
WHERE coalesce(kind, 0) = $5 AND failed IS NULL AND $4::int8 IS NULL AND (tenant, id) > ($1, $2)
ORDER BY tenant, id LIMIT $3
