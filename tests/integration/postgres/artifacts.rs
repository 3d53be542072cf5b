//! Artifacts in PostgreSQL: their contract, directly and behind a pooler, and two hosts that share
//! them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use callboard::{
    ids::{ArtifactId, Scope},
    ports::{ArtifactError, ArtifactStore, Cleaned, Clock},
    storage::{ArtifactSettings, Postgres, PostgresArtifacts},
};
use callboard_actors::{
    testing::{
        ManualClock,
        contract::{self, ArtifactBounds},
    },
    time::Timestamp,
};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{
    hosts::{configured, database},
    open, schema, scope,
    server::{Server, own_server, pooler, server},
};
use crate::{
    cli::serve::{Key, Served},
    support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool},
};

const T0: Timestamp = Timestamp(1_700_000_000_000);

fn settings() -> ArtifactSettings {
    ArtifactSettings {
        auto_start: false,
        ..ArtifactSettings::default()
    }
}

/// A store of artifacts, and the sessions whose connections it uses.
struct Place {
    schema: String,
    clock: Arc<ManualClock>,
    artifacts: PostgresArtifacts,
    _sessions: Postgres,
}

impl Place {
    async fn new(server: &Server, settings: ArtifactSettings) -> Self {
        let schema = schema();
        let clock = Arc::new(ManualClock::at(T0));
        let sessions = open(&server.url(), &schema).await;
        Self {
            artifacts: sessions.artifacts(clock.clone(), settings),
            schema,
            clock,
            _sessions: sessions,
        }
    }

    /// The artifacts as another host sees them.
    async fn of_another_host(&self, server: &Server, settings: ArtifactSettings) -> Self {
        let sessions = open(&server.url(), &self.schema).await;
        Self {
            schema: self.schema.clone(),
            clock: self.clock.clone(),
            artifacts: sessions.artifacts(self.clock.clone(), settings),
            _sessions: sessions,
        }
    }

    async fn put(
        &self,
        owner: &Scope,
        content: impl Into<Bytes>,
    ) -> Result<ArtifactId, ArtifactError> {
        let stored = self
            .artifacts
            .store(owner.clone(), "t".into(), content.into());
        stored.await
    }

    fn rows(&self, server: &Server) -> String {
        let Self { schema, .. } = self;
        server.execute(&format!(
            "SELECT (SELECT count(*) FROM {schema}.artifact), (SELECT count(*) FROM {schema}.artifact_chunk), \
             (SELECT coalesce(sum(bytes), 0) FROM {schema}.artifact_tenant)"
        ))
    }
}

