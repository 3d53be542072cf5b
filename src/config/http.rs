//! The bounds of the HTTP host in `[host]`. Each is optional: what is not set keeps the default of
//! the host, which this module does not know.
//!
//! Pure.

use std::time::Duration;

use super::value::Value;

/// The configured bounds of the HTTP host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Open connections of all clients.
    pub connections_max: Option<usize>,
    /// Open connections of one client address.
    pub connections_per_address_max: Option<usize>,
    /// Open requests of one tenant.
    pub requests_per_tenant_max: Option<usize>,
    /// Open event streams of one tenant.
    pub streams_per_tenant_max: Option<usize>,
    /// Bytes of a body that carries no messages.
    pub body_bytes_max: Option<usize>,
    /// Bytes of answers that clients of one tenant have not read yet.
    pub tenant_answer_bytes_max: Option<usize>,
    /// The same for one connection.
    pub connection_answer_bytes_max: Option<usize>,
    /// The same for all tenants together.
    pub answer_bytes_max: Option<usize>,
    /// Time for the header fields of a request, and of a connection without a request.
    pub header_within: Option<Duration>,
    /// How long a client may read nothing of an answer.
    pub write_pause_max: Option<Duration>,
    /// Whether providers may fetch what prompts of tenants refer to.
    pub remote_attachments: Option<bool>,
    /// Whether the pages for people are served.
    pub console: Option<bool>,
    /// Whether MCP clients are served.
    pub mcp: Option<bool>,
    /// Origins of web pages that may call the API from a browser.
    pub cors_origins: Vec<String>,
}

impl HttpLimits {
    fn count(&mut self, name: &str) -> Option<&mut Option<usize>> {
        Some(match name {
            "connections_max" => &mut self.connections_max,
            "connections_per_address_max" => &mut self.connections_per_address_max,
            "requests_per_tenant_max" => &mut self.requests_per_tenant_max,
            "streams_per_tenant_max" => &mut self.streams_per_tenant_max,
            "body_bytes_max" => &mut self.body_bytes_max,
            "tenant_answer_bytes_max" => &mut self.tenant_answer_bytes_max,
            "connection_answer_bytes_max" => &mut self.connection_answer_bytes_max,
            "answer_bytes_max" => &mut self.answer_bytes_max,
            _ => return None,
        })
    }

    fn flag(&mut self, name: &str) -> Option<&mut Option<bool>> {
        Some(match name {
            "remote_attachments" => &mut self.remote_attachments,
            "console" => &mut self.console,
            "mcp" => &mut self.mcp,
            _ => return None,
        })
    }

    fn time(&mut self, name: &str) -> Option<&mut Option<Duration>> {
        Some(match name {
            "header_s" => &mut self.header_within,
            "write_pause_s" => &mut self.write_pause_max,
            _ => return None,
        })
    }

    /// Sets the bound with this key. A key of another kind has no effect.
    pub(super) fn set(&mut self, name: &str, value: &Value) {
        match value {
            Value::Count(count) => {
                if let Some(field) = self.count(name) {
                    *field = usize::try_from(*count).ok();
                }
            }
            Value::Seconds(time) => {
                if let Some(field) = self.time(name) {
                    *field = Some(*time);
                }
            }
            Value::Flag(yes) => {
                if let Some(field) = self.flag(name) {
                    *field = Some(*yes);
                }
            }
            Value::Names(origins) if name == "cors_origins" => {
                self.cors_origins.clone_from(origins);
            }
            _ => {}
        }
    }

    /// The value of a key of `[host]`: `None` for other keys, `Some(None)` if it is not set.
    pub(super) fn get(&self, name: &str) -> Option<Option<Value>> {
        if name == "cors_origins" {
            return Some(Some(Value::Names(self.cors_origins.clone())));
        }
        let mut copy = self.clone();
        if let Some(flag) = copy.flag(name) {
            return Some(flag.map(Value::Flag));
        }
        let count = copy
            .count(name)
            .map(|count| count.map(|count| Value::Count(count as u64)));
        count.or_else(|| copy.time(name).map(|time| time.map(Value::Seconds)))
    }
}
