//! Reads data sets: folders in Harbor's layout, a folder of such folders, and JSONL files.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    bounds::{JSONL_BYTES_MAX, PROMPT_BYTES_MAX, SETTINGS_BYTES_MAX, TASKS_MAX},
    task::{Grader, Start, Task, TaskError, check_id, check_prompt, jsonl, settings},
    tree,
};

/// A data set.
#[derive(Debug, Clone)]
pub struct DataSet {
    /// Name of its folder or file.
    pub name: String,
    /// Its tasks, by id.
    pub tasks: Vec<Task>,
    /// Lines for the author.
    pub notes: Vec<String>,
}

/// Reads the data set at `path`: a JSONL file, the folder of one task, or a folder of tasks. Blocks.
///
/// # Errors
/// All mistakes, one line each. There are none in a data set that can run.
pub fn data_set(path: &Path) -> Result<DataSet, Vec<TaskError>> {
    let shown = path.display().to_string();
    let about = fs::metadata(path).map_err(|error| {
        vec![TaskError::file(
            &shown,
            match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "there is no such file or folder; name a folder of tasks or a JSONL file"
                        .to_owned()
                }
                _ => format!("it cannot be read: {}", crate::os_error::words(&error)),
            },
        )]
    })?;
    let mut notes = Vec::new();
    let found = if about.is_file() {
        lines(path)
    } else if path.join("task.toml").exists() || path.join("instruction.md").exists() {
        vec![folder(path, &mut notes)]
    } else {
        folders(path, &mut notes)
    };
    let (mut tasks, mut errors) = (Vec::new(), Vec::new());
    for task in found {
        match task {
            Ok(task) => tasks.push(task),
            Err(error) => errors.push(error),
        }
    }
    tasks.sort_by(|a: &Task, b| a.id.cmp(&b.id));
    for pair in tasks.windows(2) {
        if let [one, other] = pair
            && one.id == other.id
        {
            errors.push(TaskError::key(
                &shown,
                "id",
                format!("two tasks have the id `{}`; rename one", one.id),
            ));
        }
    }
    if tasks.is_empty() && errors.is_empty() {
        errors.push(TaskError::file(
            &shown,
            "it holds no task; a task is a folder with `instruction.md` and `tests/test.sh`, or a line of a JSONL file",
        ));
    }
    if tasks.len() > TASKS_MAX {
        errors.push(TaskError::file(
            &shown,
            format!(
                "it holds {} tasks; {TASKS_MAX} are allowed: split it",
                tasks.len()
            ),
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let name = fs::canonicalize(path)
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or(shown);
    Ok(DataSet { name, tasks, notes })
}

/// Reads a text file of at most `max` bytes.
fn text(file: fs::File, max: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("it cannot be read: {}", crate::os_error::words(&error)))?;
    if bytes.len() as u64 > max {
        return Err(format!("it has more than {max} bytes; shorten it"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text; convert it".to_owned())
}

fn lines(path: &Path) -> Vec<Result<Task, TaskError>> {
    let shown = path.display().to_string();
    // A link is followed: the user has named this file.
    let opened = fs::File::open(path)
        .map_err(|error| format!("it cannot be read: {}", crate::os_error::words(&error)));
    let text = match opened.and_then(|file| text(file, JSONL_BYTES_MAX)) {
        Ok(text) => text,
        Err(problem) => return vec![Err(TaskError::file(shown, problem))],
    };
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| jsonl::parse(&format!("{shown}:{number}"), line))
        .take(TASKS_MAX + 1)
        .collect()
}

/// Reads the tasks in the subfolders of a folder. Names with a leading dot are skipped. A link may
/// lead to another folder of the data set only: a cloned one must not bring a folder of the user to a
/// model.
fn folders(path: &Path, notes: &mut Vec<String>) -> Vec<Result<Task, TaskError>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            return vec![Err(TaskError::file(
                path.display().to_string(),
                format!("it cannot be read: {}", crate::os_error::words(&error)),
            ))];
        }
    };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| !name.to_string_lossy().starts_with('.'))
        })
        .take(TASKS_MAX + 1)
        .collect();
    folders.sort();
    let home = fs::canonicalize(path).ok();
    let is_inside = |path: &Path| match (&home, fs::canonicalize(path)) {
        (Some(home), Ok(real)) => real.starts_with(home),
        _ => false,
    };
    folders
        .iter()
        .map(|path| match is_inside(path) {
            true => folder(path, notes),
            false => Err(TaskError::file(
                path.display().to_string(),
                "it is a link that leads out of the data set; name its target, or copy it",
            )),
        })
        .collect()
}

