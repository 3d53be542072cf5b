-- Runs, and the results of their trials. The columns beside `info` and `result` are for queries;
-- the JSON texts hold everything.
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    info TEXT NOT NULL,
    -- What trials without a result used: they were cut by the budget, or failed before a repetition.
    lost_tokens INTEGER NOT NULL DEFAULT 0,
    lost_micro_usd INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE trials (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    task TEXT NOT NULL,
    trial INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('passed', 'failed', 'error')),
    score REAL NOT NULL,
    tokens INTEGER NOT NULL,
    cost_usd REAL,
    duration_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (run, task, trial)
) STRICT, WITHOUT ROWID;
