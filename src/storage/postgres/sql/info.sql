-- For `callboard doctor`. Statistics that the user may not see are counted all the same.
SELECT split_part(current_setting('server_version'), ' ', 1),
       (SELECT version FROM callboard.version),
       (SELECT count(*) FROM callboard.conversation),
       (extract(epoch FROM clock_timestamp()) * 1000)::int8,
       (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL),
       current_setting('max_connections')::int8,
       (SELECT count(*) FROM pg_stat_replication),
       t.n_tup_upd, t.n_tup_hot_upd, t.n_dead_tup, t.n_live_tup, pg_relation_size(t.relid)
FROM pg_stat_user_tables t WHERE t.relid = 'callboard.head'::regclass
