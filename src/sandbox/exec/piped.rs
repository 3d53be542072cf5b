//! Processes with open standard streams: the spawner's thread starts a process and passes its three
//! streams to the caller. For servers that run beside the host without a jail (MCP over standard
//! input and output): the user chose them, and they run with the user's rights.
//!
//! Promises: the environment is an allow-list, and no descriptor above 2 is inherited · a process
//! ends with its handle, with the spawner and (where `setpriv` exists) with the host · processes
//! that it started are found by a mark in their environment and end with it.

use std::time::Duration;

use callboard_actors::ports::SandboxError;
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
};

use super::{
    launch::{Carried, CarryingLaunch, Order, PipedLaunch},
    spawner::{PIPED_MAX, Spawner},
};

/// A running process and its streams.
#[derive(Debug)]
pub struct Piped {
    /// Input of the process.
    pub stdin: ChildStdin,
    /// Output of the process.
    pub stdout: ChildStdout,
    /// Error output. The caller must read it, or the process stops when the pipe is full.
    pub stderr: ChildStderr,
    /// Handle to end the process and await its exit.
    pub process: PipedProcess,
}

/// A handle to a process. Dropping it kills the process and everything that the process started.
#[derive(Debug)]
pub struct PipedProcess {
    spawner: Spawner,
    id: u64,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<Option<i32>>>>,
}

impl Spawner {
    /// Starts a process and returns its streams.
    ///
    /// # Errors
    /// [`SandboxError::Limit`] above 256 such processes; [`SandboxError::Failed`] when the process
    /// cannot be started.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    pub async fn start_piped(&self, launch: PipedLaunch) -> Result<Piped, SandboxError> {
        self.start_carrying(launch, None).await
    }

    /// Like [`start_piped`](Self::start_piped), with a descriptor beside the streams.
    pub(in crate::sandbox) async fn start_carrying(
        &self,
        launch: PipedLaunch,
        carried: Option<Carried>,
    ) -> Result<Piped, SandboxError> {
        let permit = self.piped_permits().try_acquire_owned();
        let permit =
            permit.map_err(|_| SandboxError::Limit(format!("more than {PIPED_MAX} servers")))?;
        let (reply, answer) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let id = self.next_id();
        let process = PipedProcess {
            spawner: self.clone(),
            id,
            ended: tokio::sync::Mutex::new(Some(end)),
        };
        self.order(Order::Pipe {
            id,
            launch: Box::new(CarryingLaunch { launch, carried }),
            reply,
            ended,
            permit,
        })?;
        let gone = || SandboxError::Failed("the thread that starts processes ended".to_owned());
        let streams = answer.await.map_err(|_| gone())??;
        let failed = |error: std::io::Error| SandboxError::Failed(crate::os_error::words(&error));
        Ok(Piped {
            stdin: ChildStdin::from_std(streams.stdin).map_err(failed)?,
            stdout: ChildStdout::from_std(streams.stdout).map_err(failed)?,
            stderr: ChildStderr::from_std(streams.stderr).map_err(failed)?,
            process,
        })
    }
}

impl PipedProcess {
    /// Gives the process `grace` to exit (its input should be closed), then kills it and everything
    /// that it started.
    pub fn end(&self, grace: Duration) {
        let _ = self.spawner.order(Order::EndPiped { id: self.id, grace });
    }

    /// Waits until the process and everything that it started are gone. Returns its exit code;
    /// `None` if it was killed.
    ///
    /// # Cancel safety
    /// The future may be dropped and created again until it returns; later calls return `None`.
    pub async fn ended(&self) -> Option<i32> {
        let mut ended = self.ended.lock().await;
        let status = match ended.as_mut() {
            Some(end) => end.await.ok().flatten(),
            None => None,
        };
        *ended = None;
        status
    }
}

impl Drop for PipedProcess {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
