-- Version 6: emptying a journal costs what is not empty yet; long journals are emptied and deleted in pieces.

-- The entries up to this one are read as empty, whatever their rows still hold.
ALTER TABLE callboard.head ADD COLUMN emptied bigint NOT NULL DEFAULT 0;

-- The rows of the entries up to this one hold no bytes any more. At most `emptied`; less while a journal is being emptied.
ALTER TABLE callboard.head ADD COLUMN wiped bigint NOT NULL DEFAULT 0;

CREATE INDEX head_unwiped ON callboard.head (conv) WHERE wiped < emptied;

-- Conversations that were deleted, and whose entries are being removed.
CREATE TABLE callboard.doomed (
    conv   bigint PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL
);
CREATE INDEX doomed_tenant ON callboard.doomed (tenant);
