//! What a release holds beside the program: the service file, the files for images, the list of
//! what is in it, the crates. `.ci/release`, `.ci/images` and `.ci/newcomer` try the rest.

use std::{collections::BTreeSet, io::Write as _, path::Path, process::Command};

use super::cli::Home;

/// The user of the images.
pub const IMAGE_USER: u32 = 10_001;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_service_file_is_strict_and_leaves_bubblewrap_what_it_needs() {
    let file = root().join("packaging/callboard.service");
    let unit = std::fs::read_to_string(&file).unwrap();

    // Each of these mounts something below /proc, and then the kernel refuses a new /proc to
    // bubblewrap.
    for key in [
        "ProtectKernelTunables=",
        "ProtectKernelLogs=",
        "ProtectHostname=",
    ] {
        assert!(
            !unit.contains(&format!("\n{key}")),
            "{key} ends commands behind bubblewrap"
        );
    }
    let analyzed = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=30"])
        .arg(&file)
        .output();
    match analyzed {
        Ok(analyzed) => assert!(
            analyzed.status.success(),
            "exposure above 3.0: {}",
            String::from_utf8_lossy(&analyzed.stdout)
        ),
        Err(_) => writeln!(
            std::io::stderr(),
            "SKIPPED: the_service_file_is_strict_and_leaves_bubblewrap_what_it_needs: no systemd-analyze"
        )
        .unwrap(),
    }
}

#[test]
fn the_bill_of_materials_names_each_library_with_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .arg("--filter-platform")
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(root())
        .output()
        .unwrap();
    let file = folder.path().join("metadata.json");
    std::fs::write(&file, &metadata.stdout).unwrap();

    let made = Command::new("python3")
        .arg(root().join(".ci/bill-of-materials.py"))
        .args(["1.2.3", "Cargo.lock"])
        .arg(&file)
        .current_dir(root())
        .output()
        .unwrap();

    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let bill: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(bill["metadata"]["component"]["version"], "1.2.3");
    let names: Vec<&str> = bill["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"ractor") && names.contains(&"callboard-actors"));
    assert!(
        !names.contains(&"expect-test"),
        "what only tests need is not in the program"
    );
    let tokio = &bill["components"][names.iter().position(|name| *name == "tokio").unwrap()];
    assert_eq!(tokio["hashes"][0]["alg"], "SHA-256");
}

/// What a program prints, by lines.
fn lines(command: &mut Command) -> BTreeSet<String> {
    let ran = command.current_dir(root()).output().unwrap();
    assert!(
        ran.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let text = String::from_utf8(ran.stdout).unwrap();
    text.split(['\n', '\0'])
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_published_crates_hold_their_licences_and_each_file_that_a_build_or_a_test_reads() {
    let tracked = lines(Command::new("git").args(["ls-files", "-z"]));
    for (name, folder) in [("callboard", ""), ("callboard-actors", "actors/")] {
        let packed = lines(Command::new(env!("CARGO")).args([
            "package",
            "--list",
            "--offline",
            "--allow-dirty",
            "--package",
            name,
        ]));
        let missing: Vec<&str> = tracked
            .iter()
            .filter_map(|file| file.strip_prefix(folder))
            // Packages of their own.
            .filter(|file| !file.starts_with("actors/") && !file.starts_with("fuzz/"))
            .filter(|file| !packed.contains(*file))
            .collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.lock"] {
            assert!(packed.contains(file), "{name} lacks {file}");
        }
    }
}

#[test]
fn the_images_take_files_of_the_archive_and_serve_as_a_user_without_rights() {
    let home = Home::new();
    for name in ["Containerfile", "Containerfile.slim"] {
        let text = std::fs::read_to_string(root().join("packaging").join(name)).unwrap();
        let rest = |key: &str| -> Vec<&str> {
            text.lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
                .collect()
        };

        let from_archive: Vec<&str> = rest("COPY")
            .into_iter()
            .filter(|copy| !copy.starts_with("--from="))
            .collect();
        assert!(
            matches!(from_archive[..], [copy] if copy.starts_with("bin/callboard /")),
            "{name}: the archive has `bin/callboard`: {from_archive:?}"
        );
        let user = rest("USER")[0].split(':').next().unwrap();
        assert_eq!(user.parse(), Ok(IMAGE_USER), "{name}");

        let started: Vec<String> = serde_json::from_str(rest("CMD")[0]).unwrap();
        let serve = started.iter().position(|word| word == "serve").unwrap();
        let mut flags: Vec<&str> = started[serve..].iter().map(String::as_str).collect();
        flags.push("--help");
        assert_eq!(home.run(&flags).code, Some(0), "{name}: {flags:?}");
        assert!(
            flags.contains(&"0.0.0.0:8787") && rest("EXPOSE") == ["8787"],
            "{name}: {flags:?}"
        );
    }
}

#[test]
fn the_scripts_of_a_release_are_valid() {
    for name in ["release", "images", "newcomer", "paths", "run"] {
        let file = root().join(".ci").join(name);
        let checked = Command::new("bash").arg("-n").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(
            checked.status.success() && said.is_empty(),
            "{name}: {said}"
        );
    }
}
