//! `callboard fanout --list`: lists the stored fan-outs.

use callboard_actors::{
    host::{StoredFanOut, stored_fan_outs},
    journal::thousands,
    policy::{Amount, usd},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

use super::FanoutArgs;
use crate::{
    app::{Opening, Sessions},
    cli::{
        failure::{Done, Failure},
        remote::Remote,
        terminal::{err_line, out, out_json, sanitize},
    },
    config::Config,
};

/// Journals that one read of the store covers.
const TASKS: usize = 1000;

/// A line of the list, as a server sends it.
#[derive(Deserialize)]
struct Served {
    name: String,
    tasks: u64,
    done: u64,
    failed: u64,
    tokens: u64,
    cost_micro_usd: u64,
    began_at: Timestamp,
    updated_at: Timestamp,
}

#[derive(Deserialize)]
struct Listing {
    /// Absent at a server that does not list stored fan-outs.
    stored: Option<Vec<Served>>,
    #[serde(default)]
    next: Option<String>,
}

/// A line of the list, for programs.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    began_at: String,
    updated_at: String,
    tasks: u64,
    done: u64,
    failed: u64,
    open: u64,
    tokens: u64,
    cost_micro_usd: u64,
}

pub(super) async fn run(config: &Config, args: &FanoutArgs) -> Result<Done, Failure> {
    let names_store = args.host.db.is_some() || !args.of.is_default();
    let mut found = match args.server.remote(names_store)? {
        Some(remote) => of_server(&remote).await?,
        None => of_store(config, args).await?,
    };
    found.sort_by(|a, b| (b.began_at, &a.name).cmp(&(a.began_at, &b.name)));
    if args.json {
        let rows: Vec<Row<'_>> = found.iter().map(row).collect();
        out_json(&serde_json::to_string_pretty(&rows).unwrap_or_default());
        return Ok(Done::Well);
    }
    if found.is_empty() {
        err_line("no fan-outs are stored");
    }
    out(&table(&found));
    Ok(Done::Well)
}

async fn of_store(config: &Config, args: &FanoutArgs) -> Result<Vec<StoredFanOut>, Failure> {
    let sessions = Sessions::open(config, args.host.db.as_deref(), Opening::Existing).await?;
    let backend = sessions.backend();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let (more, next) = stored_fan_outs(&*backend, args.of.tenant(), after, TASKS).await?;
        found.extend(more);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

async fn of_server(remote: &Remote) -> Result<Vec<StoredFanOut>, Failure> {
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let query = format!("stored=true{after}");
        let page: Listing = remote.get("/v1/fanouts", &query).await?;
        let stored = page.stored.ok_or_else(|| {
            Failure::work("the server lists no stored fan-outs; it is older than this program")
        })?;
        found.extend(stored.into_iter().map(StoredFanOut::from));
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(found),
        }
    }
}

impl From<Served> for StoredFanOut {
    fn from(served: Served) -> Self {
        Self {
            name: served.name,
            tasks: served.tasks,
            done: served.done,
            failed: served.failed,
            spent: Amount {
                tokens: served.tokens,
                micro_usd: served.cost_micro_usd,
                ..Amount::default()
            },
            began_at: served.began_at,
            updated_at: served.updated_at,
        }
    }
}

fn row(one: &StoredFanOut) -> Row<'_> {
    Row {
        name: &one.name,
        began_at: one.began_at.to_string(),
        updated_at: one.updated_at.to_string(),
        tasks: one.tasks,
        done: one.done,
        failed: one.failed,
        open: one.open(),
        tokens: one.spent.tokens,
        cost_micro_usd: one.spent.micro_usd,
    }
}

/// The rows for people.
fn table(found: &[StoredFanOut]) -> String {
    let width = found.iter().map(|one| one.name.len()).max();
    let width = width.unwrap_or_default();
    let mut table = String::new();
    for one in found {
        let when = one.began_at.to_string().replace('T', " ");
        let when = when.split('.').next().unwrap_or_default();
        let cost = match one.spent.micro_usd {
            0 => String::new(),
            cost => format!(" · {}", usd(cost)),
        };
        table += &format!(
            "{:<width$}  {when}  {} task{}: {} done, {} failed, {} open · {} tokens{cost}\n",
            sanitize(&one.name),
            one.tasks,
            if one.tasks == 1 { "" } else { "s" },
            one.done,
            one.failed,
            one.open(),
            thousands(one.spent.tokens),
        );
    }
    table
}
