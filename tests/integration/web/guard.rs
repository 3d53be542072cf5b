//! No connection is made to a private address.

use std::sync::{Arc, atomic::Ordering};

use callboard::web::{AddressClass, Denied, UrlPolicy, WebError, WebRequest, guarded};
use tokio_util::sync::CancellationToken;

use super::{Canary, Names, client, get, policy, port_of};
use crate::support::model_server::{ModelServer, Reply, Step};

#[tokio::test]
async fn no_spelling_of_a_private_address_is_dialed() {
    let canary = Canary::at("127.0.0.1:0").await;
    let client = client(&[], Names::default());

    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0x7f.0.0.1",
        "0177.0.0.01",
        "127.0.0.1.",
        "１２７.0.0.1",
        "127。0。0。1",
        "%31%32%37%2e0.0.1",
        "0.0.0.0",
        "0",
        "localhost",
        "LocalHost.",
        "x.localhost",
        "user@127.0.0.1",
        "user:pw@127.0.0.1",
        "example.com@127.0.0.1",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[fe80::5efe:127.0.0.1]",
        "[2001:470::5efe:127.0.0.1]",
    ] {
        let verdict = get(&client, &format!("http://{host}:{}/", canary.port)).await;
        assert!(
            matches!(verdict, Err(WebError::Denied(_))),
            "{host}: {verdict:?}"
        );
    }

    assert_eq!(canary.accepted("127.0.0.1").await, 0);
}

#[tokio::test]
async fn every_class_is_refused_in_urls_and_behind_names() {
    for (address, class) in [
        ("0.0.0.0", AddressClass::Unspecified),
        ("0.1.2.3", AddressClass::Unspecified),
        ("10.0.0.1", AddressClass::Private),
        ("172.16.0.1", AddressClass::Private),
        ("192.168.1.1", AddressClass::Private),
        ("100.64.0.1", AddressClass::Shared),
        ("127.0.0.1", AddressClass::Loopback),
        ("169.254.1.1", AddressClass::LinkLocal),
        ("169.254.169.254", AddressClass::Metadata),
        ("100.100.100.200", AddressClass::Metadata),
        ("168.63.129.16", AddressClass::Metadata),
        ("192.0.0.192", AddressClass::Metadata),
        ("192.0.0.8", AddressClass::Protocol),
        ("192.0.2.1", AddressClass::Documentation),
        ("198.51.100.1", AddressClass::Documentation),
        ("203.0.113.1", AddressClass::Documentation),
        ("198.18.0.1", AddressClass::Benchmarking),
        ("224.0.0.251", AddressClass::Multicast),
        ("240.0.0.1", AddressClass::Reserved),
        ("255.255.255.255", AddressClass::Broadcast),
        ("::", AddressClass::Unspecified),
        ("::1", AddressClass::Loopback),
        ("::ffff:10.0.0.1", AddressClass::EmbeddedIpv4),
        ("64:ff9b::a00:1", AddressClass::EmbeddedIpv4),
        ("2002:a00:1::1", AddressClass::EmbeddedIpv4),
        ("2001:0:1::1", AddressClass::Protocol),
        ("fe80::1", AddressClass::LinkLocal),
        ("fec0::1", AddressClass::SiteLocal),
        ("fd12::1", AddressClass::UniqueLocal),
        ("fd00:ec2::254", AddressClass::Metadata),
        ("ff02::1", AddressClass::Multicast),
        ("2001:db8::1", AddressClass::Documentation),
        ("100::1", AddressClass::Reserved),
    ] {
        let denied = Err(WebError::Denied(Denied::Address(class)));
        let literal = if address.contains(':') {
            format!("http://[{address}]/")
        } else {
            format!("http://{address}/")
        };

        let client = client(
            &[],
            Names::default()
                .with("name.example", &[&[address]])
                .with("mixed.example", &[&["8.8.8.8", address]]),
        );

        assert_eq!(get(&client, &literal).await, denied, "{address}");
        assert_eq!(
            get(&client, "http://name.example/").await,
            denied,
            "{address}"
        );
        // One private address among several refuses the name; otherwise a retry could reach it.
        assert_eq!(
            get(&client, "http://mixed.example/").await,
            denied,
            "{address}"
        );
    }
}

