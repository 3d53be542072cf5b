//! Masks keys in whatever leaves the process (FAULTS F8): configured keys always, known shapes as `tools::mask` knows them.

use std::sync::{Arc, PoisonError, RwLock};

use crate::tools::mask::Masker;

/// Knows the keys of this process; all sinks share one, so that a key learnt later is masked everywhere. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Redactor(Arc<RwLock<Arc<Masker>>>);

impl Redactor {
    /// Knows these keys.
    pub fn new(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Masker::new(secrets)))))
    }

    /// Learns more keys, such as a tenant's that was made just now.
    pub fn learn(&self, secrets: impl IntoIterator<Item = impl Into<String>>) {
        let mut masker = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *masker = Arc::new(Masker::clone(&masker).and(secrets));
    }

    /// The text without keys.
    pub fn mask(&self, text: &str) -> String {
        self.masker().mask(text)
    }

    fn masker(&self) -> Arc<Masker> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
