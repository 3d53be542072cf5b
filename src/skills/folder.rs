//! Finds the skills in a folder and reads their files. Every path is resolved beneath the skill's
//! own folder.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    path::{Component, Path},
};

use callboard_actors::{
    ports::{SKILL_BODY_BYTES_MAX, SKILL_RESOURCE_BYTES_MAX, SkillError},
    skill::{Skill, SkillName, SkillResource},
};
use rustix::fs::FileType;

use super::front::{self, FRONT_BYTES_MAX};
use crate::{
    sandbox::{PathError, Root, Walk},
    visible::visible,
};

/// Most skills of one folder; each one's file is read whenever the skills are listed.
pub const FOLDERS_MAX: usize = 1000;

/// Most files of one skill that are listed.
pub const FILES_MAX: usize = 1000;

/// The file that makes a folder a skill, and a common misspelling.
const NAMES: [&str; 2] = ["SKILL.md", "skill.md"];

/// Largest skill file, in bytes.
const SKILL_BYTES_MAX: u64 = (SKILL_BODY_BYTES_MAX + FRONT_BYTES_MAX) as u64;

/// A usable skill.
#[derive(Debug, Clone)]
pub struct Found {
    /// Path of the skill's folder, relative to the folder of skills; empty if that folder is itself
    /// the skill.
    pub folder: String,
    /// The skill with its instructions (level 2).
    pub skill: Skill,
    /// Deviations from the format, one line each; the skill is used nevertheless.
    pub notes: Vec<String>,
}

/// A skill that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Name of the skill's folder.
    pub folder: String,
    /// Why it cannot be used, in one line.
    pub reason: String,
}

/// The content of a folder of skills.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// The usable skills, in order of name.
    pub skills: Vec<Found>,
    /// The unusable skills, in order of folder.
    pub broken: Vec<Broken>,
    /// Number of folders beyond [`FOLDERS_MAX`], which are not read.
    pub left_out: usize,
}

impl Survey {
    /// All problems and deviations, one line each.
    pub fn notes(&self) -> Vec<String> {
        let broken = self
            .broken
            .iter()
            .map(|broken| format!("{} cannot be used: {}", broken.folder, broken.reason));
        let odd = self.skills.iter().flat_map(|found| {
            found
                .notes
                .iter()
                .map(|note| format!("{}: {note}", found.skill.name()))
        });
        let more = (self.left_out > 0).then(|| {
            format!(
                "further folders that were not read, because at most {FOLDERS_MAX} are: {}",
                self.left_out
            )
        });
        broken.chain(odd).chain(more).collect()
    }
}

/// Reads the skill in every folder.
pub(super) fn survey(root: &Root, own_name: &str) -> io::Result<Survey> {
    if root.open_file("SKILL.md").is_ok() {
        return Ok(gather(root, vec![(String::new(), own_name.to_owned())]));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.real_path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are included; reading their skill resolves them beneath the root.
        if !name.starts_with('.')
            && entry
                .file_type()
                .is_ok_and(|kind| kind.is_dir() || kind.is_symlink())
        {
            names.push((name.clone(), name));
        }
    }
    names.sort();
    let left_out = names.len().saturating_sub(FOLDERS_MAX);
    names.truncate(FOLDERS_MAX);
    Ok(Survey {
        left_out,
        ..gather(root, names)
    })
}

fn gather(root: &Root, folders: Vec<(String, String)>) -> Survey {
    let mut survey = Survey::default();
    let mut taken: BTreeSet<SkillName> = BTreeSet::new();
    for (folder, called) in folders {
        match skill(root, &folder, &called, &taken) {
            Ok((skill, notes)) => {
                taken.insert(skill.name().clone());
                survey.skills.push(Found {
                    folder,
                    skill,
                    notes,
                });
            }
            Err(reason) => survey.broken.push(Broken {
                folder: called,
                reason,
            }),
        }
    }
    survey
        .skills
        .sort_by(|a, b| a.skill.name().cmp(b.skill.name()));
    survey
}

/// Reads one skill with its instructions (level 2).
fn skill(
    root: &Root,
    folder: &str,
    called: &str,
    taken: &BTreeSet<SkillName>,
) -> Result<(Skill, Vec<String>), String> {
    let mut notes = Vec::new();
    let text = match text_of(root, folder, NAMES[0]) {
        Err(Unread::Missing) => {
            let text = text_of(root, folder, NAMES[1]).map_err(Unread::reason)?;
            notes.push("its file is called skill.md, not SKILL.md".to_owned());
            text
        }
        other => other.map_err(Unread::reason)?,
    };
    let (front, body) = front::split(&text)?;
    let mut head = front::read(front, called)?;
    notes.append(&mut head.notes);
    if body.len() > SKILL_BODY_BYTES_MAX {
        return Err(format!(
            "its instructions have {} bytes; at most {SKILL_BODY_BYTES_MAX} are allowed",
            body.len()
        ));
    }
    if body.trim().is_empty() {
        notes.push("it has no instructions".to_owned());
    }
    let mut metadata = head.metadata;
    if taken.contains(&metadata.name) {
        let other = SkillName::nearest(called).filter(|name| !taken.contains(name));
        let other = other.ok_or_else(|| format!("another skill is named {}", metadata.name))?;
        notes.push(format!(
            "another skill is named {}; this one goes by the name of its folder",
            metadata.name
        ));
        metadata.name = other;
    }
    Ok((
        Skill {
            metadata,
            modifier: head.modifier,
            instructions: Some(visible(body.trim())),
            resources: None,
        },
        notes,
    ))
}