#[tokio::test]
async fn a_name_that_changes_its_answer_gains_nothing() {
    // In this test 127.0.0.1 is the public internet, 127.0.0.2 the private network.
    let public = ModelServer::start([Reply::status(200).send("public")]).await;
    let port = port_of(&public.url());
    let canary = Canary::at(&format!("127.0.0.2:{port}")).await;
    let names = Names::default().with(
        "rebind.example",
        &[
            &["127.0.0.1"],
            &["127.0.0.2"],
            &["127.0.0.1", "127.0.0.2"],
            &["127.0.0.2", "127.0.0.1"],
        ],
    );
    let client = client(&["127.0.0.1"], names.clone());
    let url = format!("http://rebind.example:{port}/");

    let first = get(&client, &url).await.unwrap();

    // Resolved once: there is no second answer between check and connection.
    assert_eq!(
        (&first.bytes[..], names.asked.load(Ordering::SeqCst)),
        (&b"public"[..], 1)
    );
    for _ in 0..3 {
        assert_eq!(
            get(&client, &url).await,
            Err(WebError::Denied(Denied::Address(AddressClass::Loopback)))
        );
    }
    assert_eq!(
        (names.asked.load(Ordering::SeqCst), public.connections()),
        (4, 1)
    );
    assert_eq!(canary.accepted("127.0.0.2").await, 0);
}

