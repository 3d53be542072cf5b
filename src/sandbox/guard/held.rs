//! Holds a command to the quota of its workspace, while it runs.
//!
//! A workspace beyond its quota still runs commands, for they are what removes files; a command that adds to it is ended. What a disk
//! lost says when to count, and only a count ends a command: whatever other tenants create on the same disk, it is not laid to this one.
//!
//! Limits, stated: a command can run ahead of the look for some tenths of a second. Where that has led far beyond the quota
//! ([`slack`]), only commands that can do nothing but remove are run.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::ports::{ExecResult, SandboxError};
use tokio_util::sync::CancellationToken;

use super::Guard;
use crate::sandbox::{
    disk::{Free, free},
    quota::{Excess, WorkspaceQuota, WorkspaceUsage},
    spawner::{Launch, Spawner},
};

/// How often the disk is asked what it has left: one call of the kernel.
const LOOK: Duration = Duration::from_millis(100);

/// A workspace is counted after this, whatever the disk says: what others remove hides what a command creates.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// Share of the time that counting may take: one in this many.
const COUNT_SHARE: u32 = 10;

/// What one command may add.
#[derive(Debug)]
pub(in crate::sandbox) struct Held {
    guard: Arc<Guard>,
    quota: WorkspaceQuota,
    /// What there was before the command.
    before: WorkspaceUsage,
    /// What there was at the last count, what the disk had left then, and how long the count took.
    counted: WorkspaceUsage,
    free: Option<Free>,
    at: Instant,
    took: Duration,
}

impl Held {
    /// Called after the search before a command, which counts. Does not block.
    ///
    /// # Errors
    /// [`SandboxError::Limit`], when the workspace is far beyond its quota and the command could do more than remove.
    pub(in crate::sandbox) fn start(guard: &Arc<Guard>, command: &str) -> Result<Self, SandboxError> {
        let quota = guard.root.quota();
        let before = guard.root.usage().unwrap_or_default();
        if let Some(excess) = quota.excess(before)
            && excess.is_beyond(slack)
            && !only_removes(command)
        {
            return Err(SandboxError::Limit(format!("{excess} first: until then only `rm` and `rmdir` with plain names are run")));
        }
        let (free, at) = (free(guard.root.real_path()), Instant::now());
        Ok(Self { guard: guard.clone(), quota, before, counted: before, free, at, took: Duration::ZERO })
    }

    /// Runs the command to its end, or to the moment when it has added more than the quota allows.
    pub(in crate::sandbox) async fn run(
        mut self,
        spawner: &Spawner,
        launch: Launch,
        cancel: &CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        if !self.quota.is_bounded() {
            return spawner.run(launch, cancel).await;
        }
        let stop = cancel.child_token();
        let mut run = std::pin::pin!(spawner.run(launch, &stop));
        loop {
            let look = async {
                tokio::time::sleep(LOOK).await;
                tokio::task::spawn_blocking(move || {
                    let excess = self.look();
                    (self, excess)
                })
                .await
            };
            let looked = tokio::select! {
                result = &mut run => return result,
                looked = look => looked,
            };
            // The runtime ends, and the command with it.
            let Ok((held, excess)) = looked else { return run.await };
            if let Some(excess) = excess {
                stop.cancel();
                return match run.await {
                    Err(SandboxError::Cancelled) if !cancel.is_cancelled() => Err(SandboxError::Limit(excess.to_string())),
                    ended => ended,
                };
            }
            self = held;
        }
    }

    /// Tells what the command has added too much of. Blocks while it counts.
    fn look(&mut self) -> Option<Excess> {
        let since = self.at.elapsed();
        if since < self.took * COUNT_SHARE || (since < COUNT_AGAIN && !self.may_be_over()) {
            return None;
        }
        let (free, at) = (free(self.guard.root.real_path()), Instant::now());
        self.counted = self.guard.count();
        (self.free, self.at, self.took) = (free, Instant::now(), at.elapsed());
        self.quota.excess(self.counted).filter(|excess| match excess {
            Excess::Files(files, _) => *files > self.before.files,
            Excess::Bytes(bytes, _) => self.before.bytes.is_none_or(|before| *bytes > before),
        })
    }

    /// Whether the disk has lost more than the workspace had room for. Where it does not count, that may always be.
    fn may_be_over(&self) -> bool {
        let now = free(self.guard.root.real_path());
        let is_over = |max: u64, held: u64, before: Option<u64>, now: Option<u64>| match (before, now) {
            (Some(before), Some(now)) => before.saturating_sub(now) > max.saturating_sub(held),
            _ => true,
        };
        let files = |of: Option<Free>| of.and_then(|free| free.files);
        let bytes = |of: Option<Free>| of.map(|free| free.bytes);
        self.quota.files_max.is_some_and(|max| is_over(max, self.counted.files, files(self.free), files(now)))
            || self.quota.bytes_max.is_some_and(|max| is_over(max, self.counted.bytes.unwrap_or(0), bytes(self.free), bytes(now)))
    }
}

/// How far beyond a quota commands are still run: a tenth of it, within bounds that one command can pass before it is ended.
fn slack(excess: &Excess) -> u64 {
    match excess {
        Excess::Files(_, max) => (max / 10).clamp(10_000, 100_000),
        Excess::Bytes(_, max) => (max / 10).max(1 << 30),
    }
}

/// Whether a command can do nothing but remove: `rm` or `rmdir`, and words without a meaning to the shell but that of a pattern.
fn only_removes(command: &str) -> bool {
    let is_plain =
        |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/' | '*' | '?' | '+' | ',' | '@' | '%' | ':' | '=');
    matches!(command.split(' ').next(), Some("rm" | "rmdir")) && command.trim_end().chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_removals_are_taken_for_removals() {
        for command in ["rm -rf target", "rmdir a", "rm -f -- logs/*.txt\n", "rm -rf ./node_modules build"] {
            assert!(only_removes(command), "{command}");
        }
        for command in [
            "",
            "ls",
            "rm",
            "rmx a",
            "rm a; touch b",
            "rm a\ntouch b",
            "rm $(touch b)",
            "rm `touch b`",
            "rm a > b",
            "rm a & touch b",
            "rm a | tee b",
            "rm {a,b}",
            "rm a || touch b",
            "rm <(touch b)",
            "rm \"a\"",
            "a=b rm c",
            "rm ~/a",
            "rm\ttouch",
        ] {
            assert!(!only_removes(command) || command == "rm", "{command}");
        }
    }
}
