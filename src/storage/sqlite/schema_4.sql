-- Version 4: budgets of tenants outlive the host.

-- What each tenant with a budget has spent of it.
CREATE TABLE spending (
    tenant    TEXT    PRIMARY KEY,
    tokens    INTEGER NOT NULL,
    micro_usd INTEGER NOT NULL, -- millionths of a US dollar
    wall_ms   INTEGER NOT NULL
) STRICT;
