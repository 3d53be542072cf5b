//! Files of the current folder: which of them take effect, and what to report about the others.

use std::path::{Path, PathBuf};

use super::{
    Config, Layer, Setting, allows, by_name,
    error::{ConfigError, Origin},
    file,
    narrow::narrowed,
    show,
};
use crate::trust::{self, Place, Standing, TrustStore, Unread};

/// Name of the configuration file in the current folder.
pub(super) const FILE: &str = "callboard.toml";

/// Maximum size of an encoder file in bytes.
const ENCODERS_BYTES_MAX: u64 = 1024 * 1024;

/// The role of a project file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectKind {
    /// The configuration `callboard.toml`.
    Configuration,
    /// Instructions for the model: `AGENTS.md`.
    Instructions,
    /// A folder of skills that the project's configuration names.
    Skills,
    /// Token encoders: `config/token_encoders.yaml` or `.yml`.
    Encoders,
}

/// A file of the current folder that takes effect, or would do so if it were trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectFile {
    /// The path as it was found or given.
    pub path: PathBuf,
    /// The file's role.
    pub kind: ProjectKind,
    /// Whether a person agreed to the file.
    pub standing: Standing,
    /// Keys that take effect although the file is not trusted, because they narrow the
    /// configuration.
    pub counts: Vec<String>,
    /// Why the file cannot be used even if it is trusted; `None` if it can.
    pub problem: Option<String>,
}

impl ProjectFile {
    /// A file that was read.
    pub fn new(path: &Path, kind: ProjectKind, standing: Standing) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            standing,
            counts: Vec::new(),
            problem: None,
        }
    }

    /// A file that cannot be read, with the reason.
    pub fn unreadable(path: &Path, kind: ProjectKind, problem: impl Into<String>) -> Self {
        Self {
            problem: Some(problem.into()),
            ..Self::new(path, kind, Standing::New)
        }
    }

    /// Whether the file takes effect as a whole.
    pub fn is_trusted(&self) -> bool {
        self.standing == Standing::Trusted && self.problem.is_none()
    }

    /// The file's standing as the end of a sentence.
    pub fn describe(&self) -> String {
        match (&self.problem, self.standing) {
            (Some(problem), _) => format!("it is not read: {problem}"),
            (None, Standing::Trusted) => "it is trusted".into(),
            (None, Standing::New) => "it is not trusted".into(),
            (None, Standing::Changed) => "it changed since it was trusted".into(),
            (None, Standing::Barred) => {
                "it cannot be trusted, because the list of trusted files lies inside its folder"
                    .into()
            }
        }
    }

    /// The path on one line, in quotes if a shell would split it. It is never shortened, because
    /// users paste it into a command.
    fn name(&self) -> String {
        let path = self.path.to_string_lossy();
        let plain = path
            .chars()
            .all(|c| c.is_alphanumeric() || "/._-+@~".contains(c));
        if plain {
            path.into_owned()
        } else {
            format!("{path:?}")
        }
    }

    /// One line for the user: the file, its standing, the consequence and what to do.
    pub fn line(&self) -> String {
        let path = self.name();
        let standing = self.describe();
        if self.is_trusted() || self.problem.is_some() {
            return format!("{path}: {standing}");
        }
        let effect = match (self.kind, self.counts.as_slice()) {
            (ProjectKind::Configuration, []) => "nothing in it takes effect".to_owned(),
            (ProjectKind::Configuration, counts) => {
                format!("only what narrows takes effect ({})", counts.join(", "))
            }
            (ProjectKind::Skills, _) => "its skills are not used".to_owned(),
            (ProjectKind::Instructions | ProjectKind::Encoders, _) => "it is not read".to_owned(),
        };
        let to_do = match (self.standing, self.kind) {
            (Standing::Barred, ProjectKind::Configuration) => "name it with --config".to_owned(),
            (Standing::Barred, _) => "work in a folder without it".to_owned(),
            _ => {
                format!("`callboard trust {path}` shows what it would do and asks for confirmation")
            }
        };
        format!("{path}: {standing}, so {effect}; {to_do}")
    }
}

/// The configuration of the current folder, as found.
pub(super) struct Found {
    pub(super) file: ProjectFile,
    /// The parsed content; `None` if the file cannot be read or parsed.
    pub(super) layer: Option<Layer>,
}

