//! Toolchains outside the system's folders: which of their files commands may read, and which
//! variables their programs need.
//!
//! Toolchains often lie in a home folder, which also holds keys. So a command sees only the parts
//! of a known toolchain that hold programs, libraries and downloaded sources. For Cargo it sees
//! neither `credentials.toml` nor a `config.toml` that may hold a token, for Node no `npmrc`.
//! Nothing shown is writable.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What commands can use besides the system's programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toolchains {
    /// Folders and files that can be read, each at its real path.
    pub read_only: Vec<PathBuf>,
    /// Folders of programs, searched before those of the system.
    pub path: Vec<PathBuf>,
    /// Environment variables that the programs need.
    pub variables: Vec<(String, String)>,
}

/// A known toolchain in its usual layout.
#[derive(Clone, Copy)]
struct Kit {
    /// Its folder, relative to the home folder.
    folder: &'static str,
    /// The variable that its programs need; it may also name another folder.
    variable: Option<&'static str>,
    /// Parts of the folder that are shown. A `*` matches each existing folder.
    shows: &'static [&'static str],
    /// Folders of programs. A `*` matches the newest version.
    path: &'static [&'static str],
    /// Further folders that its programs need, relative to the home folder.
    with: &'static [&'static str],
    /// A settings file that is shown unless it may hold a key.
    settings: Option<&'static str>,
    /// A variable that its programs need, and the path in the folder that is its value.
    place: Option<(&'static str, &'static str)>,
}

const fn kit(
    folder: &'static str,
    variable: Option<&'static str>,
    shows: &'static [&'static str],
    path: &'static [&'static str],
) -> Kit {
    Kit {
        folder,
        variable,
        shows,
        path,
        with: &[],
        settings: None,
        place: None,
    }
}

const KITS: &[Kit] = &[
    Kit {
        with: &[".rustup"],
        settings: Some("config.toml"),
        ..kit(
            ".cargo",
            Some("CARGO_HOME"),
            &["bin", "registry", "git"],
            &["bin"],
        )
    },
    kit(
        ".rustup",
        Some("RUSTUP_HOME"),
        &["toolchains", "settings.toml", "update-hashes"],
        &[],
    ),
    kit(
        ".pyenv",
        Some("PYENV_ROOT"),
        &[
            "bin",
            "libexec",
            "plugins",
            "shims",
            "version",
            "versions/*/bin",
            "versions/*/include",
            "versions/*/lib",
        ],
        &["shims", "bin"],
    ),
    kit(
        ".nvm",
        Some("NVM_DIR"),
        &[
            "versions/node/*/bin",
            "versions/node/*/include",
            "versions/node/*/lib",
            "versions/node/*/share",
        ],
        &["versions/node/*/bin"],
    ),
    kit(
        ".local/share/mise",
        Some("MISE_DATA_DIR"),
        &["installs", "shims"],
        &["shims"],
    ),
    kit(
        ".asdf",
        Some("ASDF_DATA_DIR"),
        &["asdf.sh", "bin", "installs", "lib", "plugins", "shims"],
        &["shims", "bin"],
    ),
    kit(
        ".rbenv",
        Some("RBENV_ROOT"),
        &[
            "bin", "libexec", "plugins", "rbenv.d", "shims", "version", "versions",
        ],
        &["shims", "bin"],
    ),
    Kit {
        place: Some(("GOMODCACHE", "pkg/mod")),
        ..kit("go", None, &["bin", "pkg"], &["bin"])
    },
    kit(".volta", Some("VOLTA_HOME"), &["bin", "tools"], &["bin"]),
    kit(".bun", Some("BUN_INSTALL"), &["bin"], &["bin"]),
    kit(".deno", Some("DENO_INSTALL"), &["bin"], &["bin"]),
    kit(
        ".sdkman",
        Some("SDKMAN_DIR"),
        &["bin", "candidates"],
        &["candidates/*/current/bin"],
    ),
    Kit {
        with: &[
            ".local/share/uv/python",
            ".local/share/uv/tools",
            ".local/share/pipx/venvs",
        ],
        ..kit(".local/bin", None, &[""], &[""])
    },
];

