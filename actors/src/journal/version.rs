//! Versions of the message and result formats, and migrations from an older version to the latest.
//!
//! Inside a journal, the envelope's `v` is the version of the whole entry. Data that leaves the
//! journal names its version once: an export for all its messages and rounds, the debug form for a
//! message, a [`VersionedToolResult`] for a result. Messages to a provider carry no version,
//! because the provider defines that format.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::ToolExecutionResult;
use crate::{chat::RawJson, tool::OutputLevel};

/// A version of the formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the versions")]
pub enum SchemaVersion {
    #[serde(rename = "1.0")]
    V1_0,
    #[serde(rename = "1.4")]
    V1_4,
    #[serde(rename = "1.5")]
    V1_5,
    #[serde(rename = "1.6")]
    V1_6,
    #[serde(rename = "1.9")]
    V1_9,
}

/// No migration leads from one version to the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Cannot migrate from {from} to {to}")]
pub struct CannotMigrate {
    /// Version of the data.
    pub from: SchemaVersion,
    /// The version that was asked for.
    pub to: SchemaVersion,
}

/// Why older data cannot be read as a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LegacyError {
    /// The version has no migration to the latest.
    #[error(transparent)]
    Version(#[from] CannotMigrate),
    /// The data is not a result of that version.
    #[error("this is no tool result: {0}")]
    Data(String),
}

impl SchemaVersion {
    /// The version that this program writes.
    pub const LATEST: Self = Self::V1_9;

    /// All versions, oldest first.
    pub(crate) const ALL: [Self; 5] = [Self::V1_0, Self::V1_4, Self::V1_5, Self::V1_6, Self::V1_9];

    /// Returns the version as it is written, such as `1.9`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V1_0 => "1.0",
            Self::V1_4 => "1.4",
            Self::V1_5 => "1.5",
            Self::V1_6 => "1.6",
            Self::V1_9 => "1.9",
        }
    }

    /// Parses a version. `None` for an unknown one.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == word)
    }

    /// Whether a reader of this version can read data of version `written`. 1.0 is compatible with
    /// no version, not even 1.0.
    pub fn is_compatible_with(self, written: Self) -> bool {
        match self {
            Self::V1_0 => false,
            Self::V1_4 | Self::V1_5 | Self::V1_6 | Self::V1_9 => {
                written != Self::V1_0 && written <= self
            }
        }
    }

    /// Returns the next version that has a migration.
    fn next(self) -> Option<Self> {
        match self {
            Self::V1_0 | Self::V1_9 => None,
            Self::V1_4 => Some(Self::V1_5),
            Self::V1_5 => Some(Self::V1_6),
            Self::V1_6 => Some(Self::V1_9),
        }
    }
}

impl std::fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A result together with the version of its format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct VersionedToolResult {
    pub schema_version: SchemaVersion,
    #[serde(flatten)]
    pub result: ToolExecutionResult,
}

impl From<ToolExecutionResult> for VersionedToolResult {
    fn from(result: ToolExecutionResult) -> Self {
        Self {
            schema_version: SchemaVersion::LATEST,
            result,
        }
    }
}

impl VersionedToolResult {
    /// Migrates the result to a later version, one step at a time.
    ///
    /// # Errors
    /// [`CannotMigrate`] for an earlier version, and from or to 1.0.
    pub fn migrate_to(self, target: SchemaVersion) -> Result<Self, CannotMigrate> {
        let from = self.schema_version;
        let mut migrated = self;
        while migrated.schema_version != target {
            let next = migrated
                .schema_version
                .next()
                .filter(|next| *next <= target)
                .ok_or(CannotMigrate { from, to: target })?;
            if next == SchemaVersion::V1_5 {
                migrated.result.output_level = OutputLevel::Standard;
            }
            migrated.schema_version = next; // 1.6 and 1.9 name the same fields.
        }
        Ok(migrated)
    }

