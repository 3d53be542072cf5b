//! Everyday development commands in a small repository, each compared with the same command outside
//! a sandbox. The table measures whether the boundaries let work be done.

use callboard::sandbox::Toolchains;
use callboard_actors::testing::TestSize;

use super::*;

/// A program that must be installed, and a command that runs in a separate copy of the repository.
/// The command's output must not depend on time or place.
const TABLE: [(&str, &str); 52] = [
    ("git", "git status --short"),
    ("git", "git log --format=%s"),
    ("git", "git diff --stat HEAD~1"),
    ("git", "git show --stat --format=%s HEAD"),
    ("git", "git blame -s notes/a.txt | cut -c10-"),
    ("git", "git init -q fresh && ls -A fresh"),
    ("git", "git clone -q . copy && ls copy"),
    (
        "git",
        "echo more >> README.md && git add -A && git commit -qm change && git log -1 --format=%s",
    ),
    (
        "git",
        "git checkout -q -b topic && git branch --show-current",
    ),
    ("git", "git merge -q --no-edit feature && ls notes"),
    ("git", "git rebase -q feature && git log --format=%s"),
    ("git", "git cherry-pick feature >/dev/null && ls notes"),
    (
        "git",
        "echo x >> README.md && git stash -q && git status --short && git stash pop -q && git status --short",
    ),
    ("git", "git tag v1 && git tag"),
    ("git", "git reset -q --hard HEAD~1 && git log --format=%s"),
    ("git", "git worktree add -q wt feature && ls wt"),
    ("git", "touch junk && git clean -fdq && git status --short"),
    ("bash", "echo hi > out.txt && cat out.txt"),
    ("rm", "rm README.md && ls"),
    ("mv", "mv README.md notes/ && ls notes"),
    ("cp", "cp -r notes copied && ls copied"),
    (
        "cp",
        "cp -p data.csv same.csv && stat -c %a same.csv && [ ! same.csv -nt data.csv ] && echo kept",
    ),
    (
        "sed",
        "sed -i s/alpha/ALPHA/ notes/a.txt && cat notes/a.txt",
    ),
    ("mkdir", "mkdir -p d/e/f && rmdir d/e/f && ls d"),
    (
        "touch",
        "touch -d 2001-02-03T04:05:06Z data.csv && stat -c %Y data.csv",
    ),
    ("chmod", "chmod +x run.sh && ./run.sh"),
    ("ln", "ln -s notes/a.txt link && cat link"),
    ("tar", "tar czf a.tgz notes && tar tzf a.tgz"),
    (
        "tar",
        "tar czf a.tgz notes run.sh && mkdir x && tar xzf a.tgz -C x && ls x && stat -c %a x/notes",
    ),
    (
        "zip",
        "zip -qr a.zip notes && unzip -qo a.zip -d x && ls x/notes",
    ),
    (
        "install",
        "install -m 750 run.sh inst.sh && stat -c %a inst.sh",
    ),
    (
        "find",
        "find . -name '*.txt' -not -path './.git/*' | sort | xargs wc -l",
    ),
    ("find", "find notes -name '*.txt' -exec cat {} +"),
    (
        "patch",
        "diff -u notes/a.txt notes/b.txt > d.patch; patch -s notes/a.txt d.patch && cat notes/a.txt",
    ),
    ("sort", "sort data.csv | uniq -c | sort -rn | head -2"),
    ("awk", "awk -F, '{ s += $2 } END { print s }' data.csv"),
    ("jq", "jq -r .name web/package.json"),
    ("cat", "cat > here.txt <<END\none\ntwo\nEND\nwc -l here.txt"),
    ("make", "make -s && ./prog"),
    ("gcc", "gcc -O1 -o p main.c && ./p"),
    ("python3", "python3 tool.py"),
    ("python3", "python3 -m unittest -q 2>&1 | tail -1"),
    (
        "python3",
        "python3 -m venv v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'",
    ),
    (
        "python3",
        "python3 -m pip install -q --no-index --no-deps --target t tiny-1.0-py3-none-any.whl && PYTHONPATH=t python3 -c 'import tiny; print(tiny.x)'",
    ),
    ("node", "node app.js"),
    ("npm", "mkdir n && cd n && npm init -y >/dev/null && ls"),
    (
        "npm",
        "cd web && npm ci --offline --no-audit --no-fund >/dev/null && ls",
    ),
    ("cargo", "cargo new -q fresh && ls fresh"),
    ("cargo", "cd crate && cargo check -q --offline && ls"),
    ("cargo", "cd crate && cargo run -q --offline"),
    (
        "cargo",
        "cd crate && cargo test -q --offline 2>/dev/null | grep 'test result' | cut -d. -f1",
    ),
    ("curl", "curl -s -m 2 http://127.0.0.1:9/ || echo refused"),
];

