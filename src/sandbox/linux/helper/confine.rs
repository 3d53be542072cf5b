//! The stage that starts a command behind bubblewrap if it may reach listed hosts. The forwarder
//! beside it must connect to a Unix socket, so the filter that bubblewrap applies to both allows
//! such sockets. This stage adds a filter that refuses them, then becomes the command's shell.

use std::{ffi::OsString, io::Write};

use super::FAILED;
use crate::sandbox::{
    exec::{ASKED, become_command},
    linux::filter::{self, Behind, Uncounted, UnixSockets},
};

pub(super) const STAGE: &str = "confine";

/// Returns only if the command could not be started behind the filter; the command then does not
/// run.
pub(super) fn run(argv: &[OsString]) -> i32 {
    // The filter installed before decides about memory; a second filter cannot allow more.
    let why = match filter::install(Behind::Namespaces(UnixSockets::Refused), Uncounted::Allowed) {
        Ok(()) => {
            let environment = std::env::vars_os().filter(|(name, _)| name != ASKED);
            format!("bash: {}", become_command(argv, environment).kind())
        }
        Err(why) => why,
    };
    let _ = writeln!(std::io::stderr(), "[the command did not run: {why}]");
    FAILED
}
