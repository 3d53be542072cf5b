-- Version 4: budgets of tenants outlive their hosts, and the hosts share them; deleted conversations do not come back; hosts
-- say which version they are.

-- What each tenant with a budget has spent of it.
CREATE TABLE callboard.spending (
    tenant    text COLLATE "C" PRIMARY KEY,
    tokens    bigint NOT NULL,
    micro_usd bigint NOT NULL, -- millionths of a US dollar
    wall_ms   bigint NOT NULL
) WITH (fillfactor = 50);

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
