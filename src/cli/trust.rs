//! `callboard trust`, and the same question when other commands start in a folder with project
//! files.
//!
//! The file is read once: what is displayed, hashed and agreed to are the same bytes. Without a
//! terminal, there is no question: the file stays untrusted, and one line reports it.

mod candidate;

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    failure::{Done, Failure},
    terminal::{Paint, Terminals, err, err_line, out_line, sanitize},
    typed,
};
use crate::{
    app::instructions_of,
    config::{Config, ConfigError, ProjectKind},
    trust::{Place, Standing, TrustError},
    visible::visible_strict,
};
use candidate::Candidate;

/// Trust files of a project, each by path and content: callboard.toml, AGENTS.md, skills
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard trust                      # the files of the current folder, one question each
  callboard trust --yes project/AGENTS.md
  callboard trust --list
  callboard trust --revoke project

A file that changes or is copied elsewhere must be trusted again. Exit 1 if a file is not trusted in the end.")]
pub(super) struct TrustArgs {
    /// Files, or folders of a project or of skills [default: the current folder]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Trust them without a question
    #[arg(long)]
    yes: bool,
    /// List the trusted files
    #[arg(long, conflicts_with_all = ["paths", "yes", "revoke"])]
    list: bool,
    /// Revoke the trust in a file, or in everything in a folder
    #[arg(long, value_name = "PATH", conflicts_with_all = ["paths", "yes"])]
    revoke: Option<PathBuf>,
}

/// How a command uses files of the current folder.
pub(super) struct ProjectUse<'a> {
    /// Whether it asks for trust at a terminal.
    pub(super) asks: bool,
    /// Who reports files without effect.
    pub(super) notes: Notes,
    /// The workspace, if its instructions reach a model.
    pub(super) workspace: Option<&'a Path>,
}

/// Who reports files without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notes {
    /// [`settle`], before the command starts.
    First,
    /// The command itself.
    Own,
}

impl ProjectUse<'_> {
    /// The use of a command that never asks.
    pub(super) fn quiet(notes: Notes) -> Self {
        Self {
            asks: false,
            notes,
            workspace: None,
        }
    }
}

impl From<TrustError> for Failure {
    fn from(error: TrustError) -> Self {
        Self::work(error.to_string())
    }
}

/// Loads the configuration. At a terminal, asks once for each untrusted project file, and loads
/// again after each agreement.
pub(super) fn settle(
    wanted: &ProjectUse<'_>,
    load: impl Fn() -> Result<Config, ConfigError>,
) -> Result<Config, ConfigError> {
    let mut config = load()?;
    if wanted.asks && Terminals::detect().has_person() {
        let mut asked = Vec::new();
        // A loop, because a configuration that was just trusted may name folders of skills.
        while let Some(path) = next(&config, wanted, &asked) {
            asked.push(path.clone());
            if offer(&config, &path) {
                config = load()?;
            }
        }
    }
    if wanted.notes == Notes::First {
        note(&config);
    }
    Ok(config)
}

/// The next file to ask about.
fn next(config: &Config, wanted: &ProjectUse<'_>, asked: &[PathBuf]) -> Option<PathBuf> {
    let instructions = wanted
        .workspace
        .and_then(|workspace| instructions_of(workspace, config.trust()));
    let files = config.project_files().iter().cloned().chain(instructions);
    let mut open = files.filter(|file| {
        let can_be =
            matches!(file.standing, Standing::New | Standing::Changed) && file.problem.is_none();
        can_be && file.kind != ProjectKind::Encoders && !asked.contains(&file.path)
    });
    open.next().map(|file| file.path)
}

/// Asks about one file. Returns whether the person agreed; an error is printed, and the file stays
/// untrusted.
fn offer(config: &Config, path: &Path) -> bool {
    let agreed = Candidate::read(path, config.trust())
        .and_then(|candidate| Ok(question(&candidate)? && agree(config, &candidate)?));
    agreed.unwrap_or_else(|failure| {
        err_line(&failure.text(Paint::stderr()));
        false
    })
}

fn agree(config: &Config, candidate: &Candidate) -> Result<bool, Failure> {
    config.trust().add(&candidate.place, &candidate.sha256)?;
    Ok(true)
}

/// Reports the files of the current folder that have no effect.
pub(super) fn note(config: &Config) {
    let open: Vec<_> = config
        .project_files()
        .iter()
        .filter(|file| !file.is_trusted())
        .collect();
    if let (false, Err(error)) = (open.is_empty(), config.trust().entries()) {
        err_line(&sanitize(&format!("note: {error}")));
    }
    open.iter().for_each(|file| {
        err_line(&Paint::stderr().dim(&sanitize(&format!("note: {}", file.line()))))
    });
}

