//! The network of commands: listed hosts through the proxy, no other host, and nothing after the
//! command has ended.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, TcpListener, UdpSocket},
};

use callboard::{
    ports::{BoxFuture, HostPattern},
    sandbox::{AllowList, Detected},
    web::Resolver,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use super::*;

/// A resolver that knows the names of one test.
struct Names(BTreeMap<&'static str, Vec<IpAddr>>);

impl Names {
    fn resolver(names: &[(&'static str, &[&str])]) -> Arc<dyn Resolver> {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Arc::new(Self(
            names
                .iter()
                .map(|(name, texts)| (*name, addresses(texts)))
                .collect(),
        ))
    }
}

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            self.0
                .get(host)
                .cloned()
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }
}

fn listed(hosts: &[String], resolver: Arc<dyn Resolver>) -> AllowList {
    let hosts: Vec<HostPattern> = hosts.iter().map(|host| host.parse().unwrap()).collect();
    AllowList {
        resolver: Some(resolver),
        ..hosts.into()
    }
}

fn detected(
    workspace: &Path,
    only: Boundary,
    network: AllowList,
    helper: Option<PathBuf>,
) -> Result<Detected, SandboxError> {
    let root = Arc::new(Root::open(workspace, PathRules::default()).unwrap());
    let options = Options {
        only: Some(only),
        helper,
        network,
        ..Options::default()
    };
    detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options)
}

/// `None`, with a note on standard error, where there is no bubblewrap.
fn fixture(test: &str, hosts: &[String], resolver: Arc<dyn Resolver>) -> Option<SandboxFixture> {
    let mut fixture = SandboxFixture::linux(test)?;
    let helper = Some(env!("CARGO_BIN_EXE_callboard").into());
    let found = detected(
        &fixture.path(""),
        Boundary::Bubblewrap,
        listed(hosts, resolver),
        helper,
    )
    .unwrap();
    assert_eq!(found.note, None, "{test}");
    fixture.sandbox = found.sandbox.unwrap();
    Some(fixture)
}

/// Sends a request to the proxy with bash alone; `$1` is the complete request.
const ASK: &str = r#"ask() { exec 3<>/dev/tcp/127.0.0.1/3128 && printf "$1" >&3 && timeout 10 cat <&3; exec 3>&-; }; "#;

/// Sockets that no command may reach. A connection that arrives waits in the queue.
struct Canary(TcpListener, UdpSocket);

impl Canary {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams =
            UdpSocket::bind(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        listener.set_nonblocking(true).unwrap();
        datagrams.set_nonblocking(true).unwrap();
        Self(listener, datagrams)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn is_untouched(&self) -> bool {
        let blocks = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.0.accept().is_err_and(blocks) && self.1.recv(&mut [0]).is_err_and(blocks)
    }
}

/// A server on loopback. Answers each connection with the first bytes received or, if `endless`,
/// sends forever. The channel reports when a connection has ended.
async fn server(endless: bool) -> (u16, mpsc::Receiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (report, reported) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let report = report.clone();
            tokio::spawn(async move {
                let mut heard = vec![0; 4096];
                let count = stream.read(&mut heard).await.unwrap_or(0);
                let heard = String::from_utf8_lossy(&heard[..count]).into_owned();
                if endless {
                    let _ = report.send("begun".to_owned()).await;
                    while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
                } else if heard.starts_with("hold") {
                    let _ = report.send("begun".to_owned()).await;
                    while stream.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
                } else {
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{heard}",
                        heard.len()
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                let _ = report.send(heard).await;
            });
        }
    });
    (port, reported)
}

#[tokio::test]
async fn a_listed_host_answers() {
    let (port, _told) = server(false).await;
    let names = Names::resolver(&[
        ("allowed.test", &["127.0.0.1"]),
        ("a.below.test", &["127.0.0.1"]),
    ]);
    // The literal entry allows the address, the other two the names.
    let hosts = [
        format!("allowed.test:{port}"),
        format!("*.below.test:{port}"),
        format!("127.0.0.1:{port}"),
    ];
    let Some(fixture) = fixture("a_listed_host_answers", &hosts, names) else {
        return;
    };

    let plain = fixture.run(&format!("{ASK}ask 'GET http://allowed.test:{port}/plain HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'")).await;
    let tunnel = fixture
        .run(&format!(
            "{ASK}ask 'CONNECT a.below.test:{port} HTTP/1.1\\r\\n\\r\\nthrough the tunnel'"
        ))
        .await;
    let literal = fixture
        .run(&format!(
            "{ASK}ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n'"
        ))
        .await;
    let program = fixture
        .run(&format!(
            "command -v curl >/dev/null || exit 77; curl -sS http://allowed.test:{port}/curl"
        ))
        .await;

    assert!(
        plain.stdout.contains(&format!(
            "GET /plain HTTP/1.1\r\nHost: allowed.test:{port}\r\nConnection: close\r\n\r\n"
        )),
        "{plain:?}"
    );
    assert!(
        tunnel.stdout.contains("200 Connection established")
            && tunnel.stdout.ends_with("through the tunnel"),
        "{tunnel:?}"
    );
    assert!(literal.stdout.starts_with("HTTP/1.1 200 OK"), "{literal:?}");
    assert!(
        program.status == Some(77) || program.stdout.contains("GET /curl HTTP/1.1"),
        "{program:?}"
    );
    assert_eq!(
        (plain.left_running, plain.stderr.as_str(), plain.status),
        (0, "", Some(0)),
        "the forwarder is none of the command's"
    );
    let reported = serde_json::to_value(fixture.sandbox.policy()).unwrap();
    assert_eq!(reported["network"], serde_json::json!({ "hosts": hosts }));
}

