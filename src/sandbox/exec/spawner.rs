//! The handle to the one thread that starts processes, because `PDEATHSIG` and bubblewrap's
//! `--die-with-parent` bind a process to the thread that forked it. The same thread reads output,
//! checks limits, kills and reaps ([`super::thread`]); callers await a channel.
//!
//! Promises: a job answers once, when all its processes are gone · a dropped caller kills its job ·
//! memory for output is bounded.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use callboard_actors::ports::{ExecResult, SandboxError};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    devices, keys,
    launch::{Launch, Order},
    parked::ControlGroups,
    thread::Thread,
    turns::Turns,
    watchdog::Watchdog,
};
use crate::{
    fair::{FairPlaces, Place, Refused, Waiting},
    sandbox::policy::{COMMANDS_MAX, NICENESS},
};

/// Concurrent commands that any machine allows, however few files the host may open.
const COMMANDS_MIN: usize = 64;

/// Files that the host must be allowed to open for each further command; see [`COMMANDS_MAX`].
const DESCRIPTORS_PER_COMMAND: u64 = 16;

/// Concurrent processes with open streams under one spawner: a host has a few servers per tenant,
/// and memory is finite.
pub(super) const PIPED_MAX: usize = 256;

/// A handle to the thread that starts processes. Clones share the thread; one is enough for a host.
#[derive(Debug, Clone)]
pub struct Spawner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    orders: mpsc::Sender<Order>,
    /// Written to in order to wake the thread; closed with the last handle.
    wake: OwnedFd,
    next: AtomicU64,
    places: Arc<FairPlaces>,
    piped: Arc<Semaphore>,
    watchdog: Watchdog,
    among_tenants: Arc<AtomicBool>,
    /// Number of scans of all processes made to end some.
    #[cfg(test)]
    scans: Arc<AtomicU64>,
}

/// Commands that wait for a place.
const COMMANDS_WAITING: Waiting = Waiting {
    all: 64 * 1024,
    tenant: 16 * 1024,
};

fn too_many(_: Refused) -> SandboxError {
    SandboxError::Limit("commands that wait to start".to_owned())
}

/// Concurrent commands of a host that may open `files` files. Most files are left for other uses.
fn commands_max(files: u64) -> usize {
    usize::try_from(files / DESCRIPTORS_PER_COMMAND)
        .unwrap_or(usize::MAX)
        .clamp(COMMANDS_MIN, COMMANDS_MAX)
}

