//! Pins: digests of approved tool definitions, stored for each tenant and server. They keep a
//! server from changing a tool's definition unnoticed after the user approved it.
//!
//! A tool seen for the first time is pinned without asking. A changed one is refused until it is
//! approved again. A tool that disappears keeps its pin, so that reappearing with another
//! definition counts as a change.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use callboard_actors::{ids::TenantId, ports::BoxFuture};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::name::{hex, is_server_name};

/// Digests of one server's tools, by the server's own tool names.
pub type PinSet = BTreeMap<String, String>;

/// Largest pin file that is read: enough for a thousand tools with long names.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Pins could not be read or stored. Without pins no tool of the server runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pinned definitions of the MCP server {server} cannot be {what}: {reason}")]
pub struct PinError {
    /// Name of the server.
    pub server: String,
    /// The failed operation: `read` or `stored`.
    pub what: &'static str,
    /// The cause, without paths.
    pub reason: String,
}

/// A store of pins.
pub trait Pins: Send + Sync + 'static {
    /// The pins of a server; empty if none were stored.
    ///
    /// # Errors
    /// [`PinError`] when they cannot be read.
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>>;

    /// Replaces the pins of a server atomically.
    ///
    /// # Errors
    /// [`PinError`]; the previous pins then stay.
    fn put(
        &self,
        tenant: &TenantId,
        server: &str,
        pins: PinSet,
    ) -> BoxFuture<'_, Result<(), PinError>>;
}

/// SHA-256 over name, description, schema and annotations of a tool. Object keys are sorted first,
/// so the digest changes only with the content.
pub(super) fn digest(name: &str, description: &str, schema: &Value, annotations: &Value) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    part(name);
    part(description);
    part(&ordered(schema));
    part(&ordered(annotations));
    hex(&hash.finalize())
}

/// JSON text with sorted object keys, independent of serde_json's map type.
fn ordered(value: &Value) -> String {
    match value {
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(ordered).collect::<Vec<_>>().join(",")
        ),
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            let fields: Vec<String> = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::String(name.clone()), ordered(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        plain => plain.to_string(),
    }
}

/// Pins in memory, for as long as the process runs.
#[derive(Debug, Default)]
pub struct MemoryPins(Mutex<BTreeMap<(TenantId, String), PinSet>>);

impl Pins for MemoryPins {
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>> {
        let key = (tenant.clone(), server.to_owned());
        let all = self.0.lock();
        let pins = all.get(&key).cloned().unwrap_or_default();
        Box::pin(std::future::ready(Ok(pins)))
    }

    fn put(
        &self,
        tenant: &TenantId,
        server: &str,
        pins: PinSet,
    ) -> BoxFuture<'_, Result<(), PinError>> {
        let key = (tenant.clone(), server.to_owned());
        self.0.lock().insert(key, pins);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Pins in files `mcp-pins/<hash of the tenant>/<server>.json` below the data folder. Folders have
/// mode 0700, files 0600; a file is replaced atomically.
#[derive(Debug, Clone)]
pub struct FilePins {
    folder: PathBuf,
}

/// Content of a pin file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    v: u32,
    tools: PinSet,
}

impl FilePins {
    /// A store below `data_dir`. Folders are created with the first pins.
    pub fn new(data_dir: &Path) -> Self {
        Self {
            folder: data_dir.join("mcp-pins"),
        }
    }

    /// Path of a pin file. Tenant ids are hashed because they may contain characters that are
    /// unsafe in paths.
    fn place(&self, tenant: &TenantId, server: &str) -> PathBuf {
        let hash = |text: &str| {
            hex(&Sha256::digest(text.as_bytes()))
                .chars()
                .take(32)
                .collect::<String>()
        };
        let server = if is_server_name(server) {
            server.to_owned()
        } else {
            hash(server)
        };
        self.folder
            .join(hash(tenant.as_str()))
            .join(format!("{server}.json"))
    }
}

impl Pins for FilePins {
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>> {
        let place = self.place(tenant, server);
        let error = error(server, "read");
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || read(&place)).await {
                Ok(read) => read.map_err(error),
                Err(_) => Err(error("the task panicked".to_owned())),
            }
        })
    }

    fn put(
        &self,
        tenant: &TenantId,
        server: &str,
        pins: PinSet,
    ) -> BoxFuture<'_, Result<(), PinError>> {
        let place = self.place(tenant, server);
        let error = error(server, "stored");
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || {
                write(&place, pins).map_err(|error| error.kind().to_string())
            })
            .await
            {
                Ok(written) => written.map_err(error),
                Err(_) => Err(error("the task panicked".to_owned())),
            }
        })
    }
}

