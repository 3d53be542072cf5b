//! Skills in memory, for tests and for applications that register skills from code.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::{
    ports::{BoxFuture, SkillError, SkillListing, SkillSource},
    skill::{LoadLevel, Skill, SkillName, SkillResource},
};

/// Skills by name, with their files.
#[derive(Debug, Default)]
pub struct MemorySkills(Mutex<BTreeMap<SkillName, Kept>>);

#[derive(Debug)]
struct Kept {
    skill: Skill,
    files: BTreeMap<String, String>,
}

impl MemorySkills {
    /// Creates a source without skills.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a skill. Replaces a skill of the same name.
    pub fn register(&self, skill: Skill) {
        self.register_with(skill, []);
    }

    /// Like [`MemorySkills::register`], with the skill's files as pairs of path and text.
    pub(crate) fn register_with(
        &self,
        skill: Skill,
        files: impl IntoIterator<Item = (String, String)>,
    ) {
        let name = skill.name().clone();
        self.with(|skills| {
            drop(skills.insert(
                name,
                Kept {
                    skill,
                    files: files.into_iter().collect(),
                },
            ))
        });
    }

    /// Removes a skill.
    pub fn remove(&self, name: &SkillName) {
        self.with(|skills| drop(skills.remove(name)));
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<SkillName, Kept>) -> T) -> T {
        work(&mut self.0.lock())
    }

    fn kept<T>(
        &self,
        name: &SkillName,
        work: impl FnOnce(&Kept) -> Result<T, SkillError>,
    ) -> Result<T, SkillError> {
        self.with(|skills| match skills.get(name) {
            Some(kept) => work(kept),
            None => Err(SkillError::NotFound {
                name: name.to_string(),
                skills: skills.keys().map(ToString::to_string).collect(),
            }),
        })
    }
}

impl SkillSource for MemorySkills {
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>> {
        let skills = self.with(|skills| {
            skills
                .values()
                .map(|kept| kept.skill.metadata.clone())
                .collect()
        });
        async move {
            Ok(SkillListing {
                skills,
                notes: Vec::new(),
            })
        }
        .boxed()
    }

    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>> {
        let loaded = self.kept(&name, |kept| {
            let files = kept.files.iter().map(|(path, text)| SkillResource {
                path: path.clone(),
                bytes: text.len() as u64,
            });
            Ok(Skill {
                resources: Some(files.collect()),
                ..kept.skill.clone()
            }
            .at(level))
        });
        async move { loaded }.boxed()
    }

    fn resource(&self, name: SkillName, path: String) -> BoxFuture<'_, Result<String, SkillError>> {
        let missing = || SkillError::NoResource {
            name: name.clone(),
            path: path.clone(),
        };
        let text = self.kept(&name, |kept| {
            kept.files.get(&path).cloned().ok_or_else(missing)
        });
        async move { text }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::contract;

    #[tokio::test]
    async fn skills_in_memory_keep_the_contract() {
        contract::skill_source(|example| async move {
            let skills = MemorySkills::new();
            for (skill, files) in example {
                skills.register_with(skill, files);
            }
            skills
        })
        .await;
    }
}
