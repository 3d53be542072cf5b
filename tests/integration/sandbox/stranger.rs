//! An unprivileged host: it hides its data from other processes of its user, and still runs
//! commands. Nothing can be hidden from a superuser, so if the tests run as one, they switch to an
//! unprivileged user.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::fs::{PermissionsExt, chown},
    process::{Command, Stdio},
};

use callboard_actors::testing::TestSize;

use super::*;
use crate::cli::Home;

/// User id of the unprivileged user.
const NOBODY: u32 = 65534;

fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that runs as the unprivileged user.
fn stranger(program: &Path) -> Command {
    if !is_superuser() {
        return Command::new(program);
    }
    let mut command = Command::new("/usr/bin/setpriv");
    let id = NOBODY.to_string();
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .arg(program);
    command
}

/// A path at which the unprivileged user can reach a file: its own, or that of a hard link or copy
/// in `folder`.
fn reachable(folder: &Path, file: &Path) -> PathBuf {
    let open = |path: &Path, mode: u32| {
        fs::metadata(path).is_ok_and(|kind| kind.permissions().mode() & mode == mode)
    };
    if !is_superuser()
        || (open(file, 0o5) && file.ancestors().skip(1).all(|folder| open(folder, 0o1)))
    {
        return file.to_owned();
    }
    let name = folder.join(file.file_name().unwrap());
    link_or_copy(file, &name);
    name
}

/// Creates a hard link to a program, or copies it. A link is preferred, since the program has
/// hundreds of megabytes.
pub(super) fn link_or_copy(file: &Path, name: &Path) {
    if fs::hard_link(file, name).is_err() {
        fs::copy(file, name).unwrap();
    }
}

/// A folder that every user may read.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Whether this process was started by [`again_as_stranger`].
pub(super) fn is_again() -> bool {
    std::env::var_os("CALLBOARD_TEST_HOARD").is_some()
}

/// Runs the selected tests again as an unprivileged user, if this one is the superuser. `tests` are
/// arguments of this program. Returns their output; `None` if this user is unprivileged already, and
/// in a usual run: only the gate and long runs have both users.
pub(super) fn again_as_stranger(tests: &[&str]) -> Option<String> {
    if !is_superuser() || TestSize::of_this_run() == TestSize::Usual {
        return None;
    }
    let folder = open_folder();
    let own = |file: &Path| reachable(folder.path(), file);
    let this = own(&std::env::current_exe().unwrap());
    let output = stranger(&this)
        .args(tests)
        .arg("--nocapture")
        .env(
            "CALLBOARD_TEST_HELPER",
            own(Path::new(env!("CARGO_BIN_EXE_callboard"))),
        )
        .env(
            "CALLBOARD_TEST_HOARD",
            own(Path::new(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/integration/sandbox/hoard.c"
            ))),
        )
        .env(
            "CALLBOARD_TEST_PROBE",
            own(Path::new(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/probe/probe.c"
            ))),
        )
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .output()
        .unwrap();

    std::io::stderr().write_all(&output.stderr).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && !said.contains(" 0 passed"),
        "{said}"
    );
    Some(said)
}

