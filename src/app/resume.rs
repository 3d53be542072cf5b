//! Resumes rounds that were open when the last host stopped: page by page, a few at a time, each
//! after a short random delay, so that a start does not cause a burst of model calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use callboard_actors::{
    ids::{Scope, TenantId},
    journal::Head,
    ports::{Entropy as _, StoreError},
    stream::Open,
};
use futures_util::{StreamExt as _, stream};

use crate::{
    Host,
    clock::SystemEntropy,
    storage::{Orphan, Postgres},
};

/// Conversations read from the store per query.
const PAGE: usize = 256;

/// Conversations activated at once: fewer than may load, so that prompts find room.
const AT_ONCE: usize = 16;

/// Maximum random delay before each one.
const JITTER: Duration = Duration::from_millis(20);

/// How often a serving host looks for open rounds that no activation runs.
const SWEEP: Duration = Duration::from_secs(30);

/// Counts for the log of `serve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Resumed {
    /// Conversations that were activated.
    pub(crate) woken: usize,
    /// Conversations of tenants that are not served now; they are unchanged.
    pub(crate) left: usize,
    /// Conversations that could not be activated; the log says why.
    pub(crate) failed: usize,
    /// Conversations of single calls that were erased.
    pub(crate) erased: usize,
}

/// Finds conversations that single calls to the OpenAI-compatible endpoint left behind. Call this
/// before serving requests.
///
/// # Errors
/// The store's error.
pub(super) async fn left_behind(
    host: &Host,
    tenants: &BTreeSet<TenantId>,
) -> Result<Vec<Scope>, StoreError> {
    let mut left = Vec::new();
    for tenant in tenants {
        left.extend(crate::http::left_behind(host, tenant).await?);
    }
    Ok(left)
}

/// Erases `left_behind`, because no client waits for these answers any more, then activates every
/// conversation of `tenants` with an open round, except those for which `is_locked` says that an
/// interactive program on the same store runs them.
///
/// # Errors
/// The store's error.
///
/// # Cancel safety
/// Conversations that were activated stay active; the next call finds the others again.
pub(crate) async fn resume_interrupted(
    host: &Host,
    tenants: &BTreeSet<TenantId>,
    left_behind: Vec<Scope>,
    is_locked: impl Fn(&Scope) -> bool,
) -> Result<Resumed, StoreError> {
    let single_calls: BTreeSet<Scope> = left_behind.iter().cloned().collect();
    let erased: Vec<bool> = stream::iter(left_behind)
        .map(|scope| erase(host, scope))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let erased = erased.into_iter().filter(|erased| *erased).count();
    let mut after = None;
    let mut resumed = Resumed {
        erased,
        ..Resumed::default()
    };
    loop {
        let page: Vec<Scope> = host
            .ports()
            .sessions
            .list_open(Open::Running, None, after, PAGE)
            .await?;
        let Some(last) = page.last() else {
            return Ok(resumed);
        };
        after = Some(last.clone());
        let page = page
            .into_iter()
            .filter(|scope| !single_calls.contains(scope)) // One that could not be erased is tried again by the next start.
            .filter(|scope| !is_locked(scope));
        let (ours, others): (Vec<Scope>, Vec<Scope>) =
            page.partition(|scope| tenants.contains(&scope.tenant));
        resumed.left += others.len();
        let woken: Vec<bool> = stream::iter(ours)
            .map(|scope| wake(host, scope))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let well = woken.iter().filter(|well| **well).count();
        resumed.woken += well;
        resumed.failed += woken.len() - well;
    }
}

