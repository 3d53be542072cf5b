//! The mock model, tested with the adapters as clients of both wires: the adapters keep their
//! contract against it, and it injects the configured faults. `https` has it behind TLS.

mod https;
mod streams;

use std::{sync::Arc, time::Duration};

use callboard::{
    mock_model::{Fault, MockModelSettings, serve},
    ports::{LlmProvider, ModelEvent, ProviderError},
    providers::{Anthropic, OpenAi, Timeouts},
};
use callboard_actors::testing::contract::{self, Scene, Stage, TEXT, example_request};
use futures_util::StreamExt;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

const KEY: &str = "sk-test-not-a-real-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Anthropic,
    OpenAi,
}

const WIRES: [Wire; 2] = [Wire::Anthropic, Wire::OpenAi];

impl Wire {
    fn provider(self, url: &str) -> Arc<dyn LlmProvider> {
        let timeouts = Timeouts {
            first_byte: Duration::from_millis(300),
            idle: Duration::from_millis(300),
            ..Timeouts::default()
        };
        match self {
            Self::Anthropic => Arc::new(
                Anthropic::builder(KEY)
                    .base_url(url)
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
            Self::OpenAi => Arc::new(
                OpenAi::builder()
                    .api_key(KEY)
                    .base_url(format!("{url}/v1"))
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
        }
    }
}

/// A mock in this process. Dropping it ends the server.
struct Served {
    url: String,
    _stop: DropGuard,
    end: JoinHandle<std::io::Result<u64>>,
}

async fn start(settings: MockModelSettings) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let end = tokio::spawn(serve(listener, settings, stop.clone()));
    Served {
        url,
        _stop: stop.drop_guard(),
        end,
    }
}

/// A GET without a client library: one request on one connection.
async fn get(url: String) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (address, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn check_contract(wire: Wire) {
    contract::llm_provider(async |scene| {
        let base = MockModelSettings {
            text: Some(TEXT.to_owned()),
            chunks: 1,
            ..MockModelSettings::default()
        };
        let broken = |fault| MockModelSettings {
            chunks: 2,
            fault_rate: 1.0,
            faults: vec![fault],
            ..base.clone()
        };
        let settings = match scene {
            Scene::Text => base,
            Scene::ToolCall => MockModelSettings {
                tool_calls: 2,
                tool: Some("f".into()),
                tool_input: r#"{"a":1}"#.into(),
                ..base
            },
            Scene::Cut => broken(Fault::Half),
            Scene::Refuses => MockModelSettings {
                key: Some("another".into()),
                ..base
            },
            Scene::Stalls => broken(Fault::Stall),
        };
        let served = start(settings).await;
        let provider = match wire {
            Wire::Anthropic => Arc::new(
                Anthropic::builder(KEY)
                    .base_url(&served.url)
                    .build()
                    .unwrap(),
            ) as Arc<dyn LlmProvider>,
            Wire::OpenAi => Arc::new(
                OpenAi::builder()
                    .api_key(KEY)
                    .base_url(format!("{}/v1", served.url))
                    .build()
                    .unwrap(),
            ),
        };
        let url = served.url.clone();
        let client_left = Box::pin(async move {
            while !get(format!("{url}/stats")).await.contains(r#""running":0"#) {
                tokio::task::yield_now().await;
            }
            drop(served);
        });
        Stage {
            provider,
            client_left,
        }
    })
    .await;
}

#[tokio::test]
async fn anthropics_adapter_keeps_its_contract_against_the_mock() {
    check_contract(Wire::Anthropic).await;
}

#[tokio::test]
async fn openais_adapter_keeps_its_contract_against_the_mock() {
    check_contract(Wire::OpenAi).await;
}

/// Returns the text of a call, and how it ended.
async fn call(provider: &dyn LlmProvider) -> (String, Result<bool, ProviderError>) {
    let mut stream = match provider
        .stream(example_request(), CancellationToken::new())
        .await
    {
        Ok(stream) => stream,
        Err(error) => return (String::new(), Err(error)),
    };
    let mut text = String::new();
    let mut whole = false;
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(events) => {
                for event in events {
                    match event {
                        ModelEvent::Text(piece) => text += &piece,
                        ModelEvent::Completed(_) => whole = true,
                        _ => {}
                    }
                }
            }
            Err(error) => return (text, Err(error)),
        }
    }
    (text, Ok(whole))
}