/// Script that creates the repository.
const REPOSITORY: &str = r#"
git init -q -b main && git config user.name Test && git config user.email test@example.org && git config commit.gpgsign false
mkdir notes web crate crate/src && echo '# Title' > README.md && printf 'alpha\nbeta\n' > notes/a.txt && printf 'alpha\ngamma\n' > notes/b.txt
printf 'x,1\ny,2\nx,1\n' > data.csv && printf '#!/bin/sh\necho ran\n' > run.sh
printf '#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n' > main.c && printf 'prog: main.c\n\t$(CC) -o prog main.c\n' > Makefile
echo 'print(sum(range(5)))' > tool.py && printf 'import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertTrue(True)\n' > test_tool.py
echo 'console.log([1, 2].map(n => n * 2).join())' > app.js
printf '{"name": "web", "version": "1.0.0"}' > web/package.json
printf '{"name": "web", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {"": {"name": "web", "version": "1.0.0"}}}' > web/package-lock.json
printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\ncfg-if = "1"\n[workspace]\n' > crate/Cargo.toml
printf 'cfg_if::cfg_if! { if #[cfg(unix)] { const ON: &str = "unix"; } else { const ON: &str = "other"; } }\nfn main() { println!("{ON}"); }\n#[test]\nfn holds() {}\n' > crate/src/main.rs
printf '.env\ncrate/target\n' > .gitignore && echo 'KEY=not-a-real-key' > .env
command -v python3 >/dev/null && python3 - <<'END'
import zipfile
z = zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w')
z.writestr('tiny.py', 'x = 7\n')
z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n')
z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
z.writestr('tiny-1.0.dist-info/RECORD', 'tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n')
END
git add -A && git commit -qm first && git checkout -q -b feature && echo delta > notes/d.txt && git add -A && git commit -qm third && git checkout -q main
echo gamma >> notes/a.txt && git commit -qam second
cd crate && command -v cargo >/dev/null && cargo generate-lockfile -q --offline; true
"#;

/// The result of a command: its status and its output.
type Came = (Option<i32>, String);

struct Repository {
    template: tempfile::TempDir,
    home: tempfile::TempDir,
    toolchains: Toolchains,
}

impl Repository {
    fn new() -> Self {
        let home = std::env::var_os("HOME")
            .map(PathBuf::from)
            .unwrap_or_default();
        let toolchains = Toolchains::detect(&home, |name| std::env::var_os(name));
        let repository = Self {
            template: tempfile::tempdir().unwrap(),
            home: tempfile::tempdir().unwrap(),
            toolchains,
        };
        let made = repository.bare(repository.template.path(), REPOSITORY);
        assert_eq!(made.0, Some(0), "{}", made.1);
        repository
    }

