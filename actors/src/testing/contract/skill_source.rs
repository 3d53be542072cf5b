//! The contract suite of skill sources: each level includes the ones before it, no path leads out
//! of a skill, and an unknown skill or file is an error.

use std::{collections::BTreeMap, future::Future};

use crate::{
    ports::{SkillError, SkillSource},
    skill::{LoadLevel, Skill, SkillName},
};

/// A skill and its files, by path.
pub type SkillWithFiles = (Skill, BTreeMap<String, String>);

/// Two skills: one with files of equal names in two folders, and one that is hidden from the model.
pub fn example_skills() -> Vec<SkillWithFiles> {
    let name = |text: &str| SkillName::new(text).unwrap();
    let tables = Skill::new(
        name("tables"),
        "Makes tables of what is in files. Use it when columns are asked for.",
        "# Tables\n\nUse pipes.",
    );
    let mut quiet = Skill::new(name("quiet"), "For people only.", "Say little.");
    quiet.metadata.disable_model_invocation = true;
    quiet.modifier.allowed_tools = Some(["file_read".to_owned()].into());
    let files = [
        ("references/style.md", "# Style\n"),
        ("references/deep/style.md", "# Deep style\n"),
        ("scripts/check.py", "print('ok')\n"),
        ("assets/head.txt", "name,age\n"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    vec![(tables, files.into()), (quiet, BTreeMap::new())]
}

/// Checks a source. `make` creates one that holds exactly the given skills.
pub async fn skill_source<S, F, M>(make: M)
where
    S: SkillSource,
    F: Future<Output = S>,
    M: FnOnce(Vec<SkillWithFiles>) -> F,
{
    let source = make(example_skills()).await;
    let source: &dyn SkillSource = &source;
    for (skill, files) in example_skills() {
        levels(source, &skill, &files).await;
        resources(source, skill.name(), &files).await;
    }
    listing(source).await;
    nothing_else(source).await;
}

async fn listing(source: &dyn SkillSource) {
    let listing = source.index().await.unwrap();
    let names: Vec<&str> = listing
        .skills
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    assert_eq!(names, ["quiet", "tables"], "by name, each once");
    let known: BTreeMap<_, _> = example_skills()
        .into_iter()
        .map(|(skill, _)| (skill.name().clone(), skill.metadata))
        .collect();
    for skill in &listing.skills {
        assert_eq!(Some(skill), known.get(&skill.name));
    }
    assert_eq!(listing.notes, Vec::<String>::new());
}

async fn levels(source: &dyn SkillSource, expected: &Skill, files: &BTreeMap<String, String>) {
    let load = |level| source.load(expected.name().clone(), level);
    let first = load(LoadLevel::Metadata).await.unwrap();
    let second = load(LoadLevel::Instructions).await.unwrap();
    let third = load(LoadLevel::Resources).await.unwrap();

    assert_eq!(
        (&first.metadata, &first.instructions, &first.resources),
        (&expected.metadata, &None, &None)
    );
    assert_eq!(
        second.instructions.as_deref().map(str::trim),
        expected.instructions.as_deref().map(str::trim)
    );
    assert_eq!(
        (&second.metadata, &second.resources, &second.modifier),
        (&expected.metadata, &None, &expected.modifier)
    );
    assert_eq!(
        (&third.metadata, &third.instructions),
        (&expected.metadata, &second.instructions)
    );
    let listed: Vec<(String, u64)> = third
        .resources
        .unwrap()
        .into_iter()
        .map(|resource| (resource.path, resource.bytes))
        .collect();
    let there: Vec<(String, u64)> = files
        .iter()
        .map(|(path, text)| (path.clone(), text.len() as u64))
        .collect();
    assert_eq!(listed, there, "{}: every file, by path", expected.name());
}

async fn resources(source: &dyn SkillSource, name: &SkillName, files: &BTreeMap<String, String>) {
    for (path, text) in files {
        assert_eq!(
            source.resource(name.clone(), path.clone()).await.as_ref(),
            Ok(text),
            "{path}"
        );
    }
    for stray in [
        "",
        ".",
        "..",
        "../tables/SKILL.md",
        "references",
        "references/../../quiet/SKILL.md",
        "/etc/passwd",
        "no/such.md",
        "a\0b",
    ] {
        let read = source.resource(name.clone(), stray.to_owned()).await;
        assert!(
            matches!(
                read,
                Err(SkillError::NoResource { .. } | SkillError::Unreadable { .. })
            ),
            "{stray:?}: {read:?}"
        );
    }
}

async fn nothing_else(source: &dyn SkillSource) {
    let unknown = SkillName::new("unknown").unwrap();
    for level in [
        LoadLevel::Metadata,
        LoadLevel::Instructions,
        LoadLevel::Resources,
    ] {
        let loaded = source.load(unknown.clone(), level).await;
        assert!(
            matches!(&loaded, Err(SkillError::NotFound { name, .. }) if name == "unknown"),
            "{loaded:?}"
        );
    }
    let read = source
        .resource(unknown, "references/style.md".to_owned())
        .await;
    assert!(matches!(read, Err(SkillError::NotFound { .. })), "{read:?}");
}
