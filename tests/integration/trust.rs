//! Project files take effect only after a person agreed to their path and content.

mod agreeing;
mod hostile;
mod instructions;
mod named;
mod serving;

use std::path::{Path, PathBuf};

use crate::cli::{Home, Ran};

/// A key that must not appear in any output.
const KEY: &str = "sk-ant-not-a-real-key-0123456789abcdef";

/// A home with a folder that a stranger wrote.
struct Ground {
    home: Home,
    repo: PathBuf,
}

impl Ground {
    /// A stranger's folder with this configuration.
    fn new(config: &str) -> Self {
        let mut home = Home::new();
        home.variables.push(("ANTHROPIC_API_KEY", KEY.to_owned()));
        let repo = home.path().join("repo");
        std::fs::create_dir(&repo).unwrap();
        let ground = Self { home, repo };
        if !config.is_empty() {
            ground.write("callboard.toml", config);
        }
        ground
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.repo.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_in(&self.repo, args)
    }

    fn run_in(&self, folder: &Path, args: &[&str]) -> Ran {
        Ran::of(args, self.home.command_in(folder, args).spawn().unwrap())
    }

    /// The effective configuration.
    fn shown(&self) -> String {
        self.run(&["config", "show"]).well().out
    }

    fn store(&self) -> PathBuf {
        self.home
            .path()
            .join("home/.local/share/callboard/trust.json")
    }
}
