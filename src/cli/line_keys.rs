//! The keys of the line editor: the usual ones, and those that a chat handles itself.

use reedline::{
    EditMode, Emacs, KeyCode, KeyModifiers, PromptEditMode, ReedlineEvent, ReedlineRawEvent,
    default_emacs_keybindings,
};

use super::complete::MENU;

/// A key that the chat handles, not the line editor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChatKey {
    Escape,
}

impl ChatKey {
    const ALL: [(Self, &'static str); 1] = [(Self::Escape, "escape")];

    /// The key of a command that the line editor returns.
    pub(super) fn of(command: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == command);
        found.map(|(key, _)| *key)
    }

    fn event(self) -> ReedlineEvent {
        let found = Self::ALL.iter().find(|(key, _)| *key == self);
        ReedlineEvent::ExecuteHostCommand(found.map(|(_, name)| *name).unwrap_or_default().into())
    }
}

/// The keys of Emacs, Tab for the menu, and those of the chat.
pub(super) struct ChatKeys {
    keys: Emacs,
    /// Whether earlier lines are searched, which Escape ends.
    searches: bool,
}

impl ChatKeys {
    pub(super) fn new() -> Self {
        let mut keys = default_emacs_keybindings();
        let tab = ReedlineEvent::UntilFound(vec![
            ReedlineEvent::Menu(MENU.to_owned()),
            ReedlineEvent::MenuNext,
        ]);
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, tab);
        Self {
            keys: Emacs::new(keys),
            searches: false,
        }
    }

    fn of_chat(&mut self, event: ReedlineEvent) -> ReedlineEvent {
        match event {
            ReedlineEvent::Esc if !std::mem::take(&mut self.searches) => {
                ReedlineEvent::Multiple(vec![event, ChatKey::Escape.event()])
            }
            ReedlineEvent::SearchHistory => {
                self.searches = true;
                event
            }
            ReedlineEvent::Enter | ReedlineEvent::CtrlC => {
                self.searches = false;
                event
            }
            event => event,
        }
    }
}

impl EditMode for ChatKeys {
    fn parse_event(&mut self, event: ReedlineRawEvent) -> ReedlineEvent {
        let event = self.keys.parse_event(event);
        self.of_chat(event)
    }

    fn edit_mode(&self) -> PromptEditMode {
        self.keys.edit_mode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_is_a_key_of_the_chat_unless_it_ends_a_search() {
        let mut keys = ChatKeys::new();
        let escape = ReedlineEvent::Multiple(vec![ReedlineEvent::Esc, ChatKey::Escape.event()]);

        assert_eq!(keys.of_chat(ReedlineEvent::Esc), escape);
        keys.of_chat(ReedlineEvent::SearchHistory);
        assert_eq!(keys.of_chat(ReedlineEvent::Esc), ReedlineEvent::Esc);
        assert_eq!(keys.of_chat(ReedlineEvent::Esc), escape);
        assert_eq!(ChatKey::of("escape"), Some(ChatKey::Escape));
        assert_eq!(ChatKey::of("ls"), None);
    }
}
