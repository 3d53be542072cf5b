//! `callboard doctor` and `callboard keys`.

use serde_json::Value;

use super::{Home, Ran};
use crate::support::model_server::{ModelServer, Reply};

fn findings(out: &str) -> Vec<(String, String, String)> {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let each = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    each.map(|found| {
        (
            text(&found, "name"),
            text(&found, "state"),
            text(&found, "what"),
        )
    })
    .collect()
}

#[test]
fn in_the_home_folder_the_doctor_says_why_run_is_refused_there() {
    let home = Home::new();
    let folder = home.path().join("home");
    let run_in = |args: &[&str]| {
        let child = home.command_in(&folder, args).spawn().unwrap();
        Ran::of(args, child)
    };

    let doctor = run_in(&["doctor", "--json"]).well();
    let refused = run_in(&["run", "--provider", "offline", "Hello"]);

    let is_said = |(name, state, what): &(String, String, String)| {
        name == "store" && state == "warn" && what.contains("lies inside this folder")
    };
    assert!(findings(&doctor.out).iter().any(is_said), "{doctor:?}");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.error().contains("--workspace DIR"), "{refused:?}");
}

#[test]
fn a_fresh_home_is_well() {
    let home = Home::new();

    let ran = home.run(&["doctor", "--json"]).well();

    let found = findings(&ran.out);
    let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
    for name in [
        "configuration",
        "data folder",
        "store",
        "sandbox",
        "disk",
        "open files",
        "provider offline",
        "clock",
    ] {
        assert!(names.contains(&name), "{name}: {found:?}");
    }
    assert!(
        found.iter().all(|(_, state, _)| state != "fail"),
        "{found:?}"
    );
    let people = home.run(&["doctor"]).well();
    assert!(
        people
            .out
            .lines()
            .all(|line| line.starts_with("ok ") || line.starts_with("warn ")),
        "{}",
        people.out
    );
}

#[test]
fn a_broken_store_an_open_folder_and_a_wrong_configuration_are_findings() {
    let home = Home::new();
    let data = home.path().join("home/.local/share/callboard");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(
        data.join("callboard.db"),
        "this is no database, and never was one",
    )
    .unwrap();

    let ran = home.run(&["doctor", "--json"]);
    std::fs::write(home.work().join("callboard.toml"), "[host]\ndata_dri = 1\n").unwrap();
    let wrong = home.run(&["doctor"]);

    assert_eq!((ran.code, wrong.code), (Some(1), Some(1)));
    let found = findings(&ran.out);
    assert!(
        found
            .iter()
            .any(|(name, state, _)| name == "store" && state == "fail"),
        "{found:?}"
    );
    assert!(
        found.iter().any(|(name, state, what)| name == "data folder"
            && state == "warn"
            && what.contains("other users can access")),
        "{found:?}"
    );
    assert!(
        wrong
            .out
            .starts_with("fail configuration: callboard.toml:2: unknown key in [host] `data_dri`"),
        "{}",
        wrong.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn online_asks_whether_a_provider_takes_the_key() {
    let home = Home::new();
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let model = ModelServer::start([
        Reply::json(200, "{\"data\":[]}").header("date", date),
        Reply::json(401, "{}"),
    ])
    .await;
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let config = format!(
        "[[provider]]\nname = \"main\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n",
        model.url()
    );
    std::fs::write(home.work().join("callboard.toml"), config).unwrap();

    let offline = home.run(&["doctor", "--json"]).well();
    assert_eq!(
        model.requests().len(),
        0,
        "no provider is asked without --online"
    );
    let taken = home.run(&["doctor", "--online", "--json"]);
    let refused = home.run(&["doctor", "--online", "--json"]);

    let of = |out: &str, name: &str| {
        findings(out)
            .into_iter()
            .find(|(found, ..)| found == name)
            .unwrap()
    };
    assert!(
        of(&offline.out, "provider main")
            .2
            .contains("its key is set")
    );
    assert_eq!(of(&taken.out, "provider main").1, "ok");
    // The provider's clock differs by thirty years.
    assert_eq!(
        (taken.code, of(&taken.out, "clock").1.as_str()),
        (Some(1), "fail")
    );
    assert_eq!(
        (refused.code, of(&refused.out, "provider main").1.as_str()),
        (Some(1), "fail")
    );
    assert!(
        model.requests()[0].line.starts_with("GET /v1/models"),
        "{}",
        model.requests()[0].line
    );
    assert!(!refused.out.contains("not-a-real-key"));
}

#[test]
fn a_new_key_comes_with_lines_that_the_configuration_takes() {
    let home = Home::new();
    let made = home
        .run(&["keys", "new", "--tenant", "acme", "--json"])
        .well()
        .json();
    let other = home.run(&["keys", "new", "--json"]).well().json();
    let people = home.run(&["keys", "new", "--tenant", "acme"]).well().out;

    std::fs::write(
        home.work().join("callboard.toml"),
        made["toml"].as_str().unwrap(),
    )
    .unwrap();

    home.run(&["config", "check"]).well();
    let shown = home.run(&["config", "show"]).well().out;
    assert!(
        shown.contains(made["key_sha256"].as_str().unwrap())
            && !shown.contains(made["key"].as_str().unwrap())
    );
    assert_ne!(made["key"], other["key"]);
    assert!(
        made["key"].as_str().unwrap().starts_with("cb_")
            && made["key"].as_str().unwrap().len() >= 46
    );
    assert!(
        people.contains("key:") && people.contains("[[tenant]]\nid = \"acme\"\nkey_sha256 = "),
        "{people}"
    );
    assert_eq!(home.run(&["keys", "new", "--tenant", ".x"]).code, Some(2));
}
