//! Runs the tests of a task over the work of a solver, in a sandbox of their own.
//!
//! The folder of a trial holds `workspace/`, which is all that the solver's tools and commands
//! reach. `tests/` and `logs/verifier/` are made beside it when the solver has ended, and `tests/` is
//! read-only for commands. So a solver can neither read nor change what grades it.

use std::{fs, io::Read as _, path::Path, sync::Arc, time::Duration};

use callboard_actors::ports::{Exec, ExecResult, Sandbox, SandboxError};
use tokio_util::sync::CancellationToken;

use super::{
    bounds::{OUTPUT_BYTES_MAX, REWARD_BYTES_MAX},
    grading::{self, Grade, ScriptEnd},
    result::shortened,
    tree,
};
use crate::sandbox::{self, Mode, Options, PathRules, Root, Spawner};

/// Makes sandboxes over folders of trials.
#[derive(Clone)]
pub(super) struct Sandboxes {
    pub(super) spawner: Spawner,
    pub(super) mode: Mode,
    pub(super) options: Options,
}

impl Sandboxes {
    /// The sandbox over a root; `None`, with the reason, if there is none here. Blocks.
    pub(super) fn over(&self, root: &Arc<Root>) -> Result<Arc<dyn Sandbox>, String> {
        let found = sandbox::detect_with(root, self.mode, &self.spawner, self.options.clone())
            .map_err(|error| error.to_string())?;
        found.sandbox.ok_or_else(|| {
            found
                .note
                .unwrap_or_else(|| "no sandbox works here".to_owned())
        })
    }
}

/// A grade, and what the script printed.
pub(super) struct Graded {
    pub(super) grade: Grade,
    pub(super) output: String,
}

/// The command that starts the tests. Harbor's places are given by variables, because commands of
/// the sandbox cannot write outside of its root.
const START: &str = "cd workspace && export CALLBOARD_WORKSPACE=\"$PWD\" CALLBOARD_TESTS=\"$(cd ../tests && pwd)\" CALLBOARD_LOGS=\"$(cd ../logs/verifier && pwd)\" PYTHONDONTWRITEBYTECODE=1 && exec bash \"$CALLBOARD_TESTS/test.sh\"";

/// Runs `tests/test.sh` of a task over the workspace in `trial`.
///
/// # Errors
/// The machine failed: the tests could not be copied or started.
pub(super) async fn script(
    sandboxes: &Sandboxes,
    task: &Path,
    trial: &Path,
    timeout: Duration,
    cancel: CancellationToken,
) -> Result<Graded, String> {
    let (task, trial, makes) = (task.to_owned(), trial.to_owned(), sandboxes.clone());
    let folder = trial.clone();
    let sandbox = blocking(move || prepare(&makes, &task, &folder, timeout)).await?;
    let exec = Exec {
        timeout,
        output_bytes_max: OUTPUT_BYTES_MAX,
        errors_bytes_max: OUTPUT_BYTES_MAX,
        ..Exec::new(START)
    };
    let ended = sandbox.exec(exec, cancel).await;
    let (end, output) = match ended {
        Ok(result) => (end_of(&result), printed(&result)),
        Err(SandboxError::Limit(why)) => (ScriptEnd::Killed(why), String::new()),
        Err(error) => return Err(format!("the tests could not run: {error}")),
    };
    let reward = blocking(move || Ok(reward(&trial))).await?;
    let grade = match reward {
        Ok(reward) => grading::script(&end, reward.as_deref()),
        Err(why) => Grade::failed(why),
    };
    Ok(Graded { grade, output })
}

/// Runs blocking work on its own thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| error.to_string())?
}

fn prepare(
    sandboxes: &Sandboxes,
    task: &Path,
    trial: &Path,
    timeout: Duration,
) -> Result<Arc<dyn Sandbox>, String> {
    let tests = trial.join("tests");
    // Without a boundary (`--sandbox local`) a solver could have made these beforehand.
    for made in [&tests, &trial.join("logs")] {
        tree::remove(made).map_err(|error| crate::os_error::words(&error))?;
    }
    tree::copy(&task.join("tests"), &tests, "")?;
    fs::create_dir_all(trial.join("logs/verifier"))
        .map_err(|error| crate::os_error::words(&error))?;
    let rules = PathRules::default().and_protected(trial, &tests);
    let root = Root::open(trial, rules).map_err(|error| crate::os_error::words(&error))?;
    let mut sandboxes = sandboxes.clone();
    let longest = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let limits = &mut sandboxes.options.limits;
    limits.time_ms = limits.time_ms.max(longest);
    sandboxes.over(&Arc::new(root))
}

fn end_of(result: &ExecResult) -> ScriptEnd {
    match result.status {
        _ if result.timed_out => ScriptEnd::TimedOut,
        Some(code) => ScriptEnd::Exited(code),
        None => ScriptEnd::Killed("a signal ended the script".into()),
    }
}

fn printed(result: &ExecResult) -> String {
    let text = format!("{}{}", result.stdout, result.stderr);
    shortened(text.trim(), OUTPUT_BYTES_MAX)
}

/// The text of the reward file; `None` if the script wrote none. The processes have ended, so the
/// file does not change any more.
fn reward(trial: &Path) -> Result<Option<String>, &'static str> {
    let logs = trial.join("logs/verifier");
    // The script may have replaced a folder by a link out of the trial.
    for folder in [&trial.join("logs"), &logs] {
        if !fs::symlink_metadata(folder).is_ok_and(|about| about.is_dir()) {
            return Err("the folder of logs was removed or replaced");
        }
    }
    for name in ["reward.txt", "reward.json"] {
        let path = logs.join(name);
        let Ok(about) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !about.is_file() || about.len() > REWARD_BYTES_MAX {
            return Err("the reward file is no small regular file");
        }
        let mut text = String::new();
        let read = tree::open(&path).is_ok_and(|file| {
            file.take(REWARD_BYTES_MAX)
                .read_to_string(&mut text)
                .is_ok()
        });
        return match read {
            true => Ok(Some(text)),
            false => Err("the reward file cannot be read"),
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_is_read_from_a_small_regular_file_only() {
        let home = tempfile::tempdir().unwrap();
        let logs = home.path().join("logs/verifier");
        fs::create_dir_all(&logs).unwrap();
        let put = |name: &str, text: &str| fs::write(logs.join(name), text).unwrap();

        assert_eq!(reward(home.path()), Ok(None));
        put("reward.json", "{\"reward\": 0.5}");
        assert_eq!(reward(home.path()).unwrap().unwrap(), "{\"reward\": 0.5}");
        put("reward.txt", "1");
        assert_eq!(reward(home.path()).unwrap().unwrap(), "1");
        put("reward.txt", &"1".repeat(9_000));
        assert!(reward(home.path()).is_err());
        fs::remove_file(logs.join("reward.txt")).unwrap();
        std::os::unix::fs::symlink("reward.json", logs.join("reward.txt")).unwrap();
        assert!(reward(home.path()).is_err());

        fs::remove_file(logs.join("reward.txt")).unwrap();
        fs::rename(&logs, home.path().join("elsewhere")).unwrap();
        assert!(reward(home.path()).is_err());
        std::os::unix::fs::symlink("../elsewhere", &logs).unwrap();
        assert!(reward(home.path()).is_err());
    }
}
