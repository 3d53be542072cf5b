//! Control groups (cgroups) for commands, one each. The kernel counts every page that a command
//! causes, whichever process maps it: memory files, socket buffers, `tmpfs`, page tables. It
//! enforces the bound at once, which polling could not.
//!
//! A group is created below the host's own group or, where version 2 forbids that, beside it. The
//! host is never moved, and no setting of a shared group changes, except that controllers are
//! enabled for children. So every limit on the host's own group still applies. Where no group can
//! be created, the checks of [`super::machine`] and of the command's processes bound memory
//! instead.
//!
//! A group's name contains its host, and the group is removed when it is empty. After a host was
//! killed, its parked shell ([`super::parked`]) removes the groups; [`Groups::find`] removes any
//! that remain.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use callboard_actors::ports::ExecLimits;
use rustix::fs::Access;

use super::{
    processes::{began, pidfd},
    tcp,
};

/// Prefix of the names of all our groups.
const PREFIX: &str = "callboard-";

/// Memory allowance in a group for the supervisor, the shells and bubblewrap, on top of the
/// command's limit.
const OWN_BYTES: u64 = 16 * 1024 * 1024;

/// The same allowance in processes. The spawner's thread ends a command at its own limit; this one
/// stops a command that grows faster than the thread checks.
const OWN_PROCESSES: u32 = 64;

/// Delay between two attempts to remove a group, and the number of attempts: processes may take a
/// moment to leave.
const REMOVE_AGAIN: Duration = Duration::from_millis(20);
const REMOVALS_MAX: u32 = 500;

/// The version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// A folder of a hierarchy in which groups can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Folder in which groups are created.
    parent: PathBuf,
    /// The host's own group, to which a process that leaves a group returns.
    home: PathBuf,
}

/// Creates groups for the commands of one spawner.
#[derive(Debug)]
pub(in crate::sandbox) struct Groups {
    version: Version,
    /// The memory hierarchy first. Version 1 may have a second one, for the number of processes.
    places: Vec<Place>,
    /// Prefix of the names of this spawner's groups.
    name: String,
    next: u64,
    remove: mpsc::Sender<Vec<PathBuf>>,
}

/// The group of one command, in every hierarchy. After a drop it is removed as soon as it has no
/// process.
#[derive(Debug)]
pub(super) struct CommandGroup {
    version: Version,
    /// Pairs of the host's own group and the command's group.
    pub(super) folders: Vec<(PathBuf, PathBuf)>,
    remove: mpsc::Sender<Vec<PathBuf>>,
}

impl Groups {
    /// Finds a place where groups can be created, creates one there to test it, and removes groups
    /// that earlier hosts left.
    ///
    /// # Errors
    /// The reason why no group can be created, without a path.
    pub(in crate::sandbox) fn find() -> Result<Self, String> {
        let read = |name: &str| {
            fs::read_to_string(name)
                .map_err(|error| format!("/proc cannot be read: {}", error.kind()))
        };
        let own = read("/proc/self/cgroup")?;
        let mounts = read("/proc/self/mountinfo")?;
        let (version, places) = places(&own, &mounts)?;
        let own = std::process::id();
        let pid = i32::try_from(own).map_err(|_| "no process number")?;
        let chance = getrandom::u32().map_err(|_| "no randomness")?;
        let name = format!("{PREFIX}{own}-{}-{chance:08x}-", began(pid).unwrap_or(0));
        places.iter().for_each(|place| remove_left(&place.parent));
        let (remove, removals) = mpsc::channel();
        std::thread::Builder::new()
            .name("callboard-groups".to_owned())
            .spawn(move || remove_all(&removals))
            .map_err(|error| format!("no thread: {}", error.kind()))?;
        let mut groups = Self {
            version,
            places,
            name,
            next: 0,
            remove,
        };
        let tried = groups.make().and_then(|group| {
            let bounded = group.limit(&ExecLimits::DEFAULT);
            // Remove it here, not on the thread: a program that only probes may exit before the
            // thread runs.
            group
                .folders
                .iter()
                .for_each(|(_, folder)| drop(fs::remove_dir(folder)));
            bounded
        });
        tried.map_err(|error| format!("a control group cannot be made: {}", error.kind()))?;
        Ok(groups)
    }

    pub(in crate::sandbox) fn version(&self) -> Version {
        self.version
    }

    /// Prefix of the names of this spawner's groups.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Creates a group without limits.
    pub(super) fn make(&mut self) -> io::Result<CommandGroup> {
        self.next += 1;
        let mut group = CommandGroup {
            version: self.version,
            folders: Vec::new(),
            remove: self.remove.clone(),
        };
        for Place { parent, home } in &self.places {
            let folder = parent.join(format!("{}{}", self.name, self.next));
            fs::create_dir(&folder)?;
            group.folders.push((home.clone(), folder));
        }
        Ok(group)
    }
}

