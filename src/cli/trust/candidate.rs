//! A file that a person may trust: read once, hashed, and explained.

use std::path::{Path, PathBuf};

use crate::{
    app::AGENTS_BYTES_MAX,
    cli::{failure::Failure, terminal::counted},
    config::{ConfigError, examine},
    trust::{self, Content, Place, Standing, TrustStore, Unread},
};

/// Maximum size of a configuration or encoder file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Files of a project that have an effect if they are trusted.
const FILES: [&str; 4] = [
    "callboard.toml",
    "AGENTS.md",
    "config/token_encoders.yaml",
    "config/token_encoders.yml",
];

/// A file that was read.
pub(super) struct Candidate {
    pub(super) place: Place,
    pub(super) sha256: String,
    pub(super) standing: Standing,
    /// What the file would do; each line completes a sentence that starts with "it".
    pub(super) allows: Vec<String>,
    /// Its text, or the names of a folder's files.
    pub(super) text: String,
    /// Folders of skills that it names.
    pub(super) names: Vec<PathBuf>,
}

/// The role of a file.
enum Kind {
    Configuration,
    Instructions,
    Encoders,
    Skills,
}

impl Kind {
    fn from_path(path: &Path) -> Option<Self> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("callboard.toml") => Some(Self::Configuration),
            Some("AGENTS.md") => Some(Self::Instructions),
            Some("token_encoders.yaml" | "token_encoders.yml") => Some(Self::Encoders),
            Some(_) | None => path.is_dir().then_some(Self::Skills),
        }
    }
}

impl Candidate {
    /// Reads a file or a folder of skills.
    ///
    /// # Errors
    /// The path cannot be read, has a mistake, or is no file that Callboard reads from a project.
    pub(super) fn read(path: &Path, store: &TrustStore) -> Result<Self, Failure> {
        let unread = |error: Unread| Failure::work(format!("{}: {error}", path.display()));
        let Some(kind) = Kind::from_path(path) else {
            return Err(Failure::usage(format!(
                "{} is not a file that Callboard reads from a project",
                path.display()
            ))
            .hint("callboard.toml, AGENTS.md, token_encoders.yaml, or a folder"));
        };
        let (place, sha256, mut allows, text, mut names) = match kind {
            Kind::Skills => {
                let tree = trust::tree(path).map_err(unread)?;
                let allows = vec![format!(
                    "gives the model {} of instructions and scripts",
                    counted(tree.files.len(), "file")
                )];
                (
                    Place::of_folder(path),
                    tree.sha256,
                    allows,
                    tree.files.join("\n"),
                    Vec::new(),
                )
            }
            Kind::Configuration => {
                let content = trust::file(path, FILE_BYTES_MAX).map_err(unread)?;
                let text = text(&content);
                let names = skills_of(path, &text);
                let allows = examine(path, content.bytes, home().as_deref())?;
                (Place::of_file(path), content.sha256, allows, text, names)
            }
            Kind::Instructions => {
                let content = trust::file(path, AGENTS_BYTES_MAX).map_err(unread)?;
                let allows =
                    vec!["is added to the system prompt, as instructions to the model".to_owned()];
                (
                    Place::of_file(path),
                    content.sha256.clone(),
                    allows,
                    text(&content),
                    Vec::new(),
                )
            }
            Kind::Encoders => {
                let content = trust::file(path, FILE_BYTES_MAX).map_err(unread)?;
                (
                    Place::of_file(path),
                    content.sha256.clone(),
                    vec!["sets how tokens are counted".to_owned()],
                    text(&content),
                    Vec::new(),
                )
            }
        };
        if let Ok(target) = path.read_link() {
            allows.insert(0, format!("is a link to {}", target.display()));
        }
        if allows.is_empty() {
            allows.push("sets nothing".into());
        }
        let place = place
            .map_err(|error| Failure::work(format!("{}: {}", path.display(), error.kind())))?;
        let standing = store.standing(&place, &sha256);
        names.retain(|path| path.is_dir());
        Ok(Self {
            place,
            sha256,
            standing,
            allows,
            text,
            names,
        })
    }
}

fn text(content: &Content) -> String {
    String::from_utf8_lossy(&content.bytes).into_owned()
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

/// Folders of skills that a configuration names.
fn skills_of(path: &Path, text: &str) -> Vec<PathBuf> {
    let Ok(table) = text.parse::<toml::Table>() else {
        return Vec::new();
    };
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let tenants = table
        .get("tenant")
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten();
    let named = tenants
        .filter_map(|tenant| tenant.get("skills"))
        .chain(table.get("skills").and_then(|skills| skills.get("dir")));
    named
        .filter_map(toml::Value::as_str)
        .map(|dir| folder.join(dir))
        .collect()
}

/// The files that a path stands for: itself, or the files of a project folder.
pub(super) fn files_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    if !is_there(path) {
        let failure = Failure::work(format!("{}: there is no such file", path.display()));
        return Err(match path.to_str() {
            Some(word @ ("list" | "revoke")) => {
                failure.hint(format!("did you mean `callboard trust --{word}`?"))
            }
            _ => failure,
        });
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let here = path == Path::new(".");
    let within = |name: &&str| {
        if here {
            PathBuf::from(name)
        } else {
            path.join(name)
        }
    };
    let files: Vec<PathBuf> = FILES
        .iter()
        .map(within)
        .filter(|path| is_there(path))
        .collect();
    Ok(if files.is_empty() && !here {
        vec![path.to_owned()]
    } else {
        files
    })
}

/// The first mistake of a configuration file, without applying the file.
pub(super) fn mistake(path: &Path) -> Result<(), ConfigError> {
    match trust::file(path, FILE_BYTES_MAX) {
        Ok(content) => examine(path, content.bytes, home().as_deref()).map(drop),
        Err(error) => Err(ConfigError::Unreadable {
            file: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// The hash of the current content; `None` if it cannot be read.
pub(super) fn sha256_of(path: &Path) -> Option<String> {
    if path.is_dir() {
        trust::tree(path).ok().map(|tree| tree.sha256)
    } else {
        trust::file(path, FILE_BYTES_MAX)
            .ok()
            .map(|content| content.sha256)
    }
}
