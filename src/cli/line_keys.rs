//! The keys of the line editor: the usual ones, and those that a chat handles itself.

use reedline::{
    EditCommand, EditMode, Emacs, KeyCode, KeyModifiers, PromptEditMode, ReedlineEvent,
    ReedlineRawEvent, default_emacs_keybindings,
};

use super::{complete::MENU, pasted::image_path};

/// What the chat handles, not the line editor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChatKey {
    /// Escape.
    Escape,
    /// Ctrl-O: show the whole output of the last call.
    Unfold,
    /// Ctrl-G: write the line in the person's editor.
    Editor,
    /// Ctrl-V: attach the image of the clipboard.
    Clipboard,
    /// A paste that is the path of an image.
    Image(String),
}

/// What the command of a pasted path begins with.
const IMAGE: &str = "image:";

impl ChatKey {
    /// The key of a command that the line editor returns.
    pub(super) fn of(command: &str) -> Option<Self> {
        Some(match command {
            "escape" => Self::Escape,
            "unfold" => Self::Unfold,
            "editor" => Self::Editor,
            "clipboard" => Self::Clipboard,
            other => Self::Image(other.strip_prefix(IMAGE)?.to_owned()),
        })
    }

    fn event(self) -> ReedlineEvent {
        ReedlineEvent::ExecuteHostCommand(match self {
            Self::Escape => "escape".to_owned(),
            Self::Unfold => "unfold".to_owned(),
            Self::Editor => "editor".to_owned(),
            Self::Clipboard => "clipboard".to_owned(),
            Self::Image(pasted) => format!("{IMAGE}{pasted}"),
        })
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
        for (key, means) in [
            ('o', ChatKey::Unfold),
            ('g', ChatKey::Editor),
            ('v', ChatKey::Clipboard),
        ] {
            keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char(key), means.event());
        }
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
            ReedlineEvent::Edit(commands) => match commands.as_slice() {
                // Only a paste inserts a text at once.
                [EditCommand::InsertString(text)] if image_path(text).is_some() => {
                    ChatKey::Image(text.clone()).event()
                }
                _ => ReedlineEvent::Edit(commands),
            },
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
    }

    #[test]
    fn a_paste_is_text_unless_it_is_the_path_of_an_image() {
        let home = tempfile::tempdir().unwrap();
        let image = home.path().join("a.png");
        std::fs::write(&image, "").unwrap();
        let image = image.to_str().unwrap().to_owned();
        let paste = |text: &str| ReedlineEvent::Edit(vec![EditCommand::InsertString(text.into())]);
        let mut keys = ChatKeys::new();

        let event = keys.of_chat(paste(&image));
        assert_eq!(event, ChatKey::Image(image.clone()).event());
        let ReedlineEvent::ExecuteHostCommand(command) = event else {
            panic!("it is a command")
        };
        assert_eq!(ChatKey::of(&command), Some(ChatKey::Image(image.clone())));
        for text in ["ls", &format!("see {image}")] {
            assert_eq!(keys.of_chat(paste(text)), paste(text));
        }
        assert_eq!(ChatKey::of("ls"), None);
    }
}