#[tokio::test]
async fn every_request_is_checked_by_its_own_address() {
    let server = ModelServer::start([Reply::status(200).send("hello")]).await;
    let port = port_of(&server.url());
    let names = Names::default().with("a.example", &[&["127.0.0.1"], &["10.0.0.1"]]);
    let client = client(&["127.0.0.1"], names);
    let url = format!("http://a.example:{port}/");

    assert!(get(&client, &url).await.is_ok());

    // The previous connection would still be open; it must not serve the name's new address.
    assert_eq!(
        get(&client, &url).await,
        Err(WebError::Denied(Denied::Address(AddressClass::Private)))
    );
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_redirect_to_a_private_address_is_not_followed() {
    let server = ModelServer::start([]).await;
    let port = port_of(&server.url());
    let canary = Canary::at(&format!("127.0.0.2:{port}")).await;
    let client = client(
        &["127.0.0.1"],
        Names::default().with("inside.example", &[&["127.0.0.2"]]),
    );

    for location in [
        format!("http://127.0.0.2:{port}/"),
        format!("//127.0.0.2:{port}/"),
        format!("http://2130706434:{port}/"),
        format!("http://0x7f.2:{port}/"),
        format!("http://[::ffff:127.0.0.2]:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://inside.example:{port}/"),
        format!("http://a:b@inside.example:{port}/"),
        format!("http://localhost:{port}/"),
        "file:///etc/passwd".to_owned(),
        "gopher://127.0.0.2/".to_owned(),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
    ] {
        for status in [301, 302, 303, 307, 308] {
            server.script([Reply::status(status).header("location", &location)]);
            let verdict = get(&client, &server.url()).await;
            assert!(
                matches!(verdict, Err(WebError::Denied(_))),
                "{status} {location}: {verdict:?}"
            );
        }
    }

    assert_eq!(canary.accepted("127.0.0.2").await, 0);
}

#[tokio::test]
async fn ten_redirects_are_followed_and_no_eleventh() {
    let server = ModelServer::start([Reply::status(302).header("location", "/again")]).await;
    let client = client(&["127.0.0.1"], Names::default());

    assert_eq!(
        get(&client, &server.url()).await,
        Err(WebError::Denied(Denied::Redirects))
    );
    assert_eq!(server.requests().len(), 11);

    let mut script = vec![Reply::status(307).header("location", "next?x=1#part"); 10];
    script.push(Reply::status(200).send("there"));
    server.script(script);
    let cancel = CancellationToken::new();
    let answer = client
        .open(
            WebRequest::get(format!("{}/dir/first", server.url())),
            &cancel,
        )
        .await
        .unwrap();
    assert_eq!(
        (answer.redirects(), answer.url().as_str()),
        (10, format!("{}/dir/next?x=1", server.url()).as_str())
    );
}

#[tokio::test]
async fn a_key_goes_to_no_other_server() {
    let other = ModelServer::start([Reply::status(200)]).await;
    let server = ModelServer::start([Reply::status(307).header("location", &other.url())]).await;
    let client = client(&["127.0.0.1"], Names::default());
    let cancel = CancellationToken::new();

    let key = "not-a-real-key-0123456789";
    for request in [
        WebRequest::get(server.url()).bearer(key),
        WebRequest::post_json(server.url(), "{}"),
    ] {
        assert!(!format!("{request:?}").contains(key));
        assert_eq!(
            client.open(request, &cancel).await.unwrap_err(),
            WebError::Redirected
        );
    }
    assert_eq!(other.connections(), 0);

    // And a redirected GET sends no Referer.
    assert!(get(&client, &server.url()).await.is_ok());
    let headers = &other.requests()[0].headers;
    assert!(
        headers.iter().all(
            |(name, _)| ["accept", "accept-encoding", "user-agent", "host"]
                .contains(&name.as_str())
        ),
        "{headers:?}"
    );
}

#[tokio::test]
async fn public_names_are_reached_and_what_the_operator_permits() {
    let server = ModelServer::start([Reply::status(200).send("hello")]).await;
    let port = port_of(&server.url());
    let names = Names::default()
        .with("a.example", &[&["127.0.0.1"]])
        .with("wiki", &[&["127.0.0.1"]])
        .with("b.corp.example", &[&["127.0.0.1"]]);

    for (allowed, host, reached) in [
        ("127.0.0.0/8", "127.0.0.1", true),
        ("127.0.0.1", "a.example", true),
        ("wiki", "wiki", true),
        ("*.corp.example", "b.corp.example", true),
        ("wiki", "a.example", false),
        ("10.0.0.0/8", "127.0.0.1", false),
    ] {
        let verdict = get(
            &client(&[allowed], names.clone()),
            &format!("http://{host}:{port}/"),
        )
        .await;
        assert_eq!(verdict.is_ok(), reached, "{allowed} {host}: {verdict:?}");
    }
    for url in [
        "https://example.com/",
        "http://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
        "http://example.com:8080/",
    ] {
        assert!(UrlPolicy::public().check_url(url).is_ok(), "{url}");
    }
}

#[tokio::test]
async fn a_client_built_by_another_program_is_guarded_too() {
    let public = ModelServer::start([]).await;
    let port = port_of(&public.url());
    let canary = Canary::at(&format!("127.0.0.2:{port}")).await;
    let names = Names::default()
        .with("inside.example", &[&["127.0.0.2"]])
        .with("mixed.example", &[&["127.0.0.1", "127.0.0.2"]]);
    let http = guarded(Arc::new(policy(&["127.0.0.1"])), Arc::new(names))
        .build()
        .unwrap();

    for host in ["inside.example", "mixed.example", "unknown.example"] {
        assert!(
            http.get(format!("http://{host}:{port}/"))
                .send()
                .await
                .unwrap_err()
                .is_connect(),
            "{host}"
        );
    }
    for location in [
        format!("http://127.0.0.2:{port}/"),
        format!("http://inside.example:{port}/"),
        "/again".to_owned(),
    ] {
        public.script([Reply::status(302).header("location", &location)]);
        assert!(http.get(public.url()).send().await.is_err(), "{location}");
    }
    assert_eq!(canary.accepted("127.0.0.2").await, 0);

    // Streams stay streams: the response is passed on as it arrives.
    public.script([Reply::stream().send("data: one\n\n").then(Step::Stall)]);
    let mut answer = http.get(public.url()).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "data: one\n\n");
}
