//! The second stage: drops every right, one after the other, then becomes bash. Any failure ends
//! the helper.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Write,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use callboard_actors::ports::ExecLimits;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    process::{Gid, Resource, Rlimit, Signal, Uid},
    thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets},
};

use super::{PIPE, Plan, folders, mounts};
use crate::sandbox::{
    exec::{
        BEGIN, become_command,
        processes::total,
        shell,
        words::{COVERED, word},
    },
    fs::{Found, Root},
    linux::{
        filter::{self, Behind, Outside, Uncounted},
        system_paths::SYSTEM,
    },
    policy::ENVIRONMENT,
};

pub(super) const STAGE: &str = "inner";

/// Makes the command one of the first processes to be killed when the machine runs out of memory.
const OOM_SCORE: &str = "500";

pub(super) fn run(plan: &Plan, command: &OsStr, found: &[OsString]) -> Result<i32, String> {
    let said = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    let open = || {
        Root::open(&plan.root, plan.rules.clone())
            .map_err(|error| format!("the workspace: {}", error.kind()))
    };
    // Fails if the process is a session leader already, which happens only if it was started by
    // hand.
    let _ = rustix::process::setsid();
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    limit(&plan.limits).map_err(said("limits"))?;
    let gate = plan.gated.then(|| Gate::open(plan)).transpose()?;
    let mut root = open()?;
    let mut found =
        Found::of_arguments(found).ok_or("what was found in the workspace is not known")?;
    if plan.namespace.is_some() {
        mounts::close([root.real_path(), &plan.private])?;
        let shown = SYSTEM
            .iter()
            .map(Path::new)
            .chain(plan.read_only.iter().map(PathBuf::as_path));
        mounts::narrow([root.real_path(), &plan.private].into_iter().chain(shown))?;
        // The root was opened below the new mounts, which are what the command sees, so it is
        // opened again.
        root = open()?;
        mounts::cover(&root, &found)?;
        if let Some(gate) = gate {
            gate.wait(plan)?;
        }
        // Mounts cover the protected names, so Landlock need not restrict their folders.
        found = Found::default();
    }
    let (folder, _) = root
        .open_folder(&plan.folder.to_string_lossy())
        .map_err(|error| error.to_string())?;
    let rules = folders::Rules::of(&root, &found, &plan.private, &plan.read_only)?;
    let superuser = leave_superuser(&plan.root, &plan.private)?;
    drop_capabilities().map_err(said("capabilities"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(said("the supervisor"))?;
    rustix::process::fchdir(&folder).map_err(said("the folder"))?;
    rustix::thread::set_no_new_privs(true).map_err(said("privileges"))?;
    drop((root, folder));
    rules.enforce()?;
    let outside = if plan.namespace.is_some() {
        Outside::ReadOnly
    } else {
        Outside::Writable { superuser }
    };
    filter::install(Behind::Landlock(outside), Uncounted::Unknown)?;
    let command = command.to_str().ok_or("the command is no text")?;
    let private = plan.private.to_string_lossy().into_owned();
    let root = plan.root.to_string_lossy().into_owned();
    let environment = ENVIRONMENT
        .iter()
        .copied()
        .filter(|(name, _)| *name != "HOME")
        .chain([
            ("HOME", private.as_str()),
            ("TMPDIR", private.as_str()),
            ("WORKSPACE", root.as_str()),
        ]);
    let environment = environment.chain(
        plan.environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    let error = become_command(&shell::command(command, &plan.nonce), environment);
    Err(format!("bash: {}", error.kind()))
}

/// Longest wait for the host, which gives up sooner.
const GATE_MAX: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Where the host lets the command begin, once it has checked its mounts.
struct Gate(OwnedFd);

impl Gate {
    /// Opens the pipe before mounts change what its path names.
    fn open(plan: &Plan) -> Result<Self, String> {
        let said = |error: rustix::io::Errno| format!("the pipe: {error}");
        let path = plan.private.join(PIPE);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(&path, flags, Mode::empty()).map_err(said)?;
        rustix::fs::unlink(&path).map_err(said)?;
        Ok(Self(pipe))
    }

    fn wait(self, plan: &Plan) -> Result<(), String> {
        let own = rustix::process::getpid().as_raw_pid().to_string();
        let said = word(&plan.nonce, COVERED, &own);
        std::io::stderr()
            .write_all(said.as_bytes())
            .map_err(|error| format!("the host: {}", error.kind()))?;
        // The pipe also ends with the supervisor.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&GATE_MAX));
        let mut answer = [0];
        match rustix::io::read(&self.0, &mut answer) {
            Ok(1) if answer == [BEGIN] => Ok(()),
            _ => Err("the host did not let it begin".to_owned()),
        }
    }
}

fn limit(limits: &ExecLimits) -> Result<(), rustix::io::Errno> {
    // The kernel counts all processes of the user, whoever started them. Adding the current total
    // leaves the command its own limit.
    let processes = u64::from(total().saturating_add(limits.processes));
    // These two are compared with what all processes of the user have: above half, only commands
    // are refused.
    let half = |resource| {
        rustix::process::getrlimit(resource)
            .current
            .map_or(u64::MAX, |all| all / 2)
    };
    for (resource, most) in [
        (Resource::Sigpending, half(Resource::Sigpending)),
        (Resource::Msgqueue, half(Resource::Msgqueue)),
        (Resource::Core, 0),
        (Resource::Nofile, limits.open_files),
        (Resource::Nproc, processes),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Data, limits.memory_bytes),
        (Resource::Fsize, limits.file_bytes),
    ] {
        // The limit cannot exceed the host's own.
        let most = rustix::process::getrlimit(resource)
            .maximum
            .map_or(most, |maximum| maximum.min(most));
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    Ok(())
}

/// Switches from the superuser to the owner of the workspace, unless that is the superuser. Returns
/// whether the command runs as superuser.
fn leave_superuser(root: &Path, private: &Path) -> Result<bool, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let owner = fs::metadata(root).map_err(|error| format!("the workspace: {}", error.kind()))?;
    if owner.uid() == 0 {
        return Ok(true);
    }
    let become_owner = || {
        rustix::fs::chown(
            private,
            Some(Uid::from_raw(owner.uid())),
            Some(Gid::from_raw(owner.gid())),
        )?;
        rustix::thread::set_thread_groups(&[])?;
        let uid = Uid::from_raw(owner.uid());
        let gid = Gid::from_raw(owner.gid());
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        // Keeps capabilities across the change of user, so that they are dropped explicitly below.
        rustix::thread::set_keep_capabilities(true)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    };
    become_owner()
        .map_err(|error: rustix::io::Errno| format!("the owner of the workspace: {error}"))?;
    Ok(false)
}

/// Drops all capabilities for this process and everything it starts, including set-user-ID
/// programs.
fn drop_capabilities() -> Result<(), rustix::io::Errno> {
    let held = rustix::thread::capabilities(None)?;
    if held.permitted.contains(CapabilitySet::SETPCAP) {
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: held.permitted,
                ..held
            },
        )?;
        for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
            match rustix::thread::capability_is_in_bounding_set(capability) {
                Ok(true) => rustix::thread::remove_capability_from_bounding_set(capability)?,
                Ok(false) => {}
                Err(_) => break, // the kernel knows no more capabilities
            }
        }
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        rustix::thread::set_capabilities_secure_bits(bits)?;
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
}
