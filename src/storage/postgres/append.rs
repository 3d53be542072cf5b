//! The statement that stores appends.

use callboard_actors::{
    ids::{Epoch, Scope, Seq},
    journal::Head,
    ports::{Append, AppendError},
};
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use super::connect::{Connector, Failure, STATEMENT_MAX, within};
use crate::storage::commit::{
    columns::{code, int, nat, now},
    digest::Digests,
};

/// Tries of a statement that another host's was in the way of.
const TRIES: usize = 3;

/// Appends of different conversations, as the statement takes them.
#[derive(Default)]
pub(super) struct Batch<'a> {
    /// Each append's conversation, and its number in the statement, from 1. A malformed one has none.
    members: Vec<(&'a Scope, Option<usize>)>,
    columns: Columns<'a>,
}

impl<'a> Batch<'a> {
    pub(super) fn of(appends: impl Iterator<Item = &'a Append>) -> Self {
        let mut batch = Self::default();
        for append in appends {
            // The head is compared by the statement; everything else about an append is judged here.
            let number = append.check(append.expected).ok().map(|head| {
                let number = batch.columns.tenants.len() + 1;
                batch.columns.add(number, append, head);
                number
            });
            batch.members.push((&append.scope, number));
        }
        batch
    }
}

/// The columns of the well-formed appends.
#[derive(Default)]
struct Columns<'a> {
    tenants: Vec<&'a str>,
    ids: Vec<&'a str>,
    was_epochs: Vec<i64>,
    was_seqs: Vec<i64>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
    opens: Vec<i64>,
    wakes: Vec<Option<i64>>,
    bytes: Vec<i64>,
    /// The number of the append that an entry belongs to, from 1.
    entry_of: Vec<i64>,
    entry_seqs: Vec<i64>,
    bodies: Vec<&'a [u8]>,
    digests: Vec<Vec<u8>>,
    /// The number of the append that a message belongs to, from 1.
    message_of: Vec<i64>,
    message_ids: Vec<&'a str>,
    message_ats: Vec<i64>,
    messages: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn add(&mut self, number: usize, append: &'a Append, head: Head) {
        let digests = Digests::of(&append.scope);
        self.tenants.push(append.scope.tenant.as_str());
        self.ids.push(append.scope.conversation.as_str());
        self.was_epochs.push(int(append.expected.epoch.0));
        self.was_seqs.push(int(append.expected.seq.0));
        self.epochs.push(int(head.epoch.0));
        self.seqs.push(int(head.seq.0));
        self.opens.push(code(append.open));
        self.wakes.push(append.wake_at.map(|at| int(at.0)));
        let bytes = append.entries.iter().map(|entry| entry.bytes.len() as u64);
        self.bytes.push(int(bytes.sum()));
        for entry in &append.entries {
            self.entry_of.push(int(number as u64));
            self.entry_seqs.push(int(entry.seq.0));
            self.bodies.push(&entry.bytes);
            self.digests
                .push(digests.entry(None, entry.seq, &entry.bytes).to_vec());
        }
        for message in &append.messages {
            self.message_of.push(int(number as u64));
            self.message_ids.push(&message.id);
            self.message_ats.push(int(message.at.0));
            self.messages.push(&message.body);
        }
    }
}

/// Gives conversations up that `owner` owns.
pub(super) async fn release(
    connector: &Connector,
    client: &Client,
    owner: &str,
    scopes: &[Scope],
) -> Result<(), Failure> {
    let tenants: Vec<&str> = scopes.iter().map(|scope| scope.tenant.as_str()).collect();
    let ids = scopes.iter().map(|scope| scope.conversation.as_str());
    let ids: Vec<&str> = ids.collect();
    let sql = connector.sql(include_str!("sql/release.sql"));
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&tenants, Type::TEXT_ARRAY),
        (&ids, Type::TEXT_ARRAY),
        (&owner, Type::TEXT),
    ];
    within(STATEMENT_MAX, client.query_typed(&sql, &parameters)).await?;
    Ok(())
}

