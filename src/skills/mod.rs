//! Skills from a folder of skill folders. Each has a `SKILL.md` (YAML front matter, then Markdown)
//! and may have `scripts/`, `references/` and `assets/`.
//!
//! Skills are often written for other programs. A deviation from the format is noted and the skill
//! used; an unusable skill is noted and does not affect others. Every file is opened by descriptor
//! beneath its skill's folder ([`Root`]), so neither a name nor a link can lead outside.
//!
//! Limits: [`FOLDERS_MAX`] skills; [`FRONT_BYTES_MAX`] of front matter, parsed with a budget;
//! [`SKILL_BODY_BYTES_MAX`](crate::ports::SKILL_BODY_BYTES_MAX) of instructions; [`FILES_MAX`]
//! listed files; [`SKILL_RESOURCE_BYTES_MAX`](crate::ports::SKILL_RESOURCE_BYTES_MAX) of a file
//! that is read.

mod folder;
mod front;
mod tool_names;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    ports::{BoxFuture, SkillError, SkillListing, SkillSource},
    skill::{LoadLevel, Skill, SkillName},
};

use crate::sandbox::{PathRules, Root};
pub use folder::{Broken, FILES_MAX, FOLDERS_MAX, Found, Survey};
pub use front::FRONT_BYTES_MAX;

/// Front matter of any text is read or refused, and what is read has a name and a description.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok((front, body)) = front::split(&text) {
        assert!(front.len() <= FRONT_BYTES_MAX && front.len() + body.len() <= text.len());
        if let Ok(head) = front::read(front, "folder") {
            assert!(!head.metadata.description.is_empty());
        }
    }
}

/// A folder of skills. A folder with its own `SKILL.md` counts as a folder with that one skill.
///
/// ```no_run
/// # async fn open(model: impl callboard::ports::LlmProvider) -> Result<(), Box<dyn std::error::Error>> {
/// use callboard::{Host, skills::SkillFolder};
///
/// let host = Host::builder().provider(model).skills(SkillFolder::open("skills")?).build().await?;
/// host.tenant("acme").conversation("reports").activate_skill("tables").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SkillFolder {
    root: Arc<Root>,
    /// The folder's name, for the case that the folder is itself a skill.
    name: String,
}

impl SkillFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// The system's error when the path does not exist or is not a folder.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let root = Root::open(path, PathRules::default())?;
        let name = root
            .real_path()
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        Ok(Self {
            root: Arc::new(root),
            name,
        })
    }

    /// The folder's real path.
    pub fn path(&self) -> PathBuf {
        self.root.real_path().to_owned()
    }

    /// Reads every skill and reports its problems. Blocks on file access; call it on a blocking
    /// thread.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn survey(&self) -> io::Result<Survey> {
        folder::survey(&self.root, &self.name)
    }

    fn find(&self, name: &SkillName) -> Result<Found, SkillError> {
        let survey = self.survey().map_err(|error| unavailable(&error))?;
        let mut known = Vec::new();
        for found in survey.skills {
            if found.skill.name() == name {
                return Ok(found);
            }
            known.push(found.skill.name().to_string());
        }
        let broken = survey
            .broken
            .into_iter()
            .find(|broken| broken.folder == name.as_str());
        Err(match broken {
            Some(broken) => SkillError::Broken {
                name: name.to_string(),
                reason: broken.reason,
            },
            None => SkillError::NotFound {
                name: name.to_string(),
                skills: known,
            },
        })
    }

    /// Runs blocking work on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> Result<T, SkillError> + Send + 'static,
    ) -> Result<T, SkillError> {
        let folder = self.clone();
        match tokio::task::spawn_blocking(move || work(folder)).await {
            Ok(result) => result,
            Err(_) => Err(SkillError::Unavailable {
                message: "the reading task panicked or the host is stopping".into(),
            }),
        }
    }
}

fn unavailable(error: &io::Error) -> SkillError {
    SkillError::Unavailable {
        message: error.kind().to_string(),
    }
}

impl SkillSource for SkillFolder {
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>> {
        Box::pin(self.blocking(|folder| {
            let survey = folder.survey().map_err(|error| unavailable(&error))?;
            let notes = survey.notes();
            Ok(SkillListing {
                skills: survey
                    .skills
                    .into_iter()
                    .map(|found| found.skill.metadata)
                    .collect(),
                notes,
            })
        }))
    }

    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>> {
        Box::pin(self.blocking(move |folder| {
            let found = folder.find(&name)?;
            let resources =
                (level == LoadLevel::Resources).then(|| folder::files(&folder.root, &found.folder));
            Ok(Skill {
                resources,
                ..found.skill
            }
            .at(level))
        }))
    }

    fn resource(&self, name: SkillName, path: String) -> BoxFuture<'_, Result<String, SkillError>> {
        Box::pin(self.blocking(move |folder| {
            let found = folder.find(&name)?;
            folder::read(&folder.root, &found.folder, &name, &path)
        }))
    }
}