/// Looks for open rounds of this host's tenants that no activation runs, and resumes them: rounds
/// that could not be resumed at the start, or whose activation ended while the store was away. Runs
/// until it is dropped. `serve` holds the lock of its data folder, so no other host runs the rounds.
///
/// A round is resumed when two sweeps find its journal at the same head, and no interactive program
/// has locked its session: such a program on the same store runs its rounds, and its model may take
/// longer for a call than the time between two sweeps.
pub(super) async fn keep_resuming<F: Future<Output = BTreeSet<TenantId>>>(
    host: &Host,
    tenants: impl Fn() -> F,
    is_locked: impl Fn(&Scope) -> bool,
) {
    let mut seen = BTreeMap::new();
    loop {
        tokio::time::sleep(SWEEP.mul_f64(0.75 + SystemEntropy.fraction() / 2.0)).await;
        if host.store_outage().is_some() {
            continue;
        }
        match sweep(host, &tenants().await, &seen, &is_locked).await {
            Ok(now) => seen = now,
            Err(error) => tracing::debug!(%error, "open rounds were not looked for"),
        }
    }
}

/// How often a host looks for rounds of hosts that are gone.
const TAKE_OVER_LOOK: Duration = Duration::from_secs(1);

/// Looks after which a host takes a round that falls to another one, which did not.
const PATIENCE: u32 = 5;

/// Rounds of hosts that are gone that are taken over at each look.
const TAKEN_OVER_MAX: usize = 1000;

/// Resumes the rounds of hosts that are gone, until it is dropped. They fall to the hosts that are
/// left in equal shares; what a host does not take in time is taken by any of them.
pub(super) async fn keep_taking_over<F: Future<Output = BTreeSet<TenantId>>>(
    host: &Host,
    store: &Postgres,
    tenants: impl Fn() -> F,
) {
    let mut looks: BTreeMap<Scope, u32> = BTreeMap::new();
    loop {
        tokio::time::sleep(TAKE_OVER_LOOK.mul_f64(0.75 + SystemEntropy.fraction() / 2.0)).await;
        let orphans = match store.orphans(TAKEN_OVER_MAX).await {
            Ok(orphans) => orphans,
            Err(error) => {
                tracing::debug!(%error, "rounds of other hosts were not looked for");
                continue;
            }
        };
        if orphans.is_empty() {
            looks.clear();
            continue;
        }
        let served = tenants().await;
        let mut seen = BTreeMap::new();
        let mut due = Vec::new();
        for Orphan { scope, is_ours } in orphans {
            let count = looks.get(&scope).copied().unwrap_or_default() + 1;
            if served.contains(&scope.tenant)
                && !host.is_awake(&scope)
                && (is_ours || count > PATIENCE)
            {
                due.push(scope.clone());
            }
            seen.insert(scope, count);
        }
        looks = seen;
        let woken: Vec<bool> = stream::iter(due)
            .map(|scope| wake(host, scope))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let taken = woken.into_iter().filter(|well| *well).count();
        if taken > 0 {
            tracing::info!(taken, "rounds of hosts that are gone were taken over");
        }
    }
}

/// Resumes the open rounds that are where `seen` saw them. Returns those that were found.
async fn sweep(
    host: &Host,
    tenants: &BTreeSet<TenantId>,
    seen: &BTreeMap<Scope, Head>,
    is_locked: impl Fn(&Scope) -> bool,
) -> Result<BTreeMap<Scope, Head>, StoreError> {
    let sessions = &host.ports().sessions;
    let mut found = BTreeMap::new();
    let mut after = None;
    loop {
        let page = sessions.list_open(Open::Running, None, after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(found);
        };
        after = Some(last.clone());
        for scope in page {
            if !tenants.contains(&scope.tenant) || host.is_awake(&scope) || is_locked(&scope) {
                continue;
            }
            let head = sessions.head(&scope).await?;
            if seen.get(&scope) == Some(&head) {
                wake(host, scope).await;
            } else {
                found.insert(scope, head);
            }
        }
    }
}

async fn wake(host: &Host, scope: Scope) -> bool {
    tokio::time::sleep(JITTER.mul_f64(SystemEntropy.fraction())).await;
    let woken = host
        .tenant(&scope.tenant)
        .conversation(&scope.conversation)
        .resume()
        .await;
    if let Err(error) = &woken {
        tracing::warn!(%error, tenant = %scope.tenant, conversation = %scope.conversation, "an open round could not be resumed");
    }
    woken.is_ok()
}

