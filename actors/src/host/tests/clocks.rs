//! A wall clock that jumps by an hour or a year, in either direction: nothing expires because of a
//! jump, and nothing waits for ever.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::{
    conversation::round::rules::ApprovalMode,
    host::Reply as Round,
    ids::Scope,
    limits::APPROVAL_MS,
    ports::{Approval, Clock, FnTool},
    testing::{Reply, ScriptedModel},
};

const HOUR: u64 = 60 * 60 * 1000;
const START: u64 = 1_795_300_000_000;

/// The jumps in milliseconds: an hour and a year, in either direction.
const JUMPS: [i64; 4] = [
    HOUR as i64,
    -(HOUR as i64),
    365 * 24 * HOUR as i64,
    -(365 * 24 * HOUR as i64),
];

/// A clock that a test shares with a host.
pub(super) struct Wall(pub(super) Arc<ManualClock>);

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

fn jumped(by: i64) -> Timestamp {
    Timestamp(START.saturating_add_signed(by))
}

async fn asking_host(store: &Arc<dyn SessionBackend>) -> (Host, Arc<ManualClock>) {
    let wall = Arc::new(ManualClock::at(Timestamp(START)));
    let tool = FnTool::raw(
        "tool",
        "A tool of the tests.",
        &json!({ "type": "object" }),
        |_: serde_json::Value, _| async { Ok("ran".to_owned()) },
        None,
    );
    let tool: Arc<dyn Tool> = Arc::new(tool.declare(|spec| spec.approval(Approval::ByMode)));
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "ask" => Reply::tool("tool", &json!({})),
            _ => Reply::text("done"),
        }
    }));
    let builder = HostBuilder::new(Wall(wall.clone()), SeededEntropy::new(3), |host: Host| host)
        .shared_provider(model);
    let host = builder
        .shared_sessions(store.clone())
        .tools([tool])
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap();
    (host, wall)
}

async fn asked(round: &mut Round) -> String {
    loop {
        if let EventKind::ApprovalRequired { tool_call_id, .. } = &round.next().await.unwrap().kind
        {
            return tool_call_id.clone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_jump_expires_an_approval_that_was_just_asked_for_awake_or_asleep() {
    for by in JUMPS {
        for asleep in [false, true] {
            let (host, wall) = asking_host(&store()).await;
            let mut rounds = Vec::new();
            for n in 0..5 {
                let talk = host.tenant("acme").conversation(format!("c-{n}"));
                let mut round = talk.send("ask").await.unwrap();
                rounds.push((talk, asked(&mut round).await, round));
            }
            if asleep {
                tokio::time::sleep(Duration::from_millis(50)).await;
                host.hibernate_idle();
                until("all sleep", || host.awake() == 0).await;
            }

            wall.set(jumped(by));
            tokio::time::sleep(Duration::from_secs(60)).await; // Sweeps look for what is due, every second.

            for (talk, call, mut round) in rounds {
                talk.approve(call, true)
                    .await
                    .unwrap_or_else(|error| panic!("{by} ms, asleep: {asleep}: {error}"));
                assert_eq!(
                    round.outcome().await.unwrap().text,
                    "done",
                    "{by} ms, asleep: {asleep}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_expires_in_the_end_whichever_way_the_clock_jumped() {
    for by in [-(HOUR as i64), 365 * 24 * HOUR as i64] {
        let (host, wall) = asking_host(&store()).await;
        let mut round = conversation(&host).send("ask").await.unwrap();
        asked(&mut round).await;
        wall.set(jumped(by));
        let began = tokio::time::Instant::now();
        let ticks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(300)).await;
                wall.advance_ms(300_000);
            }
        });

        let ended = tokio::time::timeout(
            Duration::from_millis(2 * APPROVAL_MS + HOUR),
            round.outcome(),
        )
        .await;

        ticks.abort();
        assert_eq!(
            ended
                .unwrap_or_else(|_| panic!("{by} ms: it waits for ever"))
                .unwrap()
                .text,
            "done"
        );
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        assert!(took >= APPROVAL_MS / 2, "{by} ms: expired after {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn no_jump_makes_a_client_key_forgotten_or_an_artifact_old() {
    for by in JUMPS {
        let (host, wall) = asking_host(&store()).await;
        let talk = conversation(&host);
        let mut first = talk.send("Hi").client_key("k").await.unwrap();
        first.outcome().await.unwrap();
        let owner = Scope::new("acme".try_into().unwrap(), "c-1".try_into().unwrap());
        let artifacts = host.0.resolver.artifacts.clone();
        let artifact = artifacts
            .store(owner.clone(), "call".into(), Bytes::from_static(b"kept"))
            .await
            .unwrap();

        wall.set(jumped(by));
        // Client keys expire when entries are appended.
        talk.send("Again").await.unwrap().outcome().await.unwrap();
        let again = talk.send("Hi").client_key("k").await.unwrap();
        artifacts
            .cleanup(Duration::from_secs(24 * 3600))
            .await
            .unwrap();

        assert_eq!(
            (again.round_id(), again.is_replayed()),
            (first.round_id(), true),
            "{by} ms"
        );
        assert!(artifacts.retrieve(owner, artifact).await.is_ok(), "{by} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn no_jump_moves_rates_rings_or_budgets_of_time() {
    for by in JUMPS {
        let (host, wall) = asking_host(&store()).await;
        let quotas = crate::tenant::Quotas {
            requests_per_minute: Some(1),
            ..Default::default()
        };
        let budget = crate::policy::Budget::default().with_time(Duration::from_secs(3600));
        let config = crate::host::TenantConfig::new()
            .quotas(quotas)
            .conversation_budget(budget);
        host.configure_tenant(&"acme".try_into().unwrap(), config)
            .await
            .unwrap();
        let mut round = conversation(&host).send("Hi").await.unwrap();
        round.outcome().await.unwrap();

        wall.set(jumped(by));

        assert_eq!(
            conversation(&host).send("Hi").await.unwrap_err().code(),
            "overloaded",
            "{by} ms: the minute is not over"
        );
        let mut seen = conversation(&host).watch(round.round_id()).unwrap();
        assert_eq!(
            seen.outcome().await.unwrap().text,
            "done",
            "{by} ms: the ring is there"
        );
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(
            conversation(&host)
                .send("Hi")
                .await
                .unwrap()
                .outcome()
                .await
                .unwrap()
                .text,
            "done",
            "{by} ms: the budget is not used up"
        );
    }
}
