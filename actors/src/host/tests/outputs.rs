//! Structured output (`send_as`): the schema is sent, answers are checked, and the model is asked
//! again.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::{
    chat::is_reminder,
    host::{OutcomeError, SendAsError},
    limits::Limits,
    ports::{Capabilities, SchemaCheck, Schemas},
    stream::StopReason,
    testing::{Reply, ScriptedModel},
};

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct City {
    name: String,
}

/// A schema check with one rule: no city is called Nowhere.
struct Rules;

impl Schemas for Rules {
    fn compile(&self, _: &str, _: &RawJson) -> Result<Arc<dyn SchemaCheck>, String> {
        Ok(Arc::new(Self))
    }
}

impl SchemaCheck for Rules {
    fn check(&self, value: &serde_json::Value) -> Result<(), ToolError> {
        if value["name"] == "Nowhere" {
            Err(ToolError::invalid("`name` is nowhere"))
        } else {
            Ok(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_a_value_and_the_model_got_its_schema() {
    let model = Arc::new(ScriptedModel::always(Reply::text(
        "Sure:\n```json\n{\"name\":\"Lisbon\"}\n```",
    )));
    let host = host(&model).await;

    let city: City = conversation(&host).send_as("Which city?").await.unwrap();

    assert_eq!(
        city,
        City {
            name: "Lisbon".into()
        }
    );
    let request = model.last_request().unwrap();
    let blocks = request.messages.last().unwrap().blocks();
    assert!(
        is_reminder(blocks[1].as_text().unwrap())
            && blocks[1].as_text().unwrap().contains("\"name\"")
    );
    assert_eq!((request.output_schema, model.requests().len()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_takes_schemas_gets_it_in_its_request_and_no_prose() {
    let native = Capabilities {
        context_window: 1000,
        output_max: 100,
        tools: true,
        output_schema: true,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    };
    let model =
        Arc::new(ScriptedModel::always(Reply::text("{\"name\":\"Lisbon\"}")).capabilities(native));
    let host = host(&model).await;

    let _: City = conversation(&host).send_as("Which city?").await.unwrap();
    conversation(&host)
        .send("And now in prose.")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let requests = model.requests();
    let schema = requests[0]
        .output_schema
        .as_ref()
        .map(RawJson::as_str)
        .unwrap_or_default();
    assert!(
        schema.contains("\"name\"") && requests[0].messages.last().unwrap().blocks().len() == 1,
        "{schema}"
    );
    assert_eq!(requests[1].output_schema, None, "a schema is of one round");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_fit_is_asked_for_again_at_most_twice() {
    let wrong = || Reply::text("{\"name\":\"Nowhere\"}");
    let model = Arc::new(ScriptedModel::replies([
        wrong(),
        Reply::text("no idea"),
        Reply::text("{\"name\":\"Porto\"}"),
        wrong(),
        wrong(),
        wrong(),
    ]));
    let host = builder(&model)
        .schemas(Arc::new(Rules))
        .build()
        .await
        .unwrap();

    let city: City = conversation(&host).send_as("Which city?").await.unwrap();
    let reminder = model.requests()[1].messages.last().unwrap().text();
    let error = conversation(&host)
        .send_as::<City>("And which next?")
        .await
        .unwrap_err();

    assert_eq!(city.name, "Porto");
    assert!(
        is_reminder(&reminder) && reminder.contains("`name` is nowhere"),
        "{reminder}"
    );
    let SendAsError::Output(error) = error else {
        panic!("{error:?}")
    };
    assert!(
        error.faults.contains("`name` is nowhere") && error.text == "{\"name\":\"Nowhere\"}",
        "{error:?}"
    );
    assert_eq!(model.requests().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_round_taken_up_by_the_next_host_still_asks_for_its_schema() {
    let store = store();
    let first = Arc::new(ScriptedModel::replies([
        Reply::text("no idea"),
        Reply::stall(),
    ]));
    let dying = builder(&first)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let schema = RawJson::of(&schemars::schema_for!(City)).unwrap();
    let _reply = conversation(&dying)
        .send("Which city?")
        .output_schema(schema)
        .await
        .unwrap();
    first.until(|counts| counts.started == 2).await;
    let scope = conversation(&dying).scope().unwrap();
    until("the refusal is stored", || {
        let load = crate::conversation::load(&*store, &scope);
        let state = futures_util::FutureExt::now_or_never(load).and_then(Result::ok);
        state
            .and_then(|state| state.round?.output)
            .is_some_and(|output| output.refused == 1)
    })
    .await;
    drop(dying);
    let second = Arc::new(ScriptedModel::replies([
        Reply::text("still none"),
        Reply::text("{\"name\":\"Faro\"}"),
    ]));
    let host = builder(&second)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();

    let end = conversation(&host)
        .resume()
        .await
        .unwrap()
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (end.text.as_str(), second.requests().len()),
        ("{\"name\":\"Faro\"}", 2)
    );
}

/// Checks that wait until they may go on.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, usize, bool)>,
    opened: Condvar,
    /// Checks that were made.
    made: AtomicUsize,
}

impl Gate {
    /// Checks that run now, and the most that ran at once.
    fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.0, state.1)
    }

    fn open(&self) {
        self.state.lock().2 = true;
        self.opened.notify_all();
    }
}

/// Answers of one tenant wait at the gate.
struct Gated(Arc<Gate>);

impl Schemas for Gated {
    fn compile(&self, _: &str, _: &RawJson) -> Result<Arc<dyn SchemaCheck>, String> {
        Ok(Arc::new(Self(self.0.clone())))
    }
}

impl SchemaCheck for Gated {
    fn check(&self, value: &serde_json::Value) -> Result<(), ToolError> {
        if value["waits"] == true {
            self.0.made.fetch_add(1, Ordering::Relaxed);
            let mut state = self.0.state.lock();
            state.0 += 1;
            state.1 = state.1.max(state.0);
            while !state.2 {
                self.0.opened.wait(&mut state);
            }
            state.0 -= 1;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_checks_of_a_tenants_answers_are_few_at_a_time_and_in_no_other_tenants_way() {
    // The words before the JSON make the answer long. Beyond 1 MiB as well as below.
    for words in [0, 1_200_000] {
        let gate = Arc::new(Gate::default());
        let model = Arc::new(ScriptedModel::answering(move |request, _| {
            let waits = request.messages.last().unwrap().text().contains("wait");
            let words = if waits { words } else { 0 };
            Reply::text(format!(r#"{}{{"waits":{waits}}}"#, "x ".repeat(words / 2)))
        }));
        let host = builder(&model).schemas(Arc::new(Gated(gate.clone())));
        let host = host.build().await.unwrap();
        let schema = RawJson::from_text(r#"{"type":"object","pattern":"a"}"#).unwrap();
        let ask = async |tenant: &str, id: String, text: &str| {
            let talk = host.tenant(tenant).conversation(id);
            talk.send(text).output_schema(schema.clone()).await.unwrap()
        };

        let mut floods = Vec::new();
        for number in 0..10 {
            floods.push(ask("flood", format!("c{number}"), "wait").await);
        }
        until("two checks wait", || gate.counts().0 == 2).await;
        let mut calm = ask("calm", "c".to_owned(), "go").await;
        assert_eq!(calm.outcome().await.unwrap().text, r#"{"waits":false}"#);
        assert_eq!(gate.counts(), (2, 2));

        gate.open();
        for mut flood in floods {
            let text = flood.outcome().await.unwrap().text;
            assert_eq!(text.trim_start_matches("x "), r#"{"waits":true}"#);
        }
        assert_eq!(gate.counts().1, 2);
        let made = gate.made.load(Ordering::Relaxed);
        assert_eq!(made, 10, "each was checked once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_wait_for_their_check_count_as_memory_of_their_tenant() {
    let gate = Arc::new(Gate::default());
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text(format!(r#"{}{{"waits":true}}"#, "x ".repeat(500_000)))
    }));
    // One tenant gets more while others find as much: half of it.
    let limits = Limits {
        memory_bytes_max: 6_500_000,
        ..Limits::default()
    };
    let host = builder(&model).schemas(Arc::new(Gated(gate.clone())));
    let host = host.limits(limits).build().await.unwrap();
    let tenant = host.tenant("acme");
    let schema = RawJson::from_text(r#"{"type":"object","pattern":"a"}"#).unwrap();

    let mut rounds = Vec::new();
    for number in 0..10 {
        let talk = tenant.conversation(format!("c{number}"));
        let round = talk.send("go").output_schema(schema.clone()).await;
        rounds.push(round.unwrap());
    }
    let outcomes = rounds.iter_mut().map(|round| round.outcome());
    let mut outcomes: FuturesUnordered<_> = outcomes.collect();
    // Three wait, with a million bytes each. There is no memory for the others.
    let mut codes = Vec::new();
    while codes.len() < 7 {
        let end = tokio::time::timeout(Duration::from_secs(20), outcomes.next()).await;
        let Ok(Some(Err(OutcomeError::Failed { end }))) = end else {
            gate.open(); // The runtime waits for the threads that wait there.
            panic!("{codes:?} {end:?} {:?}", tenant.usage());
        };
        codes.extend(end.error.map(|error| error.code));
    }
    assert_eq!(codes, ["overloaded"; 7]);
    let held = tenant.usage().unwrap().memory_bytes;
    gate.open();
    assert!(held >= 3_000_000, "{held}");
    while let Some(end) = outcomes.next().await {
        assert_eq!(end.unwrap().stop_reason, StopReason::EndTurn);
    }
    drop(outcomes);
    until("the memory is free", || {
        tenant.usage().unwrap().memory_bytes == 0
    })
    .await;
}
