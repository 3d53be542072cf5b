//! The machine's device nodes that commands have behind bubblewrap (`/dev/null` and its like). The
//! mounts that bubblewrap makes for them can be written, and who runs as their owner, as root does,
//! could change their mode and times for the whole machine. So the thread that starts commands has a
//! mount namespace of its own, in which they are read-only; bubblewrap keeps that. Reading and writing
//! a device is no change of its node.

use std::{fs, os::unix::fs::MetadataExt as _};

use rustix::{
    io,
    mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount},
    thread::UnshareFlags,
};

const NODES: [&str; 6] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];

/// Makes the nodes read-only for this thread and what it starts, if they belong to this user.
///
/// # Errors
/// The user may make no mounts: then, in a container for example, commands can change the nodes there.
pub(super) fn protect() -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let own = NODES.map(|node| fs::metadata(node).is_ok_and(|node| node.uid() == user));
    if !own.contains(&true) {
        return Ok(());
    }
    // It is unsafe only for open files, which stay shared.
    #[allow(deprecated, reason = "its successor is unsafe")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    // What is mounted later appears here as well, and nothing from here elsewhere.
    let follows = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", follows)?;
    for (node, _) in NODES.into_iter().zip(own).filter(|(_, is_own)| *is_own) {
        mount_bind(node, node)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
        mount_remount(node, flags, "")?;
    }
    Ok(())
}