/// A home folder that belongs to the unprivileged user.
fn home() -> Home {
    let home = Home::new();
    if is_superuser() {
        for path in ["", "work", "work/src", "work/src/retry.rs", "home"] {
            chown(home.path().join(path), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    home
}

#[test]
fn an_mcp_server_cannot_read_its_hosts_environment_memory_or_descriptors() {
    let home = home();
    let folder = open_folder();
    let found = home.work().join("found");
    // The program is no MCP server: it inspects its environment and exits.
    let script = format!(
        "cd /proc/$PPID || exit; exec >{found:?} 2>&1; cat comm; cat /proc/$$/environ | wc -c; cat environ; head -c 1 mem; ls fd; readlink exe cwd root; echo looked"
    );
    let file = home.path().join("servers.toml");
    fs::write(
        &file,
        format!("[[mcp]]\nname = \"peer\"\ncommand = \"bash\"\nargs = [\"-c\", {script:?}]\n"),
    )
    .unwrap();
    let mut command = stranger(&reachable(
        folder.path(),
        Path::new(env!("CARGO_BIN_EXE_callboard")),
    ));
    command
        .arg("--config")
        .arg(file)
        .args(["tools", "list"])
        .current_dir(home.work());

    // Sets no variable of the machine: what the server found is printed when this fails.
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("OPENAI_API_KEY", "sk-not-a-real-key-0123");
    let output = command
        .env("HOME", home.path().join("home"))
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let found = fs::read_to_string(found).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let (first, rest) = found.split_once('\n').unwrap();
    let (own, rest) = rest.split_once('\n').unwrap();
    assert_eq!(
        (
            first,
            own.trim().parse::<u32>().is_ok_and(|bytes| bytes > 0)
        ),
        ("callboard", true),
        "its own it can read: {found}"
    );
    assert!(
        rest.ends_with("looked\n") && !rest.contains("sk-not-a-real-key"),
        "{found}"
    );
    assert_eq!(
        rest.matches("Permission denied").count(),
        3,
        "environment, memory and descriptors: {found}"
    );
    assert!(
        !rest.lines().any(|line| line.starts_with('/')),
        "no link leads anywhere: {found}"
    );
}

/// Runs `tools call bash` with several lines of input, and calls `meanwhile` with the program's
/// file between them.
fn commands_beside(boundary: Boundary, meanwhile: impl Fn(&Path)) -> [String; 2] {
    let home = home();
    let folder = open_folder();
    let program = folder.path().join("callboard");
    link_or_copy(Path::new(env!("CARGO_BIN_EXE_callboard")), &program);
    // This jail shows the machine as it is, except for bubblewrap, so that the sandbox uses
    // Landlock.
    let mut command = match boundary {
        Boundary::Bubblewrap => stranger(&program),
        Boundary::Landlock | Boundary::LandlockAlone => {
            let mut command = stranger(Path::new("/usr/bin/bwrap"));
            command
                .args([
                    "--dev-bind",
                    "/",
                    "/",
                    "--ro-bind",
                    "/dev/null",
                    "/usr/bin/bwrap",
                    "--",
                ])
                .arg(&program);
            command
        }
    };
    command
        .args(["tools", "call", "bash", "--approve", "auto"])
        .current_dir(home.work());
    let mut child = home
        .dress(&mut command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut ask = |sum: &str| {
        writeln!(
            input,
            "{{\"command\": \"echo $(({sum})) ${{WORKSPACE-/workspace}}\"}}"
        )
        .unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line
    };

    let first = ask("20 + 1");
    meanwhile(&program);
    let second = ask("40 + 2");

    drop(input);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    child.wait().unwrap();
    [first, second].map(|line| format!("{line}{said}"))
}

#[test]
fn a_host_that_is_closed_to_debuggers_runs_commands_also_when_its_file_is_replaced_or_removed() {
    if !Path::new("/usr/bin/bwrap").is_file() {
        let line = "SKIPPED: a_host_that_is_closed_to_debuggers_runs_commands_also_when_its_file_is_replaced_or_removed: no bubblewrap";
        writeln!(&mut std::io::stderr(), "{line}").unwrap();
        return;
    }
    let replace = |program: &Path| {
        fs::write(
            program.with_extension("new"),
            "#!/bin/sh\necho another program\n",
        )
        .unwrap();
        fs::rename(program.with_extension("new"), program).unwrap();
    };
    let remove = |program: &Path| fs::remove_file(program).unwrap();
    for (boundary, place) in [
        (Boundary::Bubblewrap, "/workspace"),
        (Boundary::Landlock, "$WORKSPACE"),
    ] {
        for (meanwhile, change) in [
            ("replaced", &replace as &dyn Fn(&Path)),
            ("removed", &remove),
        ] {
            let [before, after] = commands_beside(boundary, change);

            assert!(
                before.contains(&format!("21 {place}")),
                "{boundary:?}: {before}"
            );
            assert!(
                after.contains(&format!("42 {place}")),
                "{boundary:?} {meanwhile}: {after}"
            );
        }
    }
}

/// The PDF reader is a helper too: only it can report that a document has no text.
#[test]
fn a_host_that_is_closed_to_debuggers_reads_pdfs() {
    let home = home();
    let folder = open_folder();
    let objects: &[&[u8]] = &[
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R >>",
    ];
    let scan = home.work().join("scan.pdf");
    fs::write(&scan, callboard_actors::testing::media::pdf_of(objects, "")).unwrap();
    let mut command = stranger(&reachable(
        folder.path(),
        Path::new(env!("CARGO_BIN_EXE_callboard")),
    ));
    command
        .args(["run", "--provider", "offline", "--attach"])
        .arg(&scan)
        .arg("Hello")
        .current_dir(home.work());

    let output = home.dress(&mut command).output().unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("holds no text"),
        "{said}"
    );
}