    /// Runs a command without a sandbox.
    fn bare(&self, folder: &Path, command: &str) -> Came {
        let system = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
        let path = self
            .toolchains
            .path
            .iter()
            .map(|folder| folder.to_str().unwrap())
            .chain([system])
            .collect::<Vec<_>>()
            .join(":");
        let output = std::process::Command::new("/bin/bash")
            .args(["--norc", "--noprofile", "-c", command])
            .current_dir(folder)
            .env_clear()
            .envs(
                self.toolchains
                    .variables
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .envs([
                ("PATH", path.as_str()),
                ("LANG", "C.UTF-8"),
                ("PAGER", "cat"),
                ("GIT_PAGER", "cat"),
                ("NO_COLOR", "1"),
            ])
            .env("HOME", self.home.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    fn copy(&self, name: &str) -> PathBuf {
        let place = self.home.path().join(name);
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([self.template.path(), &place])
            .status()
            .unwrap();
        assert!(copied.success());
        place
    }
}

async fn in_boundary(
    repository: &Repository,
    only: Boundary,
    row: usize,
    command: &str,
) -> Result<(Came, String), SandboxError> {
    let place = repository.copy(&format!("{only:?}-{row}"));
    let root = Arc::new(Root::open(&place, PathRules::default()).unwrap());
    let options = Options {
        only: Some(only),
        helper: Some(helper()),
        toolchains: repository.toolchains.clone(),
        ..Options::default()
    };
    let detected = tokio::task::spawn_blocking(move || {
        detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options)
    })
    .await
    .unwrap()?;
    let exec = Exec {
        timeout: Duration::from_secs(60),
        ..Exec::new(command)
    };
    let result = detected
        .sandbox
        .unwrap()
        .exec(exec, CancellationToken::new())
        .await?;
    Ok(((result.status, result.stdout), result.stderr))
}

/// Programs whose rows may depend on the user's rights: owners, modes, links, times and sockets. A
/// second run of the table, as another user, has these only; `CALLBOARD_LONG=1` repeats all rows.
/// A usual run tries the first row of each program.
const BY_RIGHTS: [&str; 11] = [
    "git", "bash", "rm", "mv", "cp", "touch", "chmod", "ln", "tar", "install", "curl",
];

fn rows() -> impl Iterator<Item = (usize, &'static (&'static str, &'static str))> {
    let is_second = stranger::is_again() && !TestSize::is_long();
    let is_usual = TestSize::of_this_run() == TestSize::Usual;
    let is_first =
        |at: usize, program: &str| TABLE[..at].iter().all(|(other, _)| *other != program);
    TABLE
        .iter()
        .enumerate()
        .filter(move |(at, (program, _))| !is_usual || is_first(*at, program))
        .map(|(_, row)| row)
        .filter(move |(program, _)| !is_second || BY_RIGHTS.contains(program))
        .enumerate()
}

/// Whether a row is tried behind a boundary: behind each in the gate, and in a usual run behind one,
/// the boundaries in turn.
fn is_tried(row: usize, boundary: usize, boundaries: usize) -> bool {
    TestSize::of_this_run() != TestSize::Usual || row % boundaries == boundary
}

/// Runs the table behind each boundary, a few rows at a time. Returns the rows whose result differs
/// from that without a sandbox.
async fn measured(only: &[Boundary]) -> Vec<(Boundary, Vec<&'static str>)> {
    use futures_util::{StreamExt, stream};
    let repository = Arc::new(tokio::task::spawn_blocking(Repository::new).await.unwrap());
    let rows = stream::iter(rows()).map(async |(row, (program, command))| {
        let (repository, place) = (repository.clone(), repository.copy(&format!("bare-{row}")));
        let is_there = repository
            .bare(&place, &format!("command -v {program} >/dev/null"))
            .0
            == Some(0);
        let bare = repository.clone();
        let bare = tokio::task::spawn_blocking(move || bare.bare(&place, command))
            .await
            .unwrap();
        if !is_there || bare.0 != Some(0) {
            // An unprivileged user may lack a toolchain that the superuser has.
            let word = if stranger::is_again() {
                "note"
            } else {
                "SKIPPED"
            };
            writeln!(
                &mut std::io::stderr(),
                "{word}: `{command}` does not work here without a sandbox"
            )
            .unwrap();
            return None;
        }
        let mut came = Vec::new();
        for (at, boundary) in only.iter().enumerate() {
            if !is_tried(row, at, only.len()) {
                came.push(None);
                continue;
            }
            let inside = in_boundary(&repository, *boundary, row, command).await;
            let same = inside.as_ref().is_ok_and(|(came, _)| *came == bare);
            if !same {
                writeln!(
                    &mut std::io::stderr(),
                    "note: {boundary:?}: `{command}`: {inside:?}, not {bare:?}"
                )
                .unwrap();
            }
            came.push(Some(same));
        }
        Some((*command, came))
    });
    let rows: Vec<_> = rows.buffered(2).filter_map(async |row| row).collect().await;
    let of = |at: usize| {
        rows.iter()
            .filter(|(_, came)| came[at] == Some(false))
            .map(|(command, _)| *command)
            .collect::<Vec<_>>()
    };
    let other: Vec<_> = only
        .iter()
        .enumerate()
        .map(|(at, boundary)| (*boundary, of(at)))
        .collect();
    for (at, (boundary, failed)) in other.iter().enumerate() {
        let tried = rows.iter().filter(|(_, came)| came[at].is_some()).count();
        writeln!(
            &mut std::io::stderr(),
            "note: {boundary:?}: {} of {tried} everyday commands work",
            tried - failed.len()
        )
        .unwrap();
    }
    other
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyday_commands_work_as_they_do_without_a_sandbox() {
    let test = "everyday_commands_work_as_they_do_without_a_sandbox";
    let mut boundaries: Vec<Boundary> = SandboxFixture::linux(test)
        .map(|_| Boundary::Bubblewrap)
        .into_iter()
        .collect();
    boundaries.extend(SandboxFixture::covered(test).map(|_| Boundary::Landlock));
    // Landlock without a mount namespace is not required to pass: its closed folders are
    // documented. The number of passing rows is printed.
    let long = TestSize::is_long();
    boundaries.extend(
        SandboxFixture::landlock(test)
            .filter(|_| long)
            .map(|_| Boundary::LandlockAlone),
    );

    for (boundary, failed) in measured(&boundaries).await {
        assert!(
            failed.is_empty() || boundary == Boundary::LandlockAlone,
            "{boundary:?}: {failed:#?}"
        );
    }
}

#[tokio::test]
async fn of_a_toolchain_programs_are_found_and_no_key_is_shown_or_part_of_it_written() {
    let test = "of_a_toolchain_programs_are_found_and_no_key_is_shown_or_part_of_it_written";
    for only in [
        Boundary::Bubblewrap,
        Boundary::Landlock,
        Boundary::LandlockAlone,
    ] {
        let home = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("workspace/a", "a"),
            (".cargo/bin/tool", "#!/bin/sh\necho found in $CARGO_HOME\n"),
            (".cargo/registry/crate", "source"),
            (".cargo/credentials.toml", "token = \"needle\""),
            (
                ".cargo/config.toml",
                "[registries.inner]\ntoken = \"needle\"",
            ),
            (".npmrc", "needle"),
            ("notes.txt", "needle"),
        ] {
            fs::create_dir_all(home.path().join(path).parent().unwrap()).unwrap();
            fs::write(home.path().join(path), text).unwrap();
        }
        let tool = home.path().join(".cargo/bin/tool");
        fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = home.path().join(".cargo/bin").into_os_string();
        let toolchains =
            Toolchains::detect(home.path(), |name| (name == "PATH").then(|| path.clone()));
        let root =
            Arc::new(Root::open(home.path().join("workspace"), PathRules::default()).unwrap());
        let options = Options {
            only: Some(only),
            helper: Some(helper()),
            toolchains,
            ..Options::default()
        };
        let sandbox = match detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options) {
            Ok(detected) => detected.sandbox.unwrap(),
            Err(error) => {
                writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {only:?}: {error}").unwrap();
                continue;
            }
        };

        let command = "tool; cat $CARGO_HOME/registry/crate; echo; cd $CARGO_HOME; cat credentials.toml config.toml ../.npmrc ../notes.txt; \
                       echo evil > bin/tool; echo evil > bin/new; rm -f bin/tool; chmod 777 bin/tool; mv bin bin2; ls registry";
        let result = sandbox
            .exec(Exec::new(command), CancellationToken::new())
            .await
            .unwrap();

        assert_eq!(
            result.stdout,
            format!(
                "found in {}\nsource\ncrate\n",
                home.path().join(".cargo").display()
            ),
            "{only:?}"
        );
        assert!(fs::read_to_string(&tool).unwrap().starts_with("#!/bin/sh"));
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&tool).unwrap().permissions())
                & 0o777,
            0o755
        );
    }
}

