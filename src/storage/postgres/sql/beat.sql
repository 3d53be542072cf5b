INSERT INTO callboard.host (boot, address, beat_at, program) SELECT $2, $3, now(), $4 FROM taken
ON CONFLICT (boot) DO UPDATE SET beat_at = excluded.beat_at
-- How many hosts are alive, how many of them come before this one, and the addresses of the others.
RETURNING (SELECT count(*) + 1 FROM callboard.host o WHERE o.boot <> $2 AND o.beat_at > now() - interval '12 seconds'),
    (SELECT count(*) FROM callboard.host o WHERE o.boot < $2 AND o.beat_at > now() - interval '12 seconds'),
    (SELECT coalesce(array_agg(o.address), '{}') FROM callboard.host o WHERE o.boot <> $2 AND o.beat_at > now() - interval '12 seconds')
