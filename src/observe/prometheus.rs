//! Renders `/metrics` and `/v1/metrics` in Prometheus' text format, version 0.0.4. It is written by
//! hand from one reading of the host's figures; a metrics library's registry would hold a second
//! copy of each figure.

use std::fmt::Write as _;

use callboard_actors::{
    host::{Host, HostFigures},
    ids::TenantId,
    metrics_collector::{BOUNDS_US, Distribution, REFUSALS, TenantReading},
};

use super::process::resident_bytes;

/// Media type of [`prometheus_text`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Tenants with their own label; further ones, the least busy, share `(other)`. This bounds the
/// scrape's size and the number of time series.
const TENANTS_MAX: usize = 200;

/// Label of the tenants beyond the limit. Tenant ids cannot contain parentheses, so it is unique.
const OTHER: &str = "(other)";

/// Whose metrics to render.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// Totals of the host and figures of each tenant, for the operator.
    Operator,
    /// Figures of one tenant only.
    Tenant(&'a TenantId),
}

/// Renders the metrics of a host. Asks its metrics collector; activates no conversation.
///
/// # Cancel safety
/// Reading changes nothing.
pub async fn prometheus_text(host: &Host, view: View<'_>) -> String {
    let figures = host.figures().await;
    let mut page = Page::default();
    match view {
        View::Operator => {
            of_host(&mut page, &figures);
            of_gateways(&mut page, &figures);
            of_tenants(&mut page, &labelled(figures.tenants, TENANTS_MAX), true);
        }
        View::Tenant(id) => {
            let own = figures
                .tenants
                .into_iter()
                .find(|(tenant, _)| tenant == id)
                .map(|(_, reading)| reading)
                .unwrap_or_default();
            of_tenants(&mut page, &[(String::new(), own)], false);
        }
    }
    page.0
}

/// Renders what became of webhooks: for each tenant the calls that were taken, the tries that failed,
/// and the messages that were given up or wait. The last tenants beyond [`TENANTS_MAX`] share a
/// label.
#[cfg(feature = "http")]
pub(crate) fn webhook_text<'a>(tenants: impl Iterator<Item = (&'a str, [u64; 4])>) -> String {
    const FAMILIES: [(&str, &str, &str); 4] = [
        (
            "callboard_webhooks_delivered_total",
            "counter",
            "Webhooks that the receiver took.",
        ),
        (
            "callboard_webhook_tries_failed_total",
            "counter",
            "Tries of webhooks that failed.",
        ),
        (
            "callboard_webhooks_given_up_total",
            "counter",
            "Webhooks that no further try follows.",
        ),
        (
            "callboard_webhooks_pending",
            "gauge",
            "Webhooks that wait, as of the last count, which is made once a minute.",
        ),
    ];
    let mut rows: Vec<(&str, [u64; 4])> = tenants.collect();
    let rest = rows.split_off(rows.len().min(TENANTS_MAX));
    if !rest.is_empty() {
        let sum = |sum: [u64; 4], (_, row): &(&str, [u64; 4])| {
            let mut added = sum
                .into_iter()
                .zip(row)
                .map(|(one, other)| one.saturating_add(*other));
            std::array::from_fn(|_| added.next().unwrap_or_default())
        };
        rows.push((OTHER, rest.iter().fold([0; 4], sum)));
    }
    let mut page = Page::default();
    if rows.is_empty() {
        return page.0;
    }
    for (at, (name, kind, help)) in FAMILIES.into_iter().enumerate() {
        page.family(name, kind, help);
        for (tenant, row) in &rows {
            page.sample(
                name,
                &[("tenant", tenant)],
                row.get(at).copied().unwrap_or_default(),
            );
        }
    }
    page.0
}

