//! The stored sessions, and the choice of one to continue.

use callboard_actors::{
    ids::{ConversationId, Seq},
    journal::{TITLE_ENTRIES, title},
};

use crate::{
    app::{Opening, Sessions},
    cli::{
        failure::Failure,
        flags::HostFlags,
        pick::pick,
        session::{newest_first, scope},
        signals::Signals,
        terminal::out_line,
    },
    config::Config,
    visible::visible_line,
};

/// Characters of a title in the list.
const TITLE_CHARS: usize = 60;

/// Sessions that are listed.
const LISTED: usize = 15;

/// Sessions that can be chosen from.
const CHOSEN_FROM: usize = 500;

/// The stored sessions, those used last first, each with its row of the list.
async fn stored(
    config: &Config,
    flags: &HostFlags,
    count: usize,
) -> Result<Vec<(ConversationId, String)>, Failure> {
    let sessions = Sessions::open(config, flags.db.as_deref(), Opening::Existing).await?;
    let rows = newest_first(&sessions).await?;
    let mut all = Vec::new();
    for (at, row) in rows.into_iter().take(count).enumerate() {
        let scope = scope(&row.conversation)?;
        let first = sessions
            .backend()
            .entries(&scope, Seq::default(), TITLE_ENTRIES)
            .await;
        let title = first
            .ok()
            .and_then(|first| title(&first))
            .unwrap_or_default();
        let time: String = row.updated_at.to_string().chars().take(16).collect();
        let shown = format!(
            "{:>3}  {}  {}  {}",
            at + 1,
            time.replace('T', " "),
            row.conversation,
            visible_line(&title, TITLE_CHARS)
        );
        all.push((row.conversation, shown));
    }
    Ok(all)
}

/// Prints the sessions.
pub(super) async fn list(config: &Config, flags: &HostFlags) -> Result<(), Failure> {
    for (_, row) in stored(config, flags, LISTED).await? {
        out_line(&row);
    }
    Ok(())
}

/// Prints the sessions, and lets the person choose one.
pub(super) async fn chosen(
    config: &Config,
    flags: &HostFlags,
    is_plain: bool,
    signals: &mut Signals,
) -> Result<Option<ConversationId>, Failure> {
    let mut all = stored(config, flags, CHOSEN_FROM).await?;
    if all.is_empty() {
        return Err(Failure::work("no session is stored"));
    }
    for (_, row) in all.iter().take(LISTED) {
        out_line(row);
    }
    if all.len() > LISTED {
        out_line(&format!("  … and {} more", all.len() - LISTED));
    }
    let rows = all.iter().map(|(_, row)| row.clone()).collect();
    let at = pick(rows, is_plain, signals).await;
    Ok(at.map(|at| all.swap_remove(at).0))
}

/// The session that a number of the list or an id names.
pub(super) async fn named(
    config: &Config,
    flags: &HostFlags,
    which: &str,
) -> Result<ConversationId, Failure> {
    let sessions = Sessions::open(config, flags.db.as_deref(), Opening::Existing).await?;
    let rows = newest_first(&sessions).await?;
    let named = match which.parse::<usize>() {
        Ok(number) => number.checked_sub(1).and_then(|at| rows.get(at)),
        Err(_) => rows.iter().find(|row| row.conversation.as_str() == which),
    };
    named.map(|row| row.conversation.clone()).ok_or_else(|| {
        Failure::work("there is no such session").hint("/sessions lists them with their numbers")
    })
}
