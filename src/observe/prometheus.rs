//! The text of `/metrics` and `/v1/metrics`, in the format that every Prometheus reads (text, version 0.0.4). Written by hand from
//! one reading of the host's atomics: a registry of a library would hold a second copy of each figure.

use std::fmt::Write as _;

use callboard_actors::{
    host::{Host, HostFigures},
    ids::TenantId,
    metrics_collector::{BOUNDS_US, Distribution, REFUSALS, TenantReading},
};

use super::process::resident_bytes;

/// The media type of [`prometheus_text`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Tenants with a label of their own; beyond this the least busy share `other`. A scrape stays small and a time series per tenant is
/// what a Prometheus pays for.
const TENANTS_MAX: usize = 200;

/// The label of tenants that share one. Not a tenant id that can be: those have no brackets.
const OTHER: &str = "(other)";

/// Whose figures are shown.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// The whole host's, and each tenant's beside it: for the operator.
    Operator,
    /// One tenant's and nothing else.
    Tenant(&'a TenantId),
}

/// Writes the figures of a host. Reads atomics and short locks only: it wakes nobody and waits for nobody.
pub fn prometheus_text(host: &Host, view: View<'_>) -> String {
    let figures = host.figures();
    let mut page = Page::default();
    match view {
        View::Operator => {
            of_host(&mut page, &figures);
            of_gateways(&mut page, &figures);
            of_tenants(&mut page, &labelled(figures.tenants, TENANTS_MAX), true);
        }
        View::Tenant(id) => {
            let own = figures.tenants.into_iter().find(|(tenant, _)| tenant == id).map(|(_, reading)| reading).unwrap_or_default();
            of_tenants(&mut page, &[(String::new(), own)], false);
        }
    }
    page.0
}

/// Tenants by label: the busiest `most` under their own, the rest together.
fn labelled(mut tenants: Vec<(TenantId, TenantReading)>, most: usize) -> Vec<(String, TenantReading)> {
    tenants.sort_by(|(a, x), (b, y)| y.prompts.cmp(&x.prompts).then_with(|| a.cmp(b)));
    let rest = tenants.split_off(tenants.len().min(most));
    let mut rows: Vec<_> = tenants.into_iter().map(|(id, reading)| (id.as_str().to_owned(), reading)).collect();
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    if !rest.is_empty() {
        rows.push((OTHER.to_owned(), rest.iter().fold(TenantReading::default(), |sum, (_, reading)| sum.plus(reading))));
    }
    rows
}

fn of_host(page: &mut Page, figures: &HostFigures) {
    let total = &figures.total;
    page.counter("callboard_prompts_total", "Prompts accepted.", total.prompts);
    page.counter("callboard_refusals_total", "Prompts and other mail refused.", total.refusals);
    page.counter("callboard_rounds_total", "Rounds finished.", total.rounds);
    page.counter("callboard_rounds_failed_total", "Rounds that ended in an error or at a bound.", total.rounds_failed);
    page.counter("callboard_model_calls_total", "Model calls ordered.", total.model_calls);
    page.counter("callboard_model_retries_total", "Attempts of model calls after the first.", total.model_retries);
    page.counter("callboard_tool_calls_total", "Tool calls finished.", total.tool_calls);
    page.counter("callboard_tool_calls_failed_total", "Tool calls that failed.", total.tool_calls_failed);
    page.counter("callboard_tool_retries_total", "Attempts of tool calls after the first.", total.tool_retries);
    page.counter("callboard_tool_cache_hits_total", "Tool calls that an earlier result answered.", total.tool_cache_hits);
    page.counter("callboard_tool_runs_shared_total", "Tool calls that joined the run of an identical one.", total.tool_runs_shared);
    page.counter("callboard_tool_breaker_refusals_total", "Attempts that a tool's open breaker refused.", total.tool_breaker_refusals);
    page.counter("callboard_skill_activations_total", "Skills activated.", total.skill_activations);
    page.family("callboard_tokens_total", "counter", "Tokens of model calls, input of all classes and output.");
    page.sample("callboard_tokens_total", &[("direction", "input")], total.input_tokens);
    page.sample("callboard_tokens_total", &[("direction", "output")], total.output_tokens);
    page.counter("callboard_cache_read_tokens_total", "Input tokens read from a provider's cache.", total.cache_read_tokens);
    page.family("callboard_cost_usd_total", "counter", "Cost of model calls whose model has a price, in US dollars.");
    page.sample("callboard_cost_usd_total", &[], Usd(total.cost_micro_usd));
    page.counter("callboard_actor_wake_ups_total", "Times an actor of a conversation was woken by mail.", total.wake_ups);
    page.counter("callboard_conversation_lives_total", "Times a conversation came into memory.", total.lives);
    page.counter("callboard_conversation_crashes_total", "Lives of conversations that ended in a crash.", total.crashes);
    page.counter("callboard_conversation_hibernations_total", "Times a conversation went to sleep.", total.hibernations);
    page.counter("callboard_store_pauses_total", "Pauses for a store that was away.", total.store_pauses);
    page.counter("callboard_compactions_total", "Compactions applied.", total.compactions);
    page.counter("callboard_compactions_dropped_total", "Compactions that came too late.", total.compactions_dropped);
    page.counter("callboard_summaries_total", "Background summaries made.", total.summaries);
    page.counter("callboard_summaries_failed_total", "Background summaries that failed or were too dear.", total.summaries_failed);
    page.family("callboard_prefix_breaks_total", "counter", "Model calls whose prefix was not that of the call before.");
    for (cause, count) in [
        ("compaction", total.prefix_breaks_compaction),
        ("configuration", total.prefix_breaks_configuration),
        ("edit", total.prefix_breaks_edit),
        ("skill", total.prefix_breaks_skill),
        ("unknown", total.prefix_breaks_unknown),
    ] {
        page.sample("callboard_prefix_breaks_total", &[("cause", cause)], count);
    }
    page.counter("callboard_rebilled_tokens_total", "Input tokens that those breaks made a cache miss, estimated.", total.rebilled_tokens);
    page.gauge("callboard_conversations_awake", "Conversations in memory.", figures.awake);
    page.family("callboard_conversation_slots", "gauge", "Conversations that are not asleep, by state.");
    for (state, count) in figures.slots.by_state() {
        page.sample("callboard_conversation_slots", &[("state", state)], count);
    }
    let under_way: usize = figures.tenants.iter().map(|(_, tenant)| tenant.under_way).sum();
    page.gauge("callboard_prompts_under_way", "Prompts between admission and answer.", under_way);
    page.gauge("callboard_tenants", "Tenants named since the host began.", figures.tenants.len());
    if let Some(bytes) = resident_bytes(None) {
        page.family("process_resident_memory_bytes", "gauge", "Resident memory of the process, in bytes.");
        page.sample("process_resident_memory_bytes", &[], bytes);
    }
    let times = &figures.latencies;
    page.histogram("callboard_round_duration_seconds", "Rounds, from start to end.", &times.round);
    page.histogram("callboard_model_call_duration_seconds", "Model calls, waits and retries included.", &times.model_call);
    page.histogram("callboard_model_first_chunk_seconds", "From a model call's start to its first content.", &times.first_chunk);
    page.histogram("callboard_queue_wait_seconds", "Waits for the right to run a turn or a model call.", &times.queue_wait);
    page.histogram("callboard_tool_call_duration_seconds", "Tool calls, all attempts together.", &times.tool_call);
}

