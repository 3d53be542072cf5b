//! What is another tenant's is not there (FAULTS F10).

use super::*;
use callboard_actors::ids::Scope;

/// What a client sees of a refusal but its name and its date.
async fn seen(response: Response) -> (u16, Vec<(String, String)>, String) {
    let mut fields: Vec<(String, String)> = response
        .headers()
        .iter()
        .filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    fields.sort();
    (response.status().as_u16(), fields, soon(response.text()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_ids_are_answered_byte_for_byte_as_ids_that_never_were() {
    let server = Server::start(ScriptedModel::always(Reply::text("secret of acme"))).await;
    let round = server.say("mine", "hello").await["round_id"].as_str().unwrap().to_owned();
    let owner = Scope::new(tenant("acme"), "mine".try_into().unwrap());
    let artifact = server.host.artifacts().store(owner, "call".into(), "secret".into()).await.unwrap();
    let nobodys = callboard_actors::ports::ArtifactId::of(b"never stored");
    let json = "{}".to_owned();
    let routes: Vec<(Method, String, String)> = vec![
        (Method::GET, "/v1/conversations/ID".into(), String::new()),
        (Method::GET, "/v1/conversations/ID/messages".into(), String::new()),
        (Method::DELETE, "/v1/conversations/ID".into(), String::new()),
        (Method::POST, "/v1/conversations/ID/reset".into(), json.clone()),
        (Method::GET, "/v1/conversations/ID/events".into(), String::new()),
        (Method::GET, "/v1/conversations/ID/events?after=1.1.0".into(), String::new()),
        (Method::GET, format!("/v1/conversations/ID/events?round={round}"), String::new()),
        (Method::POST, "/v1/conversations/ID/interrupt".into(), json.clone()),
        (Method::POST, "/v1/conversations/ID/approvals/call_0_0".into(), r#"{"allow":true}"#.into()),
        (Method::POST, "/v1/conversations/ID/inject".into(), r#"{"text":"note"}"#.into()),
        (Method::POST, "/v1/conversations/ID/compact".into(), json),
        (Method::POST, "/v1/conversations/ID/fork".into(), r#"{"conversation_id":"theirs"}"#.into()),
        (Method::GET, "/v1/conversations/ID/skills".into(), String::new()),
        (Method::POST, "/v1/conversations/ID/skills/notes".into(), String::new()),
        (Method::DELETE, "/v1/conversations/ID/skills/notes".into(), String::new()),
        (Method::GET, "/v1/artifacts/ARTIFACT".into(), String::new()),
        (Method::GET, "/v1/artifacts/ARTIFACT?conversation=ID".into(), String::new()),
    ];
    for (method, path, body) in routes {
        let ask = async |conversation: &str, artifact: &str| {
            let path = path.replace("ID", conversation).replace("ARTIFACT", artifact);
            let request = server.ask(method.clone(), &path, ZETA).header("content-type", "application/json").body(body.clone());
            seen(soon(request.send()).await.unwrap()).await
        };

        let theirs = ask("mine", artifact.as_str()).await;
        let never = ask("none", nobodys.as_str()).await;

        assert_eq!((theirs.0, &theirs), (404, &never), "{method} {path}");
        assert!(!theirs.2.contains("secret"), "{method} {path}");
    }
    let listed = soon(server.ask(Method::GET, "/v1/conversations", ZETA).send()).await.unwrap();
    assert_eq!(body(listed).await["conversations"], json!([]));
    let figures = soon(server.ask(Method::GET, "/v1/metrics", ZETA).send()).await.unwrap();
    assert!(!soon(figures.text()).await.unwrap().contains("acme"));
    assert_eq!(body(server.get("/v1/conversations/mine/messages").await).await["total"], 2, "nothing was done to it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_may_give_their_conversations_the_same_name() {
    let server = Server::start(ScriptedModel::answering(|request, _| Reply::text(format!("{} messages", request.messages.len())))).await;
    server.say("support", "of acme").await;

    let request = with_json(server.ask(Method::POST, "/v1/conversations/support/messages", ZETA), &json!({ "content": "of zeta" }));
    let answer = body(soon(request.send()).await.unwrap()).await;

    assert_eq!(answer["text"], "1 messages");
}
