//! What a command behind bubblewrap is started by where it may reach listed hosts. The forwarder beside it connects to a Unix socket,
//! so the filter that bubblewrap puts over both lets such sockets be made. This stage takes that away, then becomes the command's shell.

use std::{ffi::OsString, io::Write};

use super::{ASKED, FAILED};
use crate::sandbox::{
    filter::{self, Behind, Uncounted, UnixSockets},
    spawner,
};

pub(super) const STAGE: &str = "confine";

/// Returns only when the command could not be started behind the filter; then it does not run.
pub(super) fn run(argv: &[OsString]) -> i32 {
    // The filter below this one decides on memory; a second cannot widen it.
    let why = match filter::install(Behind::Namespaces(UnixSockets::Refused), Uncounted::Allowed) {
        Ok(()) => {
            let environment = std::env::vars_os().filter(|(name, _)| name != ASKED);
            format!("bash: {}", spawner::become_command(argv, environment).kind())
        }
        Err(why) => why,
    };
    let _ = writeln!(std::io::stderr(), "[the command did not run: {why}]");
    FAILED
}
