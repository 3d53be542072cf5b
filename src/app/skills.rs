//! Opens the folder of skills that flags or configuration name. A folder of a project also needs an
//! agreement.

use std::path::Path;

use callboard_actors::{
    ports::{BoxFuture, SkillError, SkillListing, SkillSource},
    skill::{LoadLevel, Skill, SkillName},
};

use super::AppError;
use crate::{
    config::{Config, ProjectKind},
    skills::SkillFolder,
    trust::{self, Place, Standing, TrustStore},
};

/// A folder of skills. A project's folder is compared with its agreement after each read, because
/// tools that work in the project could change it while the host runs.
#[derive(Clone)]
pub(super) struct Skills {
    folder: SkillFolder,
    agreement: Option<TrustStore>,
}

impl Skills {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// [`AppError::Skills`]: the path is missing or is not a folder.
    pub(super) fn open(config: &Config, path: &Path) -> Result<Self, AppError> {
        let folder = SkillFolder::open(path).map_err(|error| AppError::Skills {
            path: path.to_owned(),
            reason: error.kind(),
        })?;
        let of_project = config
            .project_files()
            .iter()
            .any(|file| file.kind == ProjectKind::Skills && file.path == path);
        Ok(Self {
            folder,
            agreement: of_project.then(|| config.trust().clone()),
        })
    }

    /// Returns `read` if the folder still matches its agreement.
    async fn agreed<T>(&self, read: T) -> Result<T, SkillError> {
        let Some(store) = self.agreement.clone() else {
            return Ok(read);
        };
        let path = self.folder.path();
        let holds = move || {
            let tree = trust::tree(&path).ok()?;
            let place = Place::of_folder(&path).ok()?;
            (store.standing(&place, &tree.sha256) == Standing::Trusted).then_some(())
        };
        match tokio::task::spawn_blocking(holds).await {
            Ok(Some(())) => Ok(read),
            Ok(None) | Err(_) => Err(SkillError::Unavailable {
                message: "the folder changed since it was trusted".into(),
            }),
        }
    }
}

impl SkillSource for Skills {
    fn index(&self) -> BoxFuture<'_, Result<SkillListing, SkillError>> {
        Box::pin(async { self.agreed(self.folder.index().await?).await })
    }

    fn load(&self, name: SkillName, level: LoadLevel) -> BoxFuture<'_, Result<Skill, SkillError>> {
        Box::pin(async move { self.agreed(self.folder.load(name, level).await?).await })
    }

    fn resource(&self, name: SkillName, path: String) -> BoxFuture<'_, Result<String, SkillError>> {
        Box::pin(async move { self.agreed(self.folder.resource(name, path).await?).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn skills_that_change_while_a_host_runs_are_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("skills");
        std::fs::create_dir_all(path.join("greet")).unwrap();
        let write = |text: &str| {
            std::fs::write(
                path.join("greet/SKILL.md"),
                format!("---\ndescription: Greets.\n---\n{text}\n"),
            )
            .unwrap()
        };
        write("Say hello.");
        let store = TrustStore::new(Some(home.path().join("data")));
        store
            .add(
                &Place::of_folder(&path).unwrap(),
                &trust::tree(&path).unwrap().sha256,
            )
            .unwrap();
        let skills = Skills {
            folder: SkillFolder::open(&path).unwrap(),
            agreement: Some(store),
        };
        let name = || SkillName::new("greet").unwrap();
        assert!(
            skills.load(name(), LoadLevel::Instructions).await.is_ok()
                && skills.index().await.is_ok()
        );

        write("Say HOSTILE.");

        let refused = skills
            .load(name(), LoadLevel::Instructions)
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("changed since it was trusted"),
            "{refused}"
        );
        assert!(skills.index().await.is_err());
    }
}
