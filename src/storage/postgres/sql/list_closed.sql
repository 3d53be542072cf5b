SELECT tenant, id FROM callboard.conversation LEFT JOIN callboard.open_round USING (conv)
WHERE coalesce(kind, 0) = $5 AND failed IS NULL AND $4::int8 IS NULL AND $6::text IS NOT DISTINCT FROM $6 AND (tenant, id) > ($1, $2)
ORDER BY tenant, id LIMIT $3
