-- What an owner's notes take without the one under a key; the tenant's conversations with notes; and a key that does not go with this one.
SELECT count(*),
       coalesce(sum(octet_length(body)), 0)::int8,
       (SELECT count(*) FROM callboard.note_owner WHERE tenant = $1 AND conversation <> ''),
       min(key) FILTER (WHERE starts_with(key, $3 || '/') OR starts_with($3, key || '/'))
FROM callboard.note WHERE tenant = $1 AND conversation = $2 AND key <> $3
