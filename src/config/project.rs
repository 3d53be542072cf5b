//! Files of the current folder: which of them count, and what is said of those that do not.

use std::path::{Path, PathBuf};

use super::{
    Config, Layer, Setting, allows, by_name,
    error::{ConfigError, Origin},
    file,
    narrow::narrowed,
    show,
};
use crate::trust::{self, Place, Standing, TrustStore, Unread};

/// The configuration of the current folder.
pub(super) const FILE: &str = "callboard.toml";

/// Longest file of encoders that is read.
const ENCODERS_BYTES_MAX: u64 = 1024 * 1024;

/// What a file of a project is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectKind {
    /// `callboard.toml`.
    Configuration,
    /// `AGENTS.md`.
    Instructions,
    /// A folder of skills that the project's configuration names.
    Skills,
    /// `config/token_encoders.yaml`.
    Encoders,
}

/// A file of a project that counts, or would if it were trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectFile {
    /// As it was found or named.
    pub path: PathBuf,
    /// What it is for.
    pub kind: ProjectKind,
    /// Whether a person agreed to it.
    pub standing: Standing,
    /// Keys that count although the file is not trusted: they narrow.
    pub counts: Vec<String>,
    /// Why it cannot be read, whoever trusts it.
    pub problem: Option<String>,
}

impl ProjectFile {
    /// One that was read.
    pub fn new(path: &Path, kind: ProjectKind, standing: Standing) -> Self {
        Self { path: path.to_owned(), kind, standing, counts: Vec::new(), problem: None }
    }

    /// One that cannot be read.
    pub fn unreadable(path: &Path, kind: ProjectKind, problem: impl Into<String>) -> Self {
        Self { problem: Some(problem.into()), ..Self::new(path, kind, Standing::New) }
    }

    /// Whether it counts as a whole.
    pub fn is_trusted(&self) -> bool {
        self.standing == Standing::Trusted && self.problem.is_none()
    }

    /// Its standing in words.
    pub fn said(&self) -> String {
        match (&self.problem, self.standing) {
            (Some(problem), _) => format!("it is not read: {problem}"),
            (None, Standing::Trusted) => "it is trusted".into(),
            (None, Standing::New) => "it is not trusted".into(),
            (None, Standing::Changed) => "it changed since it was trusted".into(),
            (None, Standing::Barred) => "it cannot be trusted, because the list of trusted files lies inside its folder".into(),
        }
    }

    /// The path on one line, in quotes if a shell would take it apart. It is not cut, for it is typed again.
    fn name(&self) -> String {
        let path = self.path.to_string_lossy();
        let plain = path.chars().all(|c| c.is_alphanumeric() || "/._-+@~".contains(c));
        if plain { path.into_owned() } else { format!("{path:?}") }
    }

    /// One line: which file, its standing, what follows and what to do.
    pub fn line(&self) -> String {
        let path = self.name();
        let said = self.said();
        if self.is_trusted() || self.problem.is_some() {
            return format!("{path}: {said}");
        }
        let effect = match (self.kind, self.counts.as_slice()) {
            (ProjectKind::Configuration, []) => "nothing in it counts".to_owned(),
            (ProjectKind::Configuration, counts) => format!("only what narrows counts ({})", counts.join(", ")),
            (ProjectKind::Skills, _) => "its skills are not used".to_owned(),
            (ProjectKind::Instructions | ProjectKind::Encoders, _) => "it is not read".to_owned(),
        };
        let to_do = match (self.standing, self.kind) {
            (Standing::Barred, ProjectKind::Configuration) => "name it with --config".to_owned(),
            (Standing::Barred, _) => "work in a folder without it".to_owned(),
            _ => format!("`callboard trust {path}` shows what it would do, and asks"),
        };
        format!("{path}: {said}, so {effect}; {to_do}")
    }
}

/// The configuration of the current folder, as it was found.
pub(super) struct Found {
    pub(super) file: ProjectFile,
    /// What it says; `None` if it cannot be read.
    pub(super) layer: Option<Layer>,
}

