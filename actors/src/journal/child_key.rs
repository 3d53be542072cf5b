//! The client key of a subagent's prompt. It says which tool call or which task of a fan-out started
//! the subagent: the id of the subagent holds only a hash of that.
//!
//! Pure.

use crate::ids::{CallKey, RoundId, Scope};

/// How every such key begins. The [`CallKey`] of the tool call follows.
pub(crate) const CHILD_KEY: &str = "subagent of ";

/// The start of the keys of a fan-out's tasks. They have the form of the tool calls 0, 1, 2 … of a
/// parent, although no model made these calls.
pub(crate) struct FanOutKeys {
    start: String,
    tasks: usize,
}

impl FanOutKeys {
    /// The keys of the fan-out `root`, which has `tasks` tasks.
    pub(crate) fn new(root: &Scope, tasks: usize) -> Self {
        let start = format!("{CHILD_KEY}{root}/0/");
        Self { start, tasks }
    }

    /// The key of one task. After a rewind it names the round that was taken back, so that the prompt
    /// counts as new.
    pub(crate) fn key(&self, index: u32, rewound: Option<RoundId>) -> String {
        let Self { start, tasks } = self;
        match rewound {
            None => format!("{start}{index} of {tasks}"),
            Some(round) => format!("{start}{index} of {tasks} after {round}"),
        }
    }
}

/// What such a key says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChildKey {
    /// The tool call that started the subagent; of a fan-out its name as the parent, and the index of
    /// the task.
    pub(crate) call: CallKey,
    /// The number of tasks of the fan-out. `None` for a tool call, and for a fan-out of a program
    /// that did not write it.
    pub(crate) tasks: Option<u64>,
}

impl ChildKey {
    /// Reads a key; `None` for one that a client chose.
    pub(crate) fn parse(key: &str) -> Option<Self> {
        let mut words = key.strip_prefix(CHILD_KEY)?.split(' ');
        let call = words.next()?.parse().ok()?;
        let tasks = match words.next() {
            Some("of") => words.next().and_then(|tasks| tasks.parse().ok()),
            _ => None,
        };
        Some(Self { call, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConversationId, TenantId};

    #[test]
    fn the_key_of_a_task_says_its_fan_out_and_the_number_of_tasks() {
        let name = ConversationId::new("fanout:files-7").unwrap();
        let root = Scope::new(TenantId::new("acme").unwrap(), name);
        let keys = FanOutKeys::new(&root, 300);

        let first = keys.key(41, None);
        let again = keys.key(41, Some(RoundId::from_random([7; 16])));

        assert_eq!(first, "subagent of acme/fanout:files-7/0/41 of 300");
        assert_ne!(first, again);
        for key in [&first, &again] {
            let said = ChildKey::parse(key).unwrap();
            assert_eq!(
                (&said.call.scope, said.call.index, said.tasks),
                (&root, 41, Some(300))
            );
        }
        let older = ChildKey::parse("subagent of acme/fanout:files-7/0/41").unwrap();
        assert_eq!((older.call.index, older.tasks), (41, None));
        assert_eq!(ChildKey::parse("acme/fanout:files-7/0/41 of 300"), None);
    }
}
