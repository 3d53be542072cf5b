-- Version 5: messages for receivers outside, stored with the entries that they follow from.

-- A row is removed when its message is delivered or given up. It holds ids and figures, no contents of conversations.
CREATE TABLE outbox (
    n            INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE,
    tenant       TEXT    NOT NULL,
    conversation TEXT    NOT NULL,
    at           INTEGER NOT NULL, -- milliseconds since 1970, as `due_at`
    body         BLOB    NOT NULL,
    tries        INTEGER NOT NULL DEFAULT 0,
    due_at       INTEGER NOT NULL  -- when it may be claimed: for the next try, or because a claim was not settled
) STRICT;

CREATE INDEX outbox_due ON outbox (tenant, due_at);
CREATE INDEX outbox_conversation ON outbox (tenant, conversation);
