-- Version 4: budgets of tenants outlive their hosts, and the hosts share them.

-- What each tenant with a budget has spent of it.
CREATE TABLE callboard.spending (
    tenant    text COLLATE "C" PRIMARY KEY,
    tokens    bigint NOT NULL,
    micro_usd bigint NOT NULL, -- millionths of a US dollar
    wall_ms   bigint NOT NULL
) WITH (fillfactor = 50);
