-- Adds to what a tenant has spent; a sum stops at the largest number. Returns it.
INSERT INTO callboard.spending AS s (tenant, tokens, micro_usd, wall_ms) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant) DO UPDATE SET
    tokens = s.tokens + least(excluded.tokens, 9223372036854775807 - s.tokens),
    micro_usd = s.micro_usd + least(excluded.micro_usd, 9223372036854775807 - s.micro_usd),
    wall_ms = s.wall_ms + least(excluded.wall_ms, 9223372036854775807 - s.wall_ms)
RETURNING tokens, micro_usd, wall_ms
