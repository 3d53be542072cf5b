-- Version 2: what a tenant has stored is counted where each append writes anyway.

-- Bytes of the conversation's entries and of its snapshot.
ALTER TABLE conversation ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

UPDATE conversation SET bytes =
    (SELECT coalesce(sum(length(body)), 0) FROM journal WHERE journal.conv = conversation.conv)
  + (SELECT coalesce(sum(length(body)), 0) FROM snapshot WHERE snapshot.conv = conversation.conv);
