//! Skills: instructions and files that a model loads step by step.
//!
//! Level 1, name and description, is in every conversation from the start. Level 2, the
//! instructions, is loaded when a skill is activated. Level 3, its files, is read one file at a
//! time. The active skills of a conversation are part of its fold ([`crate::journal::SkillState`]).
//!
//! Pure.

mod definition;
mod stack;
mod modifier;
mod request;
mod index;

pub use definition::{
    InvalidLevel, InvalidSkillName, LoadLevel, Skill, SkillMetadata, SkillName, SkillResource,
};
pub use index::{SkillIndex, SkillSummary};
pub(crate) use modifier::Combined;
pub use modifier::ContextModifier;
pub(crate) use request::SkillActivationRequest;
pub use request::{MessageKind, SkillActivationResult, SkillMessage, Visibility};
pub use stack::{ActivationError, ActivationStack, Frame, SkillPolicy};

/// Name of the tool by which a model activates a skill.
pub(crate) const ACTIVATE_SKILL: &str = "activate_skill";

/// Name of the tool by which a model reads a file of an active skill (level 3).
pub(crate) const SKILL_RESOURCE: &str = "skill_resource";
