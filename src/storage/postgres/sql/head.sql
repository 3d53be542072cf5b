SELECT conv, epoch, head_seq, bytes, emptied, wiped
FROM callboard.conversation JOIN callboard.head USING (conv) WHERE tenant = $1 AND id = $2
