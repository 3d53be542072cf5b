//! The figures of each tenant.

use crate::chat::Usage;

/// Labels of refusals: first those before admission, by the limit that was hit, then those of
/// conversations, by error code. The last label collects all other codes, so the number of label
/// values is fixed.
pub const REFUSALS: [&str; 11] = [
    "prompts",
    "requests",
    "tokens",
    "memory",
    "conversations",
    "stored",
    "closed",
    "conversation_busy",
    "inbox_full",
    "draining",
    "other",
];

/// The number of labels that the tenant's admission counts.
const BEFORE_ADMISSION: usize = 7;

/// The figures of one tenant at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantReading {
    /// Prompts that were accepted.
    pub prompts: u64,
    /// Prompts that were refused, in the order of [`REFUSALS`].
    pub refusals: [u64; REFUSALS.len()],
    /// Rounds that ended, for whatever reason.
    pub rounds: u64,
    /// Rounds that ended in an error.
    pub rounds_failed: u64,
    /// Tool calls that ended, successfully or not.
    pub tool_calls: u64,
    /// Tool calls that failed.
    pub tool_calls_failed: u64,
    /// Tokens of model calls by class: uncached input, cache reads, cache writes, output.
    pub usage: Usage,
    /// Cost of model calls, in millionths of a US dollar.
    pub cost_micro_usd: u64,
    /// Conversations with a running actor, idle ones included.
    pub awake: usize,
    /// Prompts between admission and the end of their rounds.
    pub under_way: usize,
    /// Stored bytes, as far as they were counted.
    pub stored_bytes: u64,
}

impl TenantReading {
    /// Counts a refusal by a conversation, by its error code.
    pub(super) fn refuse(&mut self, code: &str) {
        let place = REFUSALS
            .iter()
            .skip(BEFORE_ADMISSION)
            .position(|known| *known == code)
            .map(|place| place + BEFORE_ADMISSION);
        let place = place.unwrap_or(REFUSALS.len() - 1);
        if let Some(count) = self.refusals.get_mut(place) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds what the tenant's admission refused, by the first labels of [`REFUSALS`].
    pub(crate) fn add_not_admitted(&mut self, refused: [u64; BEFORE_ADMISSION]) {
        for (count, more) in self.refusals.iter_mut().zip(refused) {
            *count = count.saturating_add(more);
        }
    }

    /// Adds another tenant's figures, as when many tenants share one label.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            prompts: self.prompts.saturating_add(other.prompts),
            refusals: std::array::from_fn(|place| {
                let of = |reading: &Self| reading.refusals.get(place).copied().unwrap_or(0);
                of(self).saturating_add(of(other))
            }),
            rounds: self.rounds.saturating_add(other.rounds),
            rounds_failed: self.rounds_failed.saturating_add(other.rounds_failed),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            tool_calls_failed: self
                .tool_calls_failed
                .saturating_add(other.tool_calls_failed),
            usage: self.usage.plus(&other.usage),
            cost_micro_usd: self.cost_micro_usd.saturating_add(other.cost_micro_usd),
            awake: self.awake.saturating_add(other.awake),
            under_way: self.under_way.saturating_add(other.under_way),
            stored_bytes: self.stored_bytes.saturating_add(other.stored_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_an_unknown_code_is_counted_too() {
        let mut figures = TenantReading::default();

        figures.refuse("inbox_full");
        figures.refuse("never_heard_of");
        figures.refuse("prompts");
        figures.add_not_admitted([7, 0, 0, 0, 0, 3, 1]);

        assert_eq!(
            figures.refusals,
            [7, 0, 0, 0, 0, 3, 1, 0, 1, 0, 2],
            "an error's code is not a reason of admission"
        );
    }
}
