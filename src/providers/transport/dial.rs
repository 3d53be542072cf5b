//! Opens connections to one server: TCP, a proxy where the environment names one, TLS.

use std::{io, sync::Arc, time::Duration};

use callboard_actors::ports::ProviderError;
use http::{HeaderValue, Uri};
use hyper_util::{
    client::{
        legacy::connect::{
            HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use reqwest::Url;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::socket::{BelowTls, Socket};
use crate::providers::{config::ProviderConfigError, errors::with_sources};

/// Certificates of one server. TLS keeps them and copies them with each ticket of the server.
const CHAIN_MAX: usize = 16;

/// Interval of TCP keep-alive probes, which detect a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Opens connections to one server.
pub(super) struct Dialer {
    server: Uri,
    connector: HttpConnector,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    proxy: Option<Proxy>,
    wait: Duration,
}

/// A proxy on the way to the server.
enum Proxy {
    /// `CONNECT` opens a tunnel for TLS.
    Tunnel(Uri, Option<HeaderValue>),
    /// Takes requests for `http://` servers, with the whole address in their first line.
    Forward(Uri, Option<HeaderValue>),
    Socks5(Uri, Option<(String, String)>),
}

/// An open connection.
pub(super) struct Dialed {
    pub(super) socket: Socket,
    /// Whether both sides agreed on HTTP/2.
    pub(super) is_http2: bool,
}

impl Dialer {
    pub(super) fn new(
        base: &Url,
        tls: Arc<ClientConfig>,
        is_loopback: bool,
        wait: Duration,
    ) -> Result<Self, ProviderConfigError> {
        let bad = |reason: String| ProviderConfigError::BadBaseUrl { reason };
        let authority = match (base.host_str().unwrap_or_default(), base.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let server: Uri = format!("{}://{authority}/", base.scheme())
            .parse()
            .map_err(|error| bad(with_sources(&error)))?;
        let is_tls = base.scheme() == "https";
        let tls = if is_tls {
            let host = authority_host(base);
            let name = ServerName::try_from(host).map_err(|error| bad(with_sources(&error)))?;
            Some((TlsConnector::from(tls), name))
        } else {
            None
        };
        // A proxy of the environment does not apply to this machine itself.
        let proxy = (!is_loopback)
            .then(|| Matcher::from_system().intercept(&server))
            .flatten()
            .map(|proxy| Proxy::of(&proxy, is_tls));
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(wait));
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        Ok(Self {
            server,
            connector,
            tls,
            proxy,
            wait,
        })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether requests go to a proxy that wants the whole address in their first line.
    pub(super) fn is_forwarded(&self) -> bool {
        matches!(self.proxy, Some(Proxy::Forward(..)))
    }

    /// What a proxy that forwards requests wants to be shown.
    pub(super) fn forward_auth(&self) -> Option<&HeaderValue> {
        match &self.proxy {
            Some(Proxy::Forward(_, auth)) => auth.as_ref(),
            Some(Proxy::Tunnel(..) | Proxy::Socks5(..)) | None => None,
        }
    }

    /// The scheme and authority of the server.
    pub(super) fn server(&self) -> &Uri {
        &self.server
    }

    /// Opens a connection, within the connect timeout.
    pub(super) async fn dial(&self) -> Result<Dialed, ProviderError> {
        match timeout(self.wait, self.open()).await {
            Ok(Err(error)) if is_timeout(&*error) => Err(self.no_connection()),
            Ok(Err(error)) if is_untrusted(&*error) => Err(ProviderError::Untrusted {
                message: with_sources(&*error),
            }),
            Ok(Err(error)) => Err(ProviderError::Connection {
                message: with_sources(&*error),
            }),
            Ok(Ok(dialed)) => Ok(dialed),
            Err(_) => Err(self.no_connection()),
        }
    }

    async fn open(&self) -> Result<Dialed, Box<dyn std::error::Error + Send + Sync>> {
        let socket = self.connect().await?;
        let Some((tls, name)) = &self.tls else {
            return Ok(Dialed {
                socket: Socket::Plain(socket),
                is_http2: false,
            });
        };
        let socket = tls
            .connect(name.clone(), BelowTls::new(socket))
            .await
            .map_err(with_scheme)?;
        let session = socket.get_ref().1;
        let chain = session.peer_certificates().unwrap_or_default();
        if chain.len() > CHAIN_MAX {
            return Err(format!("the server sent more than {CHAIN_MAX} certificates").into());
        }
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        Ok(Dialed {
            socket: Socket::Tls(Box::new(socket)),
            is_http2,
        })
    }

    async fn connect(&self) -> Result<TcpStream, Box<dyn std::error::Error + Send + Sync>> {
        let mut connector = self.connector.clone();
        let server = self.server.clone();
        let socket: TokioIo<TcpStream> = match &self.proxy {
            None => connector.call(server).await?,
            Some(Proxy::Forward(proxy, _)) => connector.call(proxy.clone()).await?,
            Some(Proxy::Tunnel(proxy, auth)) => {
                let mut tunnel = Tunnel::new(proxy.clone(), connector);
                if let Some(auth) = auth {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                tunnel.call(server).await?
            }
            Some(Proxy::Socks5(proxy, auth)) => {
                let mut socks = SocksV5::new(proxy.clone(), connector);
                if let Some((user, password)) = auth {
                    socks = socks.with_auth(user.clone(), password.clone());
                }
                socks.call(server).await?
            }
        };
        Ok(socket.into_inner())
    }

    fn no_connection(&self) -> ProviderError {
        ProviderError::Timeout {
            message: format!("no connection within {:?}", self.wait),
        }
    }
}

impl Proxy {
    fn of(proxy: &Intercept, is_tls: bool) -> Self {
        let to = proxy.uri().clone();
        match to.scheme_str() {
            Some("socks5" | "socks5h") => {
                let auth = proxy
                    .raw_auth()
                    .map(|(user, password)| (user.to_owned(), password.to_owned()));
                Self::Socks5(to, auth)
            }
            _ if is_tls => Self::Tunnel(to, proxy.basic_auth().cloned()),
            _ => Self::Forward(to, proxy.basic_auth().cloned()),
        }
    }
}

/// The host as certificates name it: an IPv6 address without brackets.
fn authority_host(base: &Url) -> String {
    let host = base.host_str().unwrap_or_default();
    host.trim_matches(['[', ']']).to_owned()
}

/// Says what is probably wrong if the server's first bytes are no TLS.
fn with_scheme(error: io::Error) -> io::Error {
    let tls = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if matches!(tls, Some(rustls::Error::InvalidMessage(_))) {
        let text = "the server does not speak TLS; does its address begin with http://?";
        return io::Error::new(error.kind(), text);
    }
    error
}

/// Whether TLS failed because this side refuses the server's certificate.
fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    let tls = error
        .downcast_ref::<io::Error>()
        .and_then(|error| error.get_ref()?.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

/// Whether an error, or one of its causes, is a timeout of the system.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            return true;
        }
        cause = error.source();
    }
    false
}