#[tokio::test]
async fn every_fault_reaches_the_adapters_as_its_class() {
    for wire in WIRES {
        for fault in Fault::ALL {
            let served = start(MockModelSettings {
                chunks: 4,
                fault_rate: 1.0,
                faults: vec![fault],
                ..MockModelSettings::default()
            })
            .await;

            let (text, end) = call(&*wire.provider(&served.url)).await;

            let error = end.expect_err(fault.name());
            let class = match fault {
                Fault::RateLimited => {
                    error.code() == "provider_rate_limited"
                        && error.retry_after() == Some(Duration::from_secs(1))
                }
                Fault::Overloaded => matches!(error, ProviderError::Server { status: 529, .. }),
                Fault::ServerError => matches!(error, ProviderError::Server { status: 500, .. }),
                Fault::Reset | Fault::Half => matches!(error, ProviderError::Connection { .. }),
                Fault::Stall => error.code() == "provider_timeout",
                Fault::Html | Fault::MalformedJson => {
                    matches!(error, ProviderError::Protocol { .. })
                }
                Fault::ErrorEvent => matches!(error, ProviderError::Server { .. }),
                _ => false,
            };
            assert!(class, "{wire:?} {fault}: {error:?}");
            let begun = matches!(
                fault,
                Fault::Stall | Fault::Half | Fault::ErrorEvent | Fault::MalformedJson
            );
            assert_eq!(
                text,
                if begun { "wordword" } else { "" },
                "{wire:?} {fault}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_beyond_the_rate_is_refused_with_the_time_to_come_again() {
    for wire in WIRES {
        let served = start(MockModelSettings {
            requests_per_minute: Some(2),
            ..MockModelSettings::default()
        })
        .await;
        let provider = wire.provider(&served.url);

        let first = [call(&*provider).await.1, call(&*provider).await.1];
        let third = call(&*provider).await.1;

        assert_eq!(first, [Ok(true), Ok(true)]);
        let error = third.unwrap_err();
        assert!(
            matches!(error.retry_after(), Some(wait) if wait > Duration::from_secs(20)),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn chunks_come_one_by_one_and_tokens_are_counted_as_the_request_is_long() {
    let settings = MockModelSettings {
        chunks: 5,
        chunk_delay: Duration::from_millis(20),
        ..MockModelSettings::default()
    };
    let served = start(settings).await;
    let provider = Wire::Anthropic.provider(&served.url);
    let began = std::time::Instant::now();

    assert_eq!(call(&*provider).await, ("word".repeat(5), Ok(true)));

    assert!(began.elapsed() >= Duration::from_millis(80));
    let body = provider.request_body(&example_request()).unwrap();
    assert!(provider.count_tokens(example_request()).await.unwrap() <= body.len() as u64 / 4);
}

#[tokio::test]
async fn a_mock_ends_after_the_calls_it_was_given() {
    let served = start(MockModelSettings {
        requests_max: Some(2),
        ..MockModelSettings::default()
    })
    .await;
    let provider = Wire::OpenAi.provider(&served.url);
    assert!(
        get(format!("{}/v1/models", served.url))
            .await
            .contains(r#""id":"mock""#)
    );

    assert_eq!(
        [call(&*provider).await.1, call(&*provider).await.1],
        [Ok(true), Ok(true)]
    );

    assert_eq!(served.end.await.unwrap().unwrap(), 2);
}