/// The first mistake in an untrusted configuration, for commands that check the configuration.
pub(super) fn mistakes(config: &Config) -> Result<(), ConfigError> {
    let open = config
        .project_files()
        .iter()
        .filter(|file| file.kind == ProjectKind::Configuration && !file.is_trusted());
    open.map(|file| candidate::mistake(&file.path))
        .find(Result::is_err)
        .unwrap_or(Ok(()))
}

pub(super) fn run(config: &Config, args: &TrustArgs) -> Result<Done, Failure> {
    if args.list {
        return list(config);
    }
    if let Some(path) = &args.revoke {
        return revoke(config, path);
    }
    let store = config.trust();
    store.entries()?;
    let here = [PathBuf::from(".")];
    let paths = if args.paths.is_empty() {
        &here[..]
    } else {
        &args.paths
    };
    let mut files = Vec::new();
    for path in paths {
        files.extend(candidate::files_of(path)?);
    }
    if files.is_empty() {
        err_line("note: there is nothing to trust here: neither callboard.toml nor AGENTS.md");
        return Ok(Done::Well);
    }
    let can_ask = Terminals::detect().has_person();
    let mut all = true;
    // Folders of skills that a configuration names are appended to `files`.
    let mut at = 0;
    while let Some(path) = files.get(at).cloned() {
        at += 1;
        let candidate = Candidate::read(&path, store)?;
        let more: Vec<PathBuf> = candidate
            .names
            .iter()
            .filter(|path| !files.contains(path))
            .cloned()
            .collect();
        if candidate.standing == Standing::Trusted {
            out_line(&shown(&format!(
                "already trusted: {}",
                candidate.place.path().display()
            )));
            files.extend(more);
            continue;
        }
        if !args.yes && !can_ask {
            show(&candidate);
            return Err(Failure::usage("there is no terminal to ask on")
                .hint("--yes trusts without a question"));
        }
        let agreed = if args.yes {
            show(&candidate);
            true
        } else {
            question(&candidate)?
        };
        if agreed {
            store.add(&candidate.place, &candidate.sha256)?;
            out_line(&shown(&format!(
                "trusted: {}",
                candidate.place.path().display()
            )));
            files.extend(more);
        }
        all &= agreed;
    }
    Ok(if all { Done::Well } else { Done::Badly })
}

fn list(config: &Config) -> Result<Done, Failure> {
    for entry in config.trust().entries()? {
        let state = match candidate::sha256_of(Path::new(&entry.path)) {
            Some(now) if now == entry.sha256 => "trusted",
            Some(_) => "changed",
            None => "gone",
        };
        out_line(&shown(&format!(
            "{state:<8} {}  {}",
            entry.since, entry.path
        )));
    }
    Ok(Done::Well)
}

fn revoke(config: &Config, path: &Path) -> Result<Done, Failure> {
    let place = if path.is_dir() {
        Place::of_folder(path)
    } else {
        Place::of_file(path)
    };
    let whole = place.map_or_else(
        |_| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        |place| place.path().to_owned(),
    );
    let gone = config.trust().revoke(&whole)?;
    if gone.is_empty() {
        return Err(
            Failure::work(shown(&format!("{} was not trusted", whole.display())))
                .hint("`callboard trust --list` shows what is trusted"),
        );
    }
    gone.iter()
        .for_each(|path| out_line(&shown(&format!("no longer trusted: {path}"))));
    Ok(Done::Well)
}

/// Untrusted text on one line, with invisible characters escaped.
fn shown(text: &str) -> String {
    visible_strict(text).replace(['\n', '\t'], " ")
}

/// Prints which file it is, and what it would do.
fn show(candidate: &Candidate) {
    let paint = Paint::stderr();
    let state = if candidate.standing == Standing::Changed {
        "changed since it was trusted"
    } else {
        "is not trusted"
    };
    let path = shown(&candidate.place.path().display().to_string());
    err_line(&format!(
        "{} {} {state}. If you trust it, it",
        paint.bold("?"),
        paint.bold(&path)
    ));
    candidate
        .allows
        .iter()
        .for_each(|line| err_line(&format!("  - {}", shown(line))));
}

/// Asks a person. Anything that is not a clear yes is a no.
fn question(candidate: &Candidate) -> Result<bool, Failure> {
    let no_terminal = || {
        Failure::usage("there is no terminal to ask on")
            .hint("`callboard trust --yes` trusts without a question")
    };
    show(candidate);
    loop {
        if !typed::can_ask() {
            return Err(no_terminal());
        }
        err("  Trust it? [y]es, [N]o for now, [s]how the text ");
        let line = typed::answer(|| false).unwrap_or_default();
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "s" | "show" => candidate
                .text
                .lines()
                .for_each(|line| err_line(&format!("  | {}", shown(line)))),
            _ => return Ok(false),
        }
    }
}