/// Words by which a settings file may hold a key.
const OF_KEYS: &[&str] = &["token", "password", "secret", "credential", "@"];

/// Bytes of a settings file that are searched; a longer file is not shown.
const SETTINGS_BYTES_MAX: u64 = 64 * 1024;

impl Toolchains {
    /// Finds the toolchains on `PATH`, in their usual place in the home folder or where their
    /// variable says.
    pub fn detect(home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut found = Self::default();
        for (kit, folder, entry) in on_path(home, &variable) {
            if !entry.is_dir() {
                continue;
            }
            found.show(kit, &folder);
            add(&mut found.path, entry);
            for name in kit.with {
                match KITS.iter().find(|kit| kit.folder == *name) {
                    Some(beside) => found.show(beside, &place(beside, home, &variable)),
                    None => found.read(home.join(name)),
                }
            }
        }
        found
    }

    /// What [`Toolchains::detect`] would find on `PATH` if it were there: a program that appears there
    /// is one that the user runs.
    #[cfg(any(test, feature = "cli"))]
    pub(crate) fn absent(
        home: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> impl Iterator<Item = PathBuf> {
        on_path(home, &variable)
            .into_iter()
            .flat_map(|(kit, folder, entry)| {
                let shows = kit.shows.iter().filter(|shows| !shows.contains('*'));
                shows
                    .map(move |shows| folder.join(shows))
                    .chain([entry])
                    .collect::<Vec<_>>()
            })
            .filter(|place| !place.exists())
    }

    /// Finds the toolchains in given folders. A folder that is no known toolchain is shown as a
    /// whole, and its `bin` holds programs.
    pub fn of(folders: &[PathBuf]) -> Self {
        let mut found = Self::default();
        for folder in folders {
            let Some(kit) = KITS.iter().find(|kit| folder.ends_with(kit.folder)) else {
                found.read(folder.clone());
                let bin = if folder.ends_with("bin") {
                    folder.clone()
                } else {
                    folder.join("bin")
                };
                if bin.is_dir() {
                    add(&mut found.path, bin);
                }
                continue;
            };
            found.show(kit, folder);
            for place in kit.path {
                let newest = expanded(folder, place)
                    .into_iter()
                    .filter(|place| place.is_dir())
                    .max_by_key(|place| version(place));
                newest
                    .into_iter()
                    .for_each(|place| add(&mut found.path, place));
            }
        }
        found
    }

    /// Combines both; those of `self` come first.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        others
            .read_only
            .into_iter()
            .for_each(|place| add(&mut self.read_only, place));
        others
            .path
            .into_iter()
            .for_each(|place| add(&mut self.path, place));
        let known: Vec<String> = self
            .variables
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        self.variables.extend(
            others
                .variables
                .into_iter()
                .filter(|(name, _)| !known.contains(name)),
        );
        self
    }

    fn show(&mut self, kit: &Kit, folder: &Path) {
        for place in kit.shows.iter().flat_map(|place| expanded(folder, place)) {
            self.read(place);
        }
        if let Some(settings) = kit
            .settings
            .map(|name| folder.join(name))
            .filter(|settings| holds_no_key(settings))
        {
            self.read(settings);
        }
        let inside = kit.place.map(|(name, place)| (name, folder.join(place)));
        for (name, value) in kit
            .variable
            .map(|name| (name, folder.to_owned()))
            .into_iter()
            .chain(inside)
        {
            if let Some(value) = value.to_str().filter(|_| {
                value.is_dir() && !self.variables.iter().any(|(known, _)| known == name)
            }) {
                self.variables.push((name.to_owned(), value.to_owned()));
            }
        }
    }

