//! The manifests of docs/cluster: they are YAML, and the configuration, the flags, the variables and
//! the routes in them exist.

use std::{collections::BTreeMap, path::Path, process::Command};

use serde_json::Value;

use crate::cli::Home;

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cluster");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// The documents of a file. Anchors and merges are resolved.
fn documents(name: &str) -> Vec<Value> {
    let text = text(name);
    let parts = text.split("\n---\n");
    parts
        .map(|part| {
            serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{name}: {error}\n{part}"))
        })
        .collect()
}

/// Every value under a key, wherever it is.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            if name == key {
                found.push(value);
            }
            all(value, key, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| all(item, key, found)),
        _ => {}
    }
}

/// The arguments of a container are those of a program that checks its configuration.
fn is_served(home: &Home, arguments: &[Value]) {
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|value| value.as_str().unwrap())
        .collect();
    let serve = arguments
        .iter()
        .position(|argument| *argument == "serve")
        .unwrap();
    assert_eq!(
        arguments[serve - 2..serve],
        ["--config", "/etc/callboard/callboard.toml"]
    );
    let mut flags = vec!["serve", "--help"];
    flags.splice(1..1, arguments[serve + 1..].iter().copied());
    assert_eq!(home.run(&flags).code, Some(0), "{flags:?}");
}

#[test]
fn the_configuration_of_a_cluster_is_valid_with_the_variables_of_its_manifests() {
    let home = Home::new();
    let file = home.work().join("cluster.toml");
    std::fs::write(&file, text("callboard.toml")).unwrap();
    let compose = &documents("compose.yaml")[0];
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    for host in ["host-a", "host-b"] {
        let set = compose["services"][host]["environment"]
            .as_object()
            .unwrap();
        let set = set
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        variables.extend(set);
    }
    for document in documents("kubernetes.yaml") {
        let mut lists = Vec::new();
        all(&document, "env", &mut lists);
        let names = lists.iter().flat_map(|list| list.as_array().unwrap());
        for name in names.map(|variable| variable["name"].as_str().unwrap()) {
            assert!(name == "POD_NAME" || variables.contains_key(name), "{name}");
        }
    }
    let set = variables.iter().map(|(name, value)| {
        (
            name,
            value.replace("${POSTGRES_PASSWORD}", "not-a-password"),
        )
    });

    let checked = Command::new(env!("CARGO_BIN_EXE_callboard"))
        .arg("--config")
        .arg(&file)
        .args(["config", "show"])
        .env_clear()
        .envs(set)
        .env("HOME", home.work())
        .output()
        .unwrap();

    let (out, err) = (checked.stdout, String::from_utf8_lossy(&checked.stderr));
    assert!(checked.status.success(), "{err}");
    let out = String::from_utf8_lossy(&out);
    for shown in [
        "http://host-b:8787",
        "database",
        "rpm = 4000",
        "idle_s = 900",
    ] {
        assert!(out.contains(shown), "{shown}: {out}");
    }
}

#[test]
fn the_manifests_start_hosts_and_ask_routes_that_exist() {
    let home = Home::new();

    let compose = &documents("compose.yaml")[0];
    for host in ["host-a", "host-b"] {
        is_served(
            &home,
            &compose["services"][host]["command"].as_array().unwrap()[1..],
        );
    }
    let documents = documents("kubernetes.yaml");
    let kinds: Vec<&str> = documents
        .iter()
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["Service", "Service", "StatefulSet", "PodDisruptionBudget"]
    );
    let container = &documents[2]["spec"]["template"]["spec"]["containers"][0];
    is_served(&home, container["args"].as_array().unwrap());
    // The user that the images have, and the two places that a host writes to.
    assert_eq!(
        documents[2]["spec"]["template"]["spec"]["securityContext"]["runAsUser"],
        crate::packaging::IMAGE_USER
    );
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    let mounts = container["volumeMounts"].as_array().unwrap();
    for path in ["/var/lib/callboard", "/tmp"] {
        assert!(
            mounts.iter().any(|mount| mount["mountPath"] == path),
            "{path} cannot be written"
        );
    }
    let mut probes = Vec::new();
    all(container, "httpGet", &mut probes);
    let paths: Vec<&str> = probes
        .iter()
        .map(|probe| probe["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths.len(), 2);
    assert!(
        paths
            .iter()
            .all(|path| ["/readyz", "/healthz"].contains(path)),
        "{paths:?}"
    );
    assert_eq!(
        documents[2]["spec"]["serviceName"],
        documents[1]["metadata"]["name"]
    );
}