async fn erase(host: &Host, scope: Scope) -> bool {
    let erased = host
        .tenant(&scope.tenant)
        .conversation(&scope.conversation)
        .delete()
        .await;
    if let Err(error) = &erased {
        tracing::warn!(%error, tenant = %scope.tenant, conversation = %scope.conversation, "the conversation of a single call could not be erased");
    }
    erased.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use callboard_actors::{
        ids::ConversationId,
        memory::MemorySessions,
        ports::SessionBackend,
        testing::{Reply, ScriptedModel},
    };

    use super::*;

    #[tokio::test]
    async fn what_single_calls_left_behind_is_erased_and_other_open_rounds_are_taken_up() {
        let store: Arc<dyn SessionBackend> = Arc::new(MemorySessions::new());
        let first = Host::builder()
            .provider(ScriptedModel::always(Reply::stall()))
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();
        let single = format!("openai-{}", "0a".repeat(16));
        let ids = [single.as_str(), "openai-mine", "support"];
        for id in ids {
            drop(
                first
                    .tenant("acme")
                    .conversation(id)
                    .send("Hi")
                    .await
                    .unwrap(),
            );
        }
        let tenants = BTreeSet::from([TenantId::new("acme").unwrap()]);
        let of = |id: &str| {
            Scope::new(
                TenantId::new("acme").unwrap(),
                ConversationId::new(id).unwrap(),
            )
        };
        // As after a crash: a second host opens what the first one stored.
        let model = Arc::new(ScriptedModel::always(Reply::text("taken up")));
        let second = Host::builder()
            .shared_provider(model.clone())
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();

        let left = left_behind(&second, &tenants).await.unwrap();
        assert_eq!(left, [of(&single)]);
        let resumed = resume_interrupted(&second, &tenants, left, |_| false)
            .await
            .unwrap();

        assert_eq!(
            resumed,
            Resumed {
                woken: 2,
                erased: 1,
                ..Resumed::default()
            }
        );
        assert_eq!(store.head(&of(&single)).await.unwrap(), Head::default());
        model.until(|counts| counts.started >= 2).await;
        assert!(store.head(&of("openai-mine")).await.unwrap() != Head::default());
    }
    #[tokio::test]
    async fn a_round_that_no_activation_runs_is_resumed_by_the_second_sweep() {
        let store: Arc<dyn SessionBackend> = Arc::new(MemorySessions::new());
        let first = Host::builder()
            .provider(ScriptedModel::always(Reply::stall()))
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();
        for tenant in ["acme", "other"] {
            let talk = first.tenant(tenant).conversation("c-1");
            drop(talk.send("Hi").await.unwrap());
        }
        let model = Arc::new(ScriptedModel::always(Reply::stall()));
        let second = Host::builder()
            .shared_provider(model.clone())
            .shared_sessions(store)
            .build()
            .await
            .unwrap();
        let tenants = BTreeSet::from([TenantId::new("acme").unwrap()]);

        let free = |_: &Scope| false;
        let seen = sweep(&second, &tenants, &BTreeMap::new(), free)
            .await
            .unwrap();
        assert_eq!((seen.len(), second.awake()), (1, 0));
        let locked = sweep(&second, &tenants, &seen, |_| true).await.unwrap();
        assert_eq!(
            (locked.len(), second.awake()),
            (0, 0),
            "an interactive program waits for its model"
        );
        let rest = sweep(&second, &tenants, &seen, free).await.unwrap();

        assert_eq!((rest.len(), second.awake()), (0, 1));
        model.until(|counts| counts.started == 1).await;
        let again = sweep(&second, &tenants, &seen, free).await.unwrap();
        assert!(again.is_empty(), "an active round is left alone");
    }
}
