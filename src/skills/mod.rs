//! Skills from a folder: each a folder with a `SKILL.md` (YAML front matter, then Markdown), and with `scripts/`, `references/` and
//! `assets/` where it has any.
//!
//! What is in it was written by others, for other programs too: what deviates is noted and used, what is broken is a note and hinders
//! no other skill. Every file is opened beneath the folder by descriptor ([`Root`]), so that no name and no link leads out of it, and
//! out of its skill.
//!
//! Bounds: [`FOLDERS_MAX`] skills, [`FRONT_BYTES_MAX`] of front matter parsed with a budget, [`SKILL_BODY_BYTES_MAX`](crate::ports::SKILL_BODY_BYTES_MAX) of instructions,
//! [`FILES_MAX`] files listed, [`SKILL_RESOURCE_BYTES_MAX`](crate::ports::SKILL_RESOURCE_BYTES_MAX) of one that is read.

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

/// A folder of skills. A folder that is itself a skill, with a `SKILL.md` of its own, is a folder of this one.
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard::{Host, providers::offline::Offline, skills::SkillFolder};
///
/// let host = Host::builder().provider(Offline).skills(SkillFolder::open("skills")?).build().await?;
/// host.tenant("acme").conversation("reports").activate_skill("tables").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SkillFolder {
    root: Arc<Root>,
    /// The name of the folder, where it is a skill itself.
    name: String,
}

impl SkillFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// What the system says when it is missing or no folder.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let root = Root::open(path, PathRules::default())?;
        let name = root.real_path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { root: Arc::new(root), name })
    }

    /// The folder's real path.
    pub fn path(&self) -> PathBuf {
        self.root.real_path().to_owned()
    }

    /// Looks at every skill and says what is wrong with each. Reads files; belongs on a thread that may block.
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
        let broken = survey.broken.into_iter().find(|broken| broken.folder == name.as_str());
        Err(match broken {
            Some(broken) => SkillError::Broken { name: name.to_string(), reason: broken.reason },
            None => SkillError::NotFound { name: name.to_string(), skills: known },
        })
    }

    /// Does work that blocks.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> Result<T, SkillError> + Send + 'static,
    ) -> Result<T, SkillError> {
        let folder = self.clone();
        match tokio::task::spawn_blocking(move || work(folder)).await {
            Ok(result) => result,
            Err(_) => Err(SkillError::Unavailable { message: "reading them was cut off".into() }),
        }
    }
}

fn unavailable(error: &io::Error) -> SkillError {
    SkillError::Unavailable { message: error.kind().to_string() }
}

impl SkillSource for SkillFolder {
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>> {
        Box::pin(self.blocking(|folder| {
            let survey = folder.survey().map_err(|error| unavailable(&error))?;
            let notes = survey.notes();
            Ok(SkillListing { skills: survey.skills.into_iter().map(|found| found.skill.metadata).collect(), notes })
        }))
    }

    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>> {
        Box::pin(self.blocking(move |folder| {
            let found = folder.find(&name)?;
            let resources = (level == LoadLevel::Resources).then(|| folder::files(&folder.root, &found.folder));
            Ok(Skill { resources, ..found.skill }.at(level))
        }))
    }

    fn resource(&self, name: SkillName, path: String) -> BoxFuture<'_, Result<String, SkillError>> {
        Box::pin(self.blocking(move |folder| {
            let found = folder.find(&name)?;
            folder::read(&folder.root, &found.folder, &name, &path)
        }))
    }
}
