//! Ids of tool calls. The wire adapter alone creates them, and only where the server sent none, one
//! that this conversation has already used, or one that is too long. Deterministic: the same reply to the same history
//! gets the same ids.

use std::collections::HashSet;

use callboard_actors::chat::{Message, MessageList};

/// Longest id that is taken from a server. It is in every event, webhook and address of the call.
const ID_BYTES_MAX: usize = 256;

/// Assigns the ids of the tool calls in one reply.
#[derive(Debug)]
pub(super) struct CallIds {
    history: MessageList,
    /// The ids of the history and of this reply; `None` before the first call.
    used: Option<HashSet<String>>,
    /// The calls of this reply so far.
    given: usize,
}

impl CallIds {
    pub(super) fn new(history: MessageList) -> Self {
        Self {
            history,
            used: None,
            given: 0,
        }
    }

    /// Returns the offered id if it is usable and unused, else a generated one.
    pub(super) fn assign(&mut self, offered: &str, name: &str, arguments: &str) -> String {
        let history = &self.history;
        let used = self.used.get_or_insert_with(|| {
            let ids = history.iter().flat_map(Message::tool_use_ids);
            ids.map(ToString::to_string).collect()
        });
        let is_usable = !offered.is_empty() && offered.len() <= ID_BYTES_MAX;
        let id = if is_usable && !used.contains(offered) {
            offered.to_owned()
        } else {
            make(used, history.len(), self.given, name, arguments)
        };
        self.given += 1;
        used.insert(id.clone());
        id
    }
}

/// Makes an id that is in no message of the history and given to no other call.
fn make(
    used: &HashSet<String>,
    messages: usize,
    mut number: usize,
    name: &str,
    arguments: &str,
) -> String {
    // FNV-1a, because stored ids must not change. The standard library's hash may change.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        bytes
            .iter()
            .for_each(|byte| hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    };
    take(&(messages as u64).to_le_bytes());
    take(name.as_bytes());
    take(&[0]);
    take(arguments.as_bytes());
    loop {
        let id = format!("call_{number}_{hash:016x}");
        if !used.contains(&id) {
            return id;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::chat::{ContentBlock, Message, RawJson, Role, ToolUseBlock};

    use super::*;

    #[test]
    fn an_id_that_is_too_long_is_replaced() {
        let mut ids = CallIds::new(MessageList::default());
        let (longest, longer) = ("x".repeat(ID_BYTES_MAX), "x".repeat(ID_BYTES_MAX + 1));

        assert_eq!(ids.assign(&longest, "f", "{}"), longest);
        assert!(ids.assign(&longer, "f", "{}").starts_with("call_1_"));
    }

    #[test]
    fn a_missing_or_repeated_id_is_replaced_and_always_by_the_same() {
        let call = ToolUseBlock {
            id: "call_0".into(),
            name: "f".into(),
            input: RawJson::empty_object(),
        };
        let history =
            MessageList::from_iter([
                Message::new(Role::Assistant, &[ContentBlock::ToolUse(call)]).unwrap(),
            ]);

        let ids = |history: &MessageList| {
            let mut ids = CallIds::new(history.clone());
            ["call_0", "call_1", "call_1", "", ""].map(|offered| ids.assign(offered, "f", "{}"))
        };
        let first = ids(&history);
        let again = ids(&history);

        assert_eq!(first, again);
        assert_eq!(first[1], "call_1");
        assert_eq!(
            first.iter().collect::<std::collections::HashSet<_>>().len(),
            5
        );
        assert!(!first.contains(&"call_0".to_owned()));
    }
}
