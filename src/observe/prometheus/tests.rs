//! The tests read the page with their own parser, written from the description of the format.

use std::collections::{BTreeMap, BTreeSet};

use callboard_actors::{
    policy::{Price, Prices},
    testing::{Reply, ScriptedModel},
};

use super::*;
use crate::Host;

#[derive(Debug, Default)]
struct Read {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

/// Reads a page strictly: every sample after its family's HELP and TYPE, no sample twice, no stray byte.
fn parse(page: &str) -> Read {
    let mut read = Read::default();
    let mut helped = BTreeSet::new();
    let mut family = String::new();
    assert!(page.ends_with('\n'), "the last line ends");
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').unwrap();
            assert!(helped.insert(name.to_owned()) && !text.is_empty(), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                helped.contains(name) && ["counter", "gauge", "histogram"].contains(&kind),
                "{line}"
            );
            assert!((kind == "counter") == name.ends_with("_total"), "{line}");
            assert!(
                read.types
                    .insert(name.to_owned(), kind.to_owned())
                    .is_none(),
                "{line}"
            );
            family = name.to_owned();
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(end);
        let (labels, value) = labels(rest);
        let stem = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        assert!(
            name == family || stem == Some(&*family) && read.types[&family] == "histogram",
            "{line} is not of {family}"
        );
        assert!(
            name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
            "{line}"
        );
        assert!(
            read.samples
                .insert((name.to_owned(), labels), value.parse().unwrap())
                .is_none(),
            "twice: {line}"
        );
    }
    read
}

fn labels(rest: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    let Some(mut rest) = rest.strip_prefix('{') else {
        return (labels, rest.strip_prefix(' ').unwrap());
    };
    loop {
        let (name, after) = rest.split_once("=\"").unwrap();
        let mut text = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (_, '\\') => text.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("escaped {c}"),
                }),
                (at, '"') => break at,
                (_, c) => text.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), text).is_none());
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, rest.strip_prefix("} ").unwrap()),
        }
    }
}

impl Read {
    fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }
}

async fn busy_host() -> Host {
    let prices = Prices::default().with("*".to_owned(), Price::per_million(1.0, 2.0).unwrap());
    let host = Host::builder()
        .provider(ScriptedModel::always(Reply::text("Hello.")))
        .prices(prices)
        .build()
        .await
        .unwrap();
    for (tenant, prompts) in [("acme", 2), ("umbrella", 1)] {
        for _ in 0..prompts {
            host.tenant(tenant)
                .conversation("c")
                .send("Hello")
                .await
                .unwrap()
                .outcome()
                .await
                .unwrap();
        }
    }
    host
}

#[tokio::test]
async fn a_prometheus_parser_reads_the_operators_page() {
    let host = busy_host().await;

    let page = parse(&prometheus_text(&host, View::Operator).await);

    assert_eq!(page.get("callboard_prompts_total", &[]), Some(3.0));
    assert_eq!(
        page.get("callboard_tenant_prompts_total", &[("tenant", "acme")]),
        Some(2.0)
    );
    assert_eq!(
        page.get("callboard_tenant_rounds_total", &[("tenant", "umbrella")]),
        Some(1.0)
    );
    assert_eq!(page.get("callboard_conversations_awake", &[]), Some(2.0));
    assert_eq!(page.get("callboard_prompts_under_way", &[]), Some(0.0));
    let slots = |state: &str| page.get("callboard_conversation_slots", &[("state", state)]);
    assert_eq!(
        (slots("live"), slots("starting"), slots("closing")),
        (Some(2.0), Some(0.0), Some(0.0))
    );
    assert_eq!((slots("backoff"), slots("failed")), (Some(0.0), Some(0.0)));
    let resident = page.get("process_resident_memory_bytes", &[]);
    assert_eq!(
        resident.is_some_and(|bytes| bytes > 100_000.0),
        cfg!(target_os = "linux"),
        "{resident:?}"
    );
    let spent = page
        .get("callboard_tenant_cost_usd_total", &[("tenant", "acme")])
        .unwrap();
    let total = page.get("callboard_cost_usd_total", &[]).unwrap();
    let other = page
        .get("callboard_tenant_cost_usd_total", &[("tenant", "umbrella")])
        .unwrap();
    assert!(
        (spent + other - total).abs() < 1e-9,
        "{spent} + {other} = {total}"
    );
    assert!(
        page.samples
            .keys()
            .any(|(name, _)| name == "callboard_gateway_calls_free")
    );
}

#[tokio::test]
async fn buckets_add_up_to_their_count() {
    let host = busy_host().await;

    let page = parse(&prometheus_text(&host, View::Operator).await);

    for name in page
        .types
        .iter()
        .filter(|(_, kind)| *kind == "histogram")
        .map(|(name, _)| name)
    {
        let bucket = format!("{name}_bucket");
        let mut upto: Vec<(f64, f64)> = Vec::new();
        for ((sample, labels), value) in &page.samples {
            if *sample == bucket {
                upto.push((labels["le"].replace("+Inf", "inf").parse().unwrap(), *value));
            }
        }
        upto.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(
            upto.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{name} {upto:?}"
        );
        assert_eq!(
            upto.last().map(|last| last.1),
            page.get(&format!("{name}_count"), &[]),
            "{name}"
        );
    }
    assert_eq!(
        page.get("callboard_round_duration_seconds_count", &[]),
        Some(3.0)
    );
    assert_eq!(
        page.get("callboard_model_call_duration_seconds_count", &[]),
        Some(3.0)
    );
    assert_eq!(
        page.get("callboard_queue_wait_seconds_count", &[]),
        Some(6.0),
        "one for the round and one for the permit of each call"
    );
}

#[tokio::test]
async fn a_tenant_sees_its_own_figures_and_no_other_name() {
    let host = busy_host().await;
    let acme = TenantId::new("acme").unwrap();
    let unknown = TenantId::new("unknown").unwrap();

    let text = prometheus_text(&host, View::Tenant(&acme)).await;
    let page = parse(&text);
    let empty = parse(&prometheus_text(&host, View::Tenant(&unknown)).await);

    assert_eq!(
        (
            page.get("callboard_prompts_total", &[]),
            empty.get("callboard_prompts_total", &[])
        ),
        (Some(2.0), Some(0.0))
    );
    assert!(
        !text.contains("umbrella")
            && !text.contains("gateway")
            && !text.contains("callboard_tenants"),
        "{text}"
    );
}

#[test]
fn tenants_beyond_the_bound_share_a_label() {
    let reading = |prompts| TenantReading {
        prompts,
        rounds: 1,
        ..TenantReading::default()
    };
    let tenants = (0..5)
        .map(|n| (TenantId::new(format!("t{n}")).unwrap(), reading(n)))
        .collect();

    let rows = labelled(tenants, 2);

    let names: Vec<_> = rows
        .iter()
        .map(|(name, reading)| (name.as_str(), reading.prompts, reading.rounds))
        .collect();
    assert_eq!(names, [("t3", 3, 1), ("t4", 4, 1), ("(other)", 3, 3)]);
}

#[test]
fn labels_survive_quotes_and_line_breaks() {
    let mut page = Page::default();

    page.family("x", "gauge", "X.");
    page.sample("x", &[("a", "q\"b\\s\nn"), ("b", "")], 1);

    assert_eq!(
        parse(&page.0).get("x", &[("a", "q\"b\\s\nn"), ("b", "")]),
        Some(1.0)
    );
}