impl Spawner {
    /// Starts the thread. Commands run in control groups where these can be created.
    ///
    /// # Errors
    /// The system's error when no thread or pipe can be created.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(ControlGroups::Auto)
    }

    /// Like [`Spawner::start`], with or without control groups.
    ///
    /// # Errors
    /// The system's error when no thread or pipe can be created.
    pub fn start_with(groups: ControlGroups) -> std::io::Result<Self> {
        let (woken, wake) = rustix::pipe::pipe_with(
            rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
        )?;
        let (orders, inbox) = mpsc::channel();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .unwrap_or(u64::MAX);
        let scans = Arc::<AtomicU64>::default();
        let counter = scans.clone();
        let among_tenants = Arc::<AtomicBool>::default();
        let turns = Turns::new(among_tenants.clone());
        std::thread::Builder::new()
            .name("callboard-spawner".to_owned())
            .spawn(move || {
                // Raise this thread's priority where permitted. As root the kernel's process limit does
                // not apply, so this thread must get a processor to stop a fork bomb.
                let _ = rustix::process::setpriority_process(None, -NICENESS);
                // If the user's quota of keys runs out later, processes share this keyring instead of
                // the host's.
                let _ = keys::join_new_session();
                let _ = devices::protect();
                Thread::new(inbox, woken, counter, groups, turns).run();
            })?;
        Ok(Self(Arc::new(Inner {
            orders,
            wake,
            next: AtomicU64::new(1),
            places: FairPlaces::new(commands_max(files), COMMANDS_WAITING),
            piped: Arc::new(Semaphore::new(PIPED_MAX)),
            watchdog: Watchdog::default(),
            among_tenants,
            #[cfg(test)]
            scans,
        })))
    }

    /// Lets the commands of a tenant that have run for two seconds together give way to those that
    /// begin. Commands of one user need no such turns.
    #[must_use]
    pub fn among_tenants(self) -> Self {
        self.0.among_tenants.store(true, Ordering::Relaxed);
        self
    }

    /// The watchdog, which sweeps if this process is killed.
    pub(in crate::sandbox) fn watchdog(&self) -> &Watchdog {
        &self.0.watchdog
    }

    pub(super) fn piped_permits(&self) -> Arc<Semaphore> {
        self.0.piped.clone()
    }

    /// Number of scans of all processes made so far to end some.
    #[cfg(test)]
    pub(super) fn scans(&self) -> u64 {
        self.0.scans.load(Ordering::Relaxed)
    }

    /// Number of further commands of one tenant that may start now.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.0.places.free() / 2
    }

    pub(super) fn next_id(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn order(&self, order: Order) -> Result<(), SandboxError> {
        let gone = |_| SandboxError::Failed("the thread that starts processes is gone".to_owned());
        self.0.orders.send(order).map_err(gone)?;
        // If the pipe is full, the thread has bytes to read and wakes as well.
        let _ = rustix::io::write(&self.0.wake, &[1]);
        Ok(())
    }

    fn begin(
        &self,
        launch: Launch,
        place: Option<Place>,
    ) -> Result<
        (
            Killer<'_>,
            oneshot::Receiver<Result<ExecResult, SandboxError>>,
        ),
        SandboxError,
    > {
        let id = self.next_id();
        let (reply, answer) = oneshot::channel();
        self.order(Order::Start {
            id,
            launch: Box::new(launch),
            reply,
            place,
        })?;
        Ok((Killer { spawner: self, id }, answer))
    }

    /// Runs a process to its end.
    ///
    /// # Cancel safety
    /// Dropping the future kills the job.
    pub(in crate::sandbox) async fn run(
        &self,
        launch: Launch,
        cancel: &CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        // The place travels with the job and is released when the thread drops the job, not when
        // this future ends: processes of a cancelled command may still run for a moment, and they
        // count towards the limit of concurrent commands.
        let place = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SandboxError::Cancelled),
            place = self.0.places.acquire(launch.tenant.clone()) => place.map_err(too_many)?,
        };
        let (killer, mut answer) = self.begin(launch, Some(place))?;
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = cancel.cancelled() => {
                drop(killer); // the answer still comes, when the processes are gone
                let _ = answer.await;
                return Err(SandboxError::Cancelled);
            }
        };
        answered.unwrap_or_else(|_| {
            Err(SandboxError::Failed(
                "the thread that starts processes ended".to_owned(),
            ))
        })
    }

    /// Runs a short process while the calling thread blocks; for probes at start.
    pub(in crate::sandbox) fn run_blocking(
        &self,
        launch: Launch,
    ) -> Result<ExecResult, SandboxError> {
        let (_killer, mut answer) = self.begin(launch, None)?;
        loop {
            match answer.try_recv() {
                Ok(answered) => return answered,
                Err(oneshot::error::TryRecvError::Empty) => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(SandboxError::Failed(
                        "the thread that starts processes ended".to_owned(),
                    ));
                }
            }
        }
    }
}

struct Killer<'s> {
    spawner: &'s Spawner,
    id: u64,
}

impl Drop for Killer<'_> {
    fn drop(&mut self) {
        let _ = self.spawner.order(Order::Kill { id: self.id });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_leave_most_of_the_hosts_files_to_others() {
        let most = [0, 1024, 4096, 20_000, u64::MAX].map(commands_max);

        assert_eq!(most, [64, 64, 256, 1024, 1024]);
    }
}
