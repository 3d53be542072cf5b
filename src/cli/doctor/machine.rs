//! What the machine gives: folders for one user, room on the disk, open files, a clock.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::Finding;
use crate::{
    config::{Config, Store, overlap, real_or_nearest},
    http::HttpBounds,
};

/// Less room than this is an error: a store that cannot write takes no prompt.
const DISK_BYTES_MIN: u64 = 100 * 1024 * 1024;

/// Less than this is worth a word.
const DISK_BYTES_FEW: u64 = 1024 * 1024 * 1024;

/// Open files beside connections: the store, logs, tools.
const FILES_BESIDE: u64 = 512;

/// A clock that is off by more makes keys and artifacts expire at the wrong time, and signatures fail.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(60);

/// The first second of 2025: an earlier clock was never set.
const BEFORE_US: Duration = Duration::from_secs(1_735_689_600);

/// Whether what is stored is for its user alone (DESIGN §6, Disk).
pub(super) fn folders(config: &Config) -> Vec<Finding> {
    let name = "data folder";
    let folder = &config.data_dir;
    if !folder.exists() {
        return vec![Finding::ok(name, format!("{} is not there yet; the first start makes it", folder.display()))];
    }
    let sessions = match &config.store {
        Store::Sqlite(path) => Some(path.clone()),
        Store::Memory => None,
    };
    let open = |path: &Path, wanted: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            let what = format!("others can reach {} (mode {mode:o})", path.display());
            Finding::warn(name, what, format!("chmod {wanted:o} {}", path.display()))
        })
    };
    let files = [Some(crate::app::kept_file(folder)), sessions].into_iter().flatten();
    let mut findings: Vec<Finding> = open(folder, 0o700).into_iter().chain(files.filter_map(|file| open(&file, 0o600))).collect();
    if fs::metadata(folder).is_ok_and(|data| data.permissions().readonly()) {
        findings.push(Finding::fail(name, format!("{} cannot be written", folder.display()), "give it to this user, or name another"));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(name, format!("{} is for this user alone", folder.display())));
    }
    findings
}

/// Whether `run` and `chat` would refuse the current folder because the sessions lie in it; of the data folder's own file nothing is said.
pub(super) fn store_place(config: &Config) -> Option<Finding> {
    let Store::Sqlite(path) = &config.store else { return None };
    let here = std::env::current_dir().ok()?;
    let is_usual = path.parent() == Some(config.data_dir.as_path());
    overlap(path, &here).filter(|_| !is_usual)?;
    let what = format!("{} lies inside this folder: `run` and `chat` refuse the folder as their workspace", path.display());
    Some(Finding::warn("store", what, "move the file, or work in another folder"))
}

/// Room where the sessions are.
pub(super) fn disk(config: &Config) -> Finding {
    let name = "disk";
    let nearest = real_or_nearest(&config.data_dir);
    let there = nearest.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let what = format!("{} MiB are free for the data folder", free / (1024 * 1024));
            if free < DISK_BYTES_MIN {
                Finding::fail(name, what, "make room, or move `[host] data_dir`")
            } else if free < DISK_BYTES_FEW {
                Finding::warn(name, what, "make room soon")
            } else {
                Finding::ok(name, what)
            }
        }
        Err(error) => Finding::warn(name, format!("its room is not known: {error}"), "look at it by hand"),
    }
}

/// Whether connections and calls at their bounds find open files enough.
pub(super) fn files(config: &Config) -> Finding {
    let name = "open files";
    let calls: usize = config.providers.iter().map(|provider| provider.concurrency.unwrap_or(config.limits.model_calls_max)).sum();
    let calls = calls.max(config.limits.model_calls_max);
    let wanted = (HttpBounds::default().connections_max + calls) as u64 + FILES_BESIDE;
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(allowed) if allowed < wanted => Finding::warn(
            name,
            format!("{allowed} are allowed; all connections and model calls at once would take {wanted}"),
            format!("ulimit -n {wanted}, or LimitNOFILE= of the service"),
        ),
        Some(allowed) => Finding::ok(name, format!("{allowed} are allowed")),
        None => Finding::ok(name, "as many as there are"),
    }
}

/// The clock, beside what a server said of the time if one was asked.
pub(super) fn clock(server: Option<SystemTime>) -> Finding {
    let name = "clock";
    let now = SystemTime::now();
    let off = |server: SystemTime| now.duration_since(server).or_else(|_| server.duration_since(now)).unwrap_or_default();
    let set_it = "let it be set over the network (NTP)";
    match server.map(off) {
        Some(off) if off > CLOCK_OFF_MAX => Finding::fail(name, format!("it is {} s off the time of a provider", off.as_secs()), set_it),
        Some(_) => Finding::ok(name, "it agrees with the time of a provider"),
        None if now.duration_since(UNIX_EPOCH).is_ok_and(|now| now > BEFORE_US) => Finding::ok(name, "it is set; --online compares it"),
        None => Finding::fail(name, "it stands before this program was written", set_it),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn a_clock_that_is_off_is_told() {
        let ago = |seconds| clock(Some(SystemTime::now() - Duration::from_secs(seconds))).state;

        assert_eq!((ago(5), ago(600), clock(None).state), (State::Ok, State::Fail, State::Ok));
    }
}
