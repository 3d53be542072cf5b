//! Contract suites, one per port. Every adapter runs the suite of its port.

mod artifact_store;
mod event_store;
mod event_handles;
mod llm_provider;
mod platform;
mod sandbox;
mod session_backend;
mod skill_source;
mod tool;

pub use artifact_store::{ArtifactBounds, artifact_store};
pub use event_store::event_store;
pub use llm_provider::{Scene, Stage, TEXT, example_request, llm_provider};
pub use platform::{clock, entropy};
pub use sandbox::sandbox;
pub use session_backend::{
    DamagedRow, FenceBounds, FenceHosts, TwoHosts, explore_fence, session_backend,
    session_backend_on_damage, session_owners,
};
pub use skill_source::{SkillWithFiles, example_skills, skill_source};
pub use tool::{example_context, tool};
