//! The pictures of the pages, which `.ci/pictures` makes.

use std::{collections::BTreeMap, path::Path, process::Command};

use super::root;
use crate::{clients::is_there, support::skipped};

/// The names and sizes of the files in a folder.
fn files(folder: &Path) -> BTreeMap<String, u64> {
    let all = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    all.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, file.metadata().unwrap().len())
    })
    .collect()
}

#[test]
fn the_pictures_are_small_and_pages_show_them() {
    let mut pages = std::fs::read_to_string(root().join("README.md")).unwrap();
    for page in std::fs::read_dir(root().join("docs")).unwrap() {
        let page = page.unwrap().path();
        if page.extension().is_some_and(|end| end == "md") {
            pages += &std::fs::read_to_string(page).unwrap();
        }
    }

    let pictures = files(&root().join("docs/pictures"));

    for name in pictures.keys() {
        assert!(
            pages.contains(&format!("pictures/{name}")),
            "{name}: no page shows it"
        );
    }
    let bytes: u64 = pictures.values().sum();
    assert!((1..600_000).contains(&bytes), "{bytes} bytes");
}

#[test]
fn the_pictures_are_those_that_the_script_makes() {
    let name = "the_pictures_are_those_that_the_script_makes";
    if !is_there("chromium") || !is_there("chromedriver") {
        return skipped(name, "chromium or chromedriver is not installed");
    }
    let folder = tempfile::tempdir().unwrap();

    let made = Command::new(root().join(".ci/pictures"))
        .arg(env!("CARGO_BIN_EXE_callboard"))
        .arg(folder.path())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let (kept, made) = (files(&root().join("docs/pictures")), files(folder.path()));
    let names = |all: &BTreeMap<String, u64>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&made), names(&kept));
    // Fonts differ between machines, and times between runs. A page that shows an error is far smaller.
    for (name, bytes) in made {
        let usual = kept[&name];
        assert!(
            (usual / 2..usual * 2).contains(&bytes),
            "{name}: {bytes} bytes in place of {usual}"
        );
    }
}
