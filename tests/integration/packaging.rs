//! What a release holds beside the program: the service file and the list of what is in it.

use std::{io::Write as _, path::Path, process::Command};

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