    /// Adds a path. A link is shown both at its place and at its target.
    fn read(&mut self, place: PathBuf) {
        let Ok(real) = place.canonicalize() else {
            return;
        };
        add(&mut self.read_only, place);
        add(&mut self.read_only, real);
    }

    /// Variables for a command, which replace the defaults.
    #[cfg(any(test, all(feature = "sandbox-linux", target_os = "linux")))]
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let folders: Vec<&str> = self
            .path
            .iter()
            .filter_map(|folder| folder.to_str())
            .filter(|folder| !folder.contains(':'))
            .collect();
        if folders.is_empty() {
            return self.variables.clone();
        }
        let path = format!("{}:{}", folders.join(":"), super::policy::PATH);
        self.variables
            .iter()
            .cloned()
            .chain([("PATH".to_owned(), path)])
            .collect()
    }
}

/// The folder of a toolchain: where its variable says, or its usual place in the home folder.
fn place(kit: &Kit, home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    kit.variable
        .and_then(variable)
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .unwrap_or_else(|| home.join(kit.folder))
}

/// The toolchains on `PATH`, each with its folder and its entry, which may be absent.
fn on_path(
    home: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static Kit, PathBuf, PathBuf)> {
    let path = variable("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|entry| entry.is_absolute())
        .filter_map(|entry| {
            KITS.iter()
                .map(|kit| (kit, place(kit, home, &variable)))
                .find(|(_, folder)| entry.starts_with(folder) && !home.starts_with(folder))
                .map(|(kit, folder)| (kit, folder, entry))
        })
        .collect()
}

fn add(places: &mut Vec<PathBuf>, place: PathBuf) {
    if !places.contains(&place) {
        places.push(place);
    }
}

/// Existing paths that match a pattern with at most one `*`.
fn expanded(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    match pattern.split_once("/*/") {
        None if pattern.is_empty() => vec![folder.to_owned()],
        None => vec![folder.join(pattern)],
        Some((before, after)) => {
            let entries = std::fs::read_dir(folder.join(before))
                .into_iter()
                .flatten()
                .flatten();
            let mut places: Vec<PathBuf> = entries.map(|entry| entry.path().join(after)).collect();
            places.sort();
            places
        }
    }
}

/// The numbers in a path, in order, so that `v9.1` sorts before `v10.0`.
fn version(place: &Path) -> Vec<u64> {
    place
        .to_string_lossy()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn holds_no_key(settings: &Path) -> bool {
    let small = std::fs::metadata(settings)
        .is_ok_and(|file| file.is_file() && file.len() <= SETTINGS_BYTES_MAX);
    small
        && std::fs::read_to_string(settings).is_ok_and(|text| {
            !OF_KEYS
                .iter()
                .any(|word| text.to_lowercase().contains(word))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for folder in [
            ".cargo/bin",
            ".cargo/registry",
            ".rustup/toolchains/stable",
            ".nvm/versions/node/v9.1.0/bin",
            ".nvm/versions/node/v10.0.0/bin",
            ".nvm/versions/node/v10.0.0/etc",
            ".ssh",
            "bin",
            "work/node_modules/.bin",
        ] {
            std::fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        for file in [
            ".cargo/credentials.toml",
            ".nvm/versions/node/v10.0.0/etc/npmrc",
            ".npmrc",
        ] {
            std::fs::write(home.path().join(file), "token = \"not-a-real-key\"").unwrap();
        }
        std::fs::write(
            home.path().join(".cargo/config.toml"),
            "[build]\njobs = 1\n",
        )
        .unwrap();
        home
    }

    fn relative<'a>(places: &'a [PathBuf], home: &Path) -> Vec<&'a str> {
        places
            .iter()
            .map(|place| place.strip_prefix(home).unwrap().to_str().unwrap())
            .collect()
    }

    #[test]
    fn a_toolchain_that_is_not_there_yet_is_known() {
        let home = home();
        let at = |name: &str| home.path().join(name);
        let path = ["bin", ".cargo/bin", ".volta/bin", ".local/bin"].map(at);
        let path = std::env::join_paths(path).unwrap();

        let absent: Vec<PathBuf> =
            Toolchains::absent(home.path(), |name| (name == "PATH").then(|| path.clone()))
                .collect();

        assert_eq!(
            relative(&absent, home.path()),
            [
                ".cargo/git",
                ".volta/bin",
                ".volta/tools",
                ".volta/bin",
                ".local/bin",
                ".local/bin"
            ]
        );
    }

    #[test]
    fn toolchains_of_the_path_are_found_and_nothing_else_of_the_home_folder() {
        let home = home();
        let at = |name: &str| home.path().join(name);
        let path = [
            "work/node_modules/.bin",
            "bin",
            ".ssh",
            ".cargo/bin",
            ".nvm/versions/node/v9.1.0/bin",
        ]
        .map(at);
        let path = std::env::join_paths(
            path.into_iter()
                .chain([PathBuf::from("/usr/bin"), "relative".into()]),
        )
        .unwrap();

        let found = Toolchains::detect(home.path(), |name| (name == "PATH").then(|| path.clone()));

        assert_eq!(
            relative(&found.path, home.path()),
            [".cargo/bin", ".nvm/versions/node/v9.1.0/bin"]
        );
        assert_eq!(
            relative(&found.read_only, home.path()),
            [
                ".cargo/bin",
                ".cargo/registry",
                ".cargo/config.toml",
                ".rustup/toolchains",
                ".nvm/versions/node/v10.0.0/bin",
                ".nvm/versions/node/v9.1.0/bin"
            ]
        );
        let names: Vec<&str> = found
            .variables
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["CARGO_HOME", "RUSTUP_HOME", "NVM_DIR"]);
        let path = found.environment().pop().unwrap().1;
        assert!(
            path.starts_with(at(".cargo/bin").to_str().unwrap())
                && path.ends_with(crate::sandbox::policy::PATH),
            "{path}"
        );
    }

    #[test]
    fn a_toolchain_lies_where_its_variable_says_but_never_around_the_home_folder() {
        let (home, elsewhere) = (home(), home());
        let detect = |cargo: &Path| {
            Toolchains::detect(home.path(), |name| match name {
                "PATH" => Some(cargo.join("bin").into()),
                "CARGO_HOME" => Some(cargo.into()),
                _ => None,
            })
        };

        assert_eq!(
            detect(&elsewhere.path().join(".cargo")).path,
            [elsewhere.path().join(".cargo/bin")]
        );
        assert_eq!(detect(home.path()), Toolchains::default());
    }

    #[test]
    fn a_listed_folder_is_shown_by_what_it_is() {
        let home = home();
        let at = |name: &str| home.path().join(name);

        let nvm = Toolchains::of(&[at(".nvm")]);
        let other = Toolchains::of(&[at("work"), at("bin"), at("not-there")]);

        assert_eq!(
            relative(&nvm.path, home.path()),
            [".nvm/versions/node/v10.0.0/bin"]
        );
        assert!(!nvm.read_only.iter().any(|place| place.ends_with("etc")));
        assert_eq!(
            (
                relative(&other.read_only, home.path()),
                relative(&other.path, home.path())
            ),
            (vec!["work", "bin"], vec!["bin"])
        );
    }

    #[test]
    fn settings_that_may_hold_a_key_are_not_shown() {
        let home = home();
        let settings = home.path().join(".cargo/config.toml");
        let shown = || {
            Toolchains::of(&[home.path().join(".cargo")])
                .read_only
                .contains(&settings)
        };

        assert!(shown());
        std::fs::write(
            &settings,
            "[registries.inner]\nTOKEN = \"not-a-real-key\"\n",
        )
        .unwrap();
        assert!(!shown());
    }
}
