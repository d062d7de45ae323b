//! Databases of PostgreSQL as sources: any query that yields values, and the tables of a reference
//! server, which are also written.

mod pages;

pub(crate) use pages::DatabasePages;

use crate::config::{SourceConfig, SourceKind};
use crate::error::SourceError;
use crate::guarded::SourceAnswer;
use crate::rows::{bounded_query, differences, record_of};
use crate::{RecordSource, SourceChange};
use handle_proto::sql::{VALUE_COLUMNS, write_references};
use handle_proto::{Permissions, Value, Values};
use handle_store::{Database, DatabaseConnection, DatabaseParameter, PostgresConfig, RecordBuf, StoreError};
use std::fmt;
use std::time::Duration;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

/// The columns of the tables of a reference server. What is NULL there is zero, false or empty, as
/// for that server.
macro_rules! table_columns {
    () => {
        "SELECT handle, idx, type, data, coalesce(ttl_type, 0) AS ttl_type, coalesce(ttl, 0) AS ttl, \
         coalesce(\"timestamp\", 0) AS \"timestamp\", refs, coalesce(admin_read::TEXT, '0') AS admin_read, \
         coalesce(admin_write::TEXT, '0') AS admin_write, coalesce(pub_read::TEXT, '0') AS pub_read, \
         coalesce(pub_write::TEXT, '0') AS pub_write FROM handles"
    };
}

/// The rows of all handles in these tables.
const TABLE_LIST: &str = table_columns!();
/// Those of one handle.
const TABLE_QUERY: &str = concat!(table_columns!(), " WHERE handle = $1");
/// The same, which other transactions may not change until the end of this one.
const LOCKING_QUERY: &str = "SELECT handle FROM handles WHERE handle = $1 FOR UPDATE";
const DELETION: &str = "DELETE FROM handles WHERE handle = $1 AND idx = $2";

/// A database.
#[derive(Debug)]
pub(crate) struct DatabaseSource {
    database: Database,
    query: String,
    bytes_max: usize,
    is_writable: bool,
}

impl From<StoreError> for SourceError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Server(server) if server.is_late() => Self::Late,
            StoreError::Server(server) if server.is_conflict() => Self::Conflict,
            StoreError::Server(server) if server.is_lost() => Self::Unreachable(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// The database of `config`, which ends a transaction that is `idle` for so long. Nothing is
/// connected yet.
fn database(config: &SourceConfig, idle: Duration) -> Result<Database, String> {
    let postgres = PostgresConfig {
        url: config.database.clone(),
        password_file: config.password_file.clone(),
        ca_file: config.ca_file.clone(),
        connections: config.outstanding,
        timeout_ms: config.timeout_ms,
        ..PostgresConfig::default()
    };
    // The database stops before the client does, which keeps the connection.
    let statement_ms = config.timeout_ms - config.timeout_ms / 10;
    let setup = format!(
        "SET statement_timeout = {statement_ms}; SET idle_in_transaction_session_timeout = {}; \
         SET default_transaction_read_only = {}",
        idle.as_millis(),
        if config.writable { "off" } else { "on" },
    );
    Database::new(&postgres, &setup).map_err(|error| error.to_string())
}

impl DatabaseSource {
    /// The database of `config`. Nothing is connected yet.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub(crate) fn open(config: &SourceConfig) -> Result<Self, String> {
        let is_query = config.kind == SourceKind::Sql;
        Ok(Self {
            database: database(config, config.timeout())?,
            query: if is_query { config.query.clone() } else { TABLE_QUERY.to_owned() },
            bytes_max: config.answer_bytes,
            is_writable: config.writable,
        })
    }

    fn read(&self, connection: &DatabaseConnection<'_>, key: &[u8]) -> Result<SourceAnswer, StoreError> {
        let columns = connection.columns(&self.query)?;
        let query = match bounded_query(&self.query, &columns, self.bytes_max) {
            Ok(query) => query,
            Err(error) => return Ok(Err(error)),
        };
        let rows = connection.query(&query, &[&ColumnParameter::Bytes(key)])?;
        Ok(record_of(key, &rows, self.bytes_max))
    }
}

