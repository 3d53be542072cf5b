//! Folders of skills: real ones with deviations, broken ones, and hostile ones.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Instant,
};

use callboard::{
    ports::{SkillError, SkillSource},
    skill::{LoadLevel, Skill, SkillName},
    skills::{SkillFolder, Survey},
};
use callboard_actors::testing::contract;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/skills")
}

fn name(text: &str) -> SkillName {
    SkillName::new(text).unwrap()
}

fn write(folder: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn survey(folder: &Path) -> Survey {
    SkillFolder::open(folder).unwrap().survey().unwrap()
}

fn good(name: &str) -> String {
    format!("---\nname: {name}\ndescription: Does {name}.\n---\n# {name}\n")
}

#[tokio::test]
async fn a_folder_keeps_the_contract_of_a_source() {
    let folder = tempfile::tempdir().unwrap();

    contract::skill_source(|example| {
        for (skill, files) in example {
            let Skill {
                metadata,
                modifier,
                instructions,
                ..
            } = skill;
            let tools = modifier.allowed_tools.map(|names| {
                format!(
                    "allowed-tools: {}\n",
                    names.into_iter().collect::<Vec<_>>().join(" ")
                )
            });
            let hidden = if metadata.disable_model_invocation {
                "disable-model-invocation: true\n"
            } else {
                ""
            };
            let front = format!(
                "name: {}\ndescription: {}\n{hidden}{}",
                metadata.name,
                metadata.description,
                tools.unwrap_or_default()
            );
            write(
                folder.path(),
                &format!("{}/SKILL.md", metadata.name),
                format!("---\n{front}---\n{}\n", instructions.unwrap()),
            );
            files.iter().for_each(|(path, text)| {
                write(folder.path(), &format!("{}/{path}", metadata.name), text)
            });
        }
        let source = SkillFolder::open(folder.path()).unwrap();
        async move { source }
    })
    .await;
}

#[test]
fn skills_as_they_are_found_in_the_world_load() {
    let survey = survey(&fixtures());

    let notes: BTreeMap<&str, usize> = survey
        .skills
        .iter()
        .map(|found| (found.skill.name().as_str(), found.notes.len()))
        .collect();
    let expected = [
        ("api-review-helper", 1),
        ("csv-tables", 0),
        ("incident-report", 2),
        ("log-triage", 1),
        ("meeting-minutes", 0),
        ("release-notes", 2),
        ("ship-it", 1),
        ("sql-tuning", 2),
        ("style-guide", 0),
        ("unit-tests", 0),
        ("unit-tests-copy", 2),
        ("übersetzen", 1),
    ];
    assert_eq!(notes, BTreeMap::from(expected), "{:#?}", survey.notes());
    let of = |wanted: &str| {
        &survey
            .skills
            .iter()
            .find(|found| found.skill.name().as_str() == wanted)
            .unwrap()
            .skill
    };
    let allowed = |wanted: &str| {
        of(wanted)
            .modifier
            .allowed_tools
            .clone()
            .map(|names| names.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(
        allowed("release-notes"),
        Some(
            ["bash", "file_list", "file_read", "grep_search"]
                .map(str::to_owned)
                .to_vec()
        )
    );
    assert_eq!(
        allowed("log-triage"),
        Some(["file_read", "grep_search"].map(str::to_owned).to_vec())
    );
    assert_eq!(
        of("log-triage").modifier.model.as_deref(),
        Some("example/model-large-1")
    );
    assert_eq!(of("sql-tuning").modifier.model, None);
    assert!(
        of("incident-report")
            .metadata
            .description
            .starts_with("Drafts incident reports. Use when: something")
    );
    assert!(of("ship-it").metadata.disable_model_invocation);
    assert_eq!(
        of("style-guide").instructions.as_deref(),
        Some("Short sentences.\n\n---\n\nNo adverbs.")
    );
    assert_eq!(
        of("unit-tests")
            .metadata
            .metadata
            .get("priority")
            .map(String::as_str),
        Some("3")
    );
}

#[test]
fn a_broken_skill_is_one_line_and_hinders_no_other() {
    let survey = survey(&fixtures());

    let broken: Vec<(&str, &str)> = survey
        .broken
        .iter()
        .map(|broken| (broken.folder.as_str(), broken.reason.as_str()))
        .collect();
    let expected = [
        ("broken-bytes", "its SKILL.md is not UTF-8 text"),
        ("broken-no-description", "it has no description"),
        (
            "broken-no-end",
            "its front matter is not closed: a line `---` is missing",
        ),
        (
            "broken-no-front",
            "it has no front matter: the file must start with a line `---`",
        ),
    ];
    assert_eq!(broken.len(), 5, "{broken:?}");
    assert_eq!(&broken[..4], expected);
    assert!(
        broken[4].0 == "broken-yaml"
            && broken[4]
                .1
                .starts_with("its front matter is not valid YAML: ")
            && !broken[4].1.contains('\n')
    );
}

#[tokio::test]
async fn files_of_equal_names_stay_apart_and_binaries_end_nothing() {
    let source = SkillFolder::open(fixtures()).unwrap();

    let skill = source
        .load(name("csv-tables"), LoadLevel::Resources)
        .await
        .unwrap();

    let paths: Vec<String> = skill
        .resources
        .unwrap()
        .into_iter()
        .map(|resource| resource.path)
        .collect();
    let expected = [
        "assets/head.csv",
        "assets/logo.png",
        "references/dialects.md",
        "references/old/dialects.md",
        "scripts/ragged.py",
    ];
    assert_eq!(
        paths, expected,
        "scripts are *.py, references and assets are every file"
    );
    let read = |path: &str| source.resource(name("csv-tables"), path.to_owned());
    assert!(
        read("references/dialects.md")
            .await
            .unwrap()
            .contains("semicolon")
    );
    assert!(
        read("references/old/dialects.md")
            .await
            .unwrap()
            .contains("Pipes")
    );
    assert!(
        matches!(read("assets/logo.png").await, Err(SkillError::Unreadable { reason, .. }) if reason == "it is not UTF-8 text")
    );
}

#[tokio::test]
async fn nothing_leads_out_of_a_skill_or_out_of_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "SKILL.md", good("outside"));
    write(outside.path(), "secret.md", "obviously-fake-secret");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a/SKILL.md", good("a"));
    write(folder.path(), "b/SKILL.md", good("b"));
    write(folder.path(), "b/references/b.md", "of b");
    write(folder.path(), "a/.env", "KEY=obviously-fake");
    fs::create_dir(folder.path().join("a/references")).unwrap();
    symlink(outside.path(), folder.path().join("linked")).unwrap();
    symlink(
        outside.path().join("secret.md"),
        folder.path().join("a/references/secret.md"),
    )
    .unwrap();
    symlink(
        "../../b/references/b.md",
        folder.path().join("a/references/other.md"),
    )
    .unwrap();
    symlink("../..", folder.path().join("a/references/up")).unwrap();
    symlink("loop", folder.path().join("loop")).unwrap();
    let source = SkillFolder::open(folder.path()).unwrap();

    let survey = source.survey().unwrap();
    let skill = source.load(name("a"), LoadLevel::Resources).await.unwrap();

    assert_eq!(
        survey
            .skills
            .iter()
            .map(|found| found.folder.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(
        survey
            .notes()
            .iter()
            .any(|note| note.starts_with("linked cannot be used: ")),
        "{:?}",
        survey.notes()
    );
    assert_eq!(skill.resources, Some(Vec::new()), "links are not listed");
    let strays = [
        "references/secret.md",
        "references/other.md",
        "references/up/b/SKILL.md",
        "../b/SKILL.md",
        "/etc/hostname",
        ".env",
    ];
    for path in strays {
        let read = source.resource(name("a"), path.to_owned()).await;
        assert!(read.is_err(), "{path}: {read:?}");
        assert!(
            !read
                .unwrap_err()
                .to_string()
                .contains(&*folder.path().to_string_lossy()),
            "no error names a path of the host"
        );
    }
}

#[test]
fn a_folder_that_is_a_skill_itself_is_one() {
    let found = survey(&fixtures().join("csv-tables"));

    assert_eq!(
        found
            .skills
            .iter()
            .map(|found| (found.skill.name().as_str(), found.notes.len()))
            .collect::<Vec<_>>(),
        [("csv-tables", 0)]
    );
    assert!(SkillFolder::open(fixtures().join("nowhere")).is_err());
}

#[test]
fn what_is_too_large_is_refused_and_many_folders_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "huge/SKILL.md",
        format!("{}{}", good("huge"), "x".repeat(200 * 1024)),
    );
    write(
        folder.path(),
        "long/SKILL.md",
        format!("---\ndescription: {}\n---\n", "x".repeat(20 * 1024)),
    );
    for n in 0..1001 {
        fs::create_dir(folder.path().join(format!("s{n:04}"))).unwrap();
    }

    let survey = survey(folder.path());

    assert!(survey.skills.is_empty());
    assert!(
        survey.broken[0].reason.contains("bytes")
            && survey.broken[1].reason.contains("at most 16384"),
        "{:?}",
        &survey.broken[..2]
    );
    assert_eq!((survey.broken.len(), survey.left_out), (1000, 3));
}

/// Mutations of real files: no panic, bounded output, and no invalid skill accepted.
#[test]
fn a_mangled_skill_is_read_or_refused_and_never_panics() {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for entry in fs::read_dir(fixtures()).unwrap() {
        let folder = entry.unwrap().path();
        seeds.extend(
            ["SKILL.md", "skill.md"]
                .iter()
                .filter_map(|file| fs::read(folder.join(file)).ok()),
        );
    }
    let pieces: [&[u8]; 16] = [
        b"---\n",
        b": ",
        b"\"",
        b"[",
        b"{",
        b"&a ",
        b"*a",
        b"\t",
        b"\r",
        b"\0",
        b"\xff",
        b"|\n",
        b"<<: ",
        b"!!python/object ",
        b"- ",
        b"'",
    ];
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    for seed in 0..1500u64 {
        let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
        let mut next = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        let mut text = seeds[next(seeds.len())].clone();
        for _ in 0..1 + next(6) {
            let at = next(text.len() + 1);
            match next(4) {
                0 => text.truncate(at),
                1 => {
                    let end = (at + next(40)).min(text.len());
                    text.drain(at..end);
                }
                2 => {
                    let piece = pieces[next(pieces.len())].repeat(1 + next(3) * next(200));
                    text.splice(at..at, piece);
                }
                _ => {
                    let end = (at + next(60)).min(text.len());
                    let again = text[at..end].to_vec();
                    text.splice(at..at, again);
                }
            }
        }
        write(folder.path(), "one/SKILL.md", &text);

        let survey = survey(folder.path());

        assert_eq!(survey.skills.len() + survey.broken.len(), 1, "seed {seed}");
        for found in &survey.skills {
            assert!(
                !found.skill.metadata.description.trim().is_empty(),
                "seed {seed}"
            );
            assert!(
                SkillName::new(found.skill.name().as_str()).is_ok(),
                "seed {seed}"
            );
        }
        assert!(
            survey
                .notes()
                .iter()
                .all(|note| !note.contains('\n') && note.len() < 2000),
            "seed {seed}: {:?}",
            survey.notes()
        );
    }
    assert!(
        begun.elapsed().as_secs() < 60,
        "1500 files took {:?}",
        begun.elapsed()
    );
}
