//! Checks of a PostgreSQL database: that it answers, its hosts, its clock and what it counts.

use std::collections::BTreeSet;

use super::Finding;
use crate::{
    cli::terminal::{counted, sanitize},
    config::DatabaseAddress,
    storage::{DatabaseHost, DatabaseInfo, HeadTable, Postgres},
};

/// Clocks further apart are reported. Times in journals are those of the hosts.
const CLOCK_MS: u64 = 1000;

/// Changes of the table of heads before its figures mean something.
const UPDATES_MIN: u64 = 10_000;

/// Below this share of changes within a page, every append pays for an index, too.
const HOT_PERCENT: u64 = 95;

/// Connections that a host opens.
const OF_A_HOST: u64 = 14;

/// Opens a database as `serve` would.
pub(super) async fn findings(address: &DatabaseAddress) -> Vec<Finding> {
    let shown = address.shown();
    let opened = match Postgres::open(address.expose()).await {
        Ok(store) => store.info().await,
        Err(error) => Err(error),
    };
    match opened {
        Ok(info) => described(&shown.to_string(), &info),
        Err(error) => vec![Finding::fail(
            "store",
            format!("{shown}: {error}"),
            "check `[store] url`, and that the server runs",
        )],
    }
}

fn described(shown: &str, info: &DatabaseInfo) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "store",
        format!(
            "{shown} answers (PostgreSQL {}{}), has the current schema ({}) and {}{}",
            info.server,
            match info.replicas {
                0 => String::new(),
                some => format!(", {}", counted(some, "replica")),
            },
            info.schema,
            counted(info.conversations, "conversation"),
            match info.hosts.len() {
                0 => String::new(),
                1 => "; a host serves it now".to_owned(),
                hosts => format!("; {hosts} hosts serve it now"),
            }
        ),
    )];
    findings.extend(hosts(&info.hosts));
    findings.push(clock(info.clock_ahead_ms));
    findings.push(connections(info.connections));
    findings.extend(head(&info.head));
    findings
}

fn hosts(hosts: &[DatabaseHost]) -> Option<Finding> {
    let each = hosts.iter().map(|host| {
        let name = match host.address.as_str() {
            "" => "a host without an address",
            address => address,
        };
        let program = match host.program.as_str() {
            "" => "of an older version",
            program => program,
        };
        let seconds = host.beat_ms as f64 / 1000.0;
        format!("{name} {program}, {seconds:.1} s ago")
    });
    let each: Vec<String> = each.map(|host| sanitize(&host)).collect();
    let versions: BTreeSet<&str> = hosts.iter().map(|host| host.program.as_str()).collect();
    match versions.len() {
        0 => None,
        1 => Some(Finding::ok("hosts", each.join("; "))),
        _ => Some(Finding::warn(
            "hosts",
            each.join("; "),
            "finish the upgrade: an older host cannot read what a newer one stores",
        )),
    }
}

fn clock(ahead_ms: i64) -> Finding {
    let apart = ahead_ms.unsigned_abs();
    let side = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let text = format!("this machine is {apart} ms {side} the database");
    match apart > CLOCK_MS {
        false => Finding::ok("clock", text),
        true => Finding::warn("clock", text, "set both clocks by NTP"),
    }
}

fn connections((used, most): (u64, u64)) -> Finding {
    let text = format!("{used} of {most} connections to the server are in use");
    match used.saturating_add(OF_A_HOST) > most {
        false => Finding::ok("connections", text),
        true => Finding::warn(
            "connections",
            text,
            format!(
                "another host opens {OF_A_HOST}: raise `max_connections`, or put a pooler before it"
            ),
        ),
    }
}

fn head(head: &HeadTable) -> Option<Finding> {
    let percent = head.hot_percent().filter(|_| head.updates >= UPDATES_MIN)?;
    let text = format!(
        "{percent} % of the changes of journal ends touched no index; {} of {} row versions are old, {} KiB",
        head.dead,
        head.dead.saturating_add(head.rows),
        head.bytes / 1024,
    );
    Some(match percent < HOT_PERCENT {
        false => Finding::ok("journal ends", text),
        true => Finding::warn(
            "journal ends",
            text,
            "look for a transaction that stays open, and for a vacuum that does not keep up",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DatabaseInfo {
        let host = |n: u8, program: &str| DatabaseHost {
            address: format!("http://10.0.0.{n}:8787"),
            program: program.to_owned(),
            beat_ms: 1200,
        };
        DatabaseInfo {
            server: "15.18".into(),
            schema: 4,
            conversations: 3,
            hosts: vec![host(1, "0.2.0"), host(2, "0.2.0")],
            clock_ahead_ms: -20,
            connections: (30, 100),
            replicas: 1,
            head: HeadTable {
                updates: 20_000,
                hot: 19_900,
                dead: 10,
                rows: 90,
                bytes: 8192,
            },
        }
    }

    fn shown(info: &DatabaseInfo) -> String {
        format!("{:#?}", described("postgres://db", info))
    }

    #[test]
    fn a_sound_database_is_described_without_a_warning() {
        let sound = shown(&info());

        for text in [
            "PostgreSQL 15.18, 1 replica",
            "2 hosts serve it now",
            "http://10.0.0.2:8787 0.2.0, 1.2 s ago",
            "20 ms behind",
            "30 of 100 connections",
            "99 % of the changes",
        ] {
            assert!(sound.contains(text), "{text}: {sound}");
        }
        assert!(!sound.contains("Warn"), "{sound}");
    }

    #[test]
    fn each_trouble_of_a_database_is_one_warning() {
        let troubles: [fn(&mut DatabaseInfo); 4] = [
            |info| info.hosts[0].program = String::new(),
            |info| info.clock_ahead_ms = 1500,
            |info| info.connections = (90, 100),
            |info| info.head.hot = 18_000,
        ];
        for trouble in troubles {
            let mut info = info();
            trouble(&mut info);

            let troubled = shown(&info);

            assert_eq!(troubled.matches("Warn").count(), 1, "{troubled}");
        }
    }
}
