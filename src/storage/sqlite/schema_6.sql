-- Version 6: emptying a journal costs what is not empty yet; long journals are emptied and deleted in pieces.

-- The entries up to this one are read as empty, whatever their rows still hold.
ALTER TABLE conversation ADD COLUMN emptied INTEGER NOT NULL DEFAULT 0;

-- The rows of the entries up to this one hold no bytes any more. At most `emptied`; less while a journal is being emptied.
ALTER TABLE conversation ADD COLUMN wiped INTEGER NOT NULL DEFAULT 0;

CREATE INDEX conversation_unwiped ON conversation (conv) WHERE wiped < emptied;

-- Conversations that were deleted, and whose entries are being removed. No other conversation gets such a number.
CREATE TABLE doomed (
    conv   INTEGER PRIMARY KEY,
    tenant TEXT    NOT NULL
) STRICT;
CREATE INDEX doomed_tenant ON doomed (tenant);
