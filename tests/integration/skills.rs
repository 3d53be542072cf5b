//! Skills from a folder, and what they do in a conversation.

mod folder;
