-- Version 1 of the session store. A change is a new file and a new line in `SCHEMAS` (schema.rs); this one stays as it is.
-- `callboard` is replaced by the name of the schema.

-- Names of conversations. Text is compared by its bytes, as the host does.
CREATE TABLE callboard.conversation (
    conv       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL, -- milliseconds since 1970
    failed     text,
    UNIQUE (tenant, id)
);

-- Where each journal ends. Every append changes a row, so there is no index but the key, and room on each page for the new version.
CREATE TABLE callboard.head (
    conv       bigint PRIMARY KEY,
    epoch      bigint NOT NULL,
    head_seq   bigint NOT NULL,
    bytes      bigint NOT NULL, -- of entries and snapshot
    updated_at bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What is searched: conversations whose round runs (1) or is parked (2).
CREATE TABLE callboard.open_round (
    conv    bigint PRIMARY KEY,
    kind    smallint NOT NULL,
    wake_at bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX open_round_due ON callboard.open_round (kind, wake_at);

-- Entries. A conversation is always read whole, so partitions are by conversation.
CREATE TABLE callboard.journal (
    conv   bigint NOT NULL,
    seq    bigint NOT NULL,
    body   bytea NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (conv, seq)
) PARTITION BY HASH (conv);

-- A cache: one a conversation, never needed.
CREATE TABLE callboard.snapshot (
    conv   bigint PRIMARY KEY,
    upto   bigint NOT NULL,
    body   bytea NOT NULL,
    digest bytea NOT NULL
);

DO $$
BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format('CREATE TABLE callboard.journal_%s PARTITION OF callboard.journal FOR VALUES WITH (MODULUS 16, REMAINDER %s)', part, part);
    END LOOP;
END $$;

-- The host that serves the database now.
CREATE TABLE callboard.serving (
    one     boolean PRIMARY KEY CHECK (one),
    holder  text NOT NULL,
    beat_at timestamptz NOT NULL
);