#[test]
fn a_listed_folder_is_refused_that_holds_keys_or_what_is_stored() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    for (folder, why) in [
        (
            home.path().to_str().unwrap().to_owned(),
            "is or holds your home folder",
        ),
        ("/".to_owned(), "is or holds your home folder"),
        (
            at(".local/share"),
            "is or holds the data folder, or lies in it",
        ),
        (
            at(".local/share/callboard/artifacts"),
            "is or holds the data folder, or lies in it",
        ),
        (at(".ssh"), "may hold keys"),
        (at(".config/gh"), "may hold keys"),
    ] {
        let environment = [
            ("HOME".to_owned(), home.path().to_str().unwrap().to_owned()),
            ("CALLBOARD_SANDBOX__READ_ONLY".to_owned(), folder.clone()),
        ];
        let file = home.path().join("callboard.toml");
        fs::write(&file, "").unwrap();

        let error = callboard::config::Config::load(Some(&file), environment.into_iter())
            .unwrap_err()
            .to_string();

        assert!(
            error.contains("`sandbox.read_only` must list toolchains") && error.contains(why),
            "{folder}: {error}"
        );
    }
    let environment = [
        ("HOME".to_owned(), at("")),
        (
            "CALLBOARD_SANDBOX__READ_ONLY".to_owned(),
            format!("~/.cargo, {}", at("tools")),
        ),
    ];
    let config = callboard::config::Config::load(
        Some(&home.path().join("callboard.toml")),
        environment.into_iter(),
    )
    .unwrap();
    assert_eq!(
        config.read_only,
        [home.path().join(".cargo"), home.path().join("tools")]
    );
}

/// Runs the tests above on an unprivileged host. It has no home folder, so only the system's
/// toolchains are available.
#[test]
fn everyday_commands_work_for_a_host_without_rights() {
    stranger::again_as_stranger(&["sandbox::everyday::", "--skip", "without_rights"]);
}
