//! `callboard serve` as an operator uses it: first start, reload, keys, shutdown by signal, and the
//! next start.

mod asked;
mod client_tools;
mod ends;
mod open_pages;
mod operator;
mod outages;
mod resumes;
mod settings;
mod strain;
mod tools;
mod trees;
mod watchers;
mod webhooks;

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::{Home, Ran, kill, wait_for};

/// A key and its hash, as `keys new` creates them.
pub struct Key {
    pub key: String,
    pub hash: String,
}

impl Key {
    pub fn new(home: &Home) -> Self {
        let made = home.run(&["keys", "new", "--json"]).well().json();
        Self {
            key: made["key"].as_str().unwrap().to_owned(),
            hash: made["key_sha256"].as_str().unwrap().to_owned(),
        }
    }
}

/// A running host and its output.
pub struct Served {
    child: Option<Child>,
    pub url: String,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    pub client: reqwest::Client,
}

/// An HTTP response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

fn collect(from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let to = text.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut text = to.lock();
            text.push_str(&line);
            text.push('\n');
        }
    });
    text
}

impl Served {
    /// Starts it on a free port and waits for its first line.
    pub fn start(home: &Home, more: &[&str]) -> Self {
        let args: Vec<&str> = ["serve", "--listen", "127.0.0.1:0"]
            .iter()
            .chain(more)
            .copied()
            .collect();
        Self::with(home, &args)
    }

    pub fn with(home: &Home, args: &[&str]) -> Self {
        Self::of(home.command(args))
    }

    /// Waits for the first line of a command.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = collect(child.stdout.take().unwrap());
        let err = collect(child.stderr.take().unwrap());
        let mut served = Self {
            child: Some(child),
            url: String::new(),
            out,
            err,
            client: callboard::tls::client_builder().unwrap().build().unwrap(),
        };
        wait_for("the first line of serve", || {
            let child = served.child.as_mut().unwrap();
            if let Some(ended) = child.try_wait().unwrap() {
                // The thread that collects its output may be behind.
                std::thread::sleep(Duration::from_millis(200));
                panic!("serve ended with {ended}: {}", served.err.lock());
            }
            let log = served.err.lock().clone();
            match log.lines().find_map(|line| line.split_once(" serves at ")) {
                Some((_, url)) => {
                    served.url = url.trim().to_owned();
                    true
                }
                None => false,
            }
        });
        served
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn err(&self) -> String {
        self.err.lock().clone()
    }

    pub fn out(&self) -> String {
        self.out.lock().clone()
    }

    /// Waits until its output contains a text.
    #[track_caller]
    pub fn wait_for_log(&self, what: &str) {
        wait_for(what, || self.err().contains(what));
    }

    pub fn signal(&self, signal: &str) {
        kill(self.child.as_ref().unwrap().id(), signal);
    }

    /// Waits for its end, however it comes.
    pub fn wait_for_end(&mut self) {
        let _ = self.child.as_mut().unwrap().wait();
    }

    /// Waits for its end and keeps its output.
    pub fn end(mut self) -> Ran {
        let child = self.child.take().unwrap();
        let ran = Ran::of(&["serve"], child);
        Ran {
            code: ran.code,
            out: self.out(),
            err: self.err(),
        }
    }

    pub fn stop(self) -> Ran {
        self.signal("TERM");
        self.end()
    }

    pub async fn ask(&self, method: Method, path: &str, key: &str, body: Option<Value>) -> Answer {
        self.ask_with(method, path, key, body, &[]).await
    }

