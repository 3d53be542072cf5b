//! What a run is asked to do.

use std::{path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::{
    chat::ModelParameters,
    host::HOST_GATEWAY,
    policy::Budget,
    ports::{Clock as _, LlmProvider},
};
use sha2::{Digest, Sha256};

use super::{
    load::DataSet,
    result::{RunInfo, RunTask},
    solver::Solver,
    task::jsonl::hex,
};
use crate::{
    clock::SystemClock,
    mask::Masker,
    sandbox::{Mode, Options},
};

/// Name of the gateway of a judge with a provider of its own.
pub(super) const JUDGE_GATEWAY: &str = "eval-judge";

/// What a run is asked to do.
#[derive(Debug, Clone)]
pub struct EvalOptions {
    /// Name of the run. A run of this name is continued.
    pub run: String,
    /// Who solves the tasks.
    pub solver: Solver,
    /// Name of the provider, for reports.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The system prompt.
    pub system: String,
    /// How the model is asked to answer.
    pub parameters: ModelParameters,
    /// Names of the tools that the model is offered; `None` offers all.
    pub tools: Option<Vec<String>>,
    /// Trials of each task.
    pub trials: u32,
    /// Trials at once.
    pub jobs: u32,
    /// What all trials of the run may use, those of earlier starts included.
    pub budget: Budget,
    /// Longest time of the solver; `None` leaves it to the task.
    pub timeout: Option<Duration>,
    /// Who judges tasks whose grader is a model.
    pub judge: Option<Judge>,
    /// Folder of the workspaces.
    pub work_dir: PathBuf,
    /// Whether workspaces stay after their trials.
    pub keep_workspaces: bool,
    /// How commands of solvers and tests are isolated.
    pub sandbox: Mode,
    /// Limits and reach of those commands.
    pub sandbox_options: Options,
    /// Masks keys in results of tools.
    pub masker: Masker,
    /// Whether trials that ended with an error run again.
    pub retry_errors: bool,
    /// Further settings of the host that decide about results. They are stored with the run, and a
    /// run is continued only with the same ones.
    pub settings: serde_json::Value,
}

impl EvalOptions {
    /// Options for a model with every tool, one trial at a time, and no budget.
    pub fn new(run: impl Into<String>, work_dir: impl Into<PathBuf>) -> Self {
        Self {
            run: run.into(),
            solver: Solver::Model,
            provider: String::new(),
            model: String::new(),
            system: String::new(),
            parameters: ModelParameters::default(),
            tools: None,
            trials: 1,
            jobs: 1,
            budget: Budget::default(),
            timeout: None,
            judge: None,
            work_dir: work_dir.into(),
            keep_workspaces: false,
            sandbox: Mode::Auto,
            sandbox_options: Options::default(),
            masker: Masker::from_env(),
            retry_errors: false,
            settings: serde_json::json!({}),
        }
    }

    /// Whether the model is offered a tool.
    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.tools
            .as_ref()
            .is_none_or(|tools| tools.iter().any(|tool| tool == name))
    }

    /// What is stored with the run.
    pub(super) fn info(&self, set: &DataSet) -> RunInfo {
        let mut settings = self.settings.clone();
        if let Some(object) = settings.as_object_mut() {
            object.insert(
                "parameters".into(),
                serde_json::to_value(&self.parameters).unwrap_or_default(),
            );
            object.insert("tools".into(), serde_json::json!(self.tools));
            object.insert(
                "timeout_sec".into(),
                serde_json::json!(self.timeout.map(|time| time.as_secs_f64())),
            );
        }
        RunInfo {
            id: self.run.clone(),
            created_ms: SystemClock.now().0,
            data_set: set.name.clone(),
            solver: self.solver.as_str().into(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            system_hash: hex(&Sha256::digest(self.system.as_bytes())),
            settings,
            judge: self.judge.as_ref().map(Judge::name),
            trials: self.trials,
            version: env!("CARGO_PKG_VERSION").into(),
            tasks: set
                .tasks
                .iter()
                .map(|task| RunTask {
                    id: task.id.clone(),
                    difficulty: task.difficulty.clone(),
                    tags: task.tags.clone(),
                    grader: task.grader.name().into(),
                    hash: task.hash.clone(),
                })
                .collect(),
        }
    }
}

/// A model that grades answers.
#[derive(Clone)]
pub struct Judge {
    /// Name of its provider, for reports.
    pub provider_name: String,
    /// The model.
    pub model: String,
    /// Its provider; `None` for the host's own.
    pub provider: Option<Arc<dyn LlmProvider>>,
}

impl Judge {
    /// Provider and model, as reports name them.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.provider_name, self.model)
    }

    pub(super) fn gateway(&self) -> &'static str {
        if self.provider.is_some() {
            JUDGE_GATEWAY
        } else {
            HOST_GATEWAY
        }
    }
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
