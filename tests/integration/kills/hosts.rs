//! Three hosts on one PostgreSQL database are killed and stopped while clients talk to all of them.

use std::{
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use callboard_actors::testing::TestSize;

use super::{
    Broken, alive, checker,
    client::{Client, Seen, Talking},
    has_sandbox, lines, model,
    serve::address,
};
use crate::{
    cli::{
        Home,
        serve::{Key, Served, configure},
    },
    postgres,
    support::{SplitMix, seed},
};

const HOSTS: usize = 3;
const CLIENTS: usize = 12;

/// How long hosts are disturbed.
fn duration() -> Duration {
    Duration::from_secs(TestSize::pick(8, 40, 600))
}

fn file(database: &str, address: &str, model: &str, workspace: &str, key: &Key) -> String {
    format!(
        "[host]\npeer_address = \"http://{address}\"\nlisten = \"{address}\"\n[store]\nurl = \"{database}\"\n\
         [[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{model}\"\napi_key_file = \"key\"\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = \"{workspace}\"\napprove = \"auto\"\n\
         tools = [\"bash\", \"create_subagent\", \"think\"]\n",
        key.hash
    )
}

/// Lets the hosts go on whose time has come.
fn go_on(hosts: &[Served], until: &mut [Option<Instant>], now: Instant) {
    for (host, until) in hosts.iter().zip(until) {
        if until.take_if(|until| *until <= now).is_some() {
            host.signal("CONT");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_and_stops_of_three_hosts_lose_and_double_nothing_that_was_acknowledged() {
    let test = "kills_and_stops_of_three_hosts_lose_and_double_nothing_that_was_acknowledged";
    let shared = Home::new();
    let Some(server) = postgres::own_server(test) else {
        return;
    };
    if !has_sandbox(&shared, test) {
        return;
    }
    let seed = seed("kills-hosts");
    let mut random = SplitMix(seed);
    let broken = Broken::default();
    let mark = format!("{}.{}", 4_000 + random.below(1_000), std::process::id());
    let model = model::start(mark.clone(), broken.clone()).await;
    let key = Key::new(&shared);
    // As on a file system that the hosts share.
    let workspace = shared.work().join("of-acme");
    std::fs::create_dir(&workspace).unwrap();
    let homes: Vec<Home> = (0..HOSTS).map(|_| Home::new()).collect();
    let mut urls = Vec::new();
    for home in &homes {
        let address = address(&mut random);
        std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
        let workspace = workspace.to_str().unwrap();
        configure(
            home,
            &file(&server.url(), &address, &model.url(), workspace, &key),
        );
        urls.push(format!("http://{address}"));
    }
    let start = |at: usize| Served::with(&homes[at], &["serve"]);
    let mut hosts: Vec<Served> = (0..HOSTS).map(start).collect();

    let http = callboard::tls::client_builder().unwrap().no_proxy();
    let http = http.timeout(Duration::from_secs(60)).build().unwrap();
    let clients = (0..CLIENTS).map(|n| Client {
        http: http.clone(),
        urls: urls.clone(),
        asked: AtomicUsize::new(n),
        key: key.key.clone(),
        conversation: format!("c{n}"),
    });
    let clients = Talking::start(clients, seed, &broken);

    let began = Instant::now();
    let (mut killed, mut stopped) = (0, 0);
    // When a stopped host goes on. Others are killed and stopped meanwhile, at most two at once.
    let mut until: Vec<Option<Instant>> = vec![None; HOSTS];
    while began.elapsed() < duration() {
        tokio::time::sleep(Duration::from_millis(300 + random.below(1_500) as u64)).await;
        go_on(&hosts, &mut until, Instant::now());
        let at = random.below(HOSTS);
        if until[at].is_some() || until.iter().flatten().count() == HOSTS - 1 {
            continue;
        }
        if random.below(2) == 0 {
            hosts[at].signal("KILL");
            killed += 1;
            tokio::time::sleep(Duration::from_millis(random.below(4_000) as u64)).await;
            tokio::task::block_in_place(|| hosts[at] = start(at));
        } else {
            hosts[at].signal("STOP");
            stopped += 1;
            // Some stops are long enough for the others to take over.
            let most_ms = if random.below(2) == 0 { 3_000 } else { 20_000 };
            let pause = Duration::from_millis(random.below(most_ms) as u64);
            until[at] = Some(Instant::now() + pause);
        }
    }
    go_on(&hosts, &mut until, began + Duration::from_secs(3_600));
    let Seen {
        prompts,
        given_up,
        histories,
    } = clients.end(&broken).await;
    let starts = lines(&workspace.join("starts"));
    let ended = checker::check_starts(&starts, &histories, &broken);
    for host in hosts {
        let ended_well = host.stop();
        broken.check(ended_well.code == Some(0), || format!("{ended_well:?}"));
    }
    broken.check(alive(&mark) == 0, || "processes are left".to_owned());
    let story = format!(
        "{killed} kills and {stopped} stops in {:?}, {prompts} prompts acknowledged, {given_up} given up, {} commands started \
         and {ended} ended, {} model calls",
        began.elapsed(),
        starts.len(),
        model.requests().len()
    );
    println!("{story}");
    broken.none(&story);
    assert!(
        prompts > 20 && ended > 0,
        "the test covered enough: {story}"
    );
}
