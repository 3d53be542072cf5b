//! The begin of a command beside others that run in the same workspace.
//!
//! A command that runs can rename folders while the next one is searched for and gets its mounts. So the
//! next one waits at a gate when its mounts are made ([`AtGate`]), and the host compares them with those of
//! every command that runs.
//!
//! **Why this is enough.** A mount lies on a file, not on a path: renames carry it along, and where a file is a
//! mount point in a namespace, the kernel lets no process of that namespace rename or remove it. So of each command
//! that runs, the kernel itself keeps the list of the files that are kept from it, with the places where
//! they are now ([`covers`]). Whatever such a command has moved, and wherever, before or during the search:
//! - A file that is kept from it must be kept from the new command as well, or the new one gets its
//!   mounts again, with that file.
//! - A file that is not kept from it is one that it could read and write anyway. It needs no second
//!   command for that, and the sweep after it knows such files.
//! - A command that ended while the new one was searched for can have moved what the search missed. The
//!   search is then made again.
//!
//! A command is listed before it compares, so of two that begin at once at least one sees the other. The
//! comparison costs some system calls for each mount and no search, and nothing is compared for a
//! command that begins alone.
//!
//! The commands that run are not paused meanwhile. Pausing makes the moves of a moment impossible, but
//! not those before it: a folder that lies under a name where no rule finds it would be found by no search
//! of paused commands either. It would also stop servers at work, and without a control group it is a race
//! of its own against a tree of processes that forks.
//!
//! Limits: commands of workspaces that lie in each other are not compared, nor are commands without mounts
//! (`landlock-closed`), which rename no folder above what is kept from them.

mod covers;
mod leftovers;
mod running;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use callboard_actors::ports::{ExecResult, SandboxError};
use covers::{Covers, Kind};
use parking_lot::Mutex;
pub(super) use running::Commands;
use running::Running;
use tokio::sync::mpsc;

use super::super::{
    exec::{AtGate, call, shell::CHANGED},
    fs::{Found, Guard, Guarded, Identity, Made, Notice, Searching},
};

/// Time in which a command must begin beside commands that move folders, and the tries that it has in any
/// case.
const TIME_MAX: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(3)
};
const TRIES_MIN: u32 = 3;

/// Pause before the mounts of a command are read again that moved a folder meanwhile.
const AGAIN: Duration = Duration::from_millis(2);

/// Why a command did not begin.
const MOVES: &str = "another command keeps moving folders of the workspace, so this one could not begin: run it again when that one has ended";

/// One command before it begins, and while it runs.
#[derive(Debug)]
pub(super) struct Beginning {
    guard: Arc<Guard>,
    running: Running,
    elsewhere: Mutex<Elsewhere>,
    /// When the search began.
    since: Mutex<SystemTime>,
    /// Where the command sees the workspace.
    place: PathBuf,
    until: Instant,
}

/// Commands of other guards, in this process and in others.
#[derive(Debug, Default)]
struct Elsewhere {
    /// Since the search of this command began.
    watch: Option<Searching>,
    has_ended: bool,
    /// What they know of this command.
    notice: Option<Notice>,
}

/// How a try ended.
pub(super) enum Tried {
    /// The command ran, or cannot.
    Ended(Result<ExecResult, SandboxError>),
    /// What must be covered was elsewhere: the command has to be searched for again. What it said, if it
    /// ended by itself.
    Missed(Option<Result<ExecResult, SandboxError>>),
}

enum Verdict {
    Begin,
    Again,
    Fail(SandboxError),
}

impl Beginning {
    pub(super) fn new(
        guard: &Arc<Guard>,
        commands: &Arc<Mutex<Commands>>,
        place: &Path,
    ) -> Arc<Self> {
        Arc::new(Self {
            guard: guard.clone(),
            running: Running::new(commands),
            elsewhere: Mutex::default(),
            since: Mutex::new(SystemTime::now()),
            place: place.to_owned(),
            until: Instant::now() + TIME_MAX,
        })
    }

