//! Enforces the quota of a workspace while a command runs.
//!
//! A workspace above its quota still runs commands, since commands are what removes files; a
//! command that adds to it is ended. A drop in the disk's free space only triggers a count, and
//! only a count ends a command. So a tenant is never ended for what other tenants create on the
//! same disk.
//!
//! Limits: a command can exceed the quota for some tenths of a second before a check notices. Where
//! that left the workspace far above its quota ([`slack`]), only commands that can do nothing but
//! remove files run.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::ports::{ExecResult, SandboxError};
use tokio_util::sync::CancellationToken;

use crate::sandbox::{
    exec::{Launch, Spawner},
    fs::{Excess, Free, Guard, WorkspaceQuota, WorkspaceUsage, free},
};

/// Interval between two reads of the disk's free space, each one system call.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time between two counts, whatever the disk reports: files that others remove hide files
/// that the command creates.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// Share of the time that counting may take: one part in this many.
const COUNT_SHARE: u32 = 10;

/// The quota check of one running command.
#[derive(Debug)]
pub(in crate::sandbox) struct QuotaCheck {
    guard: Arc<Guard>,
    quota: WorkspaceQuota,
    /// Usage before the command started.
    before: WorkspaceUsage,
    /// Usage at the last count, the disk's free space at that time, and how long the count took.
    counted: WorkspaceUsage,
    free: Option<Free>,
    at: Instant,
    took: Duration,
}

impl QuotaCheck {
    /// Prepares the check; called after the search before a command, which has counted the
    /// workspace. Does not block.
    ///
    /// # Errors
    /// [`SandboxError::Limit`] when the workspace is far above its quota and the command could do
    /// more than remove files.
    pub(in crate::sandbox) fn start(
        guard: &Arc<Guard>,
        command: &str,
    ) -> Result<Self, SandboxError> {
        let quota = guard.root().quota();
        let before = guard.root().usage().unwrap_or_default();
        if let Some(excess) = quota.excess(before)
            && excess.is_beyond(slack)
            && !only_removes(command)
        {
            return Err(SandboxError::Limit(format!(
                "{excess} first: until then only `rm` and `rmdir` with plain names are run"
            )));
        }
        let free = free(guard.root().real_path());
        let at = Instant::now();
        Ok(Self {
            guard: guard.clone(),
            quota,
            before,
            counted: before,
            free,
            at,
            took: Duration::ZERO,
        })
    }

    /// Runs the command until it ends or has exceeded the quota.
    pub(in crate::sandbox) async fn run(
        mut self,
        spawner: &Spawner,
        launch: Launch,
        cancel: &CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        if !self.quota.is_bounded() {
            return spawner.run(launch, cancel).await;
        }
        // The check moves into the blocking pool and returns with its result, so the loop keeps
        // polling the command. If the quota is exceeded, `stop` cancels the command alone, and the
        // loop still awaits its end; only a cancellation by the caller is reported as one.
        let stop = cancel.child_token();
        let mut run = std::pin::pin!(spawner.run(launch, &stop));
        loop {
            let check = async {
                tokio::time::sleep(CHECK_INTERVAL).await;
                tokio::task::spawn_blocking(move || {
                    let excess = self.check();
                    (self, excess)
                })
                .await
            };
            let checked = tokio::select! {
                result = &mut run => return result,
                checked = check => checked,
            };
            // The runtime is shutting down and ends the command with it.
            let Ok((this, excess)) = checked else {
                return run.await;
            };
            if let Some(excess) = excess {
                stop.cancel();
                return match run.await {
                    Err(SandboxError::Cancelled) if !cancel.is_cancelled() => {
                        Err(SandboxError::Limit(excess.to_string()))
                    }
                    ended => ended,
                };
            }
            self = this;
        }
    }

    /// Returns the quota that the command has exceeded, if any. Blocks while it counts.
    fn check(&mut self) -> Option<Excess> {
        let since = self.at.elapsed();
        if since < self.took * COUNT_SHARE || (since < COUNT_AGAIN && !self.may_be_over()) {
            return None;
        }
        let free = free(self.guard.root().real_path());
        let at = Instant::now();
        self.counted = self.guard.count();
        (self.free, self.at, self.took) = (free, Instant::now(), at.elapsed());
        self.quota
            .excess(self.counted)
            .filter(|excess| match excess {
                Excess::Files(files, _) => *files > self.before.files,
                Excess::Bytes(bytes, _) => self.before.bytes.is_none_or(|before| *bytes > before),
            })
    }

    /// Whether the disk has lost more than the workspace had room for. Always `true` on a disk that
    /// does not report its free space or inodes.
    fn may_be_over(&self) -> bool {
        let now = free(self.guard.root().real_path());
        let is_over =
            |max: u64, used: u64, before: Option<u64>, now: Option<u64>| match (before, now) {
                (Some(before), Some(now)) => before.saturating_sub(now) > max.saturating_sub(used),
                _ => true,
            };
        let files = |of: Option<Free>| of.and_then(|free| free.files);
        let bytes = |of: Option<Free>| of.map(|free| free.bytes);
        self.quota
            .files_max
            .is_some_and(|max| is_over(max, self.counted.files, files(self.free), files(now)))
            || self.quota.bytes_max.is_some_and(|max| {
                is_over(
                    max,
                    self.counted.bytes.unwrap_or(0),
                    bytes(self.free),
                    bytes(now),
                )
            })
    }
}

/// How far above its quota a workspace still runs every command: a tenth of the quota, clamped to
/// what one command can add before it is ended.
fn slack(excess: &Excess) -> u64 {
    match excess {
        Excess::Files(_, max) => (max / 10).clamp(10_000, 100_000),
        Excess::Bytes(_, max) => (max / 10).max(1 << 30),
    }
}

/// Whether a command can do nothing but remove files: `rm` or `rmdir`, followed by words that mean
/// nothing to the shell except as patterns.
fn only_removes(command: &str) -> bool {
    let is_plain = |c: char| {
        c.is_alphanumeric()
            || matches!(
                c,
                ' ' | '_' | '-' | '.' | '/' | '*' | '?' | '+' | ',' | '@' | '%' | ':' | '='
            )
    };
    matches!(command.split(' ').next(), Some("rm" | "rmdir"))
        && command.trim_end().chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_removals_are_taken_for_removals() {
        for command in [
            "rm -rf target",
            "rmdir a",
            "rm -f -- logs/*.txt\n",
            "rm -rf ./node_modules build",
        ] {
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
