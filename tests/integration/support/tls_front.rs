//! TLS before a plain server on this machine: the bytes inside go to that server unchanged.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// A finished handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The protocol that both sides chose.
    pub protocol: Option<String>,
    /// Whether the client showed a certificate that is accepted.
    pub client_certificate: bool,
}

/// The front. Dropping it closes the listener; open connections go on.
pub struct TlsFront {
    address: SocketAddr,
    handshakes: Arc<Mutex<Vec<Handshake>>>,
    _stop: DropGuard,
}

impl TlsFront {
    /// Starts a front with this configuration, before `http://…` on this machine.
    pub async fn start(config: Arc<ServerConfig>, plain_url: &str) -> Self {
        let plain: SocketAddr = plain_url.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = TlsAcceptor::from(config);
        let handshakes = Arc::new(Mutex::new(Vec::new()));
        let seen = handshakes.clone();
        let stop = CancellationToken::new();
        let accepting = async move {
            let connections = TaskTracker::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (tls, seen) = (tls.clone(), seen.clone());
                connections.spawn(async move {
                    let Ok(mut client) = tls.accept(socket).await else {
                        return;
                    };
                    let session = client.get_ref().1;
                    let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
                    seen.lock().push(Handshake {
                        protocol: protocol.map(|name| String::from_utf8(name).unwrap()),
                        client_certificate: session.peer_certificates().is_some(),
                    });
                    let mut server = TcpStream::connect(plain).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        Self {
            address,
            handshakes,
            _stop: stop.drop_guard(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn handshakes(&self) -> Vec<Handshake> {
        self.handshakes.lock().clone()
    }
}
