//! Runs and results in a SQLite file.
//!
//! A result is stored when its trial has ended, in a transaction that is on disk before the call
//! returns. So a run that was killed continues with the trials that are missing.

use std::path::Path;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::result::{EvalResult, RunInfo, Status};
use crate::private;

/// "CBEV" in ASCII: distinguishes these files from those of other programs.
const APPLICATION_ID: i64 = 0x4342_4556;

/// Migrations from an empty file to the newest version; `user_version` is the number of those
/// applied.
const SCHEMAS: &[&str] = &[include_str!("schema.sql")];

/// How long another process's transaction is waited for.
const BUSY: std::time::Duration = std::time::Duration::from_secs(5);

/// Why results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EvalStoreError {
    /// The file cannot be opened.
    #[error("the results in {file} cannot be opened: {reason}; choose another file with --results")]
    Open {
        /// Name of the file.
        file: String,
        /// Why.
        reason: String,
    },
    /// The file belongs to another program.
    #[error("{file} is no file of results; choose another one with --results")]
    Foreign {
        /// Name of the file.
        file: String,
    },
    /// A newer Callboard wrote the file.
    #[error(
        "{file} has version {found} of the schema, and this Callboard knows {known}; use a newer Callboard"
    )]
    Newer {
        /// Name of the file.
        file: String,
        /// Its version.
        found: i64,
        /// The newest known version.
        known: usize,
    },
    /// SQLite failed.
    #[error("the results cannot be read or written: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored row has an unexpected form.
    #[error("a stored result has an unexpected form: {0}")]
    Form(#[from] serde_json::Error),
}

/// A run as it is listed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// What it was asked to do.
    pub run: RunInfo,
    /// Trials that ended.
    pub done: usize,
    /// Trials that passed.
    pub passed: usize,
}

/// A file of results. Calls block for a transaction of a few rows.
#[derive(Debug)]
pub struct EvalStore(Mutex<Connection>);

impl EvalStore {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`EvalStoreError`], with the name of the file.
    pub fn open(path: &Path) -> Result<Self, EvalStoreError> {
        let file = path.display().to_string();
        let failed = |reason: String| EvalStoreError::Open {
            file: file.clone(),
            reason,
        };
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            private::make_folder(parent)
                .map_err(|error| failed(crate::os_error::words(&error).to_string()))?;
        }
        // Created here, so that only this user can read it; SQLite's companion files inherit that.
        private::file()
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(crate::os_error::words(&error).to_string()))?;
        let mut connection = Connection::open(path).map_err(|error| failed(error.to_string()))?;
        connection.busy_timeout(BUSY)?;
        crate::storage::harden(&connection)?;
        let id: i64 = connection
            .query_row("PRAGMA application_id", [], |row| row.get(0))
            .map_err(|_| EvalStoreError::Foreign { file: file.clone() })?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if id != APPLICATION_ID && (id != 0 || tables != 0) {
            return Err(EvalStoreError::Foreign { file });
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        migrate(&mut connection, &file)?;
        Ok(Self(Mutex::new(connection)))
    }

    /// The run of this name.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn run(&self, id: &str) -> Result<Option<RunInfo>, EvalStoreError> {
        let text: Option<String> = self
            .0
            .lock()
            .query_row("SELECT info FROM runs WHERE id = ?1", [id], |row| {
                row.get(0)
            })
            .optional()?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// Stores a run, or its new number of trials.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn put_run(&self, run: &RunInfo) -> Result<(), EvalStoreError> {
        self.0.lock().execute(
            "INSERT INTO runs (id, created_ms, info) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO UPDATE SET info = excluded.info",
            params![run.id, ms(run.created_ms), serde_json::to_string(run)?],
        )?;
        Ok(())
    }

    /// Stores the result of a trial.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn put(&self, run: &str, result: &EvalResult) -> Result<(), EvalStoreError> {
        self.0.lock().execute(
            "INSERT INTO trials (run, task, trial, status, score, tokens, cost_usd, duration_ms, finished_ms, result) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
             ON CONFLICT (run, task, trial) DO UPDATE SET status = excluded.status, score = excluded.score, tokens = excluded.tokens, \
             cost_usd = excluded.cost_usd, duration_ms = excluded.duration_ms, finished_ms = excluded.finished_ms, result = excluded.result",
            params![
                run,
                result.task,
                result.trial,
                result.status.as_str(),
                result.score,
                ms(result.tokens.total),
                result.cost_usd,
                ms(result.duration_ms),
                ms(result.finished_ms),
                serde_json::to_string(result)?
            ],
        )?;
        Ok(())
    }

    /// Adds what trials without a result used: their tokens and millionths of a US dollar count
    /// against the budget of the run.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn spend(&self, run: &str, tokens: u64, micro_usd: u64) -> Result<(), EvalStoreError> {
        self.0.lock().execute(
            "UPDATE runs SET lost_tokens = lost_tokens + ?2, lost_micro_usd = lost_micro_usd + ?3 WHERE id = ?1",
            params![run, ms(tokens), ms(micro_usd)],
        )?;
        Ok(())
    }

    /// What trials without a result used: tokens, and millionths of a US dollar.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn lost(&self, run: &str) -> Result<(u64, u64), EvalStoreError> {
        let found = self
            .0
            .lock()
            .query_row(
                "SELECT lost_tokens, lost_micro_usd FROM runs WHERE id = ?1",
                [run],
                |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
            )
            .optional()?;
        let (tokens, micro) = found.unwrap_or_default();
        Ok((
            u64::try_from(tokens).unwrap_or(0),
            u64::try_from(micro).unwrap_or(0),
        ))
    }

    /// The results of a run, in no particular order.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn results(&self, run: &str) -> Result<Vec<EvalResult>, EvalStoreError> {
        let connection = self.0.lock();
        let mut statement = connection.prepare("SELECT result FROM trials WHERE run = ?1")?;
        let rows = statement.query_map([run], |row| row.get::<_, String>(0))?;
        rows.map(|text| Ok(serde_json::from_str(&text?)?)).collect()
    }

    /// Removes the results of trials that ended with an error, so that they run again. Returns
    /// their number.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn forget_errors(&self, run: &str) -> Result<usize, EvalStoreError> {
        Ok(self.0.lock().execute(
            "DELETE FROM trials WHERE run = ?1 AND status = ?2",
            params![run, Status::Error.as_str()],
        )?)
    }

    /// Removes a run with its results. Returns whether it existed.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn delete(&self, run: &str) -> Result<bool, EvalStoreError> {
        Ok(self
            .0
            .lock()
            .execute("DELETE FROM runs WHERE id = ?1", [run])?
            > 0)
    }

    /// All runs, the newest first, at most `count`.
    ///
    /// # Errors
    /// [`EvalStoreError`].
    pub fn runs(&self, count: u32) -> Result<Vec<RunRow>, EvalStoreError> {
        let connection = self.0.lock();
        let mut statement = connection.prepare(
            "SELECT info, (SELECT count(*) FROM trials WHERE run = id), (SELECT count(*) FROM trials WHERE run = id AND status = 'passed') \
             FROM runs ORDER BY created_ms DESC, id LIMIT ?1",
        )?;
        let rows = statement.query_map([count], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })?;
        rows.map(|row| {
            let (text, done, passed) = row?;
            Ok(RunRow {
                run: serde_json::from_str(&text)?,
                done: usize::try_from(done).unwrap_or(0),
                passed: usize::try_from(passed).unwrap_or(0),
            })
        })
        .collect()
    }
}