#[tokio::test]
async fn without_a_list_there_is_no_way_out() {
    let Some(fixture) = SandboxFixture::linux("without_a_list_there_is_no_way_out") else {
        return;
    };

    let found = fixture.run("env | grep -i proxy; ls /run; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null && echo CONNECTED; true").await;

    assert_eq!(
        (found.stdout.as_str(), &fixture.sandbox.policy().network),
        ("", &Network::Off)
    );
}

#[tokio::test]
async fn what_is_not_listed_is_refused_and_nothing_is_dialed() {
    let canary = Canary::new();
    let other = Canary::new();
    let port = canary.port();
    let other_port = other.port();
    let names = Names::resolver(&[
        ("allowed.test", &["127.0.0.1"]),
        ("inside.test", &["127.0.0.1"]),
        ("mixed.test", &["93.184.215.14", "127.0.0.1"]),
        ("mapped.test", &["::ffff:127.0.0.1"]),
        ("metadata.test", &["169.254.169.254"]),
        ("unlisted.test", &["127.0.0.1"]),
        ("localhost", &["127.0.0.1"]),
    ]);
    let by_name = [
        "inside.test",
        "mixed.test",
        "mapped.test",
        "metadata.test",
        "localhost",
    ];
    let hosts: Vec<String> = by_name
        .iter()
        .map(|name| format!("{name}:{port}"))
        .chain([format!("allowed.test:{port}")])
        .collect();
    let Some(fixture) = fixture(
        "what_is_not_listed_is_refused_and_nothing_is_dialed",
        &hosts,
        names,
    ) else {
        return;
    };

    let unlisted = [
        "unlisted.test",
        "allowed.test.unlisted.test",
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ];
    let mut requests: Vec<(String, &str)> = Vec::new();
    for host in unlisted.iter().chain(&by_name) {
        requests.push((
            format!("CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n"),
            "HTTP/1.1 403",
        ));
        requests.push((
            format!("GET http://{host}:{port}/ HTTP/1.1\\r\\n\\r\\n"),
            "HTTP/1.1 403",
        ));
    }
    // The listed host at another port.
    requests.push((
        format!("CONNECT allowed.test:{other_port} HTTP/1.1\\r\\n\\r\\n"),
        "HTTP/1.1 403",
    ));
    requests.push((
        format!("GET / HTTP/1.1\\r\\nHost: allowed.test:{port}\\r\\n\\r\\n"),
        "HTTP/1.1 400",
    ));
    requests.push((
        format!("GET http://allowed.test:{port}@127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n"),
        "HTTP/1.1 400",
    ));
    let script: Vec<String> = requests
        .iter()
        .map(|(request, _)| format!("ask '{request}' | head -1"))
        .collect();
    let result = fixture.run(&format!("{ASK}{}", script.join("; "))).await;

    let answers: Vec<&str> = result.stdout.lines().collect();
    assert_eq!(answers.len(), requests.len(), "{result:?}");
    for ((request, expected), answer) in requests.iter().zip(answers) {
        assert!(answer.starts_with(expected), "{request}: {answer}");
    }
    assert!(canary.is_untouched() && other.is_untouched());
    // The model reads the reason, even if a program hides the answer.
    let reported = fixture
        .run(&format!(
            "{ASK}ask 'CONNECT unlisted.test:443 HTTP/1.1\\r\\n\\r\\n'; ask 'CONNECT inside.test:{port} HTTP/1.1\\r\\n\\r\\n' >/dev/null"
        ))
        .await;
    assert!(
        reported
            .stdout
            .contains("can add \"unlisted.test\" to `[sandbox] network`"),
        "{reported:?}"
    );
    assert!(
        reported
            .stderr
            .contains("[network: unlisted.test:443 is not on this sandbox's allow-list"),
        "{reported:?}"
    );
    assert!(
        reported
            .stderr
            .contains("address that is not public (loopback)")
            && !reported.stderr.contains("127.0.0.1"),
        "{reported:?}"
    );
}

