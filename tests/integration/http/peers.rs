//! What is sent on to another host, and what that may cost this one.

use axum::{extract::Request, response::Response as Answer};
use callboard_actors::{
    ids::Scope,
    ports::{BoxFuture, StoreError},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use callboard::http::NotForwarded;

use super::*;

/// Another host that owns every conversation, and records what it is sent.
#[derive(Default)]
struct Other(Mutex<Vec<String>>);

impl Peers for Other {
    fn address(&self) -> &str {
        "http://here"
    }

    fn others(&self) -> Vec<String> {
        vec!["http://127.0.0.1:1".to_owned()]
    }

    fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> BoxFuture<'_, Result<Vec<(Scope, String)>, StoreError>> {
        let owned = scopes.into_iter();
        Box::pin(async { Ok(owned.map(|scope| (scope, "http://there".into())).collect()) })
    }

    fn forward<'a>(
        &'a self,
        _: &'a str,
        request: Request,
    ) -> BoxFuture<'a, Result<Answer, NotForwarded>> {
        let id = request.headers()["x-request-id"].to_str().unwrap();
        self.0.lock().push(id.to_owned());
        Box::pin(async { Ok(Answer::new("theirs".into())) })
    }
}

async fn with_other() -> (Arc<Other>, Server) {
    within(HttpBounds::default()).await
}

async fn within(bounds: HttpBounds) -> (Arc<Other>, Server) {
    let other = Arc::new(Other::default());
    let setting = Setting {
        peers: Some(other.clone()),
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    (other, Server::with(model, setting).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_request_is_not_sent_on_and_another_keeps_its_id() {
    let (other, server) = with_other().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let two_hosts = format!(
        "DELETE /v1/conversations/c HTTP/1.1\r\nhost: a\r\nhost: b\r\nauthorization: Bearer {ACME}\r\n\r\n"
    );
    stream.write_all(two_hosts.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(other.0.lock().len(), 0);

    let sent = server.get("/v1/conversations/c").await;

    let id = sent.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(*other.0.lock(), [id]);
    assert_eq!(soon(sent.text()).await.unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_kept_to_be_sent_on_have_a_bound() {
    let (other, server) = with_other().await;
    // Bodies that are announced and do not come. There is room for copies of 128 of a tenant.
    let held = unfinished_bodies(&server, ACME, 132).await;

    // The others are sent on while they arrive.
    soon(async {
        while other.0.lock().len() < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(other.0.lock().len(), 4);
    drop(held);
}

/// Requests whose bodies are announced and do not come.
async fn unfinished_bodies(server: &Server, key: &str, count: usize) -> Vec<TcpStream> {
    let head = format!(
        "POST /v1/conversations/c/messages HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: 262144\r\n\r\n"
    );
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_one_tenant_that_never_come_leave_room_for_those_of_another() {
    let (other, server) = with_other().await;
    let held = unfinished_bodies(&server, ZETA, 260).await;
    // Those without a copy are sent on while they arrive: the others have taken what they get.
    soon(async {
        while other.0.lock().len() < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    // Which host this is for stands in the body, so it is sent on only if the body is kept.
    let chat = json!({
        "model": "default",
        "messages": [{"role": "user", "content": "Hi"}],
        "metadata": {"conversation_id": "c"},
    });
    let answer = server.post("/openai/v1/chat/completions", chat).await;

    assert_eq!(soon(answer.text()).await.unwrap(), "theirs");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenants_requests_through_another_host_take_no_connection_of_others() {
    let mut bounds = HttpBounds::default();
    bounds.connections_per_address_max = Some(2);
    bounds.header_within = Duration::from_secs(60); // What is held stays open meanwhile.
    let (_other, server) = within(bounds).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(TcpStream::connect(server.address).await.unwrap());
    }

    // The other host's address is known a moment after the start.
    let served = async {
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
            let _ = stream.write_all(request).await;
            let mut head = [0; 12];
            if stream.read_exact(&mut head).await.is_ok() && head.ends_with(b"200") {
                return;
            }
        }
    };
    soon(served).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_another_host_would_read_as_another_route_is_not_sent_on() {
    let (other, server) = with_other().await;
    for segment in ["..", "%2e%2E", ".%2e", "%2e"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!(
            "DELETE /v1/conversations/c/skills/{segment} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {ACME}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.unwrap();

        assert!(answer.starts_with("HTTP/1.1 404"), "{segment}: {answer}");
    }
    assert_eq!(other.0.lock().len(), 0);
}