/// Tenants with their labels: the busiest `most` with their own, the rest merged.
fn labelled(
    mut tenants: Vec<(TenantId, TenantReading)>,
    most: usize,
) -> Vec<(String, TenantReading)> {
    tenants.sort_by(|(a, x), (b, y)| y.prompts.cmp(&x.prompts).then_with(|| a.cmp(b)));
    let rest = tenants.split_off(tenants.len().min(most));
    let mut rows: Vec<_> = tenants
        .into_iter()
        .map(|(id, reading)| (id.as_str().to_owned(), reading))
        .collect();
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    if !rest.is_empty() {
        rows.push((
            OTHER.to_owned(),
            rest.iter()
                .fold(TenantReading::default(), |sum, (_, reading)| {
                    sum.plus(reading)
                }),
        ));
    }
    rows
}

fn of_host(page: &mut Page, figures: &HostFigures) {
    let total = &figures.total;
    page.counter(
        "callboard_prompts_total",
        "Prompts accepted.",
        total.prompts,
    );
    page.counter(
        "callboard_refusals_total",
        "Prompts and other mail refused.",
        total.refusals,
    );
    page.counter("callboard_rounds_total", "Rounds finished.", total.rounds);
    page.counter(
        "callboard_rounds_failed_total",
        "Rounds that ended in an error or at a limit.",
        total.rounds_failed,
    );
    page.counter(
        "callboard_model_calls_total",
        "Model calls started.",
        total.model_calls,
    );
    page.counter(
        "callboard_model_retries_total",
        "Attempts of model calls after the first.",
        total.model_retries,
    );
    page.counter(
        "callboard_tool_calls_total",
        "Tool calls finished.",
        total.tool_calls,
    );
    page.counter(
        "callboard_tool_calls_failed_total",
        "Tool calls that failed.",
        total.tool_calls_failed,
    );
    page.counter(
        "callboard_tool_retries_total",
        "Attempts of tool calls after the first.",
        total.tool_retries,
    );
    page.counter(
        "callboard_tool_cache_hits_total",
        "Tool calls answered from the cache.",
        total.tool_cache_hits,
    );
    page.counter(
        "callboard_tool_runs_shared_total",
        "Tool calls that shared the run of an identical call.",
        total.tool_runs_shared,
    );
    page.counter(
        "callboard_tool_breaker_refusals_total",
        "Attempts refused by a tool's open circuit breaker.",
        total.tool_breaker_refusals,
    );
    page.counter(
        "callboard_skill_activations_total",
        "Skills activated.",
        total.skill_activations,
    );
    page.family(
        "callboard_tokens_total",
        "counter",
        "Tokens of model calls, input of all classes and output.",
    );
    page.sample(
        "callboard_tokens_total",
        &[("direction", "input")],
        total.input_tokens,
    );
    page.sample(
        "callboard_tokens_total",
        &[("direction", "output")],
        total.output_tokens,
    );
    page.counter(
        "callboard_cache_read_tokens_total",
        "Input tokens read from a provider's cache.",
        total.cache_read_tokens,
    );
    page.family(
        "callboard_cost_usd_total",
        "counter",
        "Cost of model calls whose model has a price, in US dollars.",
    );
    page.sample("callboard_cost_usd_total", &[], Usd(total.cost_micro_usd));
    page.counter(
        "callboard_actor_wake_ups_total",
        "Wake-ups of conversation actors by messages.",
        total.wake_ups,
    );
    page.counter(
        "callboard_conversation_lives_total",
        "Activations of conversations.",
        total.lives,
    );
    page.counter(
        "callboard_conversation_crashes_total",
        "Activations of conversations that ended in a crash.",
        total.crashes,
    );
    page.counter(
        "callboard_conversation_hibernations_total",
        "Times a conversation went to sleep.",
        total.hibernations,
    );
    page.counter(
        "callboard_store_pauses_total",
        "Pauses while the store was unavailable.",
        total.store_pauses,
    );
    page.counter(
        "callboard_compactions_total",
        "Compactions applied.",
        total.compactions,
    );
    page.counter(
        "callboard_compactions_dropped_total",
        "Compactions discarded because their context had changed.",
        total.compactions_dropped,
    );
    page.counter(
        "callboard_summaries_total",
        "Background summaries completed.",
        total.summaries,
    );
    page.counter(
        "callboard_summaries_failed_total",
        "Background summaries that failed or exceeded their budget.",
        total.summaries_failed,
    );
    page.counter(
        "callboard_exact_counts_total",
        "Token counts that a provider made.",
        total.exact_counts,
    );
    page.counter(
        "callboard_exact_counts_failed_total",
        "Token counts that a provider did not give.",
        total.exact_counts_failed,
    );
    page.family(
        "callboard_prefix_breaks_total",
        "counter",
        "Model calls whose prefix differed from the previous call's.",
    );
    for (cause, count) in [
        ("compaction", total.prefix_breaks_compaction),
        ("configuration", total.prefix_breaks_configuration),
        ("edit", total.prefix_breaks_edit),
        ("skill", total.prefix_breaks_skill),
        ("unknown", total.prefix_breaks_unknown),
    ] {
        page.sample("callboard_prefix_breaks_total", &[("cause", cause)], count);
    }
    page.counter(
        "callboard_rebilled_tokens_total",
        "Input tokens billed again because of prefix breaks, estimated.",
        total.rebilled_tokens,
    );
    page.gauge(
        "callboard_conversations_awake",
        "Conversations in memory.",
        figures.awake,
    );
    page.family(
        "callboard_conversation_slots",
        "gauge",
        "Conversations with a slot in the directory, by state.",
    );
    for (state, count) in figures.slots.by_state() {
        page.sample("callboard_conversation_slots", &[("state", state)], count);
    }
    let under_way: usize = figures
        .tenants
        .iter()
        .map(|(_, tenant)| tenant.under_way)
        .sum();
    page.gauge(
        "callboard_prompts_under_way",
        "Prompts between admission and answer.",
        under_way,
    );
    page.gauge(
        "callboard_tenants",
        "Tenants known to the host.",
        figures.tenants.len(),
    );
    if let Some(bytes) = resident_bytes(None) {
        page.family(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory of the process, in bytes.",
        );
        page.sample("process_resident_memory_bytes", &[], bytes);
    }
    let times = &figures.latencies;
    page.histogram(
        "callboard_round_duration_seconds",
        "Duration of rounds.",
        &times.round,
    );
    page.histogram(
        "callboard_model_call_duration_seconds",
        "Duration of model calls, including waits and retries.",
        &times.model_call,
    );
    page.histogram(
        "callboard_model_first_chunk_seconds",
        "Time from a model call's start to its first content.",
        &times.first_chunk,
    );
    page.histogram(
        "callboard_queue_wait_seconds",
        "Wait for the permit of a round or a model call.",
        &times.queue_wait,
    );
    page.histogram(
        "callboard_tool_call_duration_seconds",
        "Duration of tool calls, including all attempts.",
        &times.tool_call,
    );
}

