//! What the tool calls of a tenant share: results that may answer later calls, runs that are under way, breakers, files in use.
//! Nothing here is another tenant's, and nothing of it is needed to be right: losing it costs a run more.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::{breakers::Breakers, file_locks::FileLocks, shared_runs::SharedRuns};
use crate::{
    limits::{TOOL_CACHE_BYTES_MAX, TOOL_CACHE_ENTRIES_MAX, TOOL_CACHED_RESULT_BYTES_MAX},
    policy::TtlCache,
    ports::{CachePolicy, ToolOutput},
};

/// Shared by all tool calls of a tenant (DESIGN §4.5).
pub struct TenantTools {
    results: Mutex<TtlCache<String, Arc<ToolOutput>>>,
    pub(super) runs: Arc<SharedRuns>,
    pub(super) breakers: Breakers,
    pub(super) files: FileLocks,
}

impl Default for TenantTools {
    fn default() -> Self {
        Self {
            results: Mutex::new(TtlCache::new(TOOL_CACHE_ENTRIES_MAX, TOOL_CACHE_BYTES_MAX)),
            runs: Arc::default(),
            breakers: Breakers::default(),
            files: FileLocks::default(),
        }
    }
}

impl std::fmt::Debug for TenantTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantTools")
    }
}

impl TenantTools {
    /// The result of an earlier call of this key.
    pub(super) fn cached(&self, key: &String) -> Option<Arc<ToolOutput>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).get(key, Instant::now()).cloned()
    }

    /// Keeps a good result as long as its tool's policy says. Failures are never kept (REQUIREMENTS T-21).
    pub(super) fn keep(&self, key: String, policy: CachePolicy, output: &Arc<ToolOutput>) {
        let Some(ttl) = policy.ttl() else { return };
        let bytes = size(output);
        if bytes <= TOOL_CACHED_RESULT_BYTES_MAX {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.insert(key, output.clone(), bytes, ttl, Instant::now());
        }
    }
}

/// Bytes of a result, nearly.
fn size(output: &ToolOutput) -> usize {
    match output {
        ToolOutput::Text(text) => text.len(),
        ToolOutput::Data(data) => {
            let mut counted = Counted(0);
            serde_json::to_writer(&mut counted, data).map_or(usize::MAX, |()| counted.0)
        }
    }
}

/// Counts what is written.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
