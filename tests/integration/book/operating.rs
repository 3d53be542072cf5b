//! The page on operating a host: its commands, and its configurations of nginx and Caddy in front of a
//! host.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use reqwest::StatusCode;

use super::{Home, Page};
use crate::{cli::wait_for, support::https};

#[test]
fn every_command_of_the_page_on_operating_works() {
    let name = "every_command_of_the_page_on_operating_works";
    if Command::new("sqlite3").arg("--version").output().is_err() {
        writeln!(&mut std::io::stderr(), "SKIPPED: {name}: no sqlite3").unwrap();
        return;
    }
    Page::read("operate.md").works(&Home::new());
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // nginx ends its workers only if it is asked to.
        crate::cli::kill(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// A host with a slow model behind a proxy with the page's configuration.
struct Proxied {
    /// First, so that they end before their folder is gone.
    _processes: Vec<Running>,
    home: Home,
    key: String,
    url: String,
    ca: String,
}

fn spawned(mut command: Command) -> Running {
    Running(command.spawn().unwrap())
}

/// The page's configuration with what surrounds it. The header by which the host switches buffering off is ignored, so that the
/// page's own line does it.
fn nginx_conf(page: &Page, folder: &Path) -> String {
    let server = page.blocks("nginx").concat();
    let file = |name: &str| folder.join(name).display().to_string();
    let server = server
        .replace("listen ", "listen 127.0.0.1:")
        .replace("/etc/ssl/calls.example.pem", &file("cert.pem"))
        .replace("/etc/ssl/calls.example.key", &file("key.pem"));
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = kinds
        .iter()
        .map(|kind| format!("{kind}_temp_path {};\n", file(kind)))
        .collect();
    let user = match rustix::process::geteuid().is_root() {
        true => "user root;\n",
        false => "",
    };
    format!(
        "{user}daemon off;\npid {};\nerror_log {};\nevents {{}}\nhttp {{\naccess_log off;\nproxy_ignore_headers X-Accel-Buffering;\n{temporary}{server}}}\n",
        file("nginx.pid"),
        file("error.log"),
    )
}

/// The page's configuration with what surrounds it: no listener of its own, and a certificate of the
/// test.
fn caddy_conf(page: &Page, folder: &Path) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let tls = format!(
        "localhost:{} {{\n    tls {} {}\n",
        page.port("8443"),
        file("cert.pem"),
        file("key.pem")
    );
    let site = page.blocks("caddy").concat();
    assert!(site.starts_with("calls.example {\n"), "{site}");
    let site = site.replacen("calls.example {\n", &tls, 1);
    format!("{{\n    admin off\n    auto_https disable_redirects\n}}\n{site}")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Proxy {
    Nginx,
    Caddy,
}

impl Proxy {
    const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
        }
    }

    /// Its program; `None` where it is missing, which the gate counts as a failure.
    fn program(self, test: &str) -> Option<PathBuf> {
        let name = self.name();
        let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        let found = folders
            .map(|folder| Path::new(folder).join(name))
            .into_iter()
            .find(|path| path.exists());
        if found.is_none() {
            writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no {name}").unwrap();
        }
        found
    }

    fn command(self, program: &Path, page: &Page, folder: &Path) -> Command {
        let conf = folder.join(format!("{}.conf", self.name()));
        let mut command = Command::new(program);
        let text = match self {
            Self::Nginx => {
                command.arg("-c").arg(&conf).arg("-p").arg(folder);
                nginx_conf(page, folder)
            }
            Self::Caddy => {
                let arguments = ["run", "--adapter", "caddyfile", "--config"];
                command.args(arguments).arg(&conf);
                command.env("HOME", folder).env_remove("XDG_DATA_HOME");
                caddy_conf(page, folder)
            }
        };
        std::fs::write(&conf, text).unwrap();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// `None` where the proxy is missing.
fn proxied(test: &str, proxy: Proxy, bounds: &str) -> Option<Proxied> {
    let program = proxy.program(test)?;
    let page = Page::read("operate.md");
    let home = Home::new();
    let folder = home.path().to_owned();
    let mut model = home.command(&[
        "mock-model",
        "--listen",
        "127.0.0.1:0",
        "--chunks",
        "3",
        "--chunk-delay-ms",
        "1500",
    ]);
    let mut model = model.stderr(Stdio::null()).spawn().unwrap();
    let mut model_url = String::new();
    BufReader::new(model.stdout.take().unwrap())
        .read_line(&mut model_url)
        .unwrap();
    let key = "cb_acme_not_a_real_key".to_owned();
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:{}\"\ndata_dir = \"{}\"\n{bounds}\n[[provider]]\nname = \"mock\"\nkind = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"m\"\n\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        page.port("8787"),
        folder.join("data").display(),
        model_url.trim(),
        crate::clients::sha256(&key),
    );
    std::fs::write(home.work().join("callboard.toml"), config).unwrap();
    let log = std::fs::File::create(folder.join("serve.log")).unwrap();
    let mut host = home.command(&["serve"]);
    host.stdout(Stdio::null()).stderr(log);
    let host = spawned(host);

    let key_pair = rcgen::KeyPair::generate().unwrap();
    let names = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let ca = names.self_signed(&key_pair).unwrap().pem();
    std::fs::write(folder.join("cert.pem"), &ca).unwrap();
    std::fs::write(folder.join("key.pem"), key_pair.serialize_pem()).unwrap();
    let front = spawned(proxy.command(&program, &page, &folder));
    for port in [page.port("8787"), page.port("8443")] {
        wait_for("a listener", || {
            std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
        });
    }
    Some(Proxied {
        _processes: vec![front, host, Running(model)],
        home,
        key,
        url: format!("https://localhost:{}", page.port("8443")),
        ca,
    })
}

impl Proxied {
    /// A streamed prompt that claims to come from another address.
    fn prompt(&self, client: &reqwest::Client, from: &str) -> reqwest::RequestBuilder {
        client
            .post(format!("{}/v1/conversations/{from}/messages", self.url))
            .bearer_auth(&self.key)
            .header("content-type", "application/json")
            .header("x-forwarded-for", from)
            .body(r#"{"content":"Hello","stream":true}"#)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_as_on_the_page_speaks_tls_and_http2_and_delays_no_event() {
    let test = "nginx_as_on_the_page_speaks_tls_and_http2_and_delays_no_event";
    if let Some(proxied) = proxied(test, Proxy::Nginx, "") {
        delays_no_event(&proxied, StatusCode::FORBIDDEN).await;
        assert!(proxied.home.path().join("error.log").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_as_on_the_page_speaks_tls_and_http2_and_delays_no_event() {
    let test = "caddy_as_on_the_page_speaks_tls_and_http2_and_delays_no_event";
    if let Some(proxied) = proxied(test, Proxy::Caddy, "") {
        delays_no_event(&proxied, StatusCode::NOT_FOUND).await;
    }
}

/// Reads a stream as it is made, a page whose cookie is for TLS, and no figures.
async fn delays_no_event(proxied: &Proxied, metrics: StatusCode) {
    let client = https::client(&proxied.ca, &["h2"]);

    let asked = Instant::now();
    let answer = proxied.prompt(&client, "192.0.2.7").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    let mut body = answer.bytes_stream();
    let (mut text, mut first) = (String::new(), None);
    while let Some(part) = body.next().await {
        text.push_str(&String::from_utf8_lossy(&part.unwrap()));
        if text.contains("text_delta") {
            first.get_or_insert_with(|| asked.elapsed());
        }
    }
    // The model takes three seconds for three pieces. A proxy that buffers waits for some thousand bytes, which come with the last.
    let (first, whole) = (first.unwrap(), asked.elapsed());
    assert!(text.contains("round_finished"), "{text}");
    assert!(
        whole >= Duration::from_millis(2900) && first * 2 < whole,
        "{first:?} of {whole:?}"
    );

    let page = client
        .get(format!("{}/console/login", proxied.url))
        .send()
        .await
        .unwrap();
    let cookies: Vec<_> = page.headers().get_all("set-cookie").iter().collect();
    assert!(
        !cookies.is_empty()
            && cookies
                .iter()
                .all(|cookie| cookie.to_str().unwrap().contains("Secure")),
        "{cookies:?}"
    );
    let answer = client.get(format!("{}/metrics", proxied.url)).send().await;
    assert_eq!(
        answer.unwrap().status(),
        metrics,
        "only inside of the network"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nginx_the_client_address_is_the_proxys_whatever_a_header_says() {
    let test = "behind_nginx_the_client_address_is_the_proxys_whatever_a_header_says";
    let Some(proxied) = proxied(test, Proxy::Nginx, "connections_per_address_max = 1") else {
        return;
    };
    let client = https::client(&proxied.ca, &["h2"]);

    // The connection that looked for the listener counts until the host has noticed its end.
    let began = Instant::now();
    let first = loop {
        let answer = proxied.prompt(&client, "192.0.2.7").send().await.unwrap();
        if answer.status() == 200 || began.elapsed() > Duration::from_secs(30) {
            break answer;
        }
    };
    let second = proxied.prompt(&client, "192.0.2.8").send().await.unwrap();

    assert_eq!(first.status(), 200);
    assert_eq!(second.status(), 503, "both come from the proxy's address");
    let refused = second.text().await.unwrap();
    assert!(refused.contains("too_many_connections"), "{refused}");
}