impl CommandGroup {
    /// Sets the group's limits.
    pub(super) fn limit(&self, limits: &ExecLimits) -> io::Result<()> {
        let set = |name: &str, value: String| match self
            .folders
            .iter()
            .map(|(_, folder)| folder.join(name))
            .find(|file| file.exists())
        {
            Some(file) => fs::write(file, value),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let bytes = limits.memory_bytes.saturating_add(OWN_BYTES).to_string();
        let processes = limits.processes.saturating_add(OWN_PROCESSES).to_string();
        match self.version {
            Version::One => {
                set("memory.limit_in_bytes", bytes.clone())?;
                // Absent where swap is not counted.
                let _ = set("memory.memsw.limit_in_bytes", bytes);
                // TCP is counted separately, and no boundary gives a command TCP outside its
                // loopback.
                if let Some(bytes) = tcp::of_command() {
                    let _ = set("memory.kmem.tcp.limit_in_bytes", bytes.to_string());
                }
                let _ = set("pids.max", processes);
                Ok(())
            }
            Version::Two => {
                set("memory.max", bytes)?;
                let _ = set("memory.swap.max", "0".to_owned());
                let _ = set("memory.oom.group", "1".to_owned());
                let _ = set("pids.max", processes);
                // A group below a threaded group accepts no process.
                match self.read("cgroup.type") {
                    Some(kind) if kind.trim() != "domain" => Err(io::ErrorKind::Unsupported.into()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives the group what others leave of the processors, where groups have weights.
    pub(super) fn give_way(&self) {
        for (_, folder) in &self.folders {
            let weight = folder.join("cpu.weight");
            if weight.exists() {
                let _ = fs::write(weight, "1");
            }
        }
    }

    fn read(&self, name: &str) -> Option<String> {
        self.folders
            .iter()
            .find_map(|(_, folder)| fs::read_to_string(folder.join(name)).ok())
    }

    /// Bytes that the group has in connections of TCP; `None` where the kernel does not count them.
    pub(super) fn tcp_bytes(&self) -> Option<u64> {
        match self.version {
            Version::One => self
                .read("memory.kmem.tcp.usage_in_bytes")?
                .trim()
                .parse()
                .ok(),
            Version::Two => {
                let all = self.read("memory.stat")?;
                let sockets = all.lines().find_map(|line| line.strip_prefix("sock "))?;
                sockets.trim().parse().ok()
            }
        }
    }

    /// Whether the kernel has killed a process of the group for lack of memory.
    pub(super) fn is_over(&self) -> bool {
        let events = self.read(match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        });
        events.is_some_and(|events| kills(&events) > 0)
    }

    /// Kills every process in the group. Returns whether there was one.
    pub(super) fn kill_all(&self) -> bool {
        let processes = || -> Vec<i32> {
            let text = self.read("cgroup.procs").unwrap_or_default();
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .filter(|pid| *pid > 0)
                .collect()
        };
        let held: Vec<_> = processes()
            .into_iter()
            .map(|pid| (pid, pidfd(pid)))
            .collect();
        if held.is_empty() {
            return false;
        }
        // A number read from the list may have been reused before its descriptor was opened. A
        // process that is still listed afterwards is the right one.
        let still = processes();
        for pidfd in held
            .into_iter()
            .filter(|(pid, _)| still.contains(pid))
            .filter_map(|(_, pidfd)| pidfd)
        {
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        }
        true
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        let _ = self
            .remove
            .send(self.folders.drain(..).map(|(_, folder)| folder).collect());
    }
}

/// The number of out-of-memory kills in a group's event file.
fn kills(events: &str) -> u64 {
    events
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        .unwrap_or(0)
}

/// Removes groups as they become empty, until every handle of the spawner is gone and no group is
/// left.
fn remove_all(removals: &mpsc::Receiver<Vec<PathBuf>>) {
    let mut left: Vec<(PathBuf, u32)> = Vec::new();
    let mut open: bool = true;
    while open || !left.is_empty() {
        let more = match (left.is_empty(), open) {
            (true, _) => removals
                .recv()
                .map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            (false, true) => removals.recv_timeout(REMOVE_AGAIN),
            (false, false) => {
                std::thread::sleep(REMOVE_AGAIN);
                Err(mpsc::RecvTimeoutError::Timeout)
            }
        };
        match more {
            Ok(folders) => left.extend(folders.into_iter().map(|folder| (folder, REMOVALS_MAX))),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => open = false,
        }
        left.retain_mut(|(folder, attempts)| {
            *attempts = attempts.saturating_sub(1);
            matches!(fs::remove_dir(&*folder), Err(error) if error.kind() != io::ErrorKind::NotFound) && *attempts > 0
        });
    }
}

/// Removes the groups of hosts that no longer run. The kernel removes only empty groups.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let host = name.to_str().and_then(host_of);
        if host.is_some_and(|(pid, start)| began(pid) != Some(start)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that created a group with this name, and its start time.
fn host_of(name: &str) -> Option<(i32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    (parts.count() == 2).then_some((pid, start))
}

/// Finds places for groups in the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn places(own: &str, mounts: &str) -> Result<(Version, Vec<Place>), String> {
    // A group has the controllers that its parent enables, and enabling one may be necessary first.
    let has_memory = |group: &Path| lists(&group.join("cgroup.controllers"), "memory");
    if let Some(own) = group_of(own, mounts, None)
        .filter(|own| has_memory(own) || own.parent().is_some_and(has_memory))
    {
        return version_two(&own).map(|place| (Version::Two, vec![place]));
    }
    let own_place = |controller: &str| {
        let own = group_of(own, mounts, Some(controller))
            .filter(|own| is_writable(&own.join("cgroup.procs")))?;
        Some(Place {
            parent: own.clone(),
            home: own,
        })
    };
    let memory = own_place("memory").ok_or("the own control group cannot be written")?;
    // Without a hierarchy, memory of a child would not count towards the limit of the host's own
    // group.
    if fs::read_to_string(memory.home.join("memory.use_hierarchy"))
        .is_ok_and(|hierarchy| hierarchy.trim() != "1")
    {
        return Err("control groups of memory are not a hierarchy".to_owned());
    }
    Ok((
        Version::One,
        [Some(memory), own_place("pids")]
            .into_iter()
            .flatten()
            .collect(),
    ))
}

/// Returns the host's own group if its children can have limits, which is so only if it holds no
/// process or is the root of the hierarchy. Otherwise returns the parent, if it was delegated:
/// marked so by systemd, or writable for an unprivileged user.
fn version_two(own: &Path) -> Result<Place, String> {
    let bounds = |parent: &Path| {
        let enabled = parent.join("cgroup.subtree_control");
        let is_bounded = is_writable(&parent.join("cgroup.procs"))
            && (lists(&enabled, "memory") || fs::write(&enabled, "+memory +pids").is_ok());
        if is_bounded && !lists(&enabled, "cpu") {
            // Commands can give way then; they do by their sessions where this fails.
            let _ = fs::write(&enabled, "+cpu");
        }
        is_bounded
    };
    if bounds(own) {
        return Ok(Place {
            parent: own.to_owned(),
            home: own.to_owned(),
        });
    }
    let given = |parent: &&Path| !rustix::process::geteuid().is_root() || is_delegated(parent);
    let parent = own
        .parent()
        .filter(given)
        .ok_or("the control group above the host's own was not delegated to it")?;
    if bounds(parent) {
        return Ok(Place {
            parent: parent.to_owned(),
            home: own.to_owned(),
        });
    }
    Err("neither the own control group nor the one above can bound children".to_owned())
}

/// Whether systemd has delegated the subtree at `folder` to us.
fn is_delegated(folder: &Path) -> bool {
    ["user.delegate", "trusted.delegate"]
        .into_iter()
        .any(|name| {
            let mut value = [0_u8; 8];
            rustix::fs::getxattr(folder, name, &mut value)
                .is_ok_and(|len| value.get(..len) == Some(b"1".as_slice()))
        })
}

fn is_writable(file: &Path) -> bool {
    rustix::fs::access(file, Access::WRITE_OK).is_ok()
}

/// Whether a file contains a word.
fn lists(file: &Path, word: &str) -> bool {
    fs::read_to_string(file)
        .is_ok_and(|text| text.split_ascii_whitespace().any(|found| found == word))
}

/// Folder of the process's own group: in the hierarchy of a version 1 controller, or in that of
/// version 2.
fn group_of(own: &str, mounts: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        let is_it = match controller {
            Some(wanted) => controllers
                .split(',')
                .any(|controller| controller == wanted),
            None => controllers.is_empty(),
        };
        is_it.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let kind = system.next()?;
        let options = system.nth(1)?;
        let is_it = match controller {
            Some(wanted) => kind == "cgroup" && options.split(',').any(|option| option == wanted),
            None => kind == "cgroup2",
        };
        let mut mount = mount.split(' ').skip(3);
        let root = mount.next()?;
        let point = mount.next()?;
        let below = if root == "/" {
            path
        } else {
            path.strip_prefix(root)?
        };
        is_it.then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_either_version_and_below_a_mounted_part() {
        let own = "4:memory:/srv/a\n8:pids:/\n2:cpu,cpuacct:/x\n0::/user.slice/u\n";
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 30 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      33 30 0:29 /user.slice /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let group = |controller| {
            group_of(own, mounts, controller).map(|folder| folder.display().to_string())
        };

        assert_eq!(
            group(Some("memory")).as_deref(),
            Some("/sys/fs/cgroup/memory/srv/a")
        );
        assert_eq!(group(Some("pids")).as_deref(), Some("/sys/fs/cgroup/pids/"));
        assert_eq!(group(None).as_deref(), Some("/sys/fs/cgroup/unified/u"));
        assert_eq!((group(Some("cpu")), group(Some("blkio"))), (None, None));
    }

    #[test]
    fn a_group_names_its_host_and_kills_are_read_from_either_version() {
        let own = i32::try_from(std::process::id()).unwrap();
        let name = format!("{PREFIX}{own}-{}-0123abcd-7", began(own).unwrap());

        assert_eq!(host_of(&name), Some((own, began(own).unwrap())));
        assert_eq!(
            [
                "callboard-1",
                "callboard-x-1-2-3",
                "other-1-2-3-4",
                "callboard-1-2-3-4-5"
            ]
            .map(host_of),
            [None; 4]
        );
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(
            kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 1\n"),
            1
        );
    }
}
