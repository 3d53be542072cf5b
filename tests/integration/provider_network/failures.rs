//! Servers that cannot be reached, that are not trusted, or that leave at once: every call ends with
//! an error that says why, and none hangs.

use tokio::net::TcpListener;

use super::*;

fn provider_of(url: &str) -> Arc<OpenAi> {
    let builder = OpenAi::builder().base_url(format!("{url}/v1"));
    Arc::new(builder.build().unwrap())
}

/// How many calls ended as the failure of a connection, and how many as that of a shared one.
async fn ends(
    calls: Vec<tokio::task::JoinHandle<Result<(), ProviderError>>>,
    word: &str,
) -> [usize; 2] {
    let mut ended = [0; 2];
    for call in calls {
        let error = soon(call).await.unwrap().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(word), "{text}");
        // The reason is said once.
        assert_eq!(text.matches("the connection to the provider").count(), 1);
        match error {
            ProviderError::Connection { .. } => ended[0] += 1,
            ProviderError::SharedConnection { .. } => ended[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    ended
}

#[tokio::test]
async fn a_connection_that_cannot_be_opened_fails_every_call_that_waits_for_it() {
    // No process listens there.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);

    let provider = provider_of(&format!("https://{address}"));
    let ended = ends(calls(&provider, 250), "refused").await;

    // Three connections for 250 calls: each reports its own failure, once.
    assert_eq!(ended, [3, 247]);
}

#[tokio::test]
async fn a_server_that_hangs_up_during_tls_fails_every_call_that_waits_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let hangs_up = async {
        loop {
            drop(listener.accept().await.unwrap());
        }
    };

    let ended = tokio::select! {
        () = hangs_up => unreachable!(),
        ended = async { ends(calls(&provider_of(&url), 250), "tls handshake eof").await } => ended,
    };

    assert_eq!(ended.iter().sum::<usize>(), 250);
    assert!((1..=3).contains(&ended[0]), "{ended:?}");
}

#[tokio::test]
async fn a_server_that_leaves_at_once_is_tried_on_few_connections() {
    let server = H2Server::leaving().await;
    let provider = provider(&server, network(&server));

    let ended = soon(call(provider)).await;

    assert!(
        matches!(ended, Err(ProviderError::NotStarted { .. })),
        "{ended:?}"
    );
    assert!(
        (1..=3).contains(&server.connections()),
        "{}",
        server.connections()
    );
}

#[tokio::test]
async fn a_certificate_that_no_authority_signed_is_refused_in_words_for_every_call() {
    let server = H2Server::start(100, |_| React::Whole(whole())).await;
    let provider = provider(&server, Network::default());

    for call in calls(&provider, 50) {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(
            matches!(&error, ProviderError::Untrusted { message } if message.contains("certificate")),
            "{error:?}"
        );
    }

    assert_eq!(server.connections(), 0);
}

/// Another attempt meets the same certificate.
#[tokio::test]
async fn a_refused_certificate_is_not_tried_again() {
    let server = H2Server::start(100, |_| React::Whole(whole())).await;
    let provider = provider(&server, Network::default());
    let host = Host::builder()
        .shared_provider(provider)
        .build()
        .await
        .unwrap();

    let reply = host.tenant("acme").conversation("c").send("hi").await;
    let error = soon(reply.unwrap().outcome()).await.unwrap_err();

    assert_eq!(error.code(), "provider_untrusted");
    assert_eq!(server.accepted(), 1);
}

/// A field of a head can be one byte on the wire and takes a hundred in memory, for as long as its answer
/// is open.
#[tokio::test]
async fn a_head_of_very_many_fields_is_refused_over_http2() {
    let server = H2Server::start(100, |asked| {
        React::Fields([50, 200, 16_000][asked.nth], whole())
    })
    .await;
    let provider = provider(&server, network(&server));

    soon(call(provider.clone())).await.unwrap();
    for _ in 0..2 {
        let refused = soon(call(provider.clone())).await.unwrap_err();
        let is_known = matches!(
            refused,
            ProviderError::Protocol { .. } | ProviderError::Connection { .. }
        );
        assert!(is_known, "{refused:?}");
    }
    assert_eq!(server.seen().len(), 3);
}
