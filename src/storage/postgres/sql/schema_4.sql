-- Version 4: deleted conversations do not come back, and hosts say which version they are.

-- The last epochs of deleted journals, for a few minutes: an append that was on its way meanwhile does not make the conversation again.
CREATE TABLE callboard.deleted (
    tenant     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    deleted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX deleted_age ON callboard.deleted (deleted_at);

-- The version of a host's program.
ALTER TABLE callboard.host ADD COLUMN program text NOT NULL DEFAULT '';
