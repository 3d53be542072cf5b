//! Versions of the message and result formats, and migrations from an older version to the latest.
//!
//! Inside a journal, the envelope's `v` is the version of the whole entry. Data that leaves the
//! journal names its version once: an export for all its messages and rounds with the results of
//! their calls, the debug form for a message. An import migrates older rounds. Messages to a
//! provider carry no version, because the provider defines that format.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::tool::OutputLevel;

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

/// Migrates the records of a round to the latest version, one step at a time. A version that the
/// record names itself is ignored: `from` counts.
///
/// # Errors
/// [`CannotMigrate`] from 1.0.
pub fn migrate_round(
    round: &mut serde_json::Value,
    from: SchemaVersion,
) -> Result<(), CannotMigrate> {
    let to = SchemaVersion::LATEST;
    let mut version = from;
    while version != to {
        version = version.next().ok_or(CannotMigrate { from, to })?;
        if version == SchemaVersion::V1_5 {
            // Results have had an output level since 1.5. Those without one were formatted as
            // STANDARD is now.
            let calls = round
                .get_mut("tool_metrics")
                .and_then(serde_json::Value::as_array_mut);
            for call in calls
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_object_mut)
            {
                let level = OutputLevel::Standard.as_str();
                call.entry("output_level").or_insert_with(|| level.into());
            }
        }
        // 1.6 and 1.9 name the same fields.
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn results_migrate_step_by_step_and_a_level_is_standard_from_before_1_5() {
        let level = |from, call: serde_json::Value| {
            let mut round = serde_json::json!({ "tool_metrics": [call] });
            migrate_round(&mut round, from)
                .map(|()| round["tool_metrics"][0]["output_level"].clone())
        };
        use SchemaVersion::{V1_0, V1_4, V1_5, V1_6, V1_9};
        let full = || serde_json::json!({ "output_level": "full" });

        assert_eq!(level(V1_4, serde_json::json!({})).unwrap(), "standard");
        for from in [V1_4, V1_5, V1_6, V1_9] {
            assert_eq!(level(from, full()).unwrap(), "full");
        }
        assert_eq!(
            level(V1_0, full()).unwrap_err().to_string(),
            "Cannot migrate from 1.0 to 1.9"
        );
    }
}
