//! What the files of the machine are to a command: the rules of Landlock.
//!
//! A rule allows a folder with everything below it and nothing can be taken out again. Where mounts cover what is protected or hidden
//! (`mounts.rs`), the whole workspace is allowed. Elsewhere a folder that holds something protected or hidden, and every folder above
//! it, gets no rule of its own but a listing: what lies in it is allowed entry by entry. There a command can change files and fill
//! folders but not create, rename or remove an entry. The price of a wall of the kernel; file tools are not concerned.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};

use super::with_second_names;
use crate::sandbox::{
    Root,
    guard::{Found, Identity, identity, names_of},
    linux::{PROGRAMS, SYSTEM},
};

/// What is asked of the kernel, whole or not at all: it is the first that also keeps signals inside (Linux 6.12).
const KERNEL: ABI = ABI::V6;

/// Entries that get a rule of their own; those beyond cannot be touched.
const ENTRIES_MAX: usize = 8192;

/// Devices that are of use and harm nobody.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// What programs ask of the machine. Nothing of any process: `/proc/PID` of the host is none of a command's business (FAULTS F5).
const MACHINE: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/sys/kernel/cap_last_cap",
    "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
];

const READ: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{Execute | ReadFile | ReadDir});

/// Everything but making devices and sockets.
const WRITE: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{
    Execute | ReadFile | ReadDir | WriteFile | Truncate | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeFifo | MakeSym | Refer
});

const LIST: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{ReadDir});

/// Rules that wait to be enforced.
pub(super) struct Rules(RulesetCreated);

impl Rules {
    /// Rules over a workspace. They hold what lies there now by identity: a name that changes hands later carries no right along.
    pub(super) fn of(root: &Root, found: &Found, private: &Path, read_only: &[PathBuf]) -> Result<Self, String> {
        let created = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(KERNEL))
            .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(KERNEL)))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(KERNEL)))
            .and_then(Ruleset::create);
        let created = created.map_err(|_| "the kernel's Landlock is off or older than Linux 6.12".to_owned())?;
        let mut rules = Self(created);
        for path in SYSTEM.iter().chain(PROGRAMS).chain(MACHINE).map(Path::new).chain(read_only.iter().map(PathBuf::as_path)) {
            rules.allow_path(path, READ)?;
        }
        for path in DEVICES {
            rules.allow_path(Path::new(path), WRITE)?;
        }
        rules.allow_path(private, WRITE)?;
        rules.allow_workspace(root, found)?;
        Ok(rules)
    }

    fn allow_path(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), String> {
        match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => self.allow(&fd, access),
            Err(_) => Ok(()), // not every system has it
        }
    }

    fn allow(&mut self, fd: &OwnedFd, access: BitFlags<AccessFs>) -> Result<(), String> {
        let kind = rustix::fs::fstat(fd).map_err(|error| format!("a rule: {error}"))?.st_mode;
        let is_folder = FileType::from_raw_mode(kind) == FileType::Directory;
        let access = if is_folder { access } else { access & AccessFs::from_file(KERNEL) };
        if access.is_empty() {
            return Ok(());
        }
        (&mut self.0).add_rule(PathBeneath::new(fd, access)).map(drop).map_err(|error| format!("a rule: {error}"))
    }

    fn allow_workspace(&mut self, root: &Root, found: &Found) -> Result<(), String> {
        let found = &*with_second_names(root, found);
        let hidden: BTreeSet<&Path> = found.hidden.iter().map(|(path, _)| path.as_path()).collect();
        let mut closed: BTreeSet<PathBuf> = found.git.iter().cloned().collect();
        let named = found.protected.keys().chain(&found.read_only).chain(&found.git).map(PathBuf::as_path);
        for path in named.chain(hidden.iter().copied()) {
            closed.extend(path.ancestors().skip(1).map(Path::to_owned));
        }
        if closed.is_empty() {
            let (dir, _) = root.open_folder("").map_err(|error| error.to_string())?;
            return self.allow(&dir, WRITE);
        }
        // The same file by another name is the same file.
        let mut twins: BTreeSet<Identity> = found.protected.values().map(|(own, _)| *own).collect();
        twins.extend(hidden.iter().filter_map(|path| identity_of(root, path)));
        let mut entries = 0;
        for folder in &closed {
            let Ok((dir, _)) = root.open_folder(&folder.to_string_lossy()) else { continue };
            self.allow(&dir, LIST)?;
            for name in names_of(&dir) {
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Ok(());
                }
                let path = folder.join(&name);
                if hidden.contains(path.as_path()) || closed.contains(&path) {
                    continue;
                }
                let access = match identity(dir.as_fd(), &name) {
                    _ if found.protected.contains_key(&path) => READ,
                    Some((own, _)) if twins.contains(&own) => continue,
                    Some((_, FileType::Directory | FileType::RegularFile | FileType::Fifo)) => WRITE,
                    _ => continue,
                };
                self.allow_entry(&dir, &name, access)?;
            }
        }
        Ok(())
    }

    fn allow_entry(&mut self, dir: &OwnedFd, name: &OsStr, access: BitFlags<AccessFs>) -> Result<(), String> {
        match rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            // It may have become a link since it was looked at: a rule on that reaches nothing.
            Ok(fd) => self.allow(&fd, access),
            Err(_) => Ok(()),
        }
    }

    /// From here on they hold, for this process and all that come of it.
    pub(super) fn enforce(self) -> Result<(), String> {
        match self.0.restrict_self() {
            Ok(status) if status.ruleset == RulesetStatus::FullyEnforced => Ok(()),
            _ => Err("Landlock could not be enforced".to_owned()),
        }
    }
}

fn identity_of(root: &Root, path: &Path) -> Option<Identity> {
    let (dir, _) = root.open_folder(&path.parent()?.to_string_lossy()).ok()?;
    identity(dir.as_fd(), path.file_name()?).map(|(own, _)| own)
}
