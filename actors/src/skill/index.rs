//! The list of skills that a model is offered from the start of a conversation.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{SkillMetadata, SkillName};

/// Maximum size of the list in bytes, since every model call includes it.
pub(crate) const SKILL_INDEX_BYTES_MAX: usize = 16 * 1024;

/// Lengths of descriptions in characters, tried in order until the list fits. The first is the
/// longest that the format allows.
const DESCRIPTION_CHARS: [usize; 5] = [1024, 400, 160, 60, 0];

/// The introduction of the list.
const OFFERED: &str = include_str!("prompts/offered.md");

/// The introduction of a list that replaces an earlier one.
const CHANGED: &str = include_str!("prompts/changed.md");

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillSummary {
    /// The name by which the model activates the skill.
    pub name: SkillName,
    /// What the skill does and when to use it, in one line.
    pub description: String,
}

/// The visible skills, sorted by name, as many as fit. The same skills always give the same bytes,
/// so the provider's prompt cache holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkillIndex {
    skills: Vec<SkillSummary>,
    /// Number of skills that did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    left_out: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl SkillIndex {
    /// Lists skills, except those hidden from the model. All descriptions are shortened alike until
    /// the list fits; skills that still do not fit are counted.
    pub(crate) fn from_skills<'a>(skills: impl IntoIterator<Item = &'a SkillMetadata>) -> Self {
        let mut visible: Vec<&SkillMetadata> = skills
            .into_iter()
            .filter(|skill| !skill.disable_model_invocation)
            .collect();
        visible.sort_by(|a, b| a.name.cmp(&b.name));
        visible.dedup_by(|a, b| a.name == b.name);
        let listed = |chars| {
            let skills: Vec<SkillSummary> =
                visible.iter().map(|skill| summary(skill, chars)).collect();
            skills
        };
        let fitting = DESCRIPTION_CHARS
            .into_iter()
            .map(listed)
            .find(|skills| bytes(skills) <= SKILL_INDEX_BYTES_MAX);
        let mut skills = fitting.unwrap_or_else(|| listed(0));
        while bytes(&skills) > SKILL_INDEX_BYTES_MAX {
            skills.pop();
        }
        Self {
            left_out: visible.len() - skills.len(),
            skills,
        }
    }

    /// Whether no skill is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.skills.is_empty()
    }

    /// The listed skills, sorted by name.
    pub fn skills(&self) -> &[SkillSummary] {
        &self.skills
    }

    /// The list as a section of the system prompt; empty without skills.
    pub(crate) fn prompt(&self) -> String {
        if self.is_empty() {
            String::new()
        } else {
            format!("{OFFERED}\n{}", self.list())
        }
    }

    /// The list as a reminder that replaces an earlier list.
    pub(crate) fn announcement(&self) -> String {
        let list = if self.is_empty() {
            "(none)".to_owned()
        } else {
            self.list()
        };
        format!("{CHANGED}\n{list}")
    }

    fn list(&self) -> String {
        let mut list = self.skills.iter().map(line).collect::<Vec<_>>().join("\n");
        if self.left_out > 0 {
            list.push_str(&format!(
                "\n({} more are not listed; they can be activated by name)",
                self.left_out
            ));
        }
        list
    }
}

fn line(skill: &SkillSummary) -> String {
    if skill.description.is_empty() {
        format!("- {}", skill.name)
    } else {
        format!("- {}: {}", skill.name, skill.description)
    }
}

fn bytes(skills: &[SkillSummary]) -> usize {
    skills
        .iter()
        .map(|skill| skill.name.as_str().len() + skill.description.len() + 5)
        .sum()
}

/// A skill in one line: its description, then its capabilities, in at most `chars` characters.
fn summary(skill: &SkillMetadata, chars: usize) -> SkillSummary {
    let mut description = skill
        .description
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if !skill.capabilities.is_empty() {
        let capabilities = skill.capabilities.join(", ");
        description.push_str(&format!(
            " [{}]",
            capabilities
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        ));
    }
    if description.chars().count() > chars {
        let short: String = description.chars().take(chars.saturating_sub(1)).collect();
        description = if chars == 0 {
            String::new()
        } else {
            format!("{}…", short.trim_end())
        };
    }
    SkillSummary {
        name: skill.name.clone(),
        description,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skill::Skill;

    fn metadata(name: &str, description: &str) -> SkillMetadata {
        Skill::new(SkillName::new(name).unwrap(), description, "").metadata
    }

    #[test]
    fn the_list_has_name_and_description_of_every_visible_skill_by_name() {
        let hidden = SkillMetadata {
            disable_model_invocation: true,
            ..metadata("secret", "Not for models.")
        };
        let able = SkillMetadata {
            capabilities: vec!["merge".into(), "split".into()],
            ..metadata("pdf", "Works on\n  PDF files.")
        };

        let index = SkillIndex::from_skills([&metadata("zip", "Packs."), &hidden, &able]);

        let prompt = index.prompt();
        assert!(
            prompt.ends_with("\n\n- pdf: Works on PDF files. [merge, split]\n- zip: Packs."),
            "{prompt}"
        );
        assert!(!prompt.contains("secret"));
        assert!(index.announcement().contains("- zip: Packs."));
        assert_eq!(
            index,
            SkillIndex::from_skills([&able, &hidden, &metadata("zip", "Packs.")]),
            "the order of a folder does not matter"
        );
    }

    #[test]
    fn without_a_visible_skill_the_index_is_empty() {
        let hidden = SkillMetadata {
            disable_model_invocation: true,
            ..metadata("secret", "x")
        };

        let index = SkillIndex::from_skills([&hidden]);

        assert!(index.is_empty() && index.prompt().is_empty());
        assert!(index.announcement().ends_with("(none)"));
    }

    #[test]
    fn many_skills_have_shorter_lines_and_the_rest_are_counted() {
        let many = |count: usize| {
            (0..count)
                .map(|n| metadata(&format!("skill-{n:04}"), &"long ".repeat(190)))
                .collect::<Vec<_>>()
        };

        let few = SkillIndex::from_skills(&many(10));
        let more = SkillIndex::from_skills(&many(100));
        let most = SkillIndex::from_skills(&many(5000));

        assert_eq!(few.skills()[0].description.chars().count(), 949);
        assert_eq!(
            (
                more.skills().len(),
                more.skills()[0].description.ends_with('…')
            ),
            (100, true)
        );
        assert_eq!(
            more.skills()[99].description.len(),
            more.skills()[0].description.len(),
            "all alike"
        );
        assert!(most.prompt().len() <= SKILL_INDEX_BYTES_MAX + OFFERED.len() + 100);
        assert!(
            most.prompt()
                .ends_with("more are not listed; they can be activated by name)")
        );
        assert_eq!(most.skills().len() + most.left_out, 5000);
    }
}