#[tokio::test]
async fn direct_connections_and_datagrams_stay_impossible() {
    let canary = Canary::new();
    let port = canary.port();
    let hosts = [format!("127.0.0.1:{port}")];
    let Some(fixture) = fixture(
        "direct_connections_and_datagrams_stay_impossible",
        &hosts,
        Names::resolver(&[]),
    ) else {
        return;
    };

    let direct = fixture
        .run(&format!(
            "(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo CONNECTED; echo x 2>/dev/null > /dev/udp/127.0.0.1/{port}; \
             (echo x > /dev/udp/192.0.2.1/53) 2>/dev/null && echo SENT; grep -cv lo: /proc/net/dev; \
             (echo x > /run/callboard/proxy; rm -f /run/callboard/proxy /run/callboard/forward; echo x > /run/x) 2>/dev/null; ls /run/callboard /run"
        ))
        .await;

    assert_eq!(
        direct.stdout, "2\n/run:\ncallboard\n\n/run/callboard:\nforward\nproxy\n",
        "{direct:?}"
    );
    assert!(canary.is_untouched());
}

/// The forwarder beside a command can create sockets that the command cannot.
#[tokio::test]
async fn a_command_that_reaches_hosts_has_no_unix_sockets_and_cannot_use_the_forwarders() {
    let (port, _told) = server(false).await;
    let hosts = [format!("127.0.0.1:{port}")];
    let test = "a_command_that_reaches_hosts_has_no_unix_sockets_and_cannot_use_the_forwarders";
    let Some(fixture) = fixture(test, &hosts, Names::resolver(&[])) else {
        return;
    };
    super::probe::compile(&fixture.path("probe"));
    let listener = std::os::unix::net::UnixListener::bind(fixture.path("listener")).unwrap();
    listener.set_nonblocking(true).unwrap();

    let result = fixture
        .run(&format!(
            "{ASK}./probe --connect listener; ./probe --connect /run/callboard/proxy; \
             for p in /proc/[0-9]*; do if tr '\\0' ' ' <$p/cmdline | grep -q '^/run/callboard/forward __jail forward '; then ./probe --trace ${{p##*/}}; fi; done; \
             grep Seccomp_filters /proc/self/status /proc/1/status; ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n' | head -1"
        ))
        .await;

    let filters = "/proc/self/status:Seccomp_filters:\t2\n/proc/1/status:Seccomp_filters:\t2\n";
    assert_eq!(
        result.stdout,
        format!("refused 1\nrefused 1\nrefused 1\n{filters}HTTP/1.1 200 OK\r\n"),
        "{}",
        result.stderr
    );
    assert!(listener.accept().is_err());
}

fn namespace_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}

/// Number of processes in a network namespace.
fn living_in(namespace: &Path) -> usize {
    let is_there = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("ns/net")).is_ok_and(|own| own == namespace)
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(is_there)
        .count()
}

fn process_with(marker: &str) -> Option<u32> {
    let holds = |pid: &Path| {
        fs::read(pid.join("cmdline")).is_ok_and(|line| {
            line.split(|b| *b == 0)
                .any(|word| word == marker.as_bytes())
        })
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| holds(&entry.path()))
        .find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[tokio::test]
async fn connections_and_their_carriers_end_with_the_command() {
    let (port, mut reported) = server(false).await;
    let hosts = [format!("allowed.test:{port}"), format!("127.0.0.1:{port}")];
    let names = Names::resolver(&[("allowed.test", &["127.0.0.1"])]);
    let Some(fixture) = fixture(
        "connections_and_their_carriers_end_with_the_command",
        &hosts,
        names,
    ) else {
        return;
    };

    for ending in ["end", "cancel", "timeout", "drop"] {
        let marker = marker(&format!("network-{ending}"));
        let cancel = CancellationToken::new();
        let rest = if ending == "end" {
            "read -r _ <go"
        } else {
            "sleep 1000"
        };
        let command = format!(
            "rm -f go; mkfifo go; bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf \"CONNECT allowed.test:{port} HTTP/1.1\\r\\n\\r\\nhold\" >&3; sleep 1000; :' {marker} & {rest}"
        );
        let timeout = Duration::from_secs(if ending == "timeout" { 4 } else { 30 });
        let sandbox = fixture.sandbox.clone();
        let token = cancel.clone();
        let task = tokio::spawn(async move {
            sandbox
                .exec(
                    Exec {
                        timeout,
                        ..Exec::new(command)
                    },
                    token,
                )
                .await
        });
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(20), reported.recv())
                .await
                .unwrap()
                .unwrap(),
            "begun",
            "{ending}"
        );
        let namespace = namespace_of(process_with(&marker).unwrap());
        assert!(living_in(&namespace) >= 3, "the shells and the forwarder");

        match ending {
            "end" => fs::write(fixture.path("go"), "\n").unwrap(),
            "cancel" => cancel.cancel(),
            "drop" => task.abort(),
            _ => drop(
                wait_until("the timeout", Duration::from_secs(10), || {
                    task.is_finished()
                })
                .await,
            ),
        }

        let ended = tokio::time::timeout(Duration::from_secs(2), reported.recv()).await;
        assert_eq!(
            ended.expect(ending).unwrap(),
            "hold",
            "the server has seen the end"
        );
        wait_until("the end of the forwarder", Duration::from_secs(2), || {
            living_in(&namespace) == 0
        })
        .await;
    }
}

