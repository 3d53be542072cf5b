//! Skills: know-how that a model is shown step by step (DESIGN §2, REQUIREMENTS area S).
//!
//! Level 1, name and description, is told of every skill from the start; level 2, the instructions, when a skill is activated;
//! level 3, its files, one by one on demand. What is active in a conversation is part of its fold ([`crate::journal::SkillState`]).
//!
//! Pure.

mod definition;
mod stack;
mod modifier;
mod request;
mod index;

pub use definition::{InvalidLevel, InvalidSkillName, LoadLevel, Skill, SkillMetadata, SkillName, SkillResource};
pub use index::{SKILL_INDEX_BYTES_MAX, SkillIndex, SkillSummary};
pub use modifier::{Combined, ContextModifier};
pub use request::{MessageKind, SkillActivationRequest, SkillActivationResult, SkillMessage, Visibility};
pub use stack::{ActivationError, ActivationStack, Frame, SkillPolicy};

/// The tool by which a model activates a skill (REQUIREMENTS R-18).
pub const ACTIVATE_SKILL: &str = "activate_skill";

/// The tool by which a model reads a file of an active skill (level 3).
pub const SKILL_RESOURCE: &str = "skill_resource";
