//! Who waits for the kernel's list of mounts. Leaf module: reads `/proc`.

use std::fs;

use super::processes::below;

/// Threads of a crowd that are looked at.
const LOOKED_AT_MAX: usize = 1024;

/// Whether a process that begins a command waits for the list. `None` if the kernel does not say what
/// processes wait for, or not to this user.
pub(super) fn is_held_up(tree: &[i32]) -> Option<bool> {
    let waits: Vec<String> = tree
        .iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/wchan")).ok())
        .filter(|function| is_named(function))
        .collect();
    if waits.is_empty() {
        return None;
    }
    Some(waits.iter().any(|function| is_of_the_list(function)))
}

/// Whether a thread of a crowd waits for the list: while one that changes it waits, all others that
/// read it do.
pub(super) fn wait_for_the_list(roots: impl Iterator<Item = i32>) -> bool {
    roots
        .flat_map(below)
        .flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")))
        .flatten()
        .flatten()
        .take(LOOKED_AT_MAX)
        .filter_map(|task| fs::read_to_string(task.path().join("wchan")).ok())
        .any(|function| is_of_the_list(&function))
}

/// Whether the text names a function of the kernel.
fn is_named(function: &str) -> bool {
    !matches!(function, "" | "0")
}

/// Whether a thread that sleeps in the function waits for the list, to read or to change it.
fn is_of_the_list(function: &str) -> bool {
    // Suffixes that compilers add (`.part.0`) stay.
    function.starts_with("m_start")
        || ["mount", "mnt", "namespace_lock"]
            .iter()
            .any(|part| function.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_process_is_not_held_up_by_mounts() {
        let mut sleeps = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let pid = i32::try_from(sleeps.id()).unwrap();
        // Not known on a kernel that names no function.
        assert_ne!(is_held_up(&[pid]), Some(true));
        assert!(!wait_for_the_list(
            [i32::try_from(std::process::id()).unwrap()].into_iter()
        ));
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert_eq!(is_held_up(&[pid]), None);
    }

    #[test]
    fn the_functions_of_readers_and_of_mounts_are_known() {
        for function in [
            "m_start",
            "do_lock_mount.part.0",
            "copy_mnt_ns",
            "namespace_lock",
        ] {
            assert!(is_of_the_list(function), "{function}");
        }
        for function in ["0", "", "hrtimer_nanosleep", "pipe_read", "do_wait"] {
            assert!(!is_of_the_list(function), "{function}");
        }
    }
}