fn error(server: &str, what: &'static str) -> impl Fn(String) -> PinError + Send + 'static {
    let server = server.to_owned();
    move |reason| PinError {
        server: server.clone(),
        what,
        reason,
    }
}

fn read(place: &Path) -> Result<PinSet, String> {
    let mut text = String::new();
    match std::fs::File::open(place)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    {
        Ok(_) if text.len() as u64 > FILE_BYTES_MAX => {
            Err("the file is longer than 1 MiB".to_owned())
        }
        Ok(_) => match serde_json::from_str::<File>(&text) {
            Ok(File { v: 1, tools }) => Ok(tools),
            Ok(File { v, .. }) => Err(format!(
                "they have version {v}, written by a newer Callboard"
            )),
            Err(_) => Err("the file is not a pin file".to_owned()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(PinSet::new()),
        Err(error) => Err(error.kind().to_string()),
    }
}

fn write(place: &Path, pins: PinSet) -> std::io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let chance = getrandom::u64().map_err(|_| std::io::Error::from(std::io::ErrorKind::Other))?;
    let temporary = folder.join(format!(".{chance:016x}.tmp"));
    let written = (|| {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&serde_json::to_vec(&File { v: 1, tools: pins })?)?;
        file.sync_all()?;
        std::fs::rename(&temporary, place)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    } else if let Ok(folder) = std::fs::File::open(folder) {
        // Flush the rename too, so that it survives a power cut. Some file systems refuse; the file
        // itself is flushed.
        let _ = folder.sync_all();
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn set(digest: &str) -> PinSet {
        PinSet::from([("echo".to_owned(), digest.to_owned())])
    }

    #[test]
    fn a_digest_changes_with_the_definition_and_with_nothing_else() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}});
        let same: Value = serde_json::from_str(
            r#"{"properties": {"b": {}, "a": {"type": "string"}}, "type": "object"}"#,
        )
        .unwrap();
        let of = |name: &str, description: &str, schema: &Value, notes: &Value| {
            digest(name, description, schema, notes)
        };
        let first = of("echo", "says it again", &schema, &json!({}));

        assert_eq!(first.len(), 64);
        assert_eq!(first, of("echo", "says it again", &same, &json!({})));
        for other in [
            of("echo2", "says it again", &schema, &json!({})),
            of("echo", "says it again\u{200b}", &schema, &json!({})),
            of(
                "echo",
                "says it again",
                &json!({"type": "object"}),
                &json!({}),
            ),
            of(
                "echo",
                "says it again",
                &schema,
                &json!({"readOnlyHint": true}),
            ),
            of("ech", "osays it again", &schema, &json!({})),
        ] {
            assert_ne!(first, other);
        }
    }

    async fn fulfils_the_contract(pins: &dyn Pins) {
        let ann = tenant("ann");
        let bob = tenant("bob");
        assert_eq!(pins.get(&ann, "time").await, Ok(PinSet::new()));

        pins.put(&ann, "time", set("1")).await.unwrap();
        pins.put(&ann, "time", set("2")).await.unwrap();
        pins.put(&bob, "time", set("3")).await.unwrap();

        assert_eq!(pins.get(&ann, "time").await, Ok(set("2")));
        assert_eq!(pins.get(&ann, "other").await, Ok(PinSet::new()));
        assert_eq!(pins.get(&bob, "time").await, Ok(set("3")));
    }

    #[tokio::test]
    async fn pins_belong_to_a_tenant_and_a_server() {
        let folder = tempfile::tempdir().unwrap();

        fulfils_the_contract(&MemoryPins::default()).await;
        fulfils_the_contract(&FilePins::new(folder.path())).await;
    }

    #[tokio::test]
    async fn pins_in_files_are_private_outlive_the_process_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let ann = tenant("ann");
        FilePins::new(folder.path())
            .put(&ann, "time", set("1"))
            .await
            .unwrap();

        let pins = FilePins::new(folder.path());
        let place = pins.place(&ann, "time");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(pins.get(&ann, "time").await, Ok(set("1")));
        assert_eq!(
            (mode(&place), mode(place.parent().unwrap())),
            (0o600, 0o700)
        );
        assert_eq!(
            std::fs::read_dir(place.parent().unwrap()).unwrap().count(),
            1,
            "nothing temporary stays"
        );

        for broken in ["", "{\"v\":1", "{\"v\":2,\"tools\":{}}"] {
            std::fs::write(&place, broken).unwrap();
            let error = pins.get(&ann, "time").await.unwrap_err();
            assert!(
                !error.to_string().contains(folder.path().to_str().unwrap()),
                "{error}"
            );
        }
    }
}
