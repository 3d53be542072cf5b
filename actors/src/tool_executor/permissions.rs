//! The permissions of a conversation's tool calls.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    ports::{Approval, PermissionLevel, ToolSpec},
    tool::ToolError,
};

/// A permission level, and the tools that may run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// `restricted` allows only tools that never need approval; `admin` allows every tool without
    /// approval.
    pub level: PermissionLevel,
    /// The only tools that may run; `None` allows all. A context modifier can narrow the set and
    /// never widen it.
    pub allowed_tools: Option<Arc<BTreeSet<String>>>,
}

impl Permissions {
    /// Why a tool may not run; `None` if it may.
    pub(crate) fn refusal(&self, spec: &ToolSpec) -> Option<ToolError> {
        let name = spec.name();
        if self
            .allowed_tools
            .as_ref()
            .is_some_and(|allowed| !allowed.contains(name))
        {
            return Some(
                ToolError::denied(format!(
                    "the tool {name:?} is not among the allowed tools here"
                ))
                .not_started(),
            );
        }
        let restricted =
            self.level == PermissionLevel::Restricted && spec.approval != Approval::Never;
        restricted.then(|| {
            ToolError::denied(format!(
                "the tool {name:?} changes something, and this conversation is restricted"
            ))
            .not_started()
        })
    }

    /// The names of the allowed tools, as part of the key under which results are shared.
    pub(super) fn names(&self) -> Vec<&str> {
        self.allowed_tools
            .iter()
            .flat_map(|allowed| allowed.iter().map(String::as_str))
            .collect()
    }
}