/// Why a file was not read.
enum Unread {
    Missing,
    Other(String),
}

impl Unread {
    fn reason(self) -> String {
        match self {
            Self::Missing => "it has no SKILL.md".to_owned(),
            Self::Other(reason) => reason,
        }
    }
}

fn text_of(root: &Root, folder: &str, name: &str) -> Result<String, Unread> {
    let other = |what: &str| Unread::Other(format!("its {name} {what}"));
    let bytes = match open(root, folder, name, SKILL_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(PathError::NotFound(_) | PathError::NotAFolder(_)) => return Err(Unread::Missing),
        Err(error) => return Err(other(&what(&error, SKILL_BYTES_MAX))),
    };
    String::from_utf8(bytes).map_err(|_| other("is not UTF-8 text"))
}

/// Describes a path error without the path.
fn what(error: &PathError, bytes_max: u64) -> String {
    match error {
        PathError::Outside(_) | PathError::Link { .. } => "leads out of the folder".to_owned(),
        PathError::NotAFile { kind, .. } => format!("is {kind}, not a file"),
        PathError::TooManyLinks(_) => "leads through too many links".to_owned(),
        PathError::Sensitive(_) | PathError::Uncompared(_) => "may contain secrets".to_owned(),
        PathError::Changed(_) => "changes while it is read".to_owned(),
        PathError::Io { reason, .. } if reason == TOO_LONG => {
            format!("has more than {bytes_max} bytes")
        }
        PathError::Io { reason, .. } => format!("cannot be read ({reason})"),
        other => other.to_string(),
    }
}

const TOO_LONG: &str = "too long";

/// Reads a file that lies in the skill's own folder after links are resolved.
fn open(root: &Root, folder: &str, path: &str, bytes_max: u64) -> Result<Vec<u8>, PathError> {
    let given = if folder.is_empty() {
        path.to_owned()
    } else {
        format!("{folder}/{path}")
    };
    let opened = root.open_file(&given)?;
    let (_, own) = if folder.is_empty() {
        root.open_folder(".")?
    } else {
        root.open_folder(folder)?
    };
    if !opened.relative.starts_with(&own) {
        return Err(PathError::Outside(path.to_owned()));
    }
    let failed = |reason: String| PathError::Io {
        path: path.to_owned(),
        reason,
    };
    let mut bytes = Vec::new();
    opened
        .file
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(error.kind().to_string()))?;
    if bytes.len() as u64 > bytes_max {
        Err(failed(TOO_LONG.to_owned()))
    } else {
        Ok(bytes)
    }
}

/// Lists a skill's resource files (level 3) in order of path: `*.py` in `scripts/`, and every file
/// in `references/` and `assets/`.
pub(super) fn files(root: &Root, folder: &str) -> Vec<SkillResource> {
    let mut files = Vec::new();
    for part in ["assets", "references", "scripts"] {
        let given = if folder.is_empty() {
            part.to_owned()
        } else {
            format!("{folder}/{part}")
        };
        let Ok((dir, relative)) = root.open_folder(&given) else {
            continue;
        };
        let base = relative.clone();
        let mut walk = Walk::over_all(root, dir, relative);
        while let Some(entry) = walk.advance() {
            let name = entry
                .relative
                .strip_prefix(&base)
                .unwrap_or(&entry.relative);
            let path = format!("{part}/{}", name.to_string_lossy());
            let taken =
                entry.kind == FileType::RegularFile && (part != "scripts" || path.ends_with(".py"));
            if let Some(bytes) = taken.then(|| walk.size(&entry)).flatten() {
                files.push(SkillResource { path, bytes });
            }
            if files.len() >= FILES_MAX {
                return files;
            }
        }
    }
    files.sort();
    files
}

/// Reads a file of a skill as text. It need not be listed by [`files`]: instructions may name any
/// file of the skill.
pub(super) fn read(
    root: &Root,
    folder: &str,
    name: &SkillName,
    path: &str,
) -> Result<String, SkillError> {
    let missing = || SkillError::NoResource {
        name: name.clone(),
        path: path.to_owned(),
    };
    let unreadable = |reason: String| SkillError::Unreadable {
        name: name.clone(),
        path: path.to_owned(),
        reason,
    };
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.is_empty() || path.contains('\0') || !Path::new(path).components().all(is_plain) {
        return Err(missing());
    }
    let bytes = match open(root, folder, path, SKILL_RESOURCE_BYTES_MAX as u64) {
        Ok(bytes) => bytes,
        Err(
            PathError::NotFound(_)
            | PathError::NotAFolder(_)
            | PathError::Invalid(_)
            | PathError::Outside(_),
        ) => return Err(missing()),
        Err(error) => {
            return Err(unreadable(format!(
                "it {}",
                what(&error, SKILL_RESOURCE_BYTES_MAX as u64)
            )));
        }
    };
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8 text".to_owned()))
}