    /// Searches the workspace. What is kept from commands that run is found as well, wherever it lies. Blocks.
    pub(super) fn search(&self) -> Result<Guarded, SandboxError> {
        *self.since.lock() = SystemTime::now();
        self.running.search_begins();
        let watch = self.guard.watch();
        *self.elsewhere.lock() = Elsewhere {
            watch,
            ..Elsewhere::default()
        };
        #[cfg(test)]
        tests::between(self.guard.root(), tests::Point::Asked);
        Ok(self.guard.search_beside(|root, found| {
            for other in self.others() {
                // Where it moves folders now, the comparison at the gate decides.
                for covered in covers::of(&other, root)
                    .into_iter()
                    .flat_map(Covers::into_values)
                {
                    found.add(root, covered.path, covered.kind.into());
                }
            }
        })?)
    }

    /// The gate of a command behind these mounts; `None` if it has none and no other command runs.
    pub(super) fn gate(
        &self,
        found: &Found,
    ) -> (Option<mpsc::Sender<AtGate>>, Option<mpsc::Receiver<AtGate>>) {
        #[cfg(test)]
        tests::between(self.guard.root(), tests::Point::Searched);
        let is_alone = found.covers() == 0 && self.others().is_empty() && !self.is_disturbed();
        if is_alone {
            self.elsewhere.lock().watch = None;
            return (None, None);
        }
        let (report, gate) = mpsc::channel(1);
        (Some(report), Some(gate))
    }

    /// Runs a command that begins when its mounts cover what they must.
    pub(super) async fn run(
        self: &Arc<Self>,
        gate: Option<mpsc::Receiver<AtGate>>,
        found: Found,
        run: impl Future<Output = Result<ExecResult, SandboxError>>,
    ) -> Tried {
        let found = Arc::new(found);
        let tried = self.try_once(gate, found.clone(), run).await;
        if matches!(tried, Tried::Missed(_)) {
            let this = self.clone();
            let cleared = call::blocking(move || {
                leftovers::clear(this.guard.root(), &found, *this.since.lock());
                Ok(())
            });
            // What is left is an empty file.
            let _ = cleared.await;
        }
        tried
    }

    async fn try_once(
        self: &Arc<Self>,
        gate: Option<mpsc::Receiver<AtGate>>,
        found: Arc<Found>,
        run: impl Future<Output = Result<ExecResult, SandboxError>>,
    ) -> Tried {
        let Some(mut gate) = gate else {
            return Tried::Ended(run.await);
        };
        let mut run = std::pin::pin!(run);
        let at_gate = tokio::select! {
            biased;
            Some(at_gate) = gate.recv() => at_gate,
            result = &mut run => return self.ended_before(result),
        };
        let this = self.clone();
        let verdict = call::blocking(move || {
            let verdict = this.compare(&at_gate, &found);
            this.elsewhere.lock().watch = None;
            if matches!(verdict, Verdict::Begin) {
                at_gate.open();
            } else {
                this.running.set(None);
                at_gate.refuse();
            }
            Ok(verdict)
        })
        .await;
        let result = run.await;
        // The processes of the command are gone, and others may begin that wait for its end.
        self.running.end();
        self.elsewhere.lock().notice = None;
        match verdict {
            Ok(Verdict::Begin) => Tried::Ended(result),
            Ok(Verdict::Again) => match result {
                Err(SandboxError::Cancelled) => Tried::Ended(result),
                _ => Tried::Missed(None),
            },
            Ok(Verdict::Fail(error)) | Err(error) => Tried::Ended(Err(error)),
        }
    }

    /// The command ended before its mounts were made.
    fn ended_before(&self, result: Result<ExecResult, SandboxError>) -> Tried {
        let is_missed = match &result {
            Err(SandboxError::Failed(why)) => why == CHANGED || !self.others().is_empty(),
            Ok(result) => {
                result.status.is_some_and(|status| status != 0) && !self.others().is_empty()
            }
            Err(_) => false,
        };
        if is_missed {
            Tried::Missed(Some(result))
        } else {
            Tried::Ended(result)
        }
    }

    /// The answer of a try, if the command is not tried again.
    pub(super) fn answer(
        &self,
        tried: Tried,
        tries: u32,
    ) -> Option<Result<ExecResult, SandboxError>> {
        match tried {
            Tried::Ended(result) => Some(result),
            Tried::Missed(_) if tries < TRIES_MIN || Instant::now() < self.until => None,
            Tried::Missed(said) => Some(match said {
                Some(Err(SandboxError::Failed(why))) if why == CHANGED => {
                    Err(SandboxError::Failed(MOVES.to_owned()))
                }
                Some(result) => result,
                None => Err(SandboxError::Failed(MOVES.to_owned())),
            }),
        }
    }

