//! The settings of a configuration file reach the wire: the binary reads the file, and the server
//! sees or feels the setting. Each test fails if its setting is ignored.

use std::time::Instant;

use callboard::mock_model::{MockTls, TlsIdentity};
use rcgen::{CertificateParams, KeyPair};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    cli::{Home, Ran},
    support::{
        model_server::{ModelServer, Reply, Step},
        tls_front::TlsFront,
    },
};

/// A home whose configuration has one provider, with `more` lines and these `limits`.
fn home(url: &str, more: &str, limits: &str) -> Home {
    let home = Home::new();
    let config = format!(
        "[[provider]]\nname = \"main\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\nmodel = \"m\"\n{more}\n[limits]\n{limits}\n"
    );
    std::fs::write(home.work().join("callboard.toml"), config).unwrap();
    home
}

/// Runs one prompt, in a thread that may wait.
async fn run(home: Home) -> (Ran, Home) {
    tokio::task::spawn_blocking(move || (home.run(&["run", "--no-tools", "hello"]), home))
        .await
        .unwrap()
}

fn answer() -> Reply {
    Reply::events(openai_text("hello"))
}

/// TLS of a server with HTTP/1.1, or with both protocols on offer.
fn tls(names: &[&str], protocols: &[&str]) -> (Arc<ServerConfig>, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = TlsIdentity::make(&names).unwrap();
    let tls = MockTls {
        identity: made.identity,
        http2_streams_max: None,
    };
    let mut config = (*tls.server_config().unwrap()).clone();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    (Arc::new(config), made.ca_pem)
}

#[tokio::test]
async fn an_authority_of_ca_file_is_trusted_and_no_other() {
    let server = ModelServer::start([answer()]).await;
    let (config, ca_pem) = tls(&[], &["http/1.1"]);
    let front = TlsFront::start(config, &server.url()).await;

    let trusting = home(&front.url(), "ca_file = \"ca.pem\"", "");
    std::fs::write(trusting.work().join("ca.pem"), &ca_pem).unwrap();
    assert_eq!(run(trusting).await.0.well().out, "hello\n");

    let (refused, _) = run(home(&front.url(), "", "")).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error = refused.error();
    assert!(
        error.starts_with("error: the provider's certificate is refused: ")
            && error.contains("ca_file"),
        "{error}"
    );

    let (missing, _) = run(home(&front.url(), "ca_file = \"gone.pem\"", "")).await;
    assert!(
        missing.error().contains("`ca_file`: no such file: ")
            && missing.error().contains("gone.pem"),
        "{missing:?}"
    );
}

#[tokio::test]
async fn the_certificate_of_the_configuration_is_shown_to_a_server_that_asks_for_one() {
    let server = ModelServer::start([answer()]).await;
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), ring.clone())
        .build()
        .unwrap();
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let own_key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.cert.der().clone()], own_key.into())
        .unwrap();
    let front = TlsFront::start(Arc::new(config), &server.url()).await;

    let lines =
        "ca_file = \"ca.pem\"\nclient_cert_file = \"client.pem\"\nclient_key_file = \"client.key\"";
    let home = home(&front.url(), lines, "");
    for (name, pem) in [
        ("ca.pem", own.cert.pem()),
        ("client.pem", certificate.pem()),
        ("client.key", key.serialize_pem()),
    ] {
        std::fs::write(home.work().join(name), pem).unwrap();
    }

    assert_eq!(run(home).await.0.well().out, "hello\n");
    assert!(front.handshakes()[0].client_certificate);
}

#[tokio::test]
async fn http2_is_offered_unless_the_configuration_says_no() {
    for (more, expected) in [
        ("http2 = false", "http/1.1"),
        ("http2 = true", "h2"),
        ("", "h2"),
    ] {
        let server = ModelServer::start([answer()]).await;
        let (config, ca_pem) = tls(&[], &["h2", "http/1.1"]);
        let front = TlsFront::start(config, &server.url()).await;
        let home = home(
            &front.url(),
            &format!("ca_file = \"ca.pem\"\n{more}"),
            // The server behind the front speaks no HTTP/2, and what it says then does not matter.
            "model_total_s = 1",
        );
        std::fs::write(home.work().join("ca.pem"), &ca_pem).unwrap();

        let (ran, _) = run(home).await;

        assert_eq!(
            front.handshakes()[0].protocol.as_deref(),
            Some(expected),
            "{more}"
        );
        assert_eq!(ran.code == Some(0), expected == "http/1.1", "{ran:?}");
    }
}

/// The first connection is never answered. By default it would be given up after 10 s.
#[tokio::test]
async fn a_connection_is_given_up_after_connect_s() {
    let server = ModelServer::start([answer()]).await;
    let (config, ca_pem) = tls(&[], &["http/1.1"]);
    let front = TlsFront::start(config, &server.url()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let home = home(&url, "ca_file = \"ca.pem\"\nconnect_s = 1", "");
    std::fs::write(home.work().join("ca.pem"), &ca_pem).unwrap();
    let accepting = async {
        let _silent = listener.accept().await.unwrap();
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(front.address()).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
        std::future::pending::<()>().await;
    };

    let begun = Instant::now();
    let ran = tokio::select! {
        () = accepting => unreachable!(),
        (ran, _) = run(home) => ran,
    };

    assert_eq!(ran.well().out, "hello\n");
    assert!(begun.elapsed() < Duration::from_secs(9));
}

/// The first call is never answered: by default it would be waited for ten minutes.
#[tokio::test]
async fn the_first_byte_is_waited_for_model_first_byte_s() {
    let silent = Reply::stream().delay(Duration::from_secs(3600));
    let server = ModelServer::start([silent, answer()]).await;

    // The server is asked for no window, so the first request is that of the round.
    let window = "context_window = 30000";
    let (ran, _) = run(home(&server.url(), window, "model_first_byte_s = 1")).await;

    assert_eq!(ran.well().out, "hello\n");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn the_next_bytes_are_waited_for_model_idle_s() {
    let stalls = Reply::stream().send(half()).then(Step::Stall);
    let server = ModelServer::start([stalls]).await;

    let (ran, _) = run(home(&server.url(), "", "model_idle_s = 1")).await;

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.error().contains("no bytes for 1s"), "{ran:?}");
}

/// The proxy resolves the name, so the server may have one that no other resolver knows.
#[tokio::test]
async fn a_server_is_reached_through_the_tunnel_of_a_proxy() {
    let server = ModelServer::start([answer()]).await;
    let (config, ca_pem) = tls(&["model.test"], &["http/1.1"]);
    let front = TlsFront::start(config, &server.url()).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let mut home = home("https://model.test:4433", "ca_file = \"ca.pem\"", "");
    std::fs::write(home.work().join("ca.pem"), &ca_pem).unwrap();
    home.variables
        .push(("https_proxy", format!("http://user:secret@{address}")));
    let tunnel = async {
        let (mut client, _) = proxy.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        client
            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .await
            .unwrap();
        let mut server = TcpStream::connect(front.address()).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    };

    let (head, (ran, _)) = tokio::join!(soon(tunnel), run(home));

    assert_eq!(ran.well().out, "hello\n");
    assert!(
        head.starts_with("connect model.test:4433 http/1.1\r\n"),
        "{head}"
    );
    // Base64 of `user:secret`.
    let auth = "proxy-authorization: basic dxnlcjpzzwnyzxq=\r\n";
    assert!(head.contains(auth), "{head}");
}
