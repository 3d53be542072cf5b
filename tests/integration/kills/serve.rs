//! `serve` is killed while clients of two tenants talk to it.

use std::{
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use super::{
    Broken, alive, checker,
    client::{Client, Seen, Talking},
    has_sandbox, kills, life, lines, model,
};
use crate::{
    cli::{
        Home, Ran, kill,
        serve::{Key, Served, configure},
        wait_for,
    },
    support::{SplitMix, seed},
};

const CLIENTS: usize = 8;

/// Time from a kill within which processes of commands are gone.
const ORPHANS_GONE: Duration = Duration::from_secs(2);

fn file(url: &str, keys: &[Key; 2]) -> String {
    let provider = format!(
        "[[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
         api_key_file = \"key\"\n"
    );
    let tenant = |id: &str, key: &Key| {
        format!(
            "[[tenant]]\nid = \"{id}\"\nkey_sha256 = \"{}\"\nworkspace = \"of-{id}\"\n\
             approve = \"auto\"\ntools = [\"bash\", \"create_subagent\", \"think\"]\n",
            key.hash
        )
    };
    [provider, tenant("acme", &keys[0]), tenant("beta", &keys[1])].concat()
}

/// A free address that no outgoing connection gets: between two lives of the host, a connection of
/// another test could take a port of the range that the system gives out.
pub(super) fn address(random: &mut SplitMix) -> String {
    (0..100)
        .map(|_| format!("127.0.0.1:{}", 20_000 + random.below(10_000)))
        .find(|address| std::net::TcpListener::bind(address).is_ok())
        .unwrap()
}

/// Starts the host and kills it before it serves.
fn killed_while_it_starts(home: &Home, args: &[&str], random: &mut SplitMix) {
    let child = home.command(args).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(random.below(150) as u64));
    kill(child.id(), "KILL");
    Ran::of(args, child);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_serve_lose_and_double_nothing_that_was_acknowledged() {
    let test = "kills_of_serve_lose_and_double_nothing_that_was_acknowledged";
    let home = Home::new();
    if !has_sandbox(&home, test) {
        return;
    }
    let seed = seed("kills-serve");
    let mut random = SplitMix(seed);
    let broken = Broken::default();
    let mark = format!("{}.{}", 3_000 + random.below(1_000), std::process::id());
    let model = model::start(mark.clone(), broken.clone()).await;
    let keys = [Key::new(&home), Key::new(&home)];
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    for id in ["acme", "beta"] {
        std::fs::create_dir(home.work().join(format!("of-{id}"))).unwrap();
    }
    configure(&home, &file(&model.url(), &keys));
    let address = address(&mut random);
    let args = ["serve", "--listen", &address];
    let mut served = Served::with(&home, &args);
    let url = served.url().to_owned();

    let http = callboard::tls::client_builder().unwrap().no_proxy();
    let http = http.build().unwrap();
    let clients = (0..CLIENTS).map(|n| Client {
        http: http.clone(),
        urls: vec![url.clone()],
        asked: AtomicUsize::new(0),
        key: keys[n % 2].key.clone(),
        conversation: format!("c{n}"),
    });
    let clients = Talking::start(clients, seed, &broken);

    let began = Instant::now();
    let (wanted, mut killed, mut slowest) = (kills(70), 0, Duration::ZERO);
    while killed < wanted {
        tokio::time::sleep(life(&mut random)).await;
        served.signal("KILL");
        drop(served);
        killed += 1;
        if killed % 500 == 0 {
            let prompts = clients.done();
            println!(
                "{killed} kills, {prompts} prompts, {} broken",
                broken.count()
            );
        }
        served = tokio::task::block_in_place(|| {
            if killed % 25 == 0 {
                let kill = Instant::now();
                wait_for("the end of all processes", || alive(&mark) == 0);
                broken.check(kill.elapsed() < ORPHANS_GONE, || {
                    format!("processes lived for {:?}", kill.elapsed())
                });
            }
            if killed < wanted && random.below(8) == 0 {
                killed_while_it_starts(&home, &args, &mut random);
                killed += 1;
            }
            let start = Instant::now();
            let served = Served::with(&home, &args);
            slowest = slowest.max(start.elapsed());
            served
        });
    }
    let Seen {
        prompts,
        given_up,
        histories,
    } = clients.end(&broken).await;
    let files = ["of-acme/starts", "of-beta/starts"].map(|file| lines(&home.work().join(file)));
    let ended = checker::check_starts(&files.concat(), &histories, &broken);
    let ended_well = served.stop();
    broken.check(ended_well.code == Some(0), || format!("{ended_well:?}"));
    let story = format!(
        "{killed} kills in {:?}, {prompts} prompts acknowledged, {given_up} given up, {} commands started and {ended} \
         ended, {} model calls, the slowest start {slowest:?}",
        began.elapsed(),
        files.concat().len(),
        model.requests().len()
    );
    println!("{story}");
    broken.none(&story);
    assert!(
        prompts > killed / 2 && ended > 0,
        "the test covered enough: {story}"
    );
}
