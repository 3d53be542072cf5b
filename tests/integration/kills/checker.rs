//! What must hold after a kill loop, by what clients can see.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    Broken,
    client::{Acknowledged, Client, GIVEN_UP},
    model,
};

/// The history of a conversation, read page by page when no round is open any more.
pub(super) async fn history(client: &Client) -> Vec<Value> {
    for _ in 0..600 {
        let status: Value = json(client, "").await;
        // A conversation of a killed host is asleep until its next prompt, not idle.
        if status["round_id"].is_null() && status["prompts_waiting"] == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let page = json(client, &format!("/messages?limit=100{after}")).await;
        let messages = page["messages"].as_array().unwrap().iter();
        all.extend(messages.map(|entry| entry["message"].clone()));
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => return all,
        }
    }
}

/// The names of prompts whose rounds ended with the error that says that their hosts crashed too
/// often: those have no answer, and their events say so.
pub(super) async fn given_up(
    client: &Client,
    acknowledged: &[Acknowledged],
    history: &[Value],
) -> HashSet<String> {
    let texts: HashSet<&str> = history.iter().flat_map(model::texts).collect();
    let mut names = HashSet::new();
    for one in acknowledged {
        if texts.contains(model::answer(&one.name).as_str()) {
            continue;
        }
        let events = format!("/events?round={}&after=0.0.0", one.round);
        let response = client.get(&events).send().await.unwrap();
        if response.text().await.unwrap().contains(GIVEN_UP) {
            names.insert(one.name.clone());
        }
    }
    names
}

async fn json(client: &Client, rest: &str) -> Value {
    let text = client.get(rest).send().await.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Each acknowledged prompt is there once and in order, and has one answer unless its round was
/// given up.
pub(super) fn check(
    acknowledged: &[Acknowledged],
    given_up: &HashSet<String>,
    history: &[Value],
    broken: &Broken,
) {
    let request = serde_json::json!({ "messages": merged(history) });
    let ends = history
        .last()
        .is_some_and(|last| last["role"] == "assistant");
    let last = acknowledged.last();
    let is_given_up = last.is_some_and(|last| given_up.contains(&last.name));
    broken.check(ends || is_given_up, || {
        format!("a round is open: {:?}", history.last())
    });
    if let Some(why) = model::invalid(&request).filter(|_| !ends) {
        broken.add(format!("the history is invalid: {why}"));
    }
    let texts: Vec<&str> = history.iter().flat_map(model::texts).collect();
    let ours = |start: &str| -> Vec<&str> {
        let all = texts.iter().copied();
        all.filter(|text| text.starts_with(start)).collect()
    };
    let prompts: Vec<String> = acknowledged
        .iter()
        .map(|one| model::prompt(&one.name, one.kind))
        .collect();
    let answers: Vec<String> = acknowledged
        .iter()
        .filter(|one| !given_up.contains(&one.name))
        .map(|one| model::answer(&one.name))
        .collect();
    compare("prompts", &prompts, &ours("prompt "), broken);
    compare("answers", &answers, &ours("answer to "), broken);
}

fn compare(what: &str, expected: &[String], found: &[&str], broken: &Broken) {
    if expected
        .iter()
        .map(String::as_str)
        .eq(found.iter().copied())
    {
        return;
    }
    let mut counts: HashMap<&str, i64> = HashMap::new();
    for one in expected {
        *counts.entry(one).or_default() -= 1;
    }
    for one in found {
        *counts.entry(one).or_default() += 1;
    }
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 0).collect();
    match wrong.is_empty() {
        true => broken.add(format!("{what} are out of order: {found:?}")),
        false => broken.add(format!("{what}, missing (-) and too many (+): {wrong:?}")),
    }
}

/// Neighbours of one role as one message, as a request has them.
fn merged(history: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for message in history {
        match all.last_mut() {
            Some(last) if last["role"] == message["role"] => {
                let more = message["content"].as_array().cloned().unwrap_or_default();
                if let Some(content) = last["content"].as_array_mut() {
                    content.extend(more);
                }
            }
            _ => all.push(message.clone()),
        }
    }
    all
}

/// No command was started twice, and one whose end the history has was started.
pub(super) fn check_starts(starts: &[String], histories: &[Vec<Value>], broken: &Broken) -> usize {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in starts {
        *counts.entry(name).or_default() += 1;
    }
    for (name, count) in &counts {
        broken.check(*count == 1, || format!("{name} was started {count} times"));
    }
    let mut ended = 0;
    for text in histories.iter().flatten().flat_map(results) {
        let names = text.lines().filter_map(|line| line.strip_prefix("ended "));
        for name in names {
            ended += 1;
            broken.check(counts.contains_key(name), || {
                format!("{name} ended and did not start")
            });
        }
    }
    ended
}

/// The texts of the tool results of a message.
fn results(message: &Value) -> Vec<String> {
    let blocks = message["content"].as_array().into_iter().flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| match &block["content"] {
            Value::String(text) => text.clone(),
            content => {
                let parts = content.as_array().into_iter().flatten();
                parts.filter_map(|part| part["text"].as_str()).collect()
            }
        })
        .collect()
}

mod tests {
    use serde_json::json;

    use super::*;

    fn acknowledged(names: &[&str]) -> Vec<Acknowledged> {
        let one = |name: &&str| Acknowledged {
            name: (*name).to_owned(),
            kind: "text",
            round: String::new(),
        };
        names.iter().map(one).collect()
    }

    fn said(role: &str, text: &str) -> Value {
        json!({ "role": role, "content": [{ "type": "text", "text": text }] })
    }

    fn round(name: &str) -> [Value; 2] {
        [
            said("user", &model::prompt(name, "text")),
            said("assistant", &model::answer(name)),
        ]
    }

    fn broken(names: &[&str], history: &[Value]) -> usize {
        let broken = Broken::default();
        check(&acknowledged(names), &HashSet::new(), history, &broken);
        broken.count()
    }

    #[test]
    fn the_checker_sees_what_is_lost_doubled_swapped_or_left_open() {
        let [a, b] = [round("a"), round("b")];
        let whole = [&a[..], &b[..]].concat();
        assert_eq!(broken(&["a", "b"], &whole), 0);
        assert_eq!(
            broken(&["a", "b", "c"], &whole),
            2,
            "a prompt and its answer are lost"
        );
        assert_eq!(
            broken(&["a"], &[&a[..], &a[..]].concat()),
            2,
            "both are there twice"
        );
        assert_eq!(broken(&["b", "a"], &whole), 2, "they are swapped");
        assert_eq!(
            broken(&["a", "b"], &whole[..3]),
            2,
            "the last round is open"
        );
        let twice = [&a[..], &[said("assistant", &model::answer("a"))]].concat();
        assert_eq!(broken(&["a"], &twice), 1, "answered twice");
    }

    #[test]
    fn the_checker_sees_a_command_that_starts_twice() {
        let starts = |names: &[&str]| {
            let broken = Broken::default();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let result = json!({ "type": "tool_result", "content": "ended a" });
            let history = [vec![json!({ "role": "user", "content": [result] })]];
            check_starts(&names, &history, &broken);
            broken.count()
        };
        assert_eq!(starts(&["a", "b"]), 0);
        assert_eq!(starts(&["a", "a"]), 1);
        assert_eq!(starts(&["b"]), 1, "it ended and never began");
    }
}
