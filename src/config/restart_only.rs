//! Settings that a running host cannot change. A reload reports differences and keeps the running
//! values until the next start.

use super::Config;

impl Config {
    /// Replaces the settings that only a start can change by those of `running`. Returns one line
    /// for each difference.
    pub fn keep_restart_only(&mut self, running: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut differs = |what: &str, differs: bool| {
            if differs {
                lines.push(format!(
                    "{what} changed; the change takes effect at the next start"
                ));
            }
        };
        differs("[host] listen", self.listen() != running.listen());
        differs(
            "[host] peer_address",
            self.peer_address != running.peer_address,
        );
        differs("[host] bounds of the HTTP host", self.http != running.http);
        differs("[host] data_dir", self.data_dir != running.data_dir);
        differs("[host] durability", self.commit != running.commit);
        differs("[store] url", self.store != running.store);
        differs("[limits]", self.limits != running.limits);
        differs("[prices]", self.prices != running.prices);
        differs("[compaction]", self.compaction != running.compaction);
        differs(
            "[observability]",
            self.observability != running.observability,
        );
        differs("[tokens]", self.tokens != running.tokens);
        self.listen = running.listen;
        self.peer_address.clone_from(&running.peer_address);
        self.http = running.http.clone();
        self.data_dir.clone_from(&running.data_dir);
        self.commit = running.commit;
        self.store = running.store.clone();
        self.limits = running.limits.clone();
        self.prices = running.prices.clone();
        self.compaction = running.compaction.clone();
        self.tokens = running.tokens.clone();
        lines
    }
}
