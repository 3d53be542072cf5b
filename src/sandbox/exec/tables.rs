//! The open files of one command, read in small steps: a command can have tens of thousands, and
//! looking at each takes the kernel ten microseconds.
//!
//! How many files each process has is known at any time; what they are is read again when the number
//! has changed, smaller tables first, and once in [`AGE_MAX`] otherwise.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, ReadDir},
    time::{Duration, Instant},
};

use super::{
    hidden_memory::open_files,
    processes::{Waits, shown},
    scarce::{self, Taken},
};

/// Open files of a command below which its files are not looked at one by one.
const FILES_FROM: u64 = 24;

/// Age at which a table is read again whose number of files has not changed.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Files that are looked at in one step.
const STEP: usize = 256;

/// The table of one process.
#[derive(Debug, Default)]
struct Table {
    files: u64,
    /// When it was last read, how many files it had then, and what they were.
    read: Option<(Instant, u64)>,
    taken: Taken,
}

impl Table {
    fn is_known(&self) -> bool {
        self.read.is_some_and(|(_, files)| files == self.files)
    }
}

/// A table that is being read.
#[derive(Debug)]
struct Reading {
    pid: i32,
    files: u64,
    shown: String,
    rest: ReadDir,
    taken: Taken,
}

/// The tables of a command's processes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    of: HashMap<i32, Table>,
    files: u64,
    /// Tables to read, in this order.
    due: VecDeque<i32>,
    reading: Option<Reading>,
}

impl Tables {
    /// Takes the present number of files of each process.
    pub(super) fn count(&mut self, tree: &[i32], now: Instant) {
        let mut before = std::mem::take(&mut self.of);
        for pid in tree {
            let mut table = before.remove(pid).unwrap_or_default();
            table.files = open_files(&[*pid]);
            self.of.insert(*pid, table);
        }
        self.files = self.of.values().map(|table| table.files).sum();
        if self.files < FILES_FROM {
            *self = Self {
                files: self.files,
                ..Self::default()
            };
            return;
        }
        let is_due = |table: &Table| {
            let is_old = |at: Instant| now.saturating_duration_since(at) >= AGE_MAX;
            !table.is_known() || table.read.is_none_or(|(at, _)| is_old(at))
        };
        let mut due: Vec<_> = self.of.iter().filter(|(_, table)| is_due(table)).collect();
        due.sort_by_key(|(_, table)| match table.is_known() {
            false => (None, table.files),
            true => (table.read.map(|(at, _)| at), table.files),
        });
        self.due = due.into_iter().map(|(pid, _)| *pid).collect();
    }

    /// Number of open files at the last count.
    pub(super) fn files(&self) -> u64 {
        self.files
    }

    /// Number of tables to read.
    pub(super) fn due(&self) -> usize {
        self.due.len() + usize::from(self.reading.is_some())
    }

    /// What the files were when they were last read, as far as they were.
    pub(super) fn taken(&self) -> Taken {
        let read = self.of.values().map(|table| table.taken);
        read.fold(Taken::default(), Taken::plus)
    }

    /// Looks at the next files. Returns why the command must end, if it has more than its part of
    /// something. `waits` are those of the pass: a file of a process that is just replaced is waited
    /// for.
    pub(super) fn step(&mut self, now: Instant, waits: &Waits) -> Result<(), String> {
        let Some(mut reading) = self.reading.take().or_else(|| self.begin()) else {
            return Ok(());
        };
        let others = self.of.iter().filter(|(pid, _)| **pid != reading.pid);
        let others = others.fold(Taken::default(), |sum, (_, table)| sum.plus(table.taken));
        let mut is_read = false;
        for looked in 0.. {
            if looked == STEP || waits.are_long() {
                break;
            }
            let Some(file) = reading.rest.next() else {
                is_read = true;
                break;
            };
            if let Ok(file) = file {
                reading.taken = reading.taken.plus(scarce::of_file(&reading.shown, &file));
                scarce::check(others.plus(reading.taken))?;
            }
        }
        if !is_read {
            self.reading = Some(reading);
        } else if let Some(table) = self.of.get_mut(&reading.pid) {
            table.read = Some((now, reading.files));
            table.taken = reading.taken;
        }
        Ok(())
    }

    fn begin(&mut self) -> Option<Reading> {
        loop {
            let pid = self.due.pop_front()?;
            let shown = shown(pid);
            if let (Ok(rest), Some(table)) =
                (fs::read_dir(format!("{shown}/fd")), self.of.get(&pid))
            {
                return Some(Reading {
                    pid,
                    files: table.files,
                    shown,
                    rest,
                    taken: Taken::default(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    fn read_all(tables: &mut Tables, now: Instant) -> usize {
        let mut steps = 0;
        while tables.due() > 0 {
            tables.step(now, &Waits::begin()).unwrap();
            steps += 1;
        }
        steps
    }

    #[test]
    fn a_large_table_is_read_in_steps_and_again_only_when_it_has_changed_or_is_old() {
        let script = "for n in {10..900}; do eval \"exec $n</dev/null\"; done; echo; read; \
                      exec 901</dev/null; echo; read";
        let mut bash = std::process::Command::new("/bin/bash")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(bash.id()).unwrap();
        let mut out = bash.stdout.take().unwrap();
        let mut tables = Tables::default();
        let now = Instant::now();
        out.read_exact(&mut [0]).unwrap();

        tables.count(&[pid], now);
        assert_eq!((tables.files() > 890, tables.due()), (true, 1));
        let steps = read_all(&mut tables, now);
        assert!((4..=5).contains(&steps), "{steps}");
        tables.count(&[pid], now);
        assert_eq!(tables.due(), 0, "nothing has changed");
        tables.count(&[pid], now + AGE_MAX);
        assert_eq!(tables.due(), 1, "it is old");
        read_all(&mut tables, now + AGE_MAX);

        bash.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        out.read_exact(&mut [0]).unwrap();
        tables.count(&[pid], now + AGE_MAX);
        assert_eq!(tables.due(), 1, "it has a file more");
        bash.kill().unwrap();
        bash.wait().unwrap();
    }
}