    /// The commands of the workspace whose mounts are made.
    fn others(&self) -> Vec<Made> {
        let mut others = self.running.others();
        let elsewhere = &mut *self.elsewhere.lock();
        if let Some(watch) = &mut elsewhere.watch {
            let (made, has_ended) = self.guard.made_elsewhere(watch);
            others.extend(made);
            elsewhere.has_ended |= has_ended;
        }
        others
    }

    /// Whether a command of the workspace has ended since the search.
    fn is_disturbed(&self) -> bool {
        self.others();
        self.elsewhere.lock().has_ended || self.running.is_disturbed()
    }

    fn take_disturbed(&self) -> bool {
        let has_ended = std::mem::take(&mut self.elsewhere.lock().has_ended);
        self.running.take_disturbed() || has_ended
    }

    /// Compares the mounts of this command with what was found and with those of the commands that run.
    fn compare(&self, at_gate: &AtGate, found: &Found) -> Verdict {
        let root = self.guard.root();
        #[cfg(test)]
        tests::between(root, tests::Point::Made);
        let Some(mounts) = covers::namespace(at_gate.pid) else {
            return Verdict::Again;
        };
        let own = Made {
            pid: at_gate.pid,
            place: self.place.clone(),
            mounts,
        };
        self.running.set(Some(own.clone()));
        self.elsewhere.lock().notice = self.guard.leave_made(own.clone());
        let Some(own) = self.settled(|| covers::of(&own, root)) else {
            return Verdict::Again;
        };
        if !has_all(&own, found) {
            return Verdict::Again;
        }
        loop {
            if self.take_disturbed() {
                match self.guard.find() {
                    Ok(found) if has_all(&own, &found) => {}
                    Ok(_) => return Verdict::Again,
                    Err(why) => return Verdict::Fail(why.into()),
                }
            }
            let theirs = self.settled(|| {
                let others = self.others();
                let theirs = others.iter().map(|other| covers::of(other, root));
                theirs.collect::<Option<Vec<Covers>>>()
            });
            let Some(theirs) = theirs else {
                return Verdict::Again;
            };
            if !theirs.iter().all(|theirs| keeps(&own, theirs)) {
                return Verdict::Again;
            }
            if !self.is_disturbed() {
                return Verdict::Begin;
            }
        }
    }

    /// Asks until there is an answer, as long as there is time.
    fn settled<T>(&self, ask: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let answer = ask();
            if answer.is_some() || Instant::now() >= self.until {
                return answer;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// Whether mounts cover all that was found.
fn has_all(own: &Covers, found: &Found) -> bool {
    let places = own.values().map(|covered| (&*covered.path, covered.kind));
    let places: std::collections::BTreeMap<&Path, Kind> = places.collect();
    let is_covered = |path: &Path, least: Kind| {
        places.get(path).is_some_and(|kind| *kind >= least)
            // A mount over a folder hides those that were made in it before.
            || path.ancestors().skip(1).any(|folder| {
                places
                    .get(folder)
                    .is_some_and(|kind| *kind >= least.max(Kind::ReadOnly))
            })
    };
    let held = found.held.iter().map(|path| (path, Kind::Held));
    let read_only = found.read_only.iter().map(|path| (path, Kind::ReadOnly));
    let hidden = found
        .hidden
        .iter()
        .map(|(path, is_folder)| (path, Kind::hidden(*is_folder)));
    held.chain(read_only)
        .chain(hidden)
        .all(|(path, least)| is_covered(path, least))
}

/// Whether all that is kept from another command is kept from this one.
fn keeps(own: &Covers, theirs: &Covers) -> bool {
    let is_kept = |key, least: Kind| own.get(key).is_some_and(|own| own.kind >= least);
    theirs.iter().all(|(key, covered)| {
        is_kept(key, covered.kind)
            // It lies in a folder that both may not write.
            || theirs.iter().any(|(key, above)| {
                above.kind >= Kind::ReadOnly
                    && above.path != covered.path
                    && covered.path.starts_with(&above.path)
                    && is_kept(key, above.kind.max(covered.kind))
            })
    })
}

/// A file by the folder that it lies in, and its name.
type Entry = (Identity, std::ffi::OsString);

#[cfg(test)]
mod tests;
