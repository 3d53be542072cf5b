//! A source of skills: a folder, a database, a list in memory. It is called from tasks, never from
//! a conversation's handler.

use super::BoxFuture;
use crate::skill::{LoadLevel, Skill, SkillMetadata, SkillName};

/// Bytes of a skill's instructions: about 30,000 tokens, six times what the format recommends.
pub const SKILL_BODY_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one file of a skill. A model reads larger results page by page, from an artifact.
pub const SKILL_RESOURCE_BYTES_MAX: usize = 1024 * 1024;

/// All skills of a source, at level 1.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillListing {
    /// The skills, sorted by name, without duplicates.
    pub skills: Vec<SkillMetadata>,
    /// Problems, one line each: skills that cannot be used, and oddities of others.
    pub notes: Vec<String>,
}

/// Why a skill or one of its files is not available. No text contains a path of the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkillError {
    /// No skill has this name.
    #[error("there is no skill named {name:?}{}", known(.skills))]
    NotFound {
        /// The requested name.
        name: String,
        /// Names of the available skills.
        skills: Vec<String>,
    },
    /// The skill exists but cannot be used.
    #[error("the skill {name} cannot be used: {reason}")]
    Broken {
        /// The name that was asked for.
        name: String,
        /// What is wrong with it, in one line.
        reason: String,
    },
    /// The skill has no such file.
    #[error("the skill {name} has no file {path:?}")]
    NoResource {
        /// The name that was asked for.
        name: SkillName,
        /// The requested path.
        path: String,
    },
    /// The file cannot be read as text.
    #[error("the file {path:?} of the skill {name} cannot be read: {reason}")]
    Unreadable {
        /// The name that was asked for.
        name: SkillName,
        /// The requested path.
        path: String,
        /// Why: it is not text, or too long.
        reason: String,
    },
    /// The source cannot be reached.
    #[error("the skills cannot be read: {message}")]
    Unavailable {
        /// The source's own description.
        message: String,
    },
}

fn known(skills: &[String]) -> String {
    if skills.is_empty() {
        String::new()
    } else {
        format!("; the skills are: {}", skills.join(", "))
    }
}

impl SkillError {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "skill_not_found",
            Self::Broken { .. } => "skill_broken",
            Self::NoResource { .. } => "skill_resource_not_found",
            Self::Unreadable { .. } => "skill_resource_unreadable",
            Self::Unavailable { .. } => "skills_unavailable",
        }
    }

    /// Whether a retry can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::NotFound { .. }
            | Self::Broken { .. }
            | Self::NoResource { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}

/// A source of skills. Skills are untrusted text: the source checks their form, and the model gets
/// the text unchanged.
pub trait SkillSource: Send + Sync + 'static {
    /// Returns all skills at level 1. A broken skill becomes a note and does not affect the others.
    ///
    /// # Errors
    /// [`SkillError::Unavailable`].
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>>;

    /// Returns a skill at a level, including the levels below. Level 3 adds the names of its files,
    /// not their contents.
    ///
    /// # Errors
    /// [`SkillError::NotFound`], [`SkillError::Broken`] and [`SkillError::Unavailable`].
    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>>;

    /// Returns a file of a skill as text. `path` must be one of [`Skill::resources`]; no other file
    /// can be read.
    ///
    /// # Errors
    /// [`SkillError::NoResource`] and [`SkillError::Unreadable`], and those of
    /// [`SkillSource::load`].
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
