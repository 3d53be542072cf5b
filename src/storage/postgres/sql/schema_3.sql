-- Version 3: several hosts. A host says in its row that it is there; a conversation that a host activates belongs to it.

CREATE TABLE callboard.host (
    boot    text PRIMARY KEY, -- made by each start
    address text NOT NULL,    -- where other hosts reach it; empty if they do not
    beat_at timestamptz NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Not indexed: every append writes it. NULL: no host, or a program that is none.
ALTER TABLE callboard.head ADD COLUMN owner text;
