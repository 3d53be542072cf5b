-- Stores the appends of up to 256 conversations, each whole or not at all, in one round trip and one commit. Returns the numbers of
-- those that were stored; one that is missing found another head than it expected, or another owner. $15 is the host that appends, NULL for a
-- program that is none. An activation (the next epoch) takes a conversation unless it belongs to another host that is alive.
WITH want AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[])
        WITH ORDINALITY AS w (tenant, id, was_epoch, was_seq, epoch, seq, open, wake_at, bytes, n)
),
born AS (
    INSERT INTO callboard.conversation (tenant, id, created_at)
    SELECT tenant, id, $10 FROM want WHERE was_epoch = 0 AND was_seq = 0
      AND NOT EXISTS (SELECT FROM callboard.deleted d WHERE d.tenant = want.tenant AND d.id = want.id AND d.epoch >= want.epoch)
    ORDER BY tenant, id
    ON CONFLICT DO NOTHING
    RETURNING conv, tenant, id
),
first AS (
    INSERT INTO callboard.head (conv, epoch, head_seq, bytes, updated_at, owner)
    SELECT conv, epoch, seq, bytes, $10, $15 FROM born JOIN want USING (tenant, id)
),
moved AS (
    UPDATE callboard.head h
    SET epoch = w.epoch, head_seq = w.seq, bytes = h.bytes + w.bytes, updated_at = greatest(h.updated_at, $10), owner = $15
    FROM want w JOIN callboard.conversation c ON c.tenant = w.tenant AND c.id = w.id
    WHERE h.conv = c.conv AND h.epoch = w.was_epoch AND h.head_seq = w.was_seq AND w.was_seq > 0
      AND (h.owner IS NOT DISTINCT FROM $15 OR w.epoch > w.was_epoch AND NOT EXISTS (
          SELECT FROM callboard.host o WHERE o.boot = h.owner AND o.beat_at > now() - interval '12 seconds'))
    RETURNING h.conv, w.n
),
passed AS (
    SELECT conv, n FROM moved
    UNION ALL
    SELECT conv, n FROM born JOIN want USING (tenant, id)
),
written AS (
    INSERT INTO callboard.journal (conv, seq, body, digest)
    SELECT conv, seq, body, digest
    FROM unnest($11::int8[], $12::int8[], $13::bytea[], $14::bytea[]) AS e (n, seq, body, digest) JOIN passed USING (n)
),
opened AS (
    INSERT INTO callboard.open_round AS o (conv, kind, wake_at)
    SELECT conv, open::int2, wake_at FROM passed JOIN want USING (n) WHERE open <> 0
    ON CONFLICT (conv) DO UPDATE SET kind = excluded.kind, wake_at = excluded.wake_at
    WHERE (o.kind, o.wake_at) IS DISTINCT FROM (excluded.kind, excluded.wake_at)
),
queued AS (
    INSERT INTO callboard.outbox (id, tenant, conversation, at, body)
    SELECT m.id, want.tenant, want.id, m.at, m.body
    FROM unnest($16::int8[], $17::text[], $18::int8[], $19::bytea[]) AS m (n, id, at, body) JOIN passed USING (n) JOIN want USING (n)
    ON CONFLICT DO NOTHING
),
closed AS (
    DELETE FROM callboard.open_round o USING passed JOIN want USING (n) WHERE o.conv = passed.conv AND want.open = 0
)
SELECT n FROM passed
