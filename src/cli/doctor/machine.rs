//! Checks of the machine: permissions of the data folder, free disk space, the limit of open files,
//! the clock.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::Finding;
use crate::{
    config::{Config, Store, overlap},
    http::HttpBounds,
    real_path::real_or_nearest,
};

/// Less free space than this, in bytes, is an error: a store that cannot write accepts no prompts.
const DISK_BYTES_MIN: u64 = 100 * 1024 * 1024;

/// Less free space than this, in bytes, is a warning.
const DISK_BYTES_FEW: u64 = 1024 * 1024 * 1024;

/// Open files needed besides connections: the store, logs, tools.
const FILES_BESIDE: u64 = 512;

/// A larger difference makes keys and artifacts expire at the wrong time, and breaks signatures.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(60);

/// The start of 2025 as Unix time: an earlier clock was never set.
const BEFORE_US: Duration = Duration::from_secs(1_735_689_600);

/// Whether stored data is accessible to its user only.
pub(super) fn folders(config: &Config) -> Vec<Finding> {
    let name = "data folder";
    let folder = &config.data_dir;
    if !folder.exists() {
        return vec![Finding::ok(
            name,
            format!(
                "{} does not exist yet; the first start creates it",
                folder.display()
            ),
        )];
    }
    let sessions = match &config.store {
        Store::Sqlite(path) => Some(path.clone()),
        Store::Postgres(_) | Store::Memory => None,
    };
    let open = |path: &Path, wanted: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            let what = format!("other users can access {} (mode {mode:o})", path.display());
            Finding::warn(name, what, format!("chmod {wanted:o} {}", path.display()))
        })
    };
    let files = [Some(crate::app::stored_tenants_file(folder)), sessions]
        .into_iter()
        .flatten();
    let mut findings: Vec<Finding> = open(folder, 0o700)
        .into_iter()
        .chain(files.filter_map(|file| open(&file, 0o600)))
        .collect();
    if fs::metadata(folder).is_ok_and(|data| data.permissions().readonly()) {
        findings.push(Finding::fail(
            name,
            format!("{} cannot be written", folder.display()),
            "make this user its owner, or set another in `[host] data_dir`",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            name,
            format!("only this user can access {}", folder.display()),
        ));
    }
    findings
}

/// Whether `run` and `chat` would refuse the current folder because the session file lies in it.
pub(super) fn store_place(config: &Config) -> Option<Finding> {
    let Store::Sqlite(path) = &config.store else {
        return None;
    };
    let here = std::env::current_dir().ok()?;
    overlap(path, &here)?;
    let is_usual = path.parent() == Some(config.data_dir.as_path());
    let what = format!(
        "{} lies inside this folder: `run` and `chat` refuse the folder as their workspace",
        path.display()
    );
    Some(Finding::warn(
        "store",
        what,
        match is_usual {
            // As in the home folder.
            true => "work in a project's folder, or name one with --workspace",
            false => "move the file, or work in another folder",
        },
    ))
}

/// Free disk space for the data folder.
pub(super) fn disk(config: &Config) -> Finding {
    let name = "disk";
    let nearest = real_or_nearest(&config.data_dir);
    let there = nearest
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let what = format!("{} MiB free for the data folder", free / (1024 * 1024));
            if free < DISK_BYTES_MIN {
                Finding::fail(name, what, "free some space, or move `[host] data_dir`")
            } else if free < DISK_BYTES_FEW {
                Finding::warn(name, what, "free some space soon")
            } else {
                Finding::ok(name, what)
            }
        }
        Err(error) => Finding::warn(
            name,
            format!("the free space is unknown: {error}"),
            "check it by hand",
        ),
    }
}

/// Whether the limit of open files suffices for all connections and model calls at once.
pub(super) fn files(config: &Config) -> Finding {
    let name = "open files";
    let calls: usize = config
        .providers
        .iter()
        .map(|provider| {
            provider
                .concurrency
                .unwrap_or(config.limits.model_calls_max)
        })
        .sum();
    let calls = calls.max(config.limits.model_calls_max);
    let wanted = (HttpBounds::default().connections_max + calls) as u64 + FILES_BESIDE;
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(allowed) if allowed < wanted => Finding::warn(
            name,
            format!(
                "the limit is {allowed}; all connections and model calls at once need {wanted}"
            ),
            format!("ulimit -n {wanted}, or LimitNOFILE= of the service"),
        ),
        Some(allowed) => Finding::ok(name, format!("the limit is {allowed}")),
        None => Finding::ok(name, "there is no limit"),
    }
}

/// Checks the clock, against a provider's time if one was contacted.
pub(super) fn clock(server: Option<SystemTime>) -> Finding {
    let name = "clock";
    let now = SystemTime::now();
    let off = |server: SystemTime| {
        now.duration_since(server)
            .or_else(|_| server.duration_since(now))
            .unwrap_or_default()
    };
    let set_it = "synchronize it over the network (NTP)";
    match server.map(off) {
        Some(off) if off > CLOCK_OFF_MAX => Finding::fail(
            name,
            format!("it differs from a provider's time by {} s", off.as_secs()),
            set_it,
        ),
        Some(_) => Finding::ok(name, "it agrees with a provider's time"),
        None if now
            .duration_since(UNIX_EPOCH)
            .is_ok_and(|now| now > BEFORE_US) =>
        {
            Finding::ok(name, "it is set; --online compares it with a provider's")
        }
        None => Finding::fail(name, "it is set to a time before 2025", set_it),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn a_wrong_clock_is_a_finding() {
        let ago = |seconds| clock(Some(SystemTime::now() - Duration::from_secs(seconds))).state;

        assert_eq!(
            (ago(5), ago(600), clock(None).state),
            (State::Ok, State::Fail, State::Ok)
        );
    }
}
