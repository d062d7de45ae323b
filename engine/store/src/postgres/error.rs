//! Errors of a database server.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use tokio_postgres::error::SqlState;

/// What a database server could not do. The store goes on: the server has dropped the transaction.
#[derive(Clone, Debug)]
pub struct ServerError {
    /// Database and hosts.
    server: Arc<str>,
    /// A verb, and the words up to the name of the database.
    doing: String,
    why: String,
    hint: &'static str,
    is_lost: bool,
    is_late: bool,
    is_conflict: bool,
}

impl ServerError {
    pub(super) fn new(server: Arc<str>, doing: &str, why: String) -> Self {
        Self {
            server,
            doing: doing.to_owned(),
            why,
            hint: "",
            is_lost: false,
            is_late: false,
            is_conflict: false,
        }
    }

    pub(super) fn of(server: Arc<str>, doing: &str, error: &tokio_postgres::Error) -> Self {
        let why = match (error.as_db_error(), error.source()) {
            (Some(error), _) => error.message().to_owned(),
            (None, Some(source)) => format!("{error}: {source}"),
            (None, None) => error.to_string(),
        };
        let code = error.code();
        let is_lost = error.is_closed()
            || code.is_none()
            || code.is_some_and(|code| {
                code.code().starts_with("08")
                    || [
                        &SqlState::ADMIN_SHUTDOWN,
                        &SqlState::CRASH_SHUTDOWN,
                        &SqlState::CANNOT_CONNECT_NOW,
                        &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                    ]
                    .contains(&code)
            });
        let hint = match code {
            None => "is the server running: pg_isready",
            Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
                "lower the number of connections in the settings, or raise max_connections of the server"
            }
            Some(code) if code.code().starts_with("28") => "check pg_hba.conf of the server",
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                "grant the rights on the tables to its user"
            }
            Some(code) if *code == SqlState::UNDEFINED_TABLE => {
                "are the tables there, in the search path of the user"
            }
            Some(code) if *code == SqlState::DISK_FULL => "the disk of the server is full",
            Some(_) => "",
        };
        let is_one_of = |codes: &[&SqlState]| code.is_some_and(|code| codes.contains(&code));
        let is_conflict = is_one_of(&[
            &SqlState::UNIQUE_VIOLATION,
            &SqlState::T_R_SERIALIZATION_FAILURE,
            &SqlState::T_R_DEADLOCK_DETECTED,
        ]);
        let is_late = is_one_of(&[&SqlState::QUERY_CANCELED, &SqlState::LOCK_NOT_AVAILABLE]);
        Self { server, doing: doing.to_owned(), why, hint, is_lost, is_late, is_conflict }
    }

    pub(super) fn timeout(server: Arc<str>, doing: &str) -> Self {
        let mut error = Self::new(server, doing, "no answer in time".to_owned());
        error.hint = "the server is overloaded, or a lock is held there: look into `pg_stat_activity`";
        (error.is_lost, error.is_late) = (true, true);
        error
    }

    /// Whether the time for an answer was over.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether another transaction has changed the same rows.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        self.is_conflict
    }

    /// Whether the connection is of no more use.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, doing, why, hint, .. } = self;
        write!(f, "cannot {doing} the database {server}: {why}")?;
        if hint.is_empty() { Ok(()) } else { write!(f, " ({hint})") }
    }
}

impl std::error::Error for ServerError {}