/// Reads one task in Harbor's layout.
fn folder(path: &Path, notes: &mut Vec<String>) -> Result<Task, TaskError> {
    let place = |name: &str| path.join(name).display().to_string();
    let real = fs::canonicalize(path).map_err(|error| {
        TaskError::file(
            path.display().to_string(),
            format!("it cannot be read: {}", crate::os_error::words(&error)),
        )
    })?;
    let id = real
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    check_id(&id).map_err(|problem| TaskError::file(path.display().to_string(), problem))?;
    let part = |name: &str, max| tree::open(&path.join(name)).and_then(|file| text(file, max));
    let prompt = part("instruction.md", PROMPT_BYTES_MAX as u64)
        .map_err(|problem| TaskError::file(place("instruction.md"), problem))?;
    check_prompt(&prompt).map_err(|problem| TaskError::file(place("instruction.md"), problem))?;
    let toml = part("task.toml", SETTINGS_BYTES_MAX)
        .map_err(|problem| TaskError::file(place("task.toml"), problem))?;
    let settings = settings::parse(&place("task.toml"), &toml)?;
    notes.extend(settings.notes);
    if !path.join("tests/test.sh").is_file() {
        return Err(TaskError::file(
            place("tests/test.sh"),
            "it is missing; add the script that grades the work",
        ));
    }
    dockerfile(path)?;
    let mut hash = Sha256::new();
    for part in ["instruction.md", "task.toml"] {
        hash.update(part);
        hash.update([0]);
        hash.update(if part == "task.toml" { &toml } else { &prompt });
        hash.update([0]);
    }
    for part in ["environment", "tests", "solution"] {
        let folder = path.join(part);
        // A link that leads nowhere is refused as well.
        if part != "tests" && folder.symlink_metadata().is_err() {
            continue;
        }
        // The solution does not decide about a result, but its files must be readable.
        let digest =
            tree::digest(&folder).map_err(|problem| TaskError::file(place(part), problem))?;
        if part != "solution" {
            hash.update(part);
            hash.update(digest);
        }
    }
    Ok(Task {
        id,
        prompt,
        difficulty: settings.difficulty,
        tags: settings.tags,
        solver_timeout: settings.solver_timeout,
        tests_timeout: settings.tests_timeout,
        start: Start::Folder { task: real },
        grader: Grader::Script,
        answer: None,
        hash: jsonl::hex(&hash.finalize()),
    })
}