    pub async fn ask_with(
        &self,
        method: Method,
        path: &str,
        key: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let answer = self.send(method, path, key, body, headers).await;
        let status = answer.status();
        let text = answer.text().await.unwrap();
        Answer {
            status,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> reqwest::Response {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(key);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        request.send().await.unwrap()
    }

    /// The unparsed body.
    pub async fn text(
        &self,
        method: Method,
        path: &str,
        key: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> String {
        self.send(method, path, key, body, headers)
            .await
            .text()
            .await
            .unwrap()
    }

    pub async fn get(&self, path: &str, key: &str) -> Answer {
        self.ask(Method::GET, path, key, None).await
    }

    /// Whether the host accepts this key.
    pub async fn opens(&self, key: &str) -> bool {
        self.get("/v1/conversations", key).await.status == StatusCode::OK
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes the configuration of a home, with its data folder in the home.
pub fn configure(home: &Home, text: &str) {
    std::fs::write(home.work().join("callboard.toml"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_without_configuration_makes_one_tenant_and_prints_its_key_once() {
    let home = Home::new();
    let first = Served::start(&home, &[]);
    wait_for("the key", || first.out().ends_with('\n'));
    let key = first.out().trim().to_owned();
    assert!(first.opens(&key).await && !first.opens("cb_not-a-real-key").await);
    let first = first.stop();

    let second = Served::start(&home, &[]);
    assert!(second.opens(&key).await, "{}", second.err());
    let second = second.stop();

    assert_eq!((first.code, second.code), (Some(0), Some(0)));
    assert_eq!((first.out.lines().count(), second.out.as_str()), (1, ""));
    assert!(
        second
            .err
            .contains("tenant default keeps the key of an earlier start"),
        "{}",
        second.err
    );
    let kept =
        std::fs::read_to_string(home.path().join("home/.local/share/callboard/tenants.json"))
            .unwrap();
    assert!(
        !kept.contains(&key) && !first.err.contains(&key) && kept.contains("key_sha256"),
        "{kept}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_shows_how_to_send_a_prompt_and_that_there_is_no_workspace() {
    let home = Home::new();
    let bare = Served::start(&home, &[]);
    bare.wait_for_log("try it: curl http://127.0.0.1:");
    let bare = bare.stop();
    let with = Served::start(&home, &["--workspace", "src"]);
    with.wait_for_log("try it: curl");
    let with = with.stop();

    let lacks = "tenant default has no workspace, so its model has no tools for files; `--workspace DIR` gives it one";
    assert!(bare.err.contains(lacks), "{}", bare.err);
    assert!(!with.err.contains("no workspace"), "{}", with.err);
    assert!(
        bare.err.contains("authorization: Bearer $KEY"),
        "a log holds no key: {}",
        bare.err
    );
}

/// A start that failed would else keep a key that it never showed.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_fails_leaves_the_key_to_the_next() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = home.run(&["serve", "--listen", &address]);
    assert_eq!(
        (failed.code, failed.out.as_str()),
        (Some(1), ""),
        "{failed:?}"
    );

    let next = Served::start(&home, &[]);

    wait_for("the key", || next.out().ends_with('\n'));
    assert!(next.opens(next.out().trim()).await, "{}", next.err());
    assert_eq!(next.stop().code, Some(0));
}

#[test]
fn a_second_serve_on_one_data_folder_is_refused() {
    let home = Home::new();
    let first = Served::start(&home, &[]);

    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]);

    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(
        second
            .error()
            .contains("is in use by another `callboard serve`"),
        "{second:?}"
    );
    assert_eq!(first.stop().code, Some(0));
}

#[test]
fn what_serve_cannot_do_is_one_line() {
    let home = Home::new();
    let failure = |args: &[&str]| {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        ran.error().to_owned()
    };

    assert!(failure(&["serve", "--listen", "0.0.0.0:0"]).contains(
        "--listen: 0.0.0.0:0 can be reached from other machines, and there is no [[tenant]]"
    ));
    assert!(
        failure(&["serve", "--listen", "8787"])
            .contains("--listen: `host.listen` must be an IP address with a port")
    );
    assert!(failure(&["serve", "--grace", "0"]).contains("it must be more than 0"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = home.run(&[
        "serve",
        "--listen",
        &taken.local_addr().unwrap().to_string(),
    ]);
    assert_eq!(taken.code, Some(1));
    assert!(
        taken.error().contains("cannot listen at 127.0.0.1:"),
        "{taken:?}"
    );
    configure(&home, "[[tenant]]\nid = \"acme\"\nwieght = 2\n");
    assert!(
        failure(&["serve"]).contains(
            "callboard.toml:3: unknown key in [[tenant]] `wieght`; did you mean `weight`?"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_who_is_served_and_a_faulty_one_changes_nothing() {
    let home = Home::new();
    let a = Key::new(&home);
    let b = Key::new(&home);
    let c = Key::new(&home);
    let tenant =
        |id: &str, key: &Key| format!("[[tenant]]\nid = \"{id}\"\nkey_sha256 = \"{}\"\n", key.hash);
    configure(&home, &[tenant("acme", &a), tenant("beta", &b)].concat());
    let served = Served::start(&home, &[]);
    assert!(
        served.opens(&a.key).await && served.opens(&b.key).await && !served.opens(&c.key).await
    );

    configure(&home, &[tenant("acme", &a), "turn = 1\n".into()].concat());
    served.signal("HUP");
    served.wait_for_log(
        "not reloaded, nothing changed: callboard.toml:4: unknown key in [[tenant]] `turn`",
    );
    configure(
        &home,
        &[tenant("acme", &a), "workspace = \"nowhere\"\n".into()].concat(),
    );
    served.signal("HUP");
    served.wait_for_log("not reloaded, nothing changed: callboard.toml:4: the workspace of tenant `acme` is not a folder");
    assert!(served.opens(&a.key).await && served.opens(&b.key).await);

    let limits = "[limits]\ntool_iterations_max = 3\n";
    configure(
        &home,
        &[
            limits.into(),
            tenant("acme", &c),
            "weight = 2\n".into(),
            tenant("gamma", &b),
        ]
        .concat(),
    );
    served.signal("HUP");
    served.wait_for_log("reloaded, added gamma, changed acme, removed beta");
    served.wait_for_log(
        "[limits] tool_iterations_max changed; the change takes effect at the next start",
    );

    assert!(
        !served.opens(&a.key).await && served.opens(&b.key).await && served.opens(&c.key).await
    );
    assert_eq!(served.stop().code, Some(0));
}