fn of_gateways(page: &mut Page, figures: &HostFigures) {
    let rows = [
        ("callboard_gateway_calls_running", "Model calls that run."),
        ("callboard_gateway_calls_free", "Model calls that could run beside them."),
        ("callboard_gateway_calls_waiting", "Callers that wait for a permit."),
        ("callboard_gateway_breaker_open", "1 while calls are refused because the provider fails."),
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

/// Each tenant's own; `named` puts the tenant's label on every sample.
fn of_tenants(page: &mut Page, tenants: &[(String, TenantReading)], named: bool) {
    // Two names: of the operator's page the sum over a family must not count the host twice.
    let prefix = if named { "callboard_tenant" } else { "callboard" };
    let mut family = |name: &str, kind: &str, help: &str, rows: &dyn Fn(&TenantReading) -> Vec<(Labels<'static>, Value)>| {
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
    family("prompts_total", "counter", "Prompts accepted.", &|tenant| one(tenant.prompts));
    family("refusals_total", "counter", "Prompts refused, by reason.", &|tenant| {
        let named = REFUSALS.into_iter().zip(tenant.refusals).filter(|(_, count)| *count > 0);
        named.map(|(reason, count)| (Some(("reason", reason)), Value::Count(count))).collect()
    });
    family("rounds_total", "counter", "Rounds finished.", &|tenant| one(tenant.rounds));
    family("rounds_failed_total", "counter", "Rounds that ended in an error or at a bound.", &|tenant| one(tenant.rounds_failed));
    family("tool_calls_total", "counter", "Tool calls finished.", &|tenant| one(tenant.tool_calls));
    family("tool_calls_failed_total", "counter", "Tool calls that failed.", &|tenant| one(tenant.tool_calls_failed));
    family("tokens_total", "counter", "Tokens of model calls, by class.", &|tenant| {
        let usage = &tenant.usage;
        let classes = [
            ("input_uncached", usage.input_uncached),
            ("cache_read", usage.cache_read),
            ("cache_write", usage.cache_write),
            ("output", usage.output),
        ];
        classes.into_iter().map(|(class, tokens)| (Some(("class", class)), Value::Count(tokens))).collect()
    });
    family("cost_usd_total", "counter", "Cost of model calls whose model has a price, in US dollars.", &|tenant| {
        vec![(None, Value::Usd(Usd(tenant.cost_micro_usd)))]
    });
    family("conversations_awake", "gauge", "Conversations in memory.", &|tenant| one(tenant.awake as u64));
    family("stored_bytes", "gauge", "Bytes of its conversations in the store, as far as they were counted.", &|tenant| {
        one(tenant.stored_bytes)
    });
    family("prompts_under_way", "gauge", "Prompts between admission and answer.", &|tenant| one(tenant.under_way as u64));
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

/// Millionths of a US dollar, written as dollars without a loss.
struct Usd(u64);

impl std::fmt::Display for Usd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A page of figures.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(text));
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
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
        let (bucket, mut upto) = (format!("{name}_bucket"), 0);
        for (bound, count) in BOUNDS_US.iter().zip(&distribution.buckets) {
            upto += count;
            self.sample(&bucket, &[("le", &format!("{}", *bound as f64 / 1_000_000.0))], upto);
        }
        self.sample(&bucket, &[("le", "+Inf")], distribution.count());
        self.sample(&format!("{name}_sum"), &[], distribution.sum_us as f64 / 1_000_000.0);
        self.sample(&format!("{name}_count"), &[], distribution.count());
    }
}

/// A label's text as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