/// Runs the contract over a store at an address.
async fn keeps_the_contract(url: &str) {
    let stores = parking_lot::Mutex::new(Vec::new());
    contract::artifact_store(async |clock: Arc<dyn Clock>, bounds: ArtifactBounds| {
        let sessions = open(url, &schema()).await;
        let artifacts = sessions.artifacts(
            clock,
            ArtifactSettings {
                tenant_bytes_max: bounds.tenant_bytes_max,
                max_age: bounds.max_age,
                ..settings()
            },
        );
        stores.lock().push(sessions);
        Arc::new(artifacts) as Arc<dyn ArtifactStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_the_contract_of_an_artifact_store() {
    let Some(server) = server("postgres_keeps_the_contract_of_an_artifact_store") else {
        return;
    };

    keeps_the_contract(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_artifacts_keep_the_contract_too() {
    let test = "behind_a_pooler_artifacts_keep_the_contract_too";
    let Some(server) = server(test) else {
        return;
    };
    let Some(pooler) = pooler(test, &server) else {
        return;
    };

    keeps_the_contract(&pooler.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_quota_of_artifacts_holds_over_two_hosts_that_store_at_once() {
    let test = "a_tenants_quota_of_artifacts_holds_over_two_hosts_that_store_at_once";
    let Some(server) = server(test) else {
        return;
    };
    let bounded = ArtifactSettings {
        tenant_bytes_max: 100_000,
        ..settings()
    };
    let one = Place::new(&server, bounded.clone()).await;
    let two = one.of_another_host(&server, bounded).await;

    let stores = (0..40u8).map(|n| {
        let place = [&one, &two][usize::from(n % 2)];
        let owner = scope(&format!("c{}", n % 3));
        async move { place.put(&owner, vec![n; 30_000]).await }
    });
    let stored = futures_util::future::join_all(stores).await;

    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    assert_eq!(one.rows(&server), "3|3|90000", "and no chunk is left over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_that_store_the_same_content_keep_it_once() {
    let Some(server) = server("two_hosts_that_store_the_same_content_keep_it_once") else {
        return;
    };
    let one = Place::new(&server, settings()).await;
    let two = one.of_another_host(&server, settings()).await;
    let owner = scope("c");

    for n in 0..10u8 {
        let content = vec![n; 300_000];
        let (first, second) =
            tokio::join!(one.put(&owner, content.clone()), two.put(&owner, content));
        assert_eq!(first.unwrap(), second.unwrap());
    }

    assert_eq!(one.rows(&server), "10|20|3000000");
    let gone = one.artifacts.release(owner.tenant.clone(), None);
    gone.await.unwrap();
    assert_eq!(one.rows(&server), "0|0|0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_the_size_of_the_store_the_least_used_artifacts_of_all_tenants_go() {
    let test = "above_the_size_of_the_store_the_least_used_artifacts_of_all_tenants_go";
    let Some(server) = server(test) else {
        return;
    };
    let bounded = ArtifactSettings {
        max_size_bytes: 1000,
        ..settings()
    };
    let place = Place::new(&server, bounded).await;
    let mut kept = Vec::new();
    for n in 0..11u8 {
        let owner = Scope::new(
            format!("t{}", n % 3).as_str().try_into().unwrap(),
            "c".try_into().unwrap(),
        );
        kept.push((
            owner.clone(),
            place.put(&owner, vec![n; 100]).await.unwrap(),
        ));
        place.clock.advance_ms(1);
    }
    let (owner, first) = kept[0].clone();
    place.artifacts.touch(owner, first).await.unwrap();

    let cleaned = place.artifacts.cleanup(Duration::from_secs(3600)).await;

    assert_eq!(
        cleaned,
        Ok(Cleaned {
            removed: 3,
            bytes: 300
        }),
        "down to 80 %"
    );
    for (n, (owner, id)) in kept.into_iter().enumerate() {
        let is_there = place.artifacts.meta(owner, id).await.is_ok();
        assert_eq!(is_there, n == 0 || n > 3, "{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_artifact_is_never_returned_and_another_content_keeps_its_name() {
    let test = "a_damaged_artifact_is_never_returned_and_another_content_keeps_its_name";
    let Some(server) = server(test) else {
        return;
    };
    let place = Place::new(&server, settings()).await;
    let schema = &place.schema;
    let (changed, short, other) = (scope("changed"), scope("short"), scope("other"));
    let content = Bytes::from(vec![7; 600_000]);
    let id = place.put(&changed, content.clone()).await.unwrap();
    for owner in [&short, &other] {
        place.put(owner, content.clone()).await.unwrap();
    }
    let of = |owner: &Scope| {
        let conversation = owner.conversation.as_str();
        format!("(SELECT artifact FROM {schema}.artifact WHERE conversation = '{conversation}')")
    };
    server.execute(&format!(
        "UPDATE {schema}.artifact_chunk SET bytes = overlay(bytes placing 'x' from 9) WHERE n = 1 AND artifact = {}",
        of(&changed)
    ));
    server.execute(&format!(
        "DELETE FROM {schema}.artifact_chunk WHERE n = 1 AND artifact = {}",
        of(&short)
    ));
    server.execute(&format!(
        "UPDATE {schema}.artifact SET digest = 'another' WHERE artifact = {}",
        of(&other)
    ));

    let gone = Err(ArtifactError::NotFound(id.clone()));
    assert_eq!(
        place.artifacts.retrieve(changed.clone(), id.clone()).await,
        gone
    );
    let range = place.artifacts.read_range(short, id.clone(), 0..600_000);
    assert_eq!(range.await, gone);
    assert_eq!(
        place.put(&other, content.clone()).await,
        Err(ArtifactError::Collision(id.clone()))
    );
    place.put(&changed, content.clone()).await.unwrap();
    assert_eq!(place.artifacts.retrieve(changed, id).await, Ok(content));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_survive_a_crash_of_the_server_and_go_on_by_themselves() {
    let test = "artifacts_survive_a_crash_of_the_server_and_go_on_by_themselves";
    let Some(server) = own_server(test) else {
        return;
    };
    let place = Place::new(&server, settings()).await;
    let owner = scope("c");
    let id = place.put(&owner, "kept").await.unwrap();

    server.crash();
    let refused = place.put(&owner, "lost").await;
    let unread = place.artifacts.retrieve(owner.clone(), id.clone()).await;

    let is_away = |error: &ArtifactError| matches!(error, ArtifactError::Unavailable(_));
    assert!(refused.as_ref().is_err_and(is_away), "{refused:?}");
    assert!(unread.as_ref().is_err_and(is_away), "{unread:?}");
    server.start();
    let read = place.artifacts.retrieve(owner, id).await;
    assert_eq!(read.unwrap(), "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_made_on_a_host_that_was_killed_is_read_on_another_one() {
    let test = "an_artifact_made_on_a_host_that_was_killed_is_read_on_another_one";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "artifacts");
    let model = ModelServer::start([Reply::status(500)]).await;
    let acme = Key::new(&crate::cli::Home::new());
    let [one, two] = [(); 2].map(|()| {
        configured(
            &model,
            &database,
            &format!(
                "[tools.web_fetch]\nallow_hosts = [\"127.0.0.1\"]\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n\
                 tools = [\"web_fetch\", \"read_more\"]\napprove = \"auto\"\n",
                acme.hash
            ),
        )
    });
    let text: String = (0..9_000).map(|n| format!("line {n}\n")).collect();
    let page = Reply::status(200)
        .header("content-type", "text/plain")
        .send(text);
    let url = json!({ "url": format!("{}/page", model.url()) });
    model.script([
        Reply::events(anthropic_tool("web_fetch", &url)),
        page,
        Reply::events(anthropic_text("Read.")),
    ]);
    let path = "/v1/conversations/c/messages";
    let first = Served::start(&one, &[]);
    let prompt = Some(json!({ "content": "Read it." }));
    let answer = first.ask(Method::POST, path, &acme.key, prompt).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let shown = model.requests().last().unwrap().json()["messages"].to_string();
    let id = shown.split("artifact_").nth(1).unwrap();
    let id = format!("artifact_{}", id.get(..16).unwrap());

    first.signal("KILL");
    drop(first);
    let second = tokio::task::block_in_place(|| Served::start(&two, &["--standby"]));
    let more = json!({ "result_id": id, "lines": "8000-8001" });
    model.script([
        Reply::events(anthropic_tool("read_more", &more)),
        Reply::events(anthropic_text("Read on.")),
    ]);
    let prompt = Some(json!({ "content": "Read on." }));
    let answer = second.ask(Method::POST, path, &acme.key, prompt).await;

    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let shown = model.requests().last().unwrap().json()["messages"].to_string();
    assert!(
        shown.contains("lines 8000-8001, bytes 7"),
        "the second host read on"
    );
    let artifact = format!("/v1/artifacts/{id}?conversation=c");
    let whole = second
        .text(Method::GET, &artifact, &acme.key, None, &[])
        .await;
    assert!(whole.contains("line 8999"), "{}", whole.len());
    let erased = second
        .ask(Method::DELETE, "/v1/conversations/c", &acme.key, None)
        .await;
    assert!(erased.status.is_success(), "{erased:?}");
    let left = server.execute_in(&database, "SELECT count(*) FROM callboard.artifact_chunk");
    assert_eq!(left, "0", "a conversation takes its artifacts with it");
}
