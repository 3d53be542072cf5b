//! Every key of the configuration acts: each test fails if its key is ignored.
//! `tests/tidy/config_keys.rs` lists the keys with their tests.

mod commands;
mod kinds;
mod mcp;
mod money;
mod observability;
mod providers;
mod retention;
mod served;
mod tenants;
mod tools;

use serde_json::Value;

use crate::{
    cli::{
        Home, Ran,
        serve::{Key, Served, configure},
    },
    support::model_server::{ModelServer, Reply, anthropic_text},
};

/// A home whose configuration is `text`.
fn home(text: &str) -> Home {
    let home = Home::new();
    configure(&home, text);
    home
}

/// A home with a provider `p` at `model`, followed by `more`: keys of the provider, then other
/// sections.
fn home_with(model: &ModelServer, more: &str) -> Home {
    let home = home(&format!("{}{more}\n", provider("p", model)));
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    home
}

/// The section of an Anthropic provider with this name, whose key is in the file `key`.
fn provider(name: &str, model: &ModelServer) -> String {
    format!(
        "[[provider]]\nname = \"{name}\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n",
        model.url()
    )
}

/// A model server that always answers with the same text.
async fn answers(text: &str) -> ModelServer {
    ModelServer::start([Reply::events(anthropic_text(text))]).await
}

/// Calls one tool without a model.
fn call(home: &Home, tool: &str, arguments: &Value) -> Ran {
    home.run(&["tools", "call", tool, &arguments.to_string()])
}