/// Accepts a `Dockerfile` that only names an image, a folder and copies: it is not built here.
fn dockerfile(path: &Path) -> Result<(), TaskError> {
    let file = path.join("environment/Dockerfile");
    // A link in place of the folder is refused when the folder is read.
    let is_folder = path
        .join("environment")
        .symlink_metadata()
        .is_ok_and(|status| status.is_dir());
    if !is_folder || file.symlink_metadata().is_err() {
        return Ok(());
    }
    let shown = file.display().to_string();
    let text = tree::open(&file)
        .and_then(|file| text(file, SETTINGS_BYTES_MAX))
        .map_err(|problem| TaskError::file(&shown, problem))?;
    for (number, line) in (1..).zip(text.lines()) {
        let word = line.split_whitespace().next().unwrap_or_default();
        let word = word.to_ascii_uppercase();
        let fits = word.is_empty()
            || word.starts_with('#')
            || ["FROM", "WORKDIR", "COPY"].contains(&word.as_str());
        if !fits {
            return Err(TaskError::file(
                format!("{shown}:{number}"),
                format!(
                    "`{word}` has no effect: the sandbox builds no image; put the files into `environment/` and remove the line"
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        home
    }

    const TASK: [(&str, &str); 4] = [
        ("one/instruction.md", "Do it."),
        ("one/task.toml", "[metadata]\ndifficulty = \"easy\"\n"),
        ("one/tests/test.sh", "exit 0\n"),
        ("one/environment/a.txt", "a"),
    ];

    fn errors(home: &tempfile::TempDir) -> String {
        let errors = data_set(home.path()).unwrap_err();
        let base = home.path().display().to_string();
        errors
            .iter()
            .map(|error| error.to_string().replace(&base, "BASE") + "\n")
            .collect()
    }

    #[test]
    fn a_hash_covers_tests_and_environment_but_no_solution() {
        let hash = |more: &[(&str, &str)]| {
            let home = made(&[&TASK[..], more].concat());
            data_set(home.path()).unwrap().tasks[0].hash.clone()
        };
        let base = hash(&[]);

        assert_eq!(hash(&[]), base);
        assert_eq!(hash(&[("one/solution/solve.sh", "x")]), base);
        assert_ne!(hash(&[("one/tests/more.py", "x")]), base);
        assert_ne!(hash(&[("one/environment/a.txt", "b")]), base);
        assert_ne!(hash(&[("one/instruction.md", "Do that.")]), base);
    }

    #[test]
    fn every_mistake_is_one_line_with_its_file_and_the_remedy() {
        let home = made(
            &[
                &TASK[..],
                &[
                    ("two/task.toml", ""),
                    ("three/instruction.md", "x"),
                    ("three/task.toml", "[agent]\ntimeout_sec = \"soon\"\n"),
                    ("four/instruction.md", "x"),
                    ("four/task.toml", ""),
                    ("five/instruction.md", "x"),
                    ("five/task.toml", ""),
                    ("five/tests/test.sh", ""),
                    ("five/environment/Dockerfile", "FROM x\nRUN apt install y\n"),
                    ("six x/instruction.md", "x"),
                ],
            ]
            .concat(),
        );

        let errors = errors(&home);

        for line in [
            "BASE/two/instruction.md: it is missing; add it\n",
            "BASE/three/task.toml: `agent.timeout_sec`: it must be a number of seconds, more than 0 and at most 86400\n",
            "BASE/four/tests/test.sh: it is missing; add the script that grades the work\n",
            "BASE/five/environment/Dockerfile:2: `RUN` has no effect: ",
            "BASE/six x: \"six x\" is no id of a task; ",
        ] {
            assert!(errors.contains(line), "{line}\n{errors}");
        }
        assert_eq!(errors.lines().count(), 5);
    }

    /// A cloned data set can hold links: what they lead to must reach no model.
    #[cfg(unix)]
    #[test]
    fn a_task_takes_nothing_from_outside_of_its_folder_and_waits_for_no_pipe() {
        let outside = made(&[
            ("private/notes.txt", "a secret"),
            ("private/test.sh", "exit 0\n"),
        ]);
        let private = outside.path().join("private");
        let link = |target: &Path| {
            let target = target.to_owned();
            move |at: &Path| std::os::unix::fs::symlink(&target, at).unwrap()
        };
        let pipe = |at: &Path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, at, kind, mode, 0).unwrap();
        };
        let refused = |part: &str, make: &dyn Fn(&Path)| {
            let home = made(&TASK);
            let at = home.path().join("one").join(part);
            let _ = fs::remove_dir_all(&at).or_else(|_| fs::remove_file(&at));
            make(&at);
            assert!(
                errors(&home).starts_with(&format!("BASE/one/{part}: it is ")),
                "{part}: {}",
                errors(&home)
            );
        };

        for part in ["environment", "tests", "solution"] {
            refused(part, &link(&private));
        }
        for part in ["environment", "solution"] {
            refused(part, &link(&private.join("nothing")));
        }
        for part in ["instruction.md", "task.toml", "environment/Dockerfile"] {
            refused(part, &link(&private.join("notes.txt")));
            refused(part, &pipe);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_task_lies_in_the_data_set() {
        let outside = made(&TASK);
        let home = made(&TASK);
        let link = |target: PathBuf, name: &str| {
            std::os::unix::fs::symlink(target, home.path().join(name)).unwrap();
        };
        link(outside.path().join("one"), "two");

        let refused = errors(&home);

        assert_eq!(
            refused,
            "BASE/two: it is a link that leads out of the data set; name its target, or copy it\n"
        );
        fs::remove_file(home.path().join("two")).unwrap();
        fs::create_dir(home.path().join(".all")).unwrap();
        fs::rename(home.path().join("one"), home.path().join(".all/one")).unwrap();
        link(".all/one".into(), "one");
        assert_eq!(data_set(home.path()).unwrap().tasks.len(), 1);
    }

    #[test]
    fn an_empty_folder_and_a_missing_one_are_reported() {
        let empty = tempfile::tempdir().unwrap();
        assert!(errors(&empty).starts_with("BASE: it holds no task; "));
        let missing = data_set(&empty.path().join("x")).unwrap_err();
        assert!(
            missing[0]
                .to_string()
                .contains("there is no such file or folder")
        );
    }

    #[test]
    fn two_lines_with_one_id_are_refused() {
        let home = made(&[(
            "t.jsonl",
            "{\"id\":\"a\",\"prompt\":\"p\",\"expected\":\"x\"}\n\n{\"id\":\"a\",\"prompt\":\"q\",\"expected\":\"x\"}\n",
        )]);
        let found = data_set(&home.path().join("t.jsonl")).unwrap_err();
        assert!(
            found[0]
                .to_string()
                .ends_with("two tasks have the id `a`; rename one")
        );
    }
}
