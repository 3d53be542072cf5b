//! What of a commit's erasures is done in it. One may be as long as a thousand appends, so each
//! commit does a limited part of them; the others wait for the next one, and appends of other
//! tenants do not wait behind them.
//!
//! Pure.

use std::collections::HashSet;

use callboard_actors::ids::TenantId;

use super::job::Job;

/// The work of one commit.
#[derive(Debug)]
pub(in crate::storage) struct Turn {
    /// What erasures may still cost.
    left: usize,
    /// Tenants whose next job has to wait, and with it all later ones.
    waiting: HashSet<TenantId>,
}

impl Turn {
    /// A commit whose erasures may cost so much, and one of them more.
    pub(in crate::storage) fn new(work_max: usize) -> Self {
        Self {
            left: work_max,
            waiting: HashSet::new(),
        }
    }

    /// Whether a member is done in this commit. Asked once for each, in order.
    pub(in crate::storage) fn admits(&mut self, job: &Job) -> bool {
        if self.waiting.contains(job.tenant()) {
            return false;
        }
        let is_admitted = self.left > 0 || !job.is_erasure();
        if !is_admitted {
            self.waiting.insert(job.tenant().clone());
        }
        is_admitted
    }

    /// Notes what an erasure has cost.
    pub(in crate::storage) fn spend(&mut self, work: usize) {
        self.left = self.left.saturating_sub(work);
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::ids::{ConversationId, Scope, Seq};
    use tokio::sync::oneshot;

    use super::{super::job::Change, *};

    fn scope(tenant: &str) -> Scope {
        Scope::new(
            TenantId::new(tenant).unwrap(),
            ConversationId::new("c").unwrap(),
        )
    }

    #[test]
    fn behind_an_erasure_that_waits_only_its_own_tenant_waits() {
        let delete = |tenant| Job::Delete(scope(tenant), oneshot::channel().0);
        let mark = |tenant| Job::Mark(scope(tenant), None, oneshot::channel().0);
        let mut turn = Turn::new(10);
        let mut done = |job: Job| {
            let is_admitted = turn.admits(&job);
            turn.spend(if is_admitted && job.is_erasure() {
                6
            } else {
                0
            });
            is_admitted
        };

        let first = [done(mark("a")), done(delete("a")), done(delete("b"))];
        let later = [done(mark("a")), done(delete("a")), done(mark("a"))];
        let others = [done(mark("b")), done(mark("c")), done(delete("c"))];

        assert_eq!(first, [true, true, true]);
        assert_eq!(later, [true, false, false]);
        assert_eq!(others, [true, true, false]);
    }

    #[test]
    fn what_is_left_of_an_emptying_says_nothing_about_later_entries() {
        let job = Job::Empty(scope("t"), Seq(7), oneshot::channel().0);

        let rest = job.rest(&Change::default());

        assert!(matches!(rest, Job::Empty(_, Seq(0), _)));
    }
}