impl RecordSource for DatabaseSource {
    fn record(&self, key: &[u8]) -> SourceAnswer {
        match str::from_utf8(key) {
            Ok(name) if !name.contains('\0') => {
                self.database.read(|connection| self.read(connection, key)).map_err(SourceError::from)?
            }
            // Texts of a database cannot have such a name.
            _ => Ok(None),
        }
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&RecordBuf>) -> SourceChange,
    ) -> Result<bool, SourceError> {
        let transaction = self.database.begin()?;
        let connection = transaction.connection();
        connection.query(LOCKING_QUERY, &[&ColumnParameter::Bytes(key)])?;
        let before = self.read(&connection, key)??;
        let values = before.as_ref().map_or(Values::EMPTY, |record| record.view().values);
        match decide(before.as_ref()) {
            SourceChange::Keep => return Ok(false),
            SourceChange::Delete => write(&connection, key, values, Values::EMPTY)?,
            SourceChange::Put(record) => write(&connection, key, values, record.view().values)?,
        }
        transaction.commit()?;
        Ok(true)
    }
}

/// Replaces the rows of `before` by those of `after`. Rows that stay the same are not touched, so
/// columns that are not known here keep their contents.
fn write(
    connection: &DatabaseConnection<'_>,
    key: &[u8],
    before: Values<'_>,
    after: Values<'_>,
) -> Result<(), SourceError> {
    let (gone, new) = differences(before, after);
    for index in gone {
        let parameters: [DatabaseParameter<'_>; 2] =
            [&ColumnParameter::Bytes(key), &ColumnParameter::Number(index.into())];
        connection.execute(DELETION, &parameters)?;
    }
    let placeholders: Vec<String> = (1..=VALUE_COLUMNS.len() + 1).map(|at| format!("${at}")).collect();
    let columns: Vec<String> = VALUE_COLUMNS.iter().map(|name| format!("\"{name}\"")).collect();
    let insertion =
        format!("INSERT INTO handles (handle, {}) VALUES ({})", columns.join(", "), placeholders.join(", "));
    for value in new {
        let references = write_references(value.references).ok_or_else(|| {
            SourceError::Refused("a reference that is not UTF-8 cannot be stored".to_owned())
        })?;
        let row = row_of(key, &value, references.as_bytes());
        let parameters: Vec<DatabaseParameter<'_>> = row.iter().map(|column| column as _).collect();
        connection.execute(&insertion, &parameters)?;
    }
    Ok(())
}

/// The columns of a value, after that of the handle, in the order of [`VALUE_COLUMNS`].
fn row_of<'v>(key: &'v [u8], value: &Value<'v>, references: &'v [u8]) -> [ColumnParameter<'v>; 12] {
    use ColumnParameter::{Bit, Bytes, Number};
    let bit = |permission| Bit(value.permissions.has(permission));
    [
        Bytes(key),
        Number(value.index.into()),
        Bytes(value.kind),
        Bytes(value.data),
        Number(value.ttl.kind.into()),
        Number(value.ttl.seconds.into()),
        // Columns have 32 bits with a sign, as those of times of expiry.
        Number(value.timestamp.cast_signed().into()),
        Bytes(references),
        bit(Permissions::ADMIN_READ),
        bit(Permissions::ADMIN_WRITE),
        bit(Permissions::PUBLIC_READ),
        bit(Permissions::PUBLIC_WRITE),
    ]
}

/// A parameter in the type that the database has for it.
#[derive(Clone, Copy, Debug)]
enum ColumnParameter<'v> {
    Bytes(&'v [u8]),
    Number(i64),
    Bit(bool),
}

/// A value that the type of its column cannot have.
#[derive(Debug)]
struct UnfitColumn(Type);

impl fmt::Display for UnfitColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value does not fit into a column of type {}", self.0)
    }
}

impl std::error::Error for UnfitColumn {}

impl ToSql for ColumnParameter<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let unfit = || UnfitColumn(kind.clone());
        match *self {
            Self::Bytes(bytes) if *kind == Type::BYTEA => bytes.to_sql(kind, out),
            Self::Bytes(bytes) => str::from_utf8(bytes).map_err(|_| unfit())?.to_sql(kind, out),
            Self::Bit(bit) if *kind == Type::BOOL => bit.to_sql(kind, out),
            Self::Bit(bit) if is_text(kind) => if bit { "1" } else { "0" }.to_sql(kind, out),
            Self::Bit(bit) => Self::Number(bit.into()).to_sql(kind, out),
            Self::Number(number) if *kind == Type::INT2 => {
                i16::try_from(number).map_err(|_| unfit())?.to_sql(kind, out)
            }
            Self::Number(number) if *kind == Type::INT4 => {
                i32::try_from(number).map_err(|_| unfit())?.to_sql(kind, out)
            }
            Self::Number(number) if *kind == Type::INT8 => number.to_sql(kind, out),
            Self::Number(_) => Err(unfit().into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Binary
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(kind, out)
    }
}

fn is_text(kind: &Type) -> bool {
    [Type::TEXT, Type::VARCHAR, Type::BPCHAR].contains(kind)
}
