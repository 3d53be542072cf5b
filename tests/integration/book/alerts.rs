//! The alerts and the dashboard in `packaging/`: they are well formed, and every name and label in them is one of a running host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Home, Page, root};

/// Values of each label of each metric.
type Metrics = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A host that has what metrics are about: a refused prompt, and a webhook that no receiver takes.
const SCRIPT: &str = r#"
cat > callboard.toml <<'EOT'
[[provider]]
name = "offline"
kind = "offline"

[webhook]
url = "http://127.0.0.1:9/hook"
secret_env = "HOOK"
allow_hosts = ["127.0.0.1"]

EOT
callboard keys new > operator.txt
callboard keys new --tenant acme > acme.txt
{ echo '[host]'; echo "admin_key_sha256 = \"$(sed -n 's/^key_sha256: *//p' operator.txt)\""; } >> callboard.toml
tail -n 3 acme.txt >> callboard.toml
echo 'quotas = { requests_per_minute = 1 }' >> callboard.toml
ADMIN="authorization: Bearer $(sed -n 's/^key: *//p' operator.txt)"
KEY="authorization: Bearer $(sed -n 's/^key: *//p' acme.txt)"
HOOK=whsec_bm90LWEtcmVhbC1zZWNyZXQtbm90LWEtcmVhbC1zZWM= callboard --config callboard.toml serve 2> serve.log &
until grep -qs 'serves at' serve.log; do sleep 0.1; done
for prompt in 1 2; do
  curl -s -o answer.json http://127.0.0.1:8787/v1/conversations/a/messages -H "$KEY" -H 'content-type: application/json' -d '{"content":"Hello"}'
done
until curl -s http://127.0.0.1:8787/metrics -H "$ADMIN" | grep -q '^callboard_webhook_tries_failed_total.* [1-9]'; do sleep 0.1; done
curl -s http://127.0.0.1:8787/metrics -H "$ADMIN"
"#;

/// What a host serves at `/metrics`.
fn served() -> Metrics {
    let page = Page::read("operate.md");
    let script = super::with_ports(SCRIPT, &page.ports);
    let printed = page.typed(&Home::new(), &script);
    let mut found = Metrics::new();
    for line in printed.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, _)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let metric = found.entry(name.to_owned()).or_default();
        for (label, value) in pairs(labels.trim_end_matches('}')) {
            metric.entry(label.1).or_default().insert(value);
        }
    }
    assert!(found.len() > 30, "{printed}");
    found
}

/// The matchers or labels between braces: operator and name, and value.
fn pairs(text: &str) -> Vec<((String, String), String)> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    let of = |part: &str| {
        let at = part.find(['=', '!']).unwrap();
        let (name, rest) = part.split_at(at);
        let end = rest.find('"').unwrap();
        let (operator, value) = rest.split_at(end);
        let value = value.trim().trim_matches('"').to_owned();
        ((operator.to_owned(), name.trim().to_owned()), value)
    };
    parts.map(of).collect()
}

/// Labels that Prometheus adds.
const ADDED: &[&str] = &["instance", "job"];

/// What an expression asks for that the host does not have.
fn faults(expression: &str, served: &Metrics) -> Vec<String> {
    let mut found = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            found.push(format!("{open} and {close}"));
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut known: BTreeSet<&str> = ADDED.iter().copied().collect();
    let mut metrics = 0;
    let mut rest = expression;
    while let Some(at) = ["callboard_", "process_"]
        .iter()
        .filter_map(|start| rest.find(start))
        .min()
    {
        let from = &rest[at..];
        let end = from.find(|c| !is_name(c)).unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        metrics += 1;
        let Some(labels) = served.get(name) else {
            found.push(name.to_owned());
            rest = after;
            continue;
        };
        known.extend(labels.keys().map(String::as_str));
        let matchers = after
            .strip_prefix('{')
            .and_then(|inner| inner.split('}').next());
        for ((operator, label), value) in pairs(matchers.unwrap_or_default()) {
            let is_added = ADDED.contains(&label.as_str());
            let has = labels
                .get(&label)
                .is_some_and(|values| operator != "=" || values.contains(&value));
            if !is_added && !has {
                found.push(format!("{name}{{{label}{operator}\"{value}\"}}"));
            }
        }
        rest = after;
    }
    for by in expression.split("by (").skip(1) {
        let labels = by.split(')').next().unwrap().split(',').map(str::trim);
        found.extend(
            labels
                .filter(|label| !known.contains(label))
                .map(|label| format!("by {label}")),
        );
    }
    if metrics == 0 && !expression.contains("up{") {
        found.push("no metric".to_owned());
    }
    found
}

#[derive(serde::Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(serde::Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    _for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn packaged(name: &str) -> String {
    std::fs::read_to_string(root().join("packaging").join(name)).unwrap()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_and_labels_that_a_host_has() {
    let served = served();
    let rules: Rules = serde_saphyr::from_str(&packaged("prometheus-alerts.yml")).unwrap();
    let board: Value = serde_json::from_str(&packaged("grafana-dashboard.json")).unwrap();
    let page = std::fs::read_to_string(root().join("docs/operate.md")).unwrap();
    let (_, scrape) = page.split_once("```yaml\n").unwrap();
    let scrape: Value = serde_saphyr::from_str(scrape.split("```").next().unwrap()).unwrap();
    assert_eq!(
        scrape["scrape_configs"][0]["job_name"], "callboard",
        "alerts name it"
    );
    let mut asked: Vec<(String, String)> = Vec::new();
    for rule in rules.groups.into_iter().flat_map(|group| group.rules) {
        assert!(
            page.contains(&format!("| `{}` |", rule.alert)),
            "{}: docs/operate.md",
            rule.alert
        );
        assert!(["page", "ticket"].contains(&rule.labels["severity"].as_str()));
        assert!(
            rule.annotations.contains_key("summary")
                && rule.annotations.contains_key("description")
        );
        asked.push((rule.alert, rule.expr));
    }
    assert!(asked.len() > 10);

    assert!(
        board["schemaVersion"].as_u64().unwrap() >= 36,
        "an older form"
    );
    assert!(board["title"].is_string() && board["uid"].is_string());
    let mut ids = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        assert!(
            place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24,
            "{panel}"
        );
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert!(target["refId"].is_string() && target["legendFormat"].is_string());
            let title = panel["title"].as_str().unwrap().to_owned();
            asked.push((title, target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            asked.push((
                variable["name"].as_str().unwrap().to_owned(),
                query.to_owned(),
            ));
        }
    }

    let wrong: Vec<String> = asked
        .iter()
        .flat_map(|(name, expression)| {
            let faults = faults(expression, &served);
            faults
                .into_iter()
                .map(move |fault| format!("{name}: {fault}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_metric_a_label_and_a_value_that_no_host_has_are_found() {
    let labels = BTreeMap::from([("state".to_owned(), BTreeSet::from(["failed".to_owned()]))]);
    let served = Metrics::from([("callboard_slots".to_owned(), labels)]);
    let check = |expression| faults(expression, &served);

    assert!(check("sum by (state) (callboard_slots{state=\"failed\",job=~\"x\"}) > 0").is_empty());
    assert_eq!(check("callboard_slot > 0"), ["callboard_slot"]);
    assert_eq!(
        check("callboard_slots{state=\"lost\"}"),
        ["callboard_slots{state=\"lost\"}"]
    );
    assert_eq!(check("sum by (tenant) (callboard_slots)"), ["by tenant"]);
    assert_eq!(check("sum(callboard_slots"), ["( and )"]);
}
