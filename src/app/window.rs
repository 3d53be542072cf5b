//! Asks a server how much context its model has, where the server says it: llama.cpp, vLLM, Ollama and
//! others that speak the OpenAI API. Without an answer the window stays that of the model's name.

use std::time::Duration;

use serde_json::Value;

use crate::{
    config::{Config, ProviderConfig, ProviderKind},
    outside::Outside,
};

/// Time for all questions to one server: the start of the program waits for them.
const WITHIN: Duration = Duration::from_secs(2);

/// Most bytes of an answer; lists of models of a gateway are long.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Sets the windows of all configured OpenAI-compatible servers that say how large they are. A window
/// of the configuration, and vendors without a `base_url`, are not asked.
pub(crate) async fn ask_servers(config: &mut Config) {
    let asks = config
        .providers
        .iter()
        .enumerate()
        .filter_map(|(at, provider)| {
            let asked = question(provider, None, None)?;
            Some(async move { (at, ask(asked).await) })
        });
    for (at, window) in futures_util::future::join_all(asks).await {
        if let Some(provider) = config.providers.get_mut(at) {
            provider.context_window = provider.context_window.or(window);
        }
    }
}

/// The window of the model that flags and configuration choose; `None` if its server does not say it.
pub(crate) async fn of_server(
    chosen: &ProviderConfig,
    base_url: Option<&str>,
    model: Option<&str>,
) -> Option<u32> {
    ask(question(chosen, base_url, model)?).await
}

struct Question {
    base_url: String,
    model: Option<String>,
    key: Option<String>,
}

fn question(
    provider: &ProviderConfig,
    base_url: Option<&str>,
    model: Option<&str>,
) -> Option<Question> {
    let base_url = base_url.or(provider.base_url.as_deref())?;
    // A server with certificates of its own is not asked: this client does not have them.
    let is_plain =
        provider.connection.ca_file.is_none() && provider.connection.client_files.is_none();
    let is_asked = matches!(
        provider.kind,
        ProviderKind::OpenAi | ProviderKind::OpenAiResponses
    ) && provider.context_window.is_none();
    (is_asked && is_plain).then(|| Question {
        base_url: base_url.trim_end_matches('/').to_owned(),
        model: model.or(provider.model.as_deref()).map(str::to_owned),
        key: provider
            .key()
            .ok()
            .flatten()
            .map(|key| key.expose().to_owned()),
    })
}

async fn ask(question: Question) -> Option<u32> {
    let outside = Outside::start().ok()?;
    let client = crate::tls::client_builder()
        .ok()?
        .timeout(WITHIN)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .ok()?;
    tokio::time::timeout(WITHIN, outside.serve(answer(&client, &question)))
        .await
        .ok()
        .flatten()
}

async fn answer(client: &reqwest::Client, question: &Question) -> Option<u32> {
    let get = |url: String| async {
        let request = question
            .key
            .iter()
            .fold(client.get(url), |request, key| request.bearer_auth(key));
        read(request).await
    };
    let models = get(format!("{}/models", question.base_url)).await;
    let listed = models
        .as_ref()
        .and_then(|models| in_list(models, question.model.as_deref()));
    if let Some(Listed::Serves(window)) = listed {
        return Some(window);
    }
    let root = question.base_url.strip_suffix("/v1")?;
    // What llama.cpp was started with: its list may say only what the model was trained with.
    let props = get(format!("{root}/props")).await;
    if let Some(window) = props
        .as_ref()
        .and_then(|props| window(props.pointer("/default_generation_settings/n_ctx")?))
    {
        return Some(window);
    }
    if let Some(model) = &question.model
        && models.is_some()
    {
        let show = client
            .post(format!("{root}/api/show"))
            .header("content-type", "application/json")
            .body(serde_json::json!({ "model": model }).to_string());
        if let Some(window) = read(show).await.as_ref().and_then(of_ollama) {
            return Some(window);
        }
    }
    match listed {
        Some(Listed::TrainedWith(window)) => Some(window),
        Some(Listed::Serves(_)) | None => None,
    }
}

async fn read(request: reqwest::RequestBuilder) -> Option<Value> {
    let mut response = request.send().await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
    }
    serde_json::from_slice(&bytes).ok()
}

/// What a list of models says about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    /// The window that the server gives it.
    Serves(u32),
    /// The window that it was trained with; the server may give it less.
    TrainedWith(u32),
}

/// Looks up a model in the answer of `/v1/models`. A server of a single model needs no name.
fn in_list(models: &Value, model: Option<&str>) -> Option<Listed> {
    let all = models.get("data")?.as_array()?;
    let named = |entry: &&Value| entry.get("id").and_then(Value::as_str) == model;
    let entry = all.iter().find(named).or(match all.as_slice() {
        [one] => Some(one),
        _ => None,
    })?;
    let served = [
        "/max_model_len",
        "/context_length",
        "/context_window",
        "/meta/n_ctx",
    ];
    served
        .iter()
        .find_map(|place| window(entry.pointer(place)?))
        .map(Listed::Serves)
        .or_else(|| window(entry.pointer("/meta/n_ctx_train")?).map(Listed::TrainedWith))
}

/// What Ollama says about a model: the window of its parameters, else the one it was trained with.
fn of_ollama(show: &Value) -> Option<u32> {
    let parameters = show.get("parameters").and_then(Value::as_str);
    let given = parameters
        .into_iter()
        .flat_map(str::lines)
        .find_map(|line| {
            let rest = line.trim().strip_prefix("num_ctx")?;
            rest.trim().parse::<u32>().ok().filter(|n| *n > 0)
        });
    given.or_else(|| {
        let about = show.get("model_info")?.as_object()?;
        let (_, tokens) = about
            .iter()
            .find(|(name, _)| name.ends_with(".context_length"))?;
        window(tokens)
    })
}

fn window(value: &Value) -> Option<u32> {
    value
        .as_u64()
        .and_then(|tokens| u32::try_from(tokens).ok())
        .filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_server_says_its_window_in_its_own_words() {
        let list = |entry: Value| in_list(&json!({ "data": [entry] }), Some("m"));

        assert_eq!(
            list(json!({"id": "m", "max_model_len": 8192})),
            Some(Listed::Serves(8192)),
            "vLLM"
        );
        assert_eq!(
            list(json!({"id": "x.gguf", "meta": {"n_ctx_train": 131072}})),
            Some(Listed::TrainedWith(131_072)),
            "llama.cpp, whose one model is meant whatever its name"
        );
        assert_eq!(list(json!({"id": "m", "object": "model"})), None);
        let two =
            json!({ "data": [{"id": "a", "max_model_len": 1}, {"id": "m", "context_length": 5}] });
        assert_eq!(in_list(&two, Some("m")), Some(Listed::Serves(5)));
        assert_eq!(in_list(&two, Some("other")), None);
    }

    #[test]
    fn ollama_says_its_parameter_before_what_the_model_was_trained_with() {
        let trained =
            json!({"model_info": {"general.architecture": "q", "q.context_length": 40960}});
        assert_eq!(of_ollama(&trained), Some(40_960));
        let set = json!({
            "parameters": "stop \"a\"\nnum_ctx                        4096",
            "model_info": {"q.context_length": 40960}
        });
        assert_eq!(of_ollama(&set), Some(4096));
    }
}