/// Reads the configuration of the current folder; `None` if there is none.
///
/// # Errors
/// A mistake in a trusted file. A mistake in an untrusted file is recorded in [`ProjectFile`]
/// instead.
pub(super) fn configuration(
    path: &Path,
    trust: &TrustStore,
    home: Option<&Path>,
) -> Result<Option<Found>, ConfigError> {
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
        Ok(layer) => Ok(Some(Found {
            file: ProjectFile::new(path, ProjectKind::Configuration, standing),
            layer: Some(layer),
        })),
        Err(error) if standing == Standing::Trusted => Err(error),
        // The parser's message is not repeated, because it quotes the untrusted file.
        Err(_) => unreadable("it has a mistake, which `callboard config check` shows".into()),
    }
}

fn standing(trust: &TrustStore, place: std::io::Result<Place>, sha256: &str) -> Standing {
    place.map_or(Standing::New, |place| trust.standing(&place, sha256))
}

/// Drops encoder files of `folder`, the project's, that are not trusted, and records them in
/// `project`.
pub(super) fn encoders(
    places: Vec<PathBuf>,
    folder: &Path,
    trust: &TrustStore,
    project: &mut Vec<ProjectFile>,
) -> Vec<PathBuf> {
    let counting = |path: PathBuf| {
        if path.is_absolute() {
            return Some(path); // Absolute paths are the user's own files.
        }
        let path = folder.join(path);
        let file = match trust::file(&path, ENCODERS_BYTES_MAX) {
            Ok(content) => ProjectFile::new(
                &path,
                ProjectKind::Encoders,
                standing(trust, Place::of_file(&path), &content.sha256),
            ),
            Err(Unread::Missing | Unread::NoFile) => return None,
            Err(error) => ProjectFile::unreadable(&path, ProjectKind::Encoders, error.to_string()),
        };
        let trusted = file.is_trusted();
        project.push(file);
        trusted.then_some(path)
    };
    places.into_iter().filter_map(counting).collect()
}

/// Parses a `callboard.toml` without applying it. Returns what it would do, in lines.
///
/// # Errors
/// The first mistake in the file.
pub fn examine(
    path: &Path,
    bytes: Vec<u8>,
    home: Option<&Path>,
) -> Result<Vec<String>, ConfigError> {
    file::parse_bytes(path, bytes, home).map(|layer| allows::allows(&layer))
}

impl Config {
    /// Applies the settings of an untrusted file that narrow the configuration. Settings of the
    /// environment take precedence.
    pub(super) fn narrow(&mut self, layer: Layer) {
        let mut kept = Vec::new();
        for Setting { key, value, from } in layer.settings {
            let by_environment = self
                .settings
                .get(&(key.section, key.name))
                .is_some_and(|known| matches!(known.from, Origin::Environment(_)));
            let value = narrowed(key, &value, show::effective(self, key).as_ref())
                .filter(|_| !by_environment);
            kept.extend(value.map(|value| Setting { key, value, from }));
        }
        if let Some(file) = self
            .project
            .iter_mut()
            .find(|file| file.kind == ProjectKind::Configuration)
        {
            file.counts = kept.iter().map(|setting| setting.key.path()).collect();
        }
        self.settings.extend(kept.into_iter().map(by_name));
        self.apply_settings();
    }

    /// Drops skills folders that the project's configuration names and that are not trusted. An
    /// agreement to the file covers only the file's content, not the content of the folders.
    pub(super) fn drop_untrusted_skills(&mut self) {
        let of_project = |from: Option<&Origin>| matches!(from, Some(Origin::File { path, .. }) if path.as_path() == Path::new(FILE));
        if !self
            .project
            .iter()
            .any(|file| file.kind == ProjectKind::Configuration && file.is_trusted())
        {
            return;
        }
        let mut found = Vec::new();
        let mut is_trusted = |path: &Path| {
            let file = match trust::tree(path) {
                Ok(tree) => ProjectFile::new(
                    path,
                    ProjectKind::Skills,
                    standing(&self.trust, Place::of_folder(path), &tree.sha256),
                ),
                // A missing folder is reported by the code that opens it.
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
            let named = tenant
                .settings
                .get(&("tenant", "skills"))
                .map(|setting| &setting.from);
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
