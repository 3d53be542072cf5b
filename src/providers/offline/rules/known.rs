//! What the tool calls of a round have found.

use super::{
    lines::Lines,
    question::Part,
    rank::{Ranked, rank, weights},
    round::Round,
    sites::{Site, sites},
};

/// Everything that a round knows, computed once per request.
pub(super) struct Known {
    pub(super) lines: Lines,
    pub(super) sites: Vec<Site>,
}

impl Known {
    /// Collects the results of all tool calls.
    pub(super) fn from_round(round: &Round) -> Self {
        let mut lines = Lines::default();
        round
            .batches
            .iter()
            .flatten()
            .for_each(|seen| lines.take_in(seen));
        let sites = sites(&lines);
        Self { lines, sites }
    }

    /// Returns the definitions that answer a part, best first.
    pub(super) fn ranked(&self, part: &Part) -> Vec<Ranked> {
        rank(part, &weights(part, &self.sites), &self.lines, &self.sites)
    }
}
