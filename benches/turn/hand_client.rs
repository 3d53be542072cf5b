//! The baseline's HTTP client: reqwest. An HTTP/2 connection carries as many calls as the server
//! allows, and a client holds one, so a baseline with more calls at once has a client for each
//! hundred of them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use callboard::mock_model::HTTP2_STREAMS_MAX;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::model::{Server, Way};

/// Clients of one server.
pub(crate) struct Clients {
    clients: Vec<(reqwest::Client, Arc<AtomicUsize>)>,
    calls_each: usize,
}

/// A place on one client. Dropping it makes room for another call.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Clients {
    /// Creates clients for this many calls at once.
    pub(crate) fn new(server: &Server, calls_max: usize) -> Self {
        let (count, calls_each) = match server.way {
            Way::TlsHttp2 => {
                let each = HTTP2_STREAMS_MAX as usize;
                (calls_max.div_ceil(each), each)
            }
            Way::TlsHttp1 | Way::Plain => (1, usize::MAX),
        };
        let clients = (0..count).map(|_| (client(server), Arc::default()));
        Self {
            clients: clients.collect(),
            calls_each,
        }
    }

    /// Takes the first client that has room.
    pub(crate) fn take(&self) -> (&reqwest::Client, Place) {
        let room = |calls: usize| (calls < self.calls_each).then_some(calls + 1);
        let free = self
            .clients
            .iter()
            .find(|(_, calls)| calls.fetch_update(Relaxed, Relaxed, room).is_ok());
        let (client, calls) = free.expect("fewer calls at once than there are places");
        (client, Place(calls.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A client that knows which protocol the server speaks, so that it opens no connection in vain.
fn client(server: &Server) -> reqwest::Client {
    if server.way == Way::Plain {
        return callboard::tls::client_builder().unwrap().build().unwrap();
    }
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(server.ca_pem.as_bytes()).unwrap())
        .unwrap();
    let mut config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let builder = reqwest::Client::builder();
    let builder = if server.way == Way::TlsHttp2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
        builder.http2_prior_knowledge()
    } else {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        builder.http1_only()
    };
    builder
        .tls_backend_preconfigured(config)
        .no_proxy()
        .build()
        .unwrap()
}