/// Stores a batch as the host `owner`; returns the bytes of each append, or why it was not stored.
///
/// # Errors
/// The statement's failure: whether it was done is then unknown, unless the server refused it.
pub(super) async fn append(
    connector: &Connector,
    client: &Client,
    owner: Option<&str>,
    batch: &Batch<'_>,
) -> Result<Vec<Result<i64, AppendError>>, Failure> {
    let Batch { members, columns } = batch;
    let mut is_stored = vec![false; columns.tenants.len()];
    if !is_stored.is_empty() {
        for number in store(connector, client, owner, columns).await? {
            let place = usize::try_from(number)
                .ok()
                .and_then(|number| number.checked_sub(1));
            if let Some(stored) = place.and_then(|place| is_stored.get_mut(place)) {
                *stored = true;
            }
        }
    }
    let mut results = Vec::with_capacity(members.len());
    for (scope, number) in members {
        let place = number.and_then(|number| number.checked_sub(1));
        let is_stored = place.and_then(|place| is_stored.get(place).copied());
        results.push(match (is_stored, place) {
            (Some(true), Some(place)) => Ok(columns.bytes.get(place).copied().unwrap_or_default()),
            _ => Err(AppendError::Conflict {
                scope: (*scope).clone(),
                found: head(connector, client, scope).await?,
            }),
        });
    }
    Ok(results)
}

async fn store(
    connector: &Connector,
    client: &Client,
    owner: Option<&str>,
    columns: &Columns<'_>,
) -> Result<Vec<i64>, Failure> {
    let sql = connector.sql(include_str!("sql/append.sql"));
    let now = now();
    let parameters: [(&(dyn ToSql + Sync), Type); 19] = [
        (&columns.tenants, Type::TEXT_ARRAY),
        (&columns.ids, Type::TEXT_ARRAY),
        (&columns.was_epochs, Type::INT8_ARRAY),
        (&columns.was_seqs, Type::INT8_ARRAY),
        (&columns.epochs, Type::INT8_ARRAY),
        (&columns.seqs, Type::INT8_ARRAY),
        (&columns.opens, Type::INT8_ARRAY),
        (&columns.wakes, Type::INT8_ARRAY),
        (&columns.bytes, Type::INT8_ARRAY),
        (&now, Type::INT8),
        (&columns.entry_of, Type::INT8_ARRAY),
        (&columns.entry_seqs, Type::INT8_ARRAY),
        (&columns.bodies, Type::BYTEA_ARRAY),
        (&columns.digests, Type::BYTEA_ARRAY),
        (&owner, Type::TEXT),
        (&columns.message_of, Type::INT8_ARRAY),
        (&columns.message_ids, Type::TEXT_ARRAY),
        (&columns.message_ats, Type::INT8_ARRAY),
        (&columns.messages, Type::BYTEA_ARRAY),
    ];
    let mut tries = 1;
    loop {
        match within(STATEMENT_MAX, client.query_typed(&sql, &parameters)).await {
            Ok(rows) => {
                let numbers = rows.iter().map(|row| row.try_get::<_, i64>(0));
                return Ok(numbers.collect::<Result<_, _>>()?);
            }
            // Two hosts that contend for the same conversations; nothing was stored.
            Err(failure) if failure.is_in_the_way() && tries < TRIES => tries += 1,
            Err(failure) => return Err(failure),
        }
    }
}

/// The head of a conversation whose append was refused.
async fn head(connector: &Connector, client: &Client, scope: &Scope) -> Result<Head, Failure> {
    let sql = connector.sql(include_str!("sql/head.sql"));
    let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&tenant, Type::TEXT), (&id, Type::TEXT)];
    let rows = within(STATEMENT_MAX, client.query_typed(&sql, &parameters)).await?;
    let Some(row) = rows.first() else {
        return Ok(Head::default());
    };
    Ok(Head {
        epoch: Epoch(nat(row.try_get(1)?)),
        seq: Seq(nat(row.try_get(2)?)),
    })
}
