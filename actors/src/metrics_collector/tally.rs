//! What one sender counts between two messages to the collector.

use super::{
    MetricsCollectorRef,
    figure::{Batch, Figure},
};
use crate::ids::TenantId;

/// Figures that are sent before a sender asks for it, so that a tally stays small.
const FIGURES_MAX: usize = 64;

/// What one sender counted since its last message to the collector. Counting adds to a vector
/// that only the sender has. Dropping the tally sends the rest, also when its owner panics.
pub(crate) struct Tally {
    collector: MetricsCollectorRef,
    tenant: TenantId,
    figures: Vec<Figure>,
    wake_ups: u64,
}

impl Tally {
    /// An empty tally of figures of `tenant`.
    pub(crate) fn new(collector: MetricsCollectorRef, tenant: TenantId) -> Self {
        Self {
            collector,
            tenant,
            figures: Vec::new(),
            wake_ups: 0,
        }
    }

    /// Adds a figure.
    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
        if self.figures.len() >= FIGURES_MAX {
            self.post();
        }
    }

    /// Counts a message that woke the owner. It is sent with the next figure, or at the end.
    pub(crate) fn woke_up(&mut self) {
        self.wake_ups += 1;
    }

    /// Sends what was counted, if that is more than wake-ups.
    pub(crate) fn post(&mut self) {
        if !self.figures.is_empty() {
            self.post_all();
        }
    }

    fn post_all(&mut self) {
        if self.wake_ups > 0 {
            self.figures
                .push(Figure::WokeUp(std::mem::take(&mut self.wake_ups)));
        }
        if !self.figures.is_empty() {
            self.collector.send(Batch {
                tenant: Some(self.tenant.clone()),
                figures: std::mem::take(&mut self.figures),
            });
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.post_all();
    }
}
