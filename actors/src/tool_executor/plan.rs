//! Decides which calls of a batch may start now, from their states and the concurrency that their
//! tools declare.
//!
//! Pure.

use crate::ports::Concurrency;

/// The state of a call, as far as planning needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Not started; could start now.
    Waiting,
    /// Running, or waiting for a retry.
    Running,
    /// Waiting for approval; blocks no other call.
    Asked,
    /// Has a result.
    Done,
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    /// The state of the call.
    pub progress: Progress,
    /// The concurrency that its tool declares.
    pub concurrency: Concurrency,
    /// The file that the arguments name, for [`Concurrency::PerFile`], in normalized form.
    pub file: Option<String>,
}

impl PlannedCall {
    /// A call that needs no place and holds no file.
    pub(crate) fn done() -> Self {
        Self {
            progress: Progress::Done,
            concurrency: Concurrency::Parallel,
            file: None,
        }
    }
}

/// Indices of the calls that may start now, in call order.
///
/// Exclusive calls run alone, at their place in the order. Calls that name the same file run in
/// call order. At most `parallel_max` calls run at once.
pub fn plan(calls: &[PlannedCall], parallel_max: usize) -> Vec<usize> {
    let mut running = calls
        .iter()
        .filter(|call| call.progress == Progress::Running)
        .count();
    let mut exclusive_runs = calls.iter().any(|call| {
        call.progress == Progress::Running && call.concurrency == Concurrency::Exclusive
    });
    let mut starts = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        if call.progress != Progress::Waiting {
            continue;
        }
        if exclusive_runs || running >= parallel_max {
            break;
        }
        match &call.concurrency {
            Concurrency::Exclusive if running > 0 => break, // Later calls must not overtake it.
            Concurrency::Exclusive => exclusive_runs = true,
            Concurrency::PerFile(_) if file_is_busy(calls, index, &starts) => continue,
            Concurrency::PerFile(_) | Concurrency::Parallel => {}
        }
        running += 1;
        starts.push(index);
    }
    starts
}

/// Normalizes a path by its text alone: `./a//b/../c` becomes `a/c`. Use it only to compare the
/// files of two calls; the sandbox decides where a path leads.
pub(crate) fn one_spelling(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.last().is_some_and(|last| *last != "..") => drop(names.pop()),
            name => names.push(name),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", names.join("/"))
}

/// Whether a running call, or an earlier call that waits to start, names the same file. A call that
/// waited for approval may find a later call of the same file running.
fn file_is_busy(calls: &[PlannedCall], index: usize, starts: &[usize]) -> bool {
    let file = calls.get(index).and_then(|call| call.file.as_ref());
    calls.iter().enumerate().any(|(other, call)| {
        let open = match call.progress {
            Progress::Running => true,
            Progress::Waiting => other < index || starts.contains(&other),
            Progress::Asked | Progress::Done => false,
        };
        open && other != index && file.is_some() && call.file.as_ref() == file
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<PlannedCall> {
        // Each word is a call: its progress (w r a d), then its kind (p x, or a letter for a file).
        text.split(' ')
            .map(|word| {
                let (progress, kind) = word.split_at(1);
                let progress = match progress {
                    "w" => Progress::Waiting,
                    "r" => Progress::Running,
                    "a" => Progress::Asked,
                    _ => Progress::Done,
                };
                let (concurrency, file) = match kind {
                    "p" => (Concurrency::Parallel, None),
                    "x" => (Concurrency::Exclusive, None),
                    file => (Concurrency::PerFile("path".into()), Some(file.to_owned())),
                };
                PlannedCall {
                    progress,
                    concurrency,
                    file,
                }
            })
            .collect()
    }

    #[test]
    fn different_spellings_of_one_path_are_one_file() {
        for path in [
            "a/c", "./a/c", "a//c", "a/./c", "a/b/../c", "x/../a/c", "a/c/",
        ] {
            assert_eq!(one_spelling(path), "a/c", "{path}");
        }
        assert_eq!(
            [
                one_spelling("/a/c"),
                one_spelling("../a"),
                one_spelling("..a")
            ],
            ["/a/c", "../a", "..a"]
        );
    }

    #[test]
    fn batches_start_as_their_tools_declare() {
        let check =
            |text: &str, expected: &[usize]| assert_eq!(plan(&calls(text), 3), expected, "{text}");

        check("wp wp wp wp", &[0, 1, 2]);
        check("rp wp wp wp", &[1, 2]);
        check("wx wp", &[0]);
        check("wp wx wp", &[0]);
        check("rp wx wp", &[]);
        check("dp wx wp", &[1]);
        check("rx wp", &[]);
        check("ap wx wp", &[1]);
        check("wa wa wb", &[0, 2]);
        check("ra wa wb", &[2]);
        check("da wa wb", &[1, 2]);
        check("wa ra wb", &[2]);
    }
}
