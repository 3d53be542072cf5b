//! Builds the Landlock rules of a command.
//!
//! A rule allows a folder with everything below it, and no rule can exclude a part. Where mounts
//! cover protected and hidden names (`mounts.rs`), one rule allows the whole workspace. Elsewhere,
//! a folder that contains such a name, and every folder above it, is allowed entry by entry. In
//! these folders a command can change files and fill subfolders, but cannot create, rename or
//! remove an entry. File tools are not affected.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};

use crate::sandbox::{
    fs::{Found, Identity, Root, identity, names_of},
    linux::system_paths::{PROGRAMS, SYSTEM},
};

/// Required version of Landlock, the first that also blocks signals to outside processes (Linux
/// 6.12). An older kernel gets no partial rules.
const KERNEL: ABI = ABI::V6;

/// Entries of a folder that get a rule each; a command cannot access entries beyond these.
const ENTRIES_MAX: usize = 8192;

/// Harmless devices that programs need.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// Files about the machine that programs read. None describes a process: `/proc/PID` could reveal
/// the host's environment, which holds keys.
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

/// Every write access except creating devices and sockets.
const WRITE: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{
    Execute | ReadFile | ReadDir | WriteFile | Truncate | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeFifo | MakeSym | Refer
});

const LIST: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{ReadDir});

/// Rules that are not enforced yet.
pub(super) struct Rules(RulesetCreated);

impl Rules {
    /// Builds the rules for a workspace. A rule applies to the file that exists now: a new file
    /// under the same name gets no access.
    pub(super) fn of(
        root: &Root,
        found: &Found,
        private: &Path,
        read_only: &[PathBuf],
    ) -> Result<Self, String> {
        let created = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(KERNEL))
            .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(KERNEL)))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(KERNEL)))
            .and_then(Ruleset::create);
        let created = created
            .map_err(|_| "the kernel's Landlock is off or older than Linux 6.12".to_owned())?;
        let mut rules = Self(created);
        for path in SYSTEM
            .iter()
            .chain(PROGRAMS)
            .chain(MACHINE)
            .map(Path::new)
            .chain(read_only.iter().map(PathBuf::as_path))
        {
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
        let kind = rustix::fs::fstat(fd)
            .map_err(|error| format!("a rule: {error}"))?
            .st_mode;
        let is_folder = FileType::from_raw_mode(kind) == FileType::Directory;
        let access = if is_folder {
            access
        } else {
            access & AccessFs::from_file(KERNEL)
        };
        if access.is_empty() {
            return Ok(());
        }
        (&mut self.0)
            .add_rule(PathBeneath::new(fd, access))
            .map(drop)
            .map_err(|error| format!("a rule: {error}"))
    }

    fn allow_workspace(&mut self, root: &Root, found: &Found) -> Result<(), String> {
        let hidden: BTreeSet<&Path> = found
            .hidden
            .iter()
            .map(|(path, _)| path.as_path())
            .collect();
        let mut closed: BTreeSet<PathBuf> = found.held.iter().cloned().collect();
        let named = found
            .protected
            .keys()
            .chain(&found.read_only)
            .chain(&found.held)
            .map(PathBuf::as_path);
        for path in named.chain(hidden.iter().copied()) {
            closed.extend(path.ancestors().skip(1).map(Path::to_owned));
        }
        if closed.is_empty() {
            let (dir, _) = root.open_folder("").map_err(|error| error.to_string())?;
            return self.allow(&dir, WRITE);
        }
        // A second hard link names the same protected file.
        let mut twins: BTreeSet<Identity> = found.protected.values().map(|(own, _)| *own).collect();
        twins.extend(hidden.iter().filter_map(|path| identity_of(root, path)));
        let mut entries = 0;
        for folder in &closed {
            let Ok((dir, _)) = root.open_folder(&folder.to_string_lossy()) else {
                continue;
            };
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
                    Some((_, FileType::Directory | FileType::RegularFile | FileType::Fifo)) => {
                        WRITE
                    }
                    _ => continue,
                };
                self.allow_entry(&dir, &name, access)?;
            }
        }
        Ok(())
    }

    fn allow_entry(
        &mut self,
        dir: &OwnedFd,
        name: &OsStr,
        access: BitFlags<AccessFs>,
    ) -> Result<(), String> {
        match rustix::fs::openat(
            dir,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            // The name may have become a link since the check. A rule on a link allows nothing.
            Ok(fd) => self.allow(&fd, access),
            Err(_) => Ok(()),
        }
    }

    /// Enforces the rules on this process and all its future children.
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