    /// Reads data of version `source` as the latest. A `schema_version` inside the data is ignored.
    ///
    /// # Errors
    /// [`LegacyError`] when the version cannot be read, or the data is not a result.
    pub fn from_legacy(data: &RawJson, source: SchemaVersion) -> Result<Self, LegacyError> {
        if !SchemaVersion::LATEST.is_compatible_with(source) {
            return Err(CannotMigrate {
                from: source,
                to: SchemaVersion::LATEST,
            }
            .into());
        }
        // A result without a level gets the default one, which is what 1.4 meant.
        let result = data
            .parse::<ToolExecutionResult>()
            .map_err(|error| LegacyError::Data(error.to_string()))?;
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema_version: SchemaVersion) -> VersionedToolResult {
        VersionedToolResult {
            schema_version,
            result: ToolExecutionResult {
                output_level: OutputLevel::Full,
                ..ToolExecutionResult::ok("o")
            },
        }
    }

    #[test]
    fn a_reader_reads_its_own_version_and_the_older_ones_but_the_first() {
        let readable = |reader: &str| -> Vec<&str> {
            let reader = SchemaVersion::parse(reader).unwrap();
            SchemaVersion::ALL
                .into_iter()
                .rev()
                .filter(|written| reader.is_compatible_with(*written))
                .map(SchemaVersion::as_str)
                .collect()
        };

        assert_eq!(readable("1.9"), ["1.9", "1.6", "1.5", "1.4"]);
        assert_eq!(readable("1.6"), ["1.6", "1.5", "1.4"]);
        assert_eq!(readable("1.5"), ["1.5", "1.4"]);
        assert_eq!(readable("1.4"), ["1.4"]);
        assert!(readable("1.0").is_empty());
        assert_eq!(
            (
                SchemaVersion::LATEST.as_str(),
                SchemaVersion::parse("2.0"),
                SchemaVersion::parse("1.2")
            ),
            ("1.9", None, None),
            "CON-37"
        );
    }

    #[test]
    fn a_result_migrates_step_by_step_and_never_back() {
        use SchemaVersion::{V1_0, V1_4, V1_5, V1_6, V1_9};
        for from in SchemaVersion::ALL {
            for to in SchemaVersion::ALL {
                let migrated = of(from).migrate_to(to);

                let may = from == to || from != V1_0 && from < to;
                assert_eq!(migrated.is_ok(), may, "{from} to {to}");
                match migrated {
                    Ok(migrated) => {
                        let level = if from == V1_4 && to > V1_4 {
                            OutputLevel::Standard
                        } else {
                            OutputLevel::Full
                        };
                        assert_eq!(
                            (migrated.schema_version, migrated.result.output_level),
                            (to, level)
                        );
                    }
                    Err(error) => assert_eq!(
                        error.to_string(),
                        format!("Cannot migrate from {from} to {to}")
                    ),
                }
            }
        }
        assert_eq!(
            of(V1_9).migrate_to(V1_6).unwrap_err().to_string(),
            "Cannot migrate from 1.9 to 1.6"
        );
        assert_eq!(of(V1_5).migrate_to(V1_6).unwrap().result, of(V1_5).result);
    }

    #[test]
    fn old_data_becomes_the_latest() {
        let read = |text: &str, source| {
            VersionedToolResult::from_legacy(&RawJson::from_text(text).unwrap(), source)
        };

        let plain = read(r#"{"observation":"o"}"#, SchemaVersion::V1_4).unwrap();
        let named = read(
            r#"{"observation":"o","schema_version":"1.4","output_level":"full"}"#,
            SchemaVersion::V1_5,
        )
        .unwrap();

        assert_eq!(
            (plain.schema_version, plain.result.output_level),
            (SchemaVersion::V1_9, OutputLevel::Standard)
        );
        assert_eq!(
            (named.schema_version, named.result.output_level),
            (SchemaVersion::V1_9, OutputLevel::Full),
            "BUG-40"
        );
        assert_eq!(
            read("{}", SchemaVersion::V1_0).unwrap_err().to_string(),
            "Cannot migrate from 1.0 to 1.9"
        );
        assert!(matches!(
            read("{}", SchemaVersion::V1_6),
            Err(LegacyError::Data(_))
        ));
    }

    #[test]
    fn a_versioned_result_survives_its_json() {
        let text = serde_json::to_string(&of(SchemaVersion::V1_9)).unwrap();

        assert!(
            text.starts_with(r#"{"schema_version":"1.9","observation":"o""#),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<VersionedToolResult>(&text).unwrap(),
            of(SchemaVersion::V1_9)
        );
    }
}