/// Looks for the configuration of the current folder. `None` if there is none.
///
/// # Errors
/// A mistake in a file that is trusted.
pub(super) fn configuration(path: &Path, trust: &TrustStore, home: Option<&Path>) -> Result<Option<Found>, ConfigError> {
    let unreadable = |problem: String| {
        let file = ProjectFile::unreadable(path, ProjectKind::Configuration, problem);
        Ok(Some(Found { file, layer: None }))
    };
    let content = match trust::file(path, file::FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(Unread::Missing) => return Ok(None),
        Err(error) => return unreadable(error.to_string()),
    };
    let standing = standing(trust, Place::of_file(path), &content.sha256);
    match file::parse_bytes(path, content.bytes, home) {
        Ok(layer) => Ok(Some(Found { file: ProjectFile::new(path, ProjectKind::Configuration, standing), layer: Some(layer) })),
        Err(error) if standing == Standing::Trusted => Err(error),
        // The words of a stranger are not repeated.
        Err(_) => unreadable("it has a mistake, which `callboard config check` shows".into()),
    }
}

fn standing(trust: &TrustStore, place: std::io::Result<Place>, sha256: &str) -> Standing {
    place.map_or(Standing::New, |place| trust.standing(&place, sha256))
}

/// Leaves out files of encoders that lie in the current folder and are not trusted.
pub(super) fn encoders(places: Vec<PathBuf>, trust: &TrustStore, project: &mut Vec<ProjectFile>) -> Vec<PathBuf> {
    let counts = |path: &PathBuf| {
        if path.is_absolute() {
            return true; // The user's own.
        }
        let file = match trust::file(path, ENCODERS_BYTES_MAX) {
            Ok(content) => ProjectFile::new(path, ProjectKind::Encoders, standing(trust, Place::of_file(path), &content.sha256)),
            Err(Unread::Missing | Unread::NoFile) => return false,
            Err(error) => ProjectFile::unreadable(path, ProjectKind::Encoders, error.to_string()),
        };
        let trusted = file.is_trusted();
        project.push(file);
        trusted
    };
    places.into_iter().filter(counts).collect()
}

/// Reads the text of a `callboard.toml` without using it: what it would do, a line each.
///
/// # Errors
/// The first mistake.
pub fn examine(path: &Path, bytes: Vec<u8>, home: Option<&Path>) -> Result<Vec<String>, ConfigError> {
    file::parse_bytes(path, bytes, home).map(|layer| allows::allows(&layer))
}

impl Config {
    /// Takes what narrows from a file that is not trusted.
    pub(super) fn narrow(&mut self, layer: Layer) {
        let mut kept = Vec::new();
        for Setting { key, value, from } in layer.settings {
            let by_environment =
                self.settings.get(&(key.section, key.name)).is_some_and(|known| matches!(known.from, Origin::Environment(_)));
            let value = narrowed(key, &value, show::effective(self, key).as_ref()).filter(|_| !by_environment);
            kept.extend(value.map(|value| Setting { key, value, from }));
        }
        if let Some(file) = self.project.iter_mut().find(|file| file.kind == ProjectKind::Configuration) {
            file.counts = kept.iter().map(|setting| setting.key.path()).collect();
        }
        self.settings.extend(kept.into_iter().map(by_name));
        self.take_settings();
    }

    /// Leaves out folders of skills that the project's configuration names and that are not trusted: the file is trusted with what it
    /// says, the folder with what it holds.
    pub(super) fn hold_skills_back(&mut self) {
        let of_project = |from: Option<&Origin>| matches!(from, Some(Origin::File { path, .. }) if path.as_path() == Path::new(FILE));
        if !self.project.iter().any(|file| file.kind == ProjectKind::Configuration && file.is_trusted()) {
            return;
        }
        let mut found = Vec::new();
        let mut is_trusted = |path: &Path| {
            let file = match trust::tree(path) {
                Ok(tree) => ProjectFile::new(path, ProjectKind::Skills, standing(&self.trust, Place::of_folder(path), &tree.sha256)),
                // Whoever opens the folder says so.
                Err(Unread::Missing) => return true,
                Err(error) => ProjectFile::unreadable(path, ProjectKind::Skills, error.to_string()),
            };
            let trusted = file.is_trusted();
            found.push(file);
            trusted
        };
        let key = ("skills", "dir");
        let named = self.settings.get(&key).map(|setting| &setting.from);
        if let (true, Some(path)) = (of_project(named), &self.skills)
            && !is_trusted(path)
        {
            self.settings.remove(&key);
            self.skills = None;
        }
        for tenant in &mut self.tenants {
            let named = tenant.settings.get(&("tenant", "skills")).map(|setting| &setting.from);
            if let (true, Some(path)) = (of_project(named), &tenant.skills)
                && !is_trusted(path)
            {
                tenant.skills = None;
            }
        }
        found.dedup();
        self.project.extend(found);
    }
}