#[tokio::test]
async fn an_endless_peer_ends_with_the_command_and_fills_no_memory() {
    if !super::bombs::is_alone("network::an_endless_peer_ends_with_the_command_and_fills_no_memory")
    {
        return;
    }
    let (port, mut reported) = server(true).await;
    let hosts = [format!("127.0.0.1:{port}")];
    let Some(fixture) = fixture(
        "an_endless_peer_ends_with_the_command_and_fills_no_memory",
        &hosts,
        Names::resolver(&[]),
    ) else {
        return;
    };
    let before = super::bombs::own_memory();

    // The client sends a request and never reads: the proxy does not buffer what the client does
    // not take.
    let command = format!(
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n' >&3; sleep 1000"
    );
    let result = fixture
        .exec(&command, Duration::from_secs(3), CancellationToken::new())
        .await
        .unwrap();

    assert!(result.timed_out);
    assert_eq!(reported.recv().await.unwrap(), "begun");
    let ended = tokio::time::timeout(Duration::from_secs(2), reported.recv()).await;
    assert!(ended.unwrap().unwrap().starts_with("GET / "));
    assert!(super::bombs::own_memory() < before + 64 * 1024);
}

#[tokio::test]
async fn a_helper_whose_file_was_replaced_is_not_started_and_the_user_reads_why() {
    let test = "a_helper_whose_file_was_replaced_is_not_started_and_the_user_reads_why";
    let (Some(fixture), folder) = (SandboxFixture::linux(test), tempfile::tempdir().unwrap())
    else {
        return;
    };
    let program = folder.path().join("callboard");
    super::stranger::link_or_copy(Path::new(env!("CARGO_BIN_EXE_callboard")), &program);
    let list = listed(&["crates.io".to_owned()], Names::resolver(&[]));
    let sandbox = detected(
        &fixture.path(""),
        Boundary::Bubblewrap,
        list,
        Some(program.clone()),
    )
    .unwrap()
    .sandbox
    .unwrap();
    let before = sandbox
        .exec(Exec::new("echo ran"), CancellationToken::new())
        .await
        .unwrap();

    fs::write(
        folder.path().join("new"),
        "#!/bin/sh\ntouch /workspace/evil; exec /bin/bash\n",
    )
    .unwrap();
    fs::rename(folder.path().join("new"), &program).unwrap();
    let after = sandbox
        .exec(Exec::new("echo ran"), CancellationToken::new())
        .await;

    assert_eq!(before.stdout, "ran\n");
    assert!(
        matches!(&after, Err(SandboxError::Failed(why)) if why.contains("moved or replaced since it was started")),
        "{after:?}"
    );
    assert!(!fixture.path("evil").exists());
}

#[test]
fn where_the_list_cannot_be_served_the_network_stays_off_and_the_user_reads_why() {
    let folder = tempfile::tempdir().unwrap();
    let list = || listed(&["crates.io".to_owned()], Names::resolver(&[]));
    let within = folder.path().join("program");
    fs::write(&within, "").unwrap();
    let helper = || Some(PathBuf::from(env!("CARGO_BIN_EXE_callboard")));
    for (only, helper, why) in [
        // The `main` of this test binary is the harness's.
        (
            Boundary::Bubblewrap,
            None,
            "this program's main does not ask jail_main_if_asked first",
        ),
        (
            Boundary::Bubblewrap,
            Some(within.clone()),
            "this program's file lies in the workspace",
        ),
        (
            Boundary::Landlock,
            helper(),
            "behind Landlock there are no sockets at all",
        ),
    ] {
        match detected(folder.path(), only, list(), helper) {
            Ok(found) => {
                let note = found.note.unwrap();
                assert!(note.contains("the network of commands stays off") && note.contains(why), "{note}");
                assert_eq!(found.sandbox.unwrap().policy().network, Network::Off);
            }
            Err(error) => writeln!(
                &mut std::io::stderr(),
                "SKIPPED: where_the_list_cannot_be_served_the_network_stays_off_and_the_user_reads_why: {only:?}: {error}"
            )
            .unwrap(),
        }
    }
}
