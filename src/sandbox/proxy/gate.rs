//! Checks a host and a port against the allow-list, resolves the host, checks every address, then
//! connects to one of them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use callboard_actors::ports::HostPattern;
use tokio::net::TcpStream;

use super::Refusal;
use crate::web::{Denied, Resolver, UrlPolicy};

/// Most addresses of one name; a name with more is refused.
const ADDRESSES_MAX: usize = 256;

/// Addresses that are tried, in the order of the resolver.
const TRIES_MAX: usize = 4;

/// Longest wait for one address.
const TRY_MAX: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) struct Gate {
    hosts: Vec<HostPattern>,
    resolver: Arc<dyn Resolver>,
    public: UrlPolicy,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(hosts: Vec<HostPattern>, resolver: Arc<dyn Resolver>) -> Self {
        Self {
            hosts,
            resolver,
            public: UrlPolicy::public(),
        }
    }

    /// Connects to a listed host.
    pub(super) async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, Refusal> {
        let addresses = self.admit(host, port).await?;
        for ip in addresses.into_iter().take(TRIES_MAX) {
            if let Ok(Ok(stream)) =
                tokio::time::timeout(TRY_MAX, TcpStream::connect(SocketAddr::new(ip, port))).await
            {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
        }
        Err(Refusal::new(
            "502 Bad Gateway",
            format!("{host}:{port} cannot be reached"),
        ))
    }

    /// Returns the addresses that may be dialed. If one address of the name is not allowed, all are
    /// refused.
    async fn admit(&self, host: &str, port: u16) -> Result<Vec<IpAddr>, Refusal> {
        if !self.hosts.iter().any(|pattern| pattern.matches(host, port)) {
            return Err(forbidden(format!(
                "{host}:{port} is not on this sandbox's allow-list ({}); {}",
                self.listed(),
                advice(host, port)
            )));
        }
        let addresses = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) => self
                .resolver
                .resolve(host.strip_suffix('.').unwrap_or(host))
                .await
                .unwrap_or_default(),
        };
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return Err(Refusal::new(
                "502 Bad Gateway",
                format!("the name {host} could not be resolved"),
            ));
        }
        for ip in &addresses {
            let vouched = || {
                self.hosts
                    .iter()
                    .any(|pattern| pattern.permits_address(*ip, port))
            };
            if let Err(denied) = self.public.check_addr(*ip)
                && !vouched()
            {
                let class = if let Denied::Address(class) = denied {
                    class.as_str()
                } else {
                    "special"
                };
                return Err(forbidden(format!(
                    "{host}:{port} is at an address that is not public ({class}); whoever runs this agent can list that address itself in `[sandbox] network`"
                )));
            }
        }
        Ok(addresses)
    }

    fn listed(&self) -> String {
        let shown: Vec<String> = self
            .hosts
            .iter()
            .take(16)
            .map(HostPattern::to_string)
            .collect();
        let more = if self.hosts.len() > shown.len() {
            ", ..."
        } else {
            ""
        };
        format!("{}{more}", shown.join(", "))
    }
}

fn forbidden(text: String) -> Refusal {
    Refusal::new("403 Forbidden", text)
}

fn advice(host: &str, port: u16) -> String {
    let entry = if [80, 443].contains(&port) {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    };
    format!("whoever runs this agent can add \"{entry}\" to `[sandbox] network`")
}
