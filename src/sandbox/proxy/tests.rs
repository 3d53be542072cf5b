//! Tests of the bounds, which would take minutes or gigabytes from inside a jail.

use std::io;

use callboard_actors::ports::BoxFuture;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::web::{Resolver, owner};

/// Resolves `known.test`, for the tenant `t`.
struct Names;

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<std::net::IpAddr>>> {
        let is_tenants = owner().is_some_and(|tenant| tenant.as_str() == "t");
        match host == "known.test" && is_tenants {
            true => Box::pin(async { Ok(vec![[127, 0, 0, 1].into()]) }),
            false => Box::pin(std::future::pending()),
        }
    }
}

/// Opens a proxy of a command to a new listener.
async fn open(bounds: Bounds) -> (CommandProxy, TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let known = place.replace("127.0.0.1", "known.test");
    let hosts = [place.as_str(), known.as_str(), "slow.test"];
    let hosts = hosts.map(|host| host.parse().unwrap()).into();
    let gate = Arc::new(Gate::new(hosts, Arc::new(Names)));
    let permits = Arc::new(Semaphore::new(bounds.connections));
    let proxy = Proxy {
        gate,
        permits,
        bounds,
        helper: PathBuf::new(),
        helper_file: (0, 0),
        place: std::env::temp_dir(),
    };
    let tenant = Some("t".parse().unwrap());
    (proxy.open(tenant).unwrap(), listener, place)
}

async fn visit(proxy: &CommandProxy, request: String) -> UnixStream {
    let mut client = UnixStream::connect(proxy.socket()).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

async fn answer(mut client: UnixStream) -> String {
    let mut text = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut text))
        .await
        .expect("it ends");
    String::from_utf8_lossy(&text).into_owned()
}

async fn tunnel(
    proxy: &CommandProxy,
    listener: &TcpListener,
    place: &str,
) -> (UnixStream, TcpStream) {
    let mut client = visit(proxy, format!("CONNECT {place} HTTP/1.1\r\n\r\n")).await;
    let (server, _) = listener.accept().await.unwrap();
    let mut established = [0; 39];
    client.read_exact(&mut established).await.unwrap();
    (client, server)
}

#[tokio::test]
async fn silence_of_both_sides_and_requests_that_do_not_come_end_a_connection() {
    let short = Duration::from_millis(100);
    let (proxy, listener, place) = open(Bounds {
        idle: short,
        head: short,
        dial: short,
        ..BOUNDS
    })
    .await;

    let (client, mut server) = tunnel(&proxy, &listener, &place).await;

    assert_eq!(answer(client).await, "");
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    assert!(
        answer(visit(&proxy, "GET http:".to_owned()).await)
            .await
            .starts_with("HTTP/1.1 408 ")
    );
    assert!(
        answer(visit(&proxy, "CONNECT slow.test:443 HTTP/1.1\r\n\r\n".to_owned()).await)
            .await
            .starts_with("HTTP/1.1 504 ")
    );
}

#[tokio::test]
async fn names_of_a_command_are_resolved_for_its_tenant() {
    let (proxy, listener, place) = open(BOUNDS).await;
    let known = place.replace("127.0.0.1", "known.test");

    drop(tunnel(&proxy, &listener, &known).await);

    assert!(proxy.close().await.is_empty());
}

#[tokio::test]
async fn a_command_has_so_many_bytes_and_connections_and_no_more() {
    let (proxy, listener, place) = open(Bounds {
        bytes: 100_000,
        connections: 2,
        ..BOUNDS
    })
    .await;

    let (first, mut server) = tunnel(&proxy, &listener, &place).await;
    let (second, quiet) = tunnel(&proxy, &listener, &place).await;
    let refused = answer(UnixStream::connect(proxy.socket()).await.unwrap()).await;
    let flood = tokio::spawn(async move { while server.write_all(&[0; 1000]).await.is_ok() {} });
    let got = answer(first).await;
    flood.await.unwrap();
    drop((second, quiet));

    assert!(
        refused.starts_with("HTTP/1.1 503 ")
            && refused.ends_with("too many connections at once from this sandbox\n"),
        "{refused}"
    );
    assert!((50_000..=100_000).contains(&got.len()), "{}", got.len());
    assert_eq!(
        proxy.close().await,
        ["[network: this command has used up its 0 MiB of network traffic]\n"]
    );
}

#[tokio::test]
async fn a_closed_door_leaves_no_connection_and_no_file() {
    let (proxy, listener, place) = open(BOUNDS).await;
    let (client, mut server) = tunnel(&proxy, &listener, &place).await;
    let folder = proxy.socket().parent().unwrap().to_owned();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&folder).unwrap().permissions())
            & 0o777,
        0o700
    );

    assert_eq!(proxy.close().await, Vec::<String>::new());

    assert!(!folder.exists());
    assert_eq!(
        (
            answer(client).await.as_str(),
            server.read(&mut [0]).await.unwrap()
        ),
        ("", 0)
    );
}

#[tokio::test]
async fn a_second_request_of_a_connection_reaches_nobody() {
    let (proxy, listener, place) = open(BOUNDS).await;
    let request = format!("POST http://{place}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");

    let client = visit(
        &proxy,
        format!("{request}GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    )
    .await;
    let (mut server, _) = listener.accept().await.unwrap();
    let mut heard = vec![0; 4096];
    let mut count = 0;
    while !heard[..count].ends_with(b"body") {
        count += server.read(&mut heard[count..]).await.unwrap();
    }
    server
        .write_all(b"HTTP/1.1 200 OK\r\n\r\ndone")
        .await
        .unwrap();
    server.shutdown().await.unwrap();

    assert!(answer(client).await.ends_with("done"));
    let more = server.read(&mut heard[count..]).await.unwrap_or(0);
    assert!(!String::from_utf8_lossy(&heard[..count + more]).contains("other.test"));
}
