//! Orders the members of a commit into statements: as few as possible, and in no other order than
//! the callers see.
//!
//! Pure.

use std::collections::HashMap;

use callboard_actors::{
    ids::{Scope, TenantId},
    ports::Append,
};

use crate::storage::commit::job::Job;

/// What one statement or transaction stores.
#[derive(Debug)]
pub(super) enum Stage {
    /// Appends of as many conversations, in one statement.
    Appends(Vec<Append>),
    /// Conversations that are given up, in one statement.
    Releases(Vec<Scope>),
    /// Anything else.
    Single(Job),
}

/// Splits the members of a commit. Changes of one conversation stay in their order, and those of a
/// whole tenant come after everything of that tenant before them.
pub(super) fn stages(jobs: Vec<Job>) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    // The first stage that may hold the next append, by conversation and by tenant.
    let mut conversations: HashMap<Scope, usize> = HashMap::new();
    let mut tenants: HashMap<TenantId, usize> = HashMap::new();
    for job in jobs {
        match job {
            Job::Append(append) => {
                let scope = append.scope.clone();
                let of_tenant = tenants.get(&scope.tenant).copied().unwrap_or(0);
                let from = conversations
                    .get(&scope)
                    .copied()
                    .unwrap_or(0)
                    .max(of_tenant);
                let found = stages
                    .iter_mut()
                    .enumerate()
                    .skip(from)
                    .find_map(|(at, stage)| match stage {
                        Stage::Appends(appends) => Some((at, appends)),
                        Stage::Releases(_) | Stage::Single(_) => None,
                    });
                let at = match found {
                    Some((at, appends)) => {
                        appends.push(append);
                        at
                    }
                    None => {
                        stages.push(Stage::Appends(vec![append]));
                        stages.len() - 1
                    }
                };
                // An append of the same conversation builds on this one, so it needs a later one.
                conversations.insert(scope, at + 1);
            }
            Job::Release(scope) => {
                let from = conversations.get(&scope).copied().unwrap_or(0);
                let last = stages.len().saturating_sub(1);
                let at = match stages.last_mut() {
                    Some(Stage::Releases(scopes)) if last >= from => {
                        scopes.push(scope.clone());
                        last
                    }
                    _ => {
                        stages.push(Stage::Releases(vec![scope.clone()]));
                        stages.len() - 1
                    }
                };
                conversations.insert(scope, at + 1);
            }
            #[cfg(feature = "sqlite")]
            Job::Outbox(..) => stages.push(Stage::Single(job)),
            job @ (Job::Delete(..)
            | Job::Clear(..)
            | Job::Snapshot(..)
            | Job::Mark(..)
            | Job::Empty(..)
            | Job::Cut(..)
            | Job::Erase(..)
            | Job::Count(..)
            | Job::Spend(..)) => {
                let next = stages.len() + 1;
                match job.scope() {
                    Some(scope) => drop(conversations.insert(scope.clone(), next)),
                    None => drop(tenants.insert(job.tenant().clone(), next)),
                }
                stages.push(Stage::Single(job));
            }
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        ids::{ConversationId, Epoch},
        journal::Head,
        ports::Durability,
        stream::Open,
    };
    use tokio::sync::oneshot;

    use super::*;

    fn scope(name: &str) -> Scope {
        let (tenant, id) = name.split_once('/').unwrap();
        Scope::new(
            TenantId::new(tenant).unwrap(),
            ConversationId::new(id).unwrap(),
        )
    }

    fn append(name: &str) -> Job {
        Job::Append(Append {
            scope: scope(name),
            expected: Head::default(),
            epoch: Epoch(1),
            entries: Vec::new(),
            open: Open::None,
            wake_at: None,
            messages: Vec::new(),
            durability: Durability::Awaited,
            done: Box::new(drop),
        })
    }

    fn delete(name: &str) -> Job {
        Job::Delete(scope(name), oneshot::channel().0)
    }

    fn erase(tenant: &str) -> Job {
        Job::Erase(TenantId::new(tenant).unwrap(), oneshot::channel().0)
    }

    fn check(jobs: Vec<Job>, expected: &[&str]) {
        let name = |scope: &Scope| format!("{}/{}", scope.tenant, scope.conversation);
        let shown: Vec<String> = stages(jobs)
            .iter()
            .map(|stage| match stage {
                Stage::Appends(appends) => appends
                    .iter()
                    .map(|append| name(&append.scope))
                    .collect::<Vec<_>>()
                    .join(" "),
                Stage::Releases(scopes) => format!(
                    "/{}",
                    scopes.iter().map(name).collect::<Vec<_>>().join(" /")
                ),
                Stage::Single(job) => format!(
                    "-{}",
                    job.scope().map_or_else(|| job.tenant().to_string(), name)
                ),
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn appends_of_many_conversations_are_one_statement() {
        check(
            vec![append("t/a"), append("t/b"), append("u/a")],
            &["t/a t/b u/a"],
        );
    }

    #[test]
    fn appends_of_one_conversation_keep_their_order() {
        check(
            vec![append("t/a"), append("t/b"), append("t/a"), append("t/c")],
            &["t/a t/b t/c", "t/a"],
        );
    }

    #[test]
    fn a_conversation_is_given_up_after_its_appends_and_before_its_next_ones() {
        let release = |name| Job::Release(scope(name));
        check(
            vec![
                append("t/a"),
                release("t/a"),
                release("t/b"),
                append("t/a"),
                append("t/c"),
            ],
            &["t/a t/c", "/t/a /t/b", "t/a"],
        );
    }

    #[test]
    fn an_append_passes_changes_of_others_and_none_of_its_own_conversation() {
        check(
            vec![append("t/a"), delete("t/a"), append("t/b"), append("t/a")],
            &["t/a t/b", "-t/a", "t/a"],
        );
    }

    #[test]
    fn an_append_passes_no_change_of_its_tenant() {
        check(
            vec![
                append("t/a"),
                erase("t"),
                append("u/a"),
                append("t/b"),
                append("u/a"),
            ],
            &["t/a u/a", "-t", "t/b u/a"],
        );
    }
}