/// A number as SQLite stores it.
fn ms(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn migrate(connection: &mut Connection, file: &str) -> Result<(), EvalStoreError> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    let Some(missing) = SCHEMAS.get(done..) else {
        return Err(EvalStoreError::Newer {
            file: file.to_owned(),
            found,
            known: SCHEMAS.len(),
        });
    };
    for schema in missing {
        transaction.execute_batch(schema)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(
        None,
        "user_version",
        i64::try_from(SCHEMAS.len()).unwrap_or(0),
    )?;
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evals::figures::tests::{result, run};

    #[test]
    fn runs_and_results_survive_and_are_replaced_by_trial() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new/evals.db");
        {
            let store = EvalStore::open(&path).unwrap();
            store.put_run(&run("r", 2, 1)).unwrap();
            store.put("r", &result("a", 1, Status::Failed)).unwrap();
            store.put("r", &result("a", 1, Status::Passed)).unwrap();
            store.put("r", &result("b", 1, Status::Error)).unwrap();
            store.spend("r", 7, 9).unwrap();
        }

        let store = EvalStore::open(&path).unwrap();

        assert_eq!(store.run("r").unwrap(), Some(run("r", 2, 1)));
        assert_eq!(store.run("other").unwrap(), None);
        let mut results = store.results("r").unwrap();
        results.sort_by(|a, b| a.task.cmp(&b.task));
        assert_eq!(
            results,
            [
                result("a", 1, Status::Passed),
                result("b", 1, Status::Error)
            ]
        );
        let rows = store.runs(10).unwrap();
        assert_eq!((rows[0].done, rows[0].passed), (2, 1));
        assert_eq!(store.lost("r").unwrap(), (7, 9));
        assert_eq!(store.forget_errors("r").unwrap(), 1);
        assert!(store.delete("r").unwrap() && !store.delete("r").unwrap());
        assert!(store.results("r").unwrap().is_empty(), "with its results");
    }

    #[test]
    fn a_newer_and_a_foreign_file_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("evals.db");
        drop(EvalStore::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        drop(connection);
        let text = home.path().join("notes.txt");
        std::fs::write(
            &text,
            "not a database, but long enough to be read as one ".repeat(40),
        )
        .unwrap();

        let newer = EvalStore::open(&path).unwrap_err();
        let foreign = EvalStore::open(&text).unwrap_err();

        assert!(
            matches!(newer, EvalStoreError::Newer { found: 99, .. }),
            "{newer}"
        );
        assert!(
            matches!(foreign, EvalStoreError::Foreign { .. }),
            "{foreign}"
        );
    }
}
