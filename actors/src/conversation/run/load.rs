//! Loads a conversation from its store: the snapshot if it is usable, the entries after it, and
//! their fold.

use crate::{
    conversation::message::LoadFailure,
    ids::{Scope, Seq},
    journal::{Durable, Loaded, fold, restore},
    ports::{ListQuery, SessionBackend},
    tenant::Family,
};

/// Entries per read when the whole journal is read.
const PAGE: usize = 1000;

/// Loads a conversation and folds its journal.
pub(crate) async fn load(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<Durable, LoadFailure> {
    let loaded = sessions.load(scope).await.map_err(LoadFailure::from)?;
    folded(sessions, scope, loaded).await
}

/// Folds what the store returned; reads the whole journal if the snapshot is not usable. Fails if
/// the fold does not end at the head that the store reports.
async fn folded(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    loaded: Loaded,
) -> Result<Durable, LoadFailure> {
    let durable = match restore(&loaded) {
        Some(result) => result?,
        None => {
            tracing::warn!(conversation = %scope.conversation, "a snapshot was of no use; reading the whole journal");
            whole(sessions, scope).await?
        }
    };
    if durable.head != loaded.head.seq || durable.epoch != loaded.head.epoch {
        let seq = loaded.head.seq;
        let epoch = loaded.head.epoch;
        return Err(LoadFailure::Unreadable(format!(
            "the journal ends at {} of {}, its head says {seq} of {epoch}",
            durable.head, durable.epoch
        )));
    }
    Ok(durable)
}

/// Like [`folded`], for a conversation with a shared family budget: also enters what the
/// conversation and its sleeping subagents have spent.
pub(in crate::conversation) async fn folded_with(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    loaded: Loaded,
    family: Option<&Family>,
) -> Result<Durable, LoadFailure> {
    let durable = folded(sessions, scope, loaded).await?;
    let Some(family) = family else {
        return Ok(durable);
    };
    family.enter(&scope.conversation, durable.spent.amount);
    if scope.conversation.is_subagent() || durable.head == Seq(0) {
        return Ok(durable);
    }
    spent_by(sessions, scope, family).await?;
    Ok(durable)
}

/// Enters into `family` what the sleeping subagents of `parent` have spent.
pub(crate) async fn spent_by(
    sessions: &dyn SessionBackend,
    parent: &Scope,
    family: &Family,
) -> Result<(), LoadFailure> {
    let prefix = parent.conversation.children();
    let mut after = prefix.clone();
    loop {
        let query = ListQuery {
            after: Some(after),
            subagents: true,
            ..ListQuery::default()
        };
        let page = sessions
            .list(&parent.tenant, query)
            .await
            .map_err(LoadFailure::from)?;
        let Some(last) = page.last().map(|row| row.conversation.clone()) else {
            return Ok(());
        };
        // The ids of subagents share a prefix and pages are in order of ids, so the first id
        // without the prefix ends the search.
        let children = page
            .into_iter()
            .map(|row| row.conversation)
            .take_while(|id| id.as_str().starts_with(prefix.as_str()));
        for child in children {
            if !family.knows(&child) {
                let spent = load(sessions, &Scope::new(parent.tenant.clone(), child.clone()))
                    .await?
                    .spent
                    .amount;
                family.enter(&child, spent);
            }
        }
        if !last.as_str().starts_with(prefix.as_str()) {
            return Ok(());
        }
        after = last;
    }
}

async fn whole(sessions: &dyn SessionBackend, scope: &Scope) -> Result<Durable, LoadFailure> {
    let mut durable = Durable::default();
    loop {
        let page = sessions
            .entries(scope, durable.head, PAGE)
            .await
            .map_err(LoadFailure::from)?;
        if page.is_empty() {
            return Ok(durable);
        }
        let before = durable.head;
        durable = fold(durable, &page)?;
        if durable.head == before {
            return Err(LoadFailure::Unreadable(format!(
                "the journal does not go on after {}",
                Seq(before.0)
            )));
        }
    }
}
