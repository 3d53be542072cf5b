//! Where skills come from: a folder, a database, a list in memory. Asked off the conversation's actor.

use super::BoxFuture;
use crate::skill::{LoadLevel, Skill, SkillMetadata, SkillName};

/// Bytes of a skill's instructions at most: some thirty thousand tokens, six times what the format advises.
pub const SKILL_BODY_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one file of a skill at most: what is read is paged, and kept as an artifact.
pub const SKILL_RESOURCE_BYTES_MAX: usize = 1024 * 1024;

/// All skills of a source, at level 1.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillListing {
    /// The skills, by name, each name once.
    pub skills: Vec<SkillMetadata>,
    /// What is wrong, a line each: skills that cannot be used, and what is odd about others.
    pub notes: Vec<String>,
}

/// Why a skill, or a file of one, is not to be had. No text holds a path of the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkillError {
    /// No skill has this name.
    #[error("there is no skill named {name:?}{}", known(.skills))]
    NotFound {
        /// As it was given.
        name: String,
        /// The names of those that are there.
        skills: Vec<String>,
    },
    /// It is there and cannot be used.
    #[error("the skill {name} cannot be used: {reason}")]
    Broken {
        /// Which.
        name: String,
        /// What is wrong with it, in a line.
        reason: String,
    },
    /// The skill has no such file.
    #[error("the skill {name} has no file {path:?}")]
    NoResource {
        /// Which skill.
        name: SkillName,
        /// As it was given.
        path: String,
    },
    /// The file is not for reading.
    #[error("the file {path:?} of the skill {name} cannot be read: {reason}")]
    Unreadable {
        /// Which skill.
        name: SkillName,
        /// As it was given.
        path: String,
        /// Why: it is no text, or too long.
        reason: String,
    },
    /// The source cannot be asked.
    #[error("the skills cannot be read: {message}")]
    Unavailable {
        /// What happened.
        message: String,
    },
}

fn known(skills: &[String]) -> String {
    if skills.is_empty() { String::new() } else { format!("; the skills are: {}", skills.join(", ")) }
}

impl SkillError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "skill_not_found",
            Self::Broken { .. } => "skill_broken",
            Self::NoResource { .. } => "skill_resource_not_found",
            Self::Unreadable { .. } => "skill_resource_unreadable",
            Self::Unavailable { .. } => "skills_unavailable",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::NotFound { .. } | Self::Broken { .. } | Self::NoResource { .. } | Self::Unreadable { .. } => false,
        }
    }
}

/// A source of skills. What it brings is others' text: it is judged here, and shown to a model as it is.
pub trait SkillSource: Send + Sync + 'static {
    /// Level 1 of every skill (REQUIREMENTS S-01). One that is broken is a note and hinders no other.
    ///
    /// # Errors
    /// [`SkillError::Unavailable`].
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>>;

    /// A skill at a level; it holds the levels below too (REQUIREMENTS S-04). At level 3 the names of its files, not their contents.
    ///
    /// # Errors
    /// [`SkillError::NotFound`], [`SkillError::Broken`] and [`SkillError::Unavailable`].
    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>>;

    /// A file of a skill, as text (REQUIREMENTS S-03). `path` is one of [`Skill::resources`], and leads nowhere else.
    ///
    /// # Errors
    /// [`SkillError::NoResource`] and [`SkillError::Unreadable`], and those of [`SkillSource::load`].
    fn resource(&self, name: SkillName, path: String) -> BoxFuture<'_, Result<String, SkillError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::SkillSource) {}
        let _ = takes;
    }
}
