-- Version 3: damage on the medium is found when a row is read. A digest is NULL in rows that an earlier version wrote.

-- Covers the entry's bytes, its seq and the digest of the entry before it.
ALTER TABLE journal ADD COLUMN digest BLOB;

-- Covers the snapshot's bytes, its seq and the digest of the entry with that seq.
ALTER TABLE snapshot ADD COLUMN digest BLOB;

-- The digest of the last entry.
ALTER TABLE conversation ADD COLUMN digest BLOB;

-- The digest of tenant and id: a second way to the row, should the index of the names be damaged. The program fills it.
ALTER TABLE conversation ADD COLUMN name_digest BLOB;
CREATE UNIQUE INDEX conversation_name ON conversation (name_digest);
