//! The files that a start reads because the user named them, to Callboard or in its configuration. Where
//! they lie in a workspace, no tool may change them: the next start would do what they say.

use std::path::Path;

use super::{Config, Setting, project::ProjectKind, value::Value};

impl Config {
    /// Files that are read at the start and hold no key: configuration, encoders, certificates.
    pub(crate) fn read_files(&self) -> impl Iterator<Item = &Path> {
        let project = self
            .project
            .iter()
            .filter(|file| file.kind != ProjectKind::Instructions)
            .map(|file| &file.path);
        self.files
            .iter()
            .chain(&self.user_file)
            .chain(project)
            .chain(&self.tokens.places)
            .map(AsRef::as_ref)
            .chain(self.named(|name| name == "file" || is_file(name) && !is_key_file(name)))
    }

    /// Files that hold nothing but a key.
    pub(crate) fn key_files(&self) -> impl Iterator<Item = &Path> {
        self.named(is_key_file)
    }

    fn named(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = &Path> {
        let of_providers = self
            .providers
            .iter()
            .flat_map(|provider| provider.settings.values());
        let path = move |setting: &'_ Setting| wanted(setting.key.name);
        self.settings
            .values()
            .chain(of_providers)
            .filter(move |setting| path(setting))
            .filter_map(|setting| match &setting.value {
                Value::Path(path) => Some(path.as_path()),
                _ => None,
            })
    }
}

fn is_file(name: &str) -> bool {
    name.ends_with("_file")
}

fn is_key_file(name: &str) -> bool {
    name.ends_with("key_file")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            keys::{self, PROVIDER},
            value::Kind,
        },
        *,
    };

    #[test]
    fn each_path_of_the_configuration_is_a_known_kind_of_file_or_a_folder() {
        let folders = ["data_dir", "dir", "skills", "workspace", "read_only"];
        let unknown: Vec<String> = keys::plain()
            .chain(PROVIDER)
            .chain(keys::of_tenants())
            .filter(|key| matches!(key.kind, Kind::Path | Kind::Paths))
            .filter(|key| !(key.name == "file" || is_file(key.name) || folders.contains(&key.name)))
            .map(super::super::Key::path)
            .collect();

        assert_eq!(unknown, [] as [String; 0]);
    }
}
