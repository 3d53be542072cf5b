-- The hosts that serve the database now.
SELECT address, program, greatest((extract(epoch FROM now() - beat_at) * 1000)::int8, 0)
FROM callboard.host WHERE beat_at > now() - interval '12 seconds' ORDER BY address, boot
