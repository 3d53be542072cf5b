-- Sets the head of a journal that was cut, counts its bytes again, and returns by how many they changed.
WITH now AS (
    SELECT (SELECT coalesce(sum(octet_length(body)), 0) FROM callboard.journal WHERE conv = $1)::int8
         + (SELECT coalesce(sum(octet_length(body)), 0) FROM callboard.snapshot WHERE conv = $1)::int8 AS bytes
),
was AS (
    SELECT bytes FROM callboard.head WHERE conv = $1
)
UPDATE callboard.head SET head_seq = $2, epoch = $3, bytes = now.bytes, emptied = least(emptied, $2), wiped = least(wiped, $2)
FROM now, was WHERE conv = $1 RETURNING now.bytes - was.bytes