fn of_gateways(page: &mut Page, figures: &HostFigures) {
    let rows = [
        ("callboard_gateway_calls_running", "Running model calls."),
        (
            "callboard_gateway_calls_free",
            "Free permits for model calls.",
        ),
        (
            "callboard_gateway_calls_waiting",
            "Model calls waiting for a permit.",
        ),
        (
            "callboard_gateway_breaker_open",
            "1 while the provider's circuit breaker is open.",
        ),
    ];
    for (name, help) in rows {
        page.family(name, "gauge", help);
        for (gateway, status) in &figures.gateways {
            let value = match name {
                "callboard_gateway_calls_running" => status.running,
                "callboard_gateway_calls_free" => status.free,
                "callboard_gateway_calls_waiting" => status.waiting,
                _ => usize::from(status.breaker_open),
            };
            page.sample(name, &[("gateway", gateway)], value);
        }
    }
}

/// Metrics of tenants. With `named`, every sample has the label `tenant`.
fn of_tenants(page: &mut Page, tenants: &[(String, TenantReading)], named: bool) {
    // Different prefixes, so that a sum over a family of the operator's page counts nothing twice.
    let prefix = if named {
        "callboard_tenant"
    } else {
        "callboard"
    };
    let mut family =
        |name: &str,
         kind: &str,
         help: &str,
         rows: &dyn Fn(&TenantReading) -> Vec<(Labels<'static>, Value)>| {
            let name = format!("{prefix}_{name}");
            page.family(&name, kind, help);
            for (tenant, reading) in tenants {
                for (label, value) in rows(reading) {
                    let own = named.then_some(("tenant", tenant.as_str()));
                    let labels: Vec<_> = own.into_iter().chain(label).collect();
                    page.sample(&name, &labels, value);
                }
            }
        };
    let one = |value: u64| vec![(None, Value::Count(value))];
    family("prompts_total", "counter", "Prompts accepted.", &|tenant| {
        one(tenant.prompts)
    });
    family(
        "refusals_total",
        "counter",
        "Prompts refused, by reason.",
        &|tenant| {
            let named = REFUSALS
                .into_iter()
                .zip(tenant.refusals)
                .filter(|(_, count)| *count > 0);
            named
                .map(|(reason, count)| (Some(("reason", reason)), Value::Count(count)))
                .collect()
        },
    );
    family("rounds_total", "counter", "Rounds finished.", &|tenant| {
        one(tenant.rounds)
    });
    family(
        "rounds_failed_total",
        "counter",
        "Rounds that ended in an error or at a limit.",
        &|tenant| one(tenant.rounds_failed),
    );
    family(
        "tool_calls_total",
        "counter",
        "Tool calls finished.",
        &|tenant| one(tenant.tool_calls),
    );
    family(
        "tool_calls_failed_total",
        "counter",
        "Tool calls that failed.",
        &|tenant| one(tenant.tool_calls_failed),
    );
    family(
        "tokens_total",
        "counter",
        "Tokens of model calls, by class.",
        &|tenant| {
            let usage = &tenant.usage;
            let classes = [
                ("input_uncached", usage.input_uncached),
                ("cache_read", usage.cache_read),
                ("cache_write", usage.cache_write),
                ("output", usage.output),
            ];
            classes
                .into_iter()
                .map(|(class, tokens)| (Some(("class", class)), Value::Count(tokens)))
                .collect()
        },
    );
    family(
        "cost_usd_total",
        "counter",
        "Cost of model calls whose model has a price, in US dollars.",
        &|tenant| vec![(None, Value::Usd(Usd(tenant.cost_micro_usd)))],
    );
    family(
        "conversations_awake",
        "gauge",
        "Conversations in memory.",
        &|tenant| one(tenant.awake as u64),
    );
    family(
        "stored_bytes",
        "gauge",
        "Stored bytes of the tenant's conversations, as last counted.",
        &|tenant| one(tenant.stored_bytes),
    );
    family(
        "prompts_under_way",
        "gauge",
        "Prompts between admission and answer.",
        &|tenant| one(tenant.under_way as u64),
    );
}

type Labels<'a> = Option<(&'a str, &'a str)>;

enum Value {
    Count(u64),
    Usd(Usd),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Usd(usd) => usd.fmt(f),
        }
    }
}

/// Micro-dollars, displayed as dollars without rounding.
struct Usd(u64);

impl std::fmt::Display for Usd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The text being rendered.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(
                self.0,
                "{}{label}=\"{}\"",
                if at == 0 { '{' } else { ',' },
                escaped(text)
            );
        }
        let _ = writeln!(
            self.0,
            "{} {value}",
            if labels.is_empty() { "" } else { "}" }
        );
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, distribution: &Distribution) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut upto = 0;
        for (bound, count) in BOUNDS_US.iter().zip(&distribution.buckets) {
            upto += count;
            self.sample(
                &bucket,
                &[("le", &format!("{}", *bound as f64 / 1_000_000.0))],
                upto,
            );
        }
        self.sample(&bucket, &[("le", "+Inf")], distribution.count());
        self.sample(
            &format!("{name}_sum"),
            &[],
            distribution.sum_us as f64 / 1_000_000.0,
        );
        self.sample(&format!("{name}_count"), &[], distribution.count());
    }
}

/// Escapes a label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
