-- Version 1 of the session store. A change is a new file and a new line in `SCHEMAS` (open.rs); this one stays as it is.

-- The head row of a journal: where it ends, and what its conversation waits for.
CREATE TABLE conversation (
    conv       INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    head_seq   INTEGER NOT NULL,
    open       INTEGER NOT NULL, -- 0 none, 1 running, 2 parked
    wake_at    INTEGER,          -- milliseconds since 1970
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    failed     TEXT,
    UNIQUE (tenant, id)
) STRICT;

CREATE INDEX conversation_running ON conversation (tenant, id) WHERE open = 1;
CREATE INDEX conversation_parked ON conversation (wake_at) WHERE open = 2;

-- Bodies lie in the order they were written, so that a commit touches the end of the file; the small index finds them.
CREATE TABLE journal (
    id   INTEGER PRIMARY KEY,
    conv INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    body BLOB    NOT NULL,
    UNIQUE (conv, seq)
) STRICT;

-- A cache: one a conversation, never needed.
CREATE TABLE snapshot (
    conv INTEGER PRIMARY KEY,
    upto INTEGER NOT NULL,
    body BLOB    NOT NULL
) STRICT;
