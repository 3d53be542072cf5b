//! What a tool was when it was agreed to: a digest of its definition, kept a tenant and server (FAULTS F9). A server cannot change what
//! a tool says of itself behind its user's back.
//!
//! A tool that is seen for the first time is pinned as it is; one that changed is refused until somebody agrees again. What went away
//! keeps its pin, so that going and coming back changed is a change.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use callboard_actors::{ids::TenantId, ports::BoxFuture};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::name::{hex, is_server_name};

/// The digests of one server's tools, by the server's own names of them.
pub type PinSet = BTreeMap<String, String>;

/// Longest file that is read: a thousand tools with long names.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Pins that cannot be read or kept. Without them no tool of the server runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pinned definitions of the MCP server {server} cannot be {what}: {reason}")]
pub struct PinError {
    /// Whose.
    pub server: String,
    /// `read` or `kept`.
    pub what: &'static str,
    /// Why; no path.
    pub reason: String,
}

/// Keeps pins.
pub trait Pins: Send + Sync + 'static {
    /// The pins of a server; empty if none was ever kept.
    ///
    /// # Errors
    /// [`PinError`].
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>>;

    /// Keeps them in place of what was there; all or nothing.
    ///
    /// # Errors
    /// [`PinError`]; then the old ones stay.
    fn put(&self, tenant: &TenantId, server: &str, pins: PinSet) -> BoxFuture<'_, Result<(), PinError>>;
}

/// SHA-256 over what a server says of a tool: name, description, schema, annotations; keys in order, so that only a change of what is
/// said changes it.
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

/// JSON text with the keys of every object in order, whatever the map of this build does.
fn ordered(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(ordered).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            let fields: Vec<String> =
                sorted.into_iter().map(|(name, value)| format!("{}:{}", Value::String(name.clone()), ordered(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        plain => plain.to_string(),
    }
}

/// Pins that go with the process.
#[derive(Debug, Default)]
pub struct MemoryPins(Mutex<BTreeMap<(TenantId, String), PinSet>>);

impl Pins for MemoryPins {
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>> {
        let key = (tenant.clone(), server.to_owned());
        let all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let pins = all.get(&key).cloned().unwrap_or_default();
        Box::pin(std::future::ready(Ok(pins)))
    }

    fn put(&self, tenant: &TenantId, server: &str, pins: PinSet) -> BoxFuture<'_, Result<(), PinError>> {
        let key = (tenant.clone(), server.to_owned());
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(key, pins);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Pins in files: `mcp-pins/<hash of the tenant>/<server>.json` below the data folder, folders 0700, files 0600, written whole or not
/// at all.
#[derive(Debug, Clone)]
pub struct FilePins {
    folder: PathBuf,
}

/// What a file holds.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    v: u32,
    tools: PinSet,
}

impl FilePins {
    /// Keeps pins below `data_dir`. Nothing is made before the first are kept.
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("mcp-pins") }
    }

    /// The name of a configured server is plain, that of a tenant need not be.
    fn place(&self, tenant: &TenantId, server: &str) -> PathBuf {
        let hash = |text: &str| hex(&Sha256::digest(text.as_bytes())).chars().take(32).collect::<String>();
        let server = if is_server_name(server) { server.to_owned() } else { hash(server) };
        self.folder.join(hash(tenant.as_str())).join(format!("{server}.json"))
    }
}

impl Pins for FilePins {
    fn get(&self, tenant: &TenantId, server: &str) -> BoxFuture<'_, Result<PinSet, PinError>> {
        let place = self.place(tenant, server);
        let error = error(server, "read");
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || read(&place)).await {
                Ok(read) => read.map_err(error),
                Err(_) => Err(error("the work did not end".to_owned())),
            }
        })
    }

    fn put(&self, tenant: &TenantId, server: &str, pins: PinSet) -> BoxFuture<'_, Result<(), PinError>> {
        let place = self.place(tenant, server);
        let error = error(server, "kept");
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || write(&place, pins).map_err(|error| error.kind().to_string())).await {
                Ok(written) => written.map_err(error),
                Err(_) => Err(error("the work did not end".to_owned())),
            }
        })
    }
}

fn error(server: &str, what: &'static str) -> impl Fn(String) -> PinError + Send + 'static {
    let server = server.to_owned();
    move |reason| PinError { server: server.clone(), what, reason }
}

fn read(place: &Path) -> Result<PinSet, String> {
    let mut text = String::new();
    match std::fs::File::open(place).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)) {
        Ok(_) if text.len() as u64 > FILE_BYTES_MAX => Err("the file is longer than 1 MiB".to_owned()),
        Ok(_) => match serde_json::from_str::<File>(&text) {
            Ok(File { v: 1, tools }) => Ok(tools),
            Ok(File { v, .. }) => Err(format!("they are of version {v}, which a newer Callboard wrote")),
            Err(_) => Err("the file does not hold pins".to_owned()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(PinSet::new()),
        Err(error) => Err(error.kind().to_string()),
    }
}

fn write(place: &Path, pins: PinSet) -> std::io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let chance = getrandom::u64().map_err(|_| std::io::Error::from(std::io::ErrorKind::Other))?;
    let temporary = folder.join(format!(".{chance:016x}.tmp"));
    let written = (|| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(&File { v: 1, tools: pins })?)?;
        file.sync_all()?;
        std::fs::rename(&temporary, place)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    } else if let Ok(folder) = std::fs::File::open(folder) {
        // The rename must survive a power cut; where a folder cannot be flushed the file still is.
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
    fn a_digest_changes_with_what_is_said_and_with_nothing_else() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}});
        let same: Value = serde_json::from_str(r#"{"properties": {"b": {}, "a": {"type": "string"}}, "type": "object"}"#).unwrap();
        let of = |name: &str, description: &str, schema: &Value, notes: &Value| digest(name, description, schema, notes);
        let first = of("echo", "says it again", &schema, &json!({}));

        assert_eq!(first.len(), 64);
        assert_eq!(first, of("echo", "says it again", &same, &json!({})));
        for other in [
            of("echo2", "says it again", &schema, &json!({})),
            of("echo", "says it again\u{200b}", &schema, &json!({})),
            of("echo", "says it again", &json!({"type": "object"}), &json!({})),
            of("echo", "says it again", &schema, &json!({"readOnlyHint": true})),
            of("ech", "osays it again", &schema, &json!({})),
        ] {
            assert_ne!(first, other);
        }
    }

    async fn holds_its_contract(pins: &dyn Pins) {
        let (ann, bob) = (tenant("ann"), tenant("bob"));
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

        holds_its_contract(&MemoryPins::default()).await;
        holds_its_contract(&FilePins::new(folder.path())).await;
    }

    #[tokio::test]
    async fn pins_in_files_are_private_outlive_the_process_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let ann = tenant("ann");
        FilePins::new(folder.path()).put(&ann, "time", set("1")).await.unwrap();

        let pins = FilePins::new(folder.path());
        let place = pins.place(&ann, "time");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(pins.get(&ann, "time").await, Ok(set("1")));
        assert_eq!((mode(&place), mode(place.parent().unwrap())), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "nothing temporary stays");

        for broken in ["", "{\"v\":1", "{\"v\":2,\"tools\":{}}"] {
            std::fs::write(&place, broken).unwrap();
            let error = pins.get(&ann, "time").await.unwrap_err();
            assert!(!error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
        }
    }
}
