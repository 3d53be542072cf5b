//! The site that mdBook makes of the pages. It is built where mdBook is, and in the long form: the
//! gate checks the same links in the pages themselves, and does not spend two minutes on building
//! mdBook.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::root;

fn html_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            html_files(&path, found);
        } else if path.extension().is_some_and(|end| end == "html") {
            found.push(path);
        }
    }
}

/// The values of `href` and `src`.
fn links(html: &str) -> impl Iterator<Item = &str> {
    let parts = html.split(" href=\"").skip(1);
    let parts = parts.chain(html.split(" src=\"").skip(1));
    parts.filter_map(|part| part.split('"').next())
}

#[test]
fn the_book_is_built_and_none_of_its_links_is_dead() {
    let folder = tempfile::tempdir().unwrap();
    let built = Command::new("mdbook")
        .arg("build")
        .arg(root().join("docs"))
        .arg("-d")
        .arg(folder.path())
        .output();
    let built = match built {
        Ok(built) => built,
        Err(_) if std::env::var_os("CALLBOARD_LONG").is_none() => return,
        Err(error) => panic!("mdbook (`cargo install mdbook --version 0.5.4 --locked`): {error}"),
    };
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(
        built.status.success() && !said.contains("WARN") && !said.contains("ERROR"),
        "{said}"
    );

    let mut pages = Vec::new();
    html_files(folder.path(), &mut pages);
    let mut dead = Vec::new();
    // The page for printing has all pages below one address, and that of errors is served at any.
    for page in pages.iter().filter(|page| {
        let name = page.file_name().unwrap();
        name != "print.html" && name != "404.html"
    }) {
        let html = fs::read_to_string(page).unwrap();
        for link in links(&html) {
            let target = link.split('#').next().unwrap();
            let is_outside = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_outside && !page.parent().unwrap().join(target).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(pages.len() > 60, "{} pages", pages.len());
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}
