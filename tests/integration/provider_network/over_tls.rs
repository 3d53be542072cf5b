//! The adapters keep the contract of providers on TLS, over HTTP/2 and HTTP/1.1.

use callboard::mock_model::{
    Fault, HTTP2_STREAMS_MAX, MockModel, MockModelSettings, MockTls, TlsIdentity,
};
use callboard_actors::testing::contract::{self, Scene, Stage, TEXT};
use tokio::net::TcpListener;

use super::*;

const KEY: &str = "sk-test-not-a-real-key";

fn settings(scene: Scene) -> MockModelSettings {
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
    match scene {
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
    }
}

async fn check_contract(
    http2_streams_max: Option<u32>,
    provider: impl Fn(&str, Network) -> Arc<dyn LlmProvider>,
) {
    contract::llm_provider(async |scene| {
        let made = TlsIdentity::make(&[]).unwrap();
        let mock = MockModel::new(MockModelSettings {
            tls: Some(MockTls {
                identity: made.identity,
                http2_streams_max,
            }),
            ..settings(scene)
        })
        .unwrap();
        let handle = mock.handle();
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(mock.serve(listener, stop.clone()));
        let network = Network {
            trust: Trust {
                authorities: Some(made.ca_pem.into_bytes()),
                ..Trust::default()
            },
            ..Network::default()
        };
        let stop = stop.drop_guard();
        Stage {
            provider: provider(&url, network),
            client_left: Box::pin(async move {
                while handle.connections().streams > 0 {
                    tokio::task::yield_now().await;
                }
                drop(stop);
            }),
        }
    })
    .await;
}

fn anthropic(url: &str, network: Network) -> Arc<dyn LlmProvider> {
    let builder = Anthropic::builder(KEY).base_url(url).network(network);
    Arc::new(builder.build().unwrap())
}

fn openai(url: &str, network: Network) -> Arc<dyn LlmProvider> {
    let builder = OpenAi::builder()
        .api_key(KEY)
        .base_url(format!("{url}/v1"))
        .network(network);
    Arc::new(builder.build().unwrap())
}

#[tokio::test]
async fn anthropic_keeps_the_contract_of_a_provider_over_http2() {
    check_contract(Some(HTTP2_STREAMS_MAX), anthropic).await;
}

#[tokio::test]
async fn anthropic_keeps_the_contract_of_a_provider_over_http1_and_tls() {
    check_contract(None, anthropic).await;
}

#[tokio::test]
async fn openai_keeps_the_contract_of_a_provider_over_http2() {
    check_contract(Some(HTTP2_STREAMS_MAX), openai).await;
}

#[tokio::test]
async fn openai_keeps_the_contract_of_a_provider_over_http1_and_tls() {
    check_contract(None, openai).await;
}
