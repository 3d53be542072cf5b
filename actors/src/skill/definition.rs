//! Skills as data: the name of a skill, its metadata, and the three levels at which it is loaded.
//!
//! Pure.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ContextModifier;

/// Longest name, in characters.
const NAME_CHARS_MAX: usize = 64;

/// The name of a skill: 1 to 64 lower-case letters, digits and single hyphens, with no hyphen at
/// either end.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillName(Arc<str>);

/// The text is not a valid skill name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no skill name: use 1-64 lower-case letters, digits and single hyphens between them"
)]
pub struct InvalidSkillName(String);

impl SkillName {
    /// Validates `text` as a skill name.
    ///
    /// # Errors
    /// [`InvalidSkillName`] quotes the start of the text.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidSkillName> {
        let text = text.as_ref();
        let plain = |c: char| c == '-' || c.is_alphanumeric() && !c.is_uppercase();
        let fits = !text.is_empty()
            && text.chars().count() <= NAME_CHARS_MAX
            && text.chars().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-')
            && !text.contains("--");
        if fits {
            Ok(Self(Arc::from(text)))
        } else {
            Err(InvalidSkillName(text.chars().take(80).collect()))
        }
    }

    /// Turns any text into the most similar valid name: lower case, with a hyphen for every other
    /// character. `None` if no letter or digit is left.
    pub fn nearest(text: &str) -> Option<Self> {
        let lower = text.to_lowercase();
        let words = lower
            .split(|c: char| !c.is_alphanumeric() || c.is_uppercase())
            .filter(|word| !word.is_empty());
        let joined = words.collect::<Vec<_>>().join("-");
        let short: String = joined.chars().take(NAME_CHARS_MAX).collect();
        Self::new(short.trim_end_matches('-')).ok()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl FromStr for SkillName {
    type Err = InvalidSkillName;
    fn from_str(text: &str) -> Result<Self, InvalidSkillName> {
        Self::new(text)
    }
}

impl TryFrom<&str> for SkillName {
    type Error = InvalidSkillName;
    fn try_from(text: &str) -> Result<Self, InvalidSkillName> {
        Self::new(text)
    }
}

impl TryFrom<String> for SkillName {
    type Error = InvalidSkillName;
    fn try_from(text: String) -> Result<Self, InvalidSkillName> {
        Self::new(text)
    }
}

impl Serialize for SkillName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SkillName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&*text).map_err(serde::de::Error::custom)
    }
}

/// How much of a skill is loaded. Each level includes the ones before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u8", into = "u8")]
pub enum LoadLevel {
    /// Name, description and capabilities: about 100 tokens.
    Metadata,
    /// Also the instructions: about 5000 tokens.
    #[default]
    Instructions,
    /// Also the list of its files. Their contents are read one at a time.
    Resources,
}

/// The number is not a load level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a skill is loaded at level 1, 2 or 3, not {0}")]
pub struct InvalidLevel(u8);

impl TryFrom<u8> for LoadLevel {
    type Error = InvalidLevel;
    fn try_from(level: u8) -> Result<Self, InvalidLevel> {
        match level {
            1 => Ok(Self::Metadata),
            2 => Ok(Self::Instructions),
            3 => Ok(Self::Resources),
            other => Err(InvalidLevel(other)),
        }
    }
}

impl From<LoadLevel> for u8 {
    fn from(level: LoadLevel) -> Self {
        match level {
            LoadLevel::Metadata => 1,
            LoadLevel::Instructions => 2,
            LoadLevel::Resources => 3,
        }
    }
}

/// Level 1: what a model knows about a skill before it is activated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillMetadata {
    /// The unique name within its source.
    pub name: SkillName,
    /// What the skill does and when to use it.
    pub description: String,
    /// What the skill can do, as listed by its author.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Hides the skill from the model. A person can still activate it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_model_invocation: bool,
    /// The license, as free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Requirements of the skill, as free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    /// Further metadata of the author, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// A file of a skill (level 3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SkillResource {
    /// Path within the skill's folder, separated by `/`, such as `references/forms.md`. The path
    /// distinguishes files of equal name in different folders.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A skill, as far as it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    /// Level 1; always present.
    pub metadata: SkillMetadata,
    /// What the skill changes while it is active.
    #[serde(default)]
    pub modifier: ContextModifier,
    /// Level 2: the body of its SKILL.md; `None` below that level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Level 3: its files; `None` below that level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<SkillResource>>,
}

impl Skill {
    /// A skill with metadata and instructions only.
    pub fn new(
        name: SkillName,
        description: impl Into<String>,
        instructions: impl Into<String>,
    ) -> Self {
        let metadata = SkillMetadata {
            name,
            description: description.into(),
            capabilities: Vec::new(),
            disable_model_invocation: false,
            license: None,
            compatibility: None,
            metadata: BTreeMap::new(),
        };
        Self {
            metadata,
            modifier: ContextModifier::default(),
            instructions: Some(instructions.into()),
            resources: None,
        }
    }

    /// The name of the skill.
    pub fn name(&self) -> &SkillName {
        &self.metadata.name
    }

    /// Removes what lies above `level`.
    #[must_use]
    pub fn at(mut self, level: LoadLevel) -> Self {
        if level < LoadLevel::Resources {
            self.resources = None;
        }
        if level < LoadLevel::Instructions {
            self.instructions = None;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_lower_case_and_without_stray_hyphens() {
        let longest = "x".repeat(64);
        for good in ["a", "pdf-forms", "a1-b2-c3", "7z", "größe", &longest] {
            assert_eq!(SkillName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "-a",
            "a-",
            "a--b",
            "A",
            "a b",
            "a_b",
            "a/b",
            "..",
            "a.b",
            "é/..",
            "a\0",
            &"x".repeat(65),
        ] {
            assert!(SkillName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_text_that_is_no_name_has_a_nearest_one() {
        let nearest = |text: &str| SkillName::nearest(text).map(|name| name.to_string());

        assert_eq!(nearest("My PDF_Skill!").as_deref(), Some("my-pdf-skill"));
        assert_eq!(nearest("../../etc/passwd").as_deref(), Some("etc-passwd"));
        assert_eq!(nearest("a--b-").as_deref(), Some("a-b"));
        assert_eq!(
            nearest(&format!("{}-tail", "x".repeat(63))).unwrap(),
            "x".repeat(63)
        );
        assert_eq!(nearest("--- "), None);
    }

    #[test]
    fn a_level_is_1_2_or_3_and_2_unless_said() {
        assert_eq!(u8::from(LoadLevel::default()), 2);
        for level in 1..=3u8 {
            let read: LoadLevel = serde_json::from_value(level.into()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), level);
        }
        for wrong in [0u8, 4, 255] {
            assert_eq!(LoadLevel::try_from(wrong), Err(InvalidLevel(wrong)));
            assert!(serde_json::from_value::<LoadLevel>(wrong.into()).is_err());
        }
    }

    #[test]
    fn levels_hold_those_before_them() {
        let mut skill = Skill::new(SkillName::new("a").unwrap(), "d", "body");
        skill.resources = Some(vec![SkillResource {
            path: "scripts/x.py".into(),
            bytes: 1,
        }]);

        assert_eq!(skill.clone().at(LoadLevel::Resources), skill);
        let second = skill.clone().at(LoadLevel::Instructions);
        assert_eq!(
            (second.instructions.as_deref(), &second.resources),
            (Some("body"), &None)
        );
        let first = skill.at(LoadLevel::Metadata);
        assert_eq!(
            (&first.instructions, &first.resources, first.metadata),
            (&None, &None, second.metadata)
        );
    }
}
