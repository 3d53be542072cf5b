//! What a tenant has spent of its budget, kept by the store: a budget outlives the host, and the hosts
//! of one database share it. The host counts in memory and adds to the store's sum about once a second
//! while the tenant has a budget, so a killed host forgets what was settled since the last time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Mutex;

use super::Tenant;
use crate::{
    policy::Amount,
    ports::{SessionBackend, StoreError},
};

/// The store's part of a tenant's spending.
pub(super) struct StoredSpending {
    store: Arc<dyn SessionBackend>,
    /// Whether the sum of the store is in the counter.
    is_read: AtomicBool,
    /// Locked while the store is asked, so that each amount is added once.
    sums: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// What was settled here and is in the store's sum.
    added: Amount,
    /// What others have added to it: earlier starts, other hosts. It is in the counter.
    of_others: Amount,
}

impl StoredSpending {
    pub(super) fn new(store: Arc<dyn SessionBackend>) -> Self {
        Self {
            store,
            is_read: AtomicBool::new(false),
            sums: Mutex::default(),
        }
    }
}

impl Tenant {
    /// Brings what the store knows of earlier spending into the budget, once. Does nothing without a
    /// budget. Called before a conversation starts work.
    pub(crate) async fn read_spending(&self) -> Result<(), StoreError> {
        if self.spending.is_read.load(Ordering::Acquire) || self.budget.budget().is_unlimited() {
            return Ok(());
        }
        self.store_spending().await
    }

    /// Whether the store keeps what this tenant spends.
    pub(crate) fn stores_spending(&self) -> bool {
        !self.budget.budget().is_unlimited() && !self.is_erased.load(Ordering::Acquire)
    }

    /// Counts the reservation of a call that a host before this one began, and that nothing settles.
    pub(crate) fn charge_lost_call(&self, reserved: Amount) {
        self.budget.charge(reserved);
    }

    /// Whether the store lacks something, or may know of more than this host counts.
    pub(crate) fn has_spending_to_store(&self) -> bool {
        self.stores_spending()
            && (!self.spending.is_read.load(Ordering::Acquire)
                || self.seats_taken() > 0
                || self
                    .spending
                    .sums
                    .try_lock()
                    .is_ok_and(|sums| sums.added != self.budget.settled()))
    }

    /// Adds what was settled since the last time to the store's sum, and what others added to it to
    /// the budget.
    ///
    /// # Errors
    /// Those of the store. The next call adds the same amount, so one that was stored nevertheless
    /// counts twice: a budget errs to the safe side.
    pub(crate) async fn store_spending(&self) -> Result<(), StoreError> {
        let mut sums = self.spending.sums.lock().await;
        let settled = self.budget.settled();
        let amount = settled.minus(&sums.added);
        if let Some(total) = self.spending.store.spend(&self.id, amount).await? {
            let of_others = total.minus(&settled);
            self.budget.recall_again(&sums.of_others, &of_others);
            *sums = Sums {
                added: settled,
                of_others,
            };
        } else {
            sums.added = settled;
        }
        self.spending.is_read.store(true, Ordering::Release);
        Ok(())
    }
}
