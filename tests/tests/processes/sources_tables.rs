//! Databases as sources of records: the tables of a reference server, served and changed in place,
//! and queries to other tables.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::value::Ttl;
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::list::{Indexes, Reference, References, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, Permissions, ResponseCode as Code, Value, ValueBuf, Values, Version};
use handle_source::{RecordSources, SourceConfig, SourceError, SourceKind};
use handle_tests::client::{TestClient, exchange_over_tcp};
use handle_tests::forwarding::{BothProcesses, answer_to, code, message};
use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::until;
use handle_tests::services::{ServicesPlan, admin, secret};

const SECRET: &[u8] = b"a secret of this service";
const ADMIN: Reference<'_> = Reference { handle: b"10.1/who", index: 301 };
const STRANGER: Reference<'_> = Reference { handle: b"10.1/who", index: 302 };

/// The tables as the manual of the reference server has them for PostgreSQL, with a column that no
/// server knows.
pub(super) const TABLES: &str = "
    CREATE TABLE nas (na BYTEA NOT NULL, PRIMARY KEY (na));
    CREATE TABLE handles (
        handle BYTEA NOT NULL, idx INT4 NOT NULL, type BYTEA, data BYTEA, ttl_type INT2, ttl INT4,
        timestamp INT4, refs TEXT, admin_read BOOL, admin_write BOOL, pub_read BOOL, pub_write BOOL,
        note TEXT DEFAULT 'new', PRIMARY KEY (handle, idx));
    INSERT INTO nas VALUES ('0.NA/10.1');";

/// The same with text and numbers in place of bytes and bits, except for data, which text cannot
/// have.
const TEXT_TABLES: &str = "
    CREATE TABLE nas (na VARCHAR(255) PRIMARY KEY);
    CREATE TABLE handles (
        handle VARCHAR(255) NOT NULL, idx BIGINT NOT NULL, type TEXT, data BYTEA, ttl_type SMALLINT,
        ttl INTEGER, timestamp BIGINT, refs TEXT, admin_read SMALLINT, admin_write CHAR(1),
        pub_read INTEGER, pub_write SMALLINT, note TEXT DEFAULT 'new', PRIMARY KEY (handle, idx));
    INSERT INTO nas VALUES ('0.NA/10.1');";

/// The transactions of a database with an advisory lock.
const HOLDERS: &str = "FROM pg_locks WHERE locktype = 'advisory' AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// A database with tables, and its name.
pub(super) struct TestDatabase {
    server: &'static PostgresServer,
    url: String,
    name: String,
}

impl TestDatabase {
    /// `None` if PostgreSQL is not installed.
    pub(super) fn new(tables: &str) -> Option<Self> {
        let server = PostgresServer::shared()?;
        let url = server.new_database();
        let name = url.split(['/', '?']).nth(3).unwrap().to_owned();
        server.psql(&name, tables);
        Some(Self { server, url, name })
    }

    pub(super) fn psql(&self, statement: &str) -> String {
        self.server.psql(&self.name, statement)
    }

    /// Waits until a transaction in this database holds an advisory lock.
    fn await_holder(&self) {
        until("a transaction is there", || self.psql(&format!("SELECT count(*) {HOLDERS}")) == "1");
    }

    pub(super) fn source(&self, kind: SourceKind) -> SourceConfig {
        SourceConfig {
            name: "database".to_owned(),
            prefixes: vec!["10.1".to_owned()],
            kind,
            database: self.url.clone(),
            timeout_ms: 20_000,
            cache_s: 0,
            ..SourceConfig::default()
        }
    }

    pub(super) fn start(&self, source: SourceConfig) -> BothProcesses {
        let records =
            vec![("0.NA/10.1", vec![admin(100, 301, "10.1/who")]), ("10.1/who", vec![secret(301, SECRET)])];
        let (here, there) =
            (ServicesPlan::new("server", &["10.1"], records), ServicesPlan::new("mirror", &["20.2"], vec![]));
        BothProcesses::start(
            &here,
            &there,
            |config| config.forward.sources = vec!["10.1".to_owned()],
            |config| config.sources = vec![source],
        )
    }
}

fn url(index: i32, target: &str) -> ValueBuf {
    ValueBuf::from(&Value::new(index, b"URL", target.as_bytes()))
}

/// What `request` gets from handle-admin, as `identity`.
fn change(processes: &BothProcesses, identity: Reference<'_>, request: &Request<'_>) -> Code {
    let server = processes.administration();
    let request = message(Version::CURRENT, 12, OpFlags::PLAIN_REQUEST, request);
    let answer = exchange_over_tcp(server, &request).unwrap();
    match code(&answer) {
        Code::AUTHENTICATION_NEEDED => {
            code(&exchange_over_tcp(server, &answer_to(&answer, identity, SECRET)).unwrap())
        }
        code => code,
    }
}

fn with_values(values: &[ValueBuf], make: impl FnOnce(Values<'_>) -> Code) -> Code {
    let mut buffer = Vec::new();
    make(Values::build(values.iter().map(ValueBuf::view), &mut buffer))
}

/// The public values of a handle, as handled answers.
pub(super) fn resolve(processes: &BothProcesses, handle: &str) -> Result<Vec<ValueBuf>, Code> {
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let request = message(Version::CURRENT, 12, OpFlags::PLAIN_REQUEST, &Request::Resolution(query));
    let answer = exchange_over_tcp(processes.queries(), &request).unwrap();
    let (envelope, rest) = Envelope::split(&answer).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    match body {
        Body::Reply(Reply { response: Response::Answer(answer), .. }) => {
            Ok(answer.values.iter().map(|value| ValueBuf::from(&value)).collect())
        }
        _ => Err(code(&answer)),
    }
}

pub(super) fn data_of(values: &[ValueBuf]) -> Vec<String> {
    values.iter().map(|value| String::from_utf8_lossy(value.view().data).into_owned()).collect()
}

/// Adds the administrator of `10.1/item`.
fn insert_administrator(database: &TestDatabase) {
    let administrator = admin(100, 301, "10.1/who");
    let data: String = administrator.view().data.iter().map(|byte| format!("{byte:02x}")).collect();
    database.psql(&format!(
        "INSERT INTO handles VALUES ('10.1/ITEM', 100, 'HS_ADMIN', '\\x{data}', 0, 60, 0, '', true, true, true, false)"
    ));
}

#[test]
fn tables_of_a_reference_server_are_served_as_they_are() {
    let Some(database) = TestDatabase::new(TABLES) else { return };
    insert_administrator(&database);
    database.psql(
        "INSERT INTO handles VALUES
            ('10.1/ITEM', 1, 'URL', 'https://a.example/', 0, 86400, 1700000000, '', true, true, true, false),
            ('10.1/ITEM', 3, 'NOTE', '\\x00ff', 1, 2000000000, 1700000001, E'1:10.1/OTHER\\t300:0.NA/10.1',
                true, true, true, true),
            ('10.1/ITEM', 2, 'SECRET', 'not for all', 0, 60, 1700000002, NULL, true, true, false, false)",
    );
    let processes = database.start(database.source(SourceKind::Tables));
    let mut encoded = Vec::new();
    Reference { handle: b"10.1/OTHER", index: 1 }.encode(&mut encoded);
    Reference { handle: b"0.NA/10.1", index: 300 }.encode(&mut encoded);
    let expected = [
        ValueBuf::from(&Value { timestamp: 1_700_000_000, ..Value::new(1, b"URL", b"https://a.example/") }),
        ValueBuf::from(&Value {
            timestamp: 1_700_000_001,
            ttl: Ttl { kind: 1, seconds: 2_000_000_000 },
            permissions: Permissions(0x0f),
            references: References::from_encoded(2, &encoded).unwrap(),
            ..Value::new(3, b"NOTE", b"\x00\xff")
        }),
    ];
    assert_eq!(resolve(&processes, "10.1/item").unwrap()[..2], expected);
    assert_eq!(resolve(&processes, "10.1/none"), Err(Code::HANDLE_NOT_FOUND));
    let mut client = TestClient::new(processes.queries());
    assert_eq!(client.resolve(b"10.1/Item").unwrap().values_count, 3);
    // What the reference server or a program writes is served at once.
    database.psql("UPDATE handles SET data = 'https://b.example/' WHERE idx = 1");
    assert_eq!(data_of(&resolve(&processes, "10.1/item").unwrap())[0], "https://b.example/");
    // Changes need `writable`.
    let delete = Request::DeleteHandle(HandleBody { handle: b"10.1/item" });
    assert_eq!(change(&processes, ADMIN, &delete), Code::OPERATION_NOT_SUPPORTED);
    assert_eq!(database.psql("SELECT count(*) FROM handles"), "4");
    // Damage is an error, and not a record without its values.
    database.psql("UPDATE handles SET refs = 'nonsense' WHERE idx = 3");
    assert_eq!(resolve(&processes, "10.1/item"), Err(Code::ERROR));
}

#[test]
fn changes_are_made_in_the_tables_as_a_reference_server_makes_them() {
    for (tables, shown) in [
        (TABLES, "encode(handle, 'escape'), idx, encode(type, 'escape'), encode(data, 'escape')"),
        (TEXT_TABLES, "handle, idx, type, encode(data, 'escape')"),
    ] {
        let Some(database) = TestDatabase::new(tables) else { return };
        let processes =
            database.start(SourceConfig { writable: true, ..database.source(SourceKind::Tables) });
        let rows = || {
            database.psql(&format!(
                "SELECT {shown}, ttl_type, ttl, refs, admin_read::TEXT, admin_write::TEXT, pub_read::TEXT, \
                 pub_write::TEXT, note FROM handles WHERE idx < 100 ORDER BY handle, idx"
            ))
        };
        let bits = |row: &str| row.replace("true", "1").replace("false", "0");
        let mut encoded = Vec::new();
        Reference { handle: b"10.1/other", index: 7 }.encode(&mut encoded);
        let note = ValueBuf::from(&Value {
            permissions: Permissions::ADMIN_READ,
            ttl: Ttl { kind: 1, seconds: 2_000_000_000 },
            references: References::from_encoded(1, &encoded).unwrap(),
            ..Value::new(2, b"NOTE", b"hidden")
        });
        let create = |values: &[ValueBuf], identity| {
            with_values(values, |values| {
                let body = HandleValues { handle: b"10.1/new", values };
                change(&processes, identity, &Request::CreateHandle(body))
            })
        };
        assert_eq!(create(&[url(1, "https://a/")], STRANGER), Code::INVALID_ADMIN);
        assert_eq!(create(&[], ADMIN), Code::INVALID_VALUE, "a table has no handle without a row");
        assert_eq!(rows(), "");
        let administrator = admin(100, 301, "10.1/who");
        assert_eq!(create(&[url(1, "https://a/"), note, administrator], ADMIN), Code::SUCCESS);
        let expected = "10.1/NEW|1|URL|https://a/|0|86400||1|1|1|0|new\n\
                        10.1/NEW|2|NOTE|hidden|1|2000000000|7:10.1/other|1|0|0|0|new";
        assert_eq!(bits(&rows()), expected);
        assert_eq!(create(&[url(1, "https://a/")], ADMIN), Code::HANDLE_ALREADY_EXISTS);
        assert_eq!(data_of(&resolve(&processes, "10.1/new").unwrap())[0], "https://a/");
        let stamp = database.psql("SELECT max(timestamp) FROM handles").parse::<u64>().unwrap();
        assert!(stamp > 1_700_000_000, "{stamp}");

        database.psql("UPDATE handles SET note = 'old'");
        let add = with_values(&[url(5, "https://c/")], |values| {
            let body = HandleValues { handle: b"10.1/new", values };
            change(&processes, ADMIN, &Request::AddValue(body))
        });
        let modify = with_values(&[url(1, "https://b/")], |values| {
            let body = HandleValues { handle: b"10.1/new", values };
            change(&processes, ADMIN, &Request::ModifyValue(body))
        });
        assert_eq!((add, modify), (Code::SUCCESS, Code::SUCCESS));
        let notes = database.psql("SELECT string_agg(idx || note, ',' ORDER BY idx) FROM handles");
        assert_eq!(notes, "1new,2old,5new,100old", "a row that stays is not touched");
        assert_eq!(data_of(&resolve(&processes, "10.1/new").unwrap())[..2], ["https://b/", "https://c/"]);

        let remove = |indexes: &[[u8; 4]]| {
            let body = HandleIndexes { handle: b"10.1/new", indexes: Indexes::new(indexes) };
            change(&processes, ADMIN, &Request::RemoveValue(body))
        };
        assert_eq!(remove(&[[0, 0, 0, 9]]), Code::VALUES_NOT_FOUND);
        let all = [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 5], [0, 0, 0, 100]];
        assert_eq!(remove(&all), Code::INVALID_VALUE, "the last");
        assert_eq!(remove(&[[0, 0, 0, 2]]), Code::SUCCESS);
        assert_eq!(database.psql("SELECT count(*) FROM handles"), "3");
        let delete = Request::DeleteHandle(HandleBody { handle: b"10.1/NEW" });
        assert_eq!(change(&processes, STRANGER, &delete), Code::INVALID_ADMIN);
        assert_eq!(change(&processes, ADMIN, &delete), Code::SUCCESS);
        assert_eq!((rows(), resolve(&processes, "10.1/new")), (String::new(), Err(Code::HANDLE_NOT_FOUND)));
        assert_eq!(change(&processes, ADMIN, &delete), Code::HANDLE_NOT_FOUND);
        let sources = processes.admin.server().shared().service.decision.sources().unwrap();
        assert_eq!(sources.iter().next().unwrap().counts().of("changed"), 5);
    }
}

#[test]
fn a_change_waits_for_another_transaction_for_its_time_at_most() {
    let Some(database) = TestDatabase::new(TABLES) else { return };
    insert_administrator(&database);
    let source = SourceConfig { writable: true, timeout_ms: 500, ..database.source(SourceKind::Tables) };
    let processes = database.start(source);
    let held = "BEGIN; UPDATE handles SET ttl = 61; SELECT pg_advisory_lock(1); SELECT pg_sleep(20)";
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| database.psql(held));
        database.await_holder();
        let delete = Request::DeleteHandle(HandleBody { handle: b"10.1/item" });
        assert_eq!(change(&processes, ADMIN, &delete), Code::SERVER_BUSY);
        // Reading does not wait.
        assert_eq!(resolve(&processes, "10.1/item").unwrap().len(), 1);
        database.psql(&format!("SELECT pg_terminate_backend(pid) {HOLDERS}"));
        assert!(holder.join().is_err(), "its connection was closed");
        assert_eq!(change(&processes, ADMIN, &delete), Code::SUCCESS);
    });
}

#[test]
fn one_of_two_creations_of_a_handle_has_to_ask_again() {
    let Some(database) = TestDatabase::new(TABLES) else { return };
    let source = SourceConfig { writable: true, ..database.source(SourceKind::Tables) };
    let processes = database.start(source);
    // Commits as soon as another transaction waits for it.
    let other = "BEGIN; SELECT pg_advisory_lock(1);
        INSERT INTO handles VALUES ('10.1/NEW', 1, 'URL', 'x', 0, 60, 0, '', true, true, true, false);
        DO $$ BEGIN FOR turn IN 1..400 LOOP
            EXIT WHEN EXISTS (SELECT FROM pg_locks
                WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)));
            PERFORM pg_sleep(0.05);
        END LOOP; END $$;
        COMMIT";
    let create = || {
        with_values(&[url(1, "https://a/")], |values| {
            let body = HandleValues { handle: b"10.1/new", values };
            change(&processes, ADMIN, &Request::CreateHandle(body))
        })
    };
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| database.psql(other));
        database.await_holder();
        assert_eq!(create(), Code::SERVER_BUSY);
        holder.join().unwrap();
    });
    assert_eq!(create(), Code::HANDLE_ALREADY_EXISTS);
    assert_eq!(database.psql("SELECT count(*) FROM handles"), "1");
}

#[test]
fn any_query_that_yields_values_is_a_source() {
    let Some(database) = TestDatabase::new(
        "CREATE TABLE items (id TEXT PRIMARY KEY, target TEXT, changed TIMESTAMPTZ);
         INSERT INTO items VALUES ('item', 'https://a.example/', '2024-01-01T00:00:00Z');",
    ) else {
        return;
    };
    let query = "SELECT 1 AS idx, 'URL' AS type, target AS data, 600 AS ttl, changed AS timestamp \
                 FROM items WHERE upper('10.1/' || id) = $1";
    let source = SourceConfig { query: query.to_owned(), ..database.source(SourceKind::Sql) };
    let processes = database.start(source);
    let values = resolve(&processes, "10.1/Item").unwrap();
    let value = values[0].view();
    assert_eq!((value.index, value.kind, value.data), (1, &b"URL"[..], &b"https://a.example/"[..]));
    assert_eq!(
        (value.ttl.seconds, value.timestamp, value.permissions),
        (600, 1_704_067_200, Permissions::DEFAULT)
    );
    assert_eq!(resolve(&processes, "10.1/none"), Err(Code::HANDLE_NOT_FOUND));
    database.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
    assert!(resolve(&processes, "10.1/Item").is_ok(), "a closed connection is replaced");
}

#[test]
fn queries_are_bounded_in_rows_bytes_and_time() {
    let Some(database) = TestDatabase::new("CREATE TABLE items (id TEXT)") else { return };
    let ask = |query: &str, change: fn(&mut SourceConfig)| {
        let mut source = SourceConfig { query: query.to_owned(), ..database.source(SourceKind::Sql) };
        change(&mut source);
        let sources = RecordSources::open(&[source], true).unwrap();
        let record = sources.of(b"10.1/A").unwrap().record(b"10.1/A");
        record.map(|record| record.map_or(0, |record| record.view().values.len()))
    };
    let rows = |rows: u32, len: u32| {
        format!(
            "SELECT n AS idx, 'a' AS type, repeat('x', {len}) AS data FROM generate_series(1, {rows}) AS n WHERE $1 <> ''"
        )
    };
    let plain = |_: &mut SourceConfig| ();
    assert_eq!(ask(&rows(0, 1), plain), Ok(0));
    assert_eq!(ask(&rows(4, 255), plain), Ok(4));
    // 1 MiB with the types is read, and is more than a record may have.
    assert!(matches!(ask(&rows(1024, 1023), plain), Err(SourceError::Invalid(_))));
    assert_eq!(ask(&rows(1024, 1024), plain), Err(SourceError::TooLong));
    assert_eq!(ask(&rows(1, 20_000_000), plain), Err(SourceError::TooLong));
    assert_eq!(ask(&rows(2048, 10), plain), Ok(2048));
    for count in [2049, 1_000_000] {
        assert!(matches!(ask(&rows(count, 10), plain), Err(SourceError::Invalid(_))), "{count}");
    }
    let short = |source: &mut SourceConfig| source.timeout_ms = 100;
    let sleep = "SELECT 1 AS idx, 'a' AS type, 'b' AS data FROM pg_sleep(60) WHERE $1 <> ''";
    assert_eq!(ask(sleep, short), Err(SourceError::Late));
    for (query, part) in [
        ("SELECT 1 AS idx, 'a' AS type WHERE $1 <> ''", "no column `data`"),
        ("SELEKT $1", "syntax error"),
        ("DELETE FROM items WHERE id = $1 RETURNING 1 AS idx, 'a' AS type, 'b' AS data", "syntax error"),
        ("SELECT 1 AS idx, 'a' AS type, 'b' AS data, 'x' AS ttl WHERE $1 <> ''", "bigint"),
    ] {
        let asked = ask(query, plain);
        assert!(matches!(&asked, Err(SourceError::Refused(why)) if why.contains(part)), "{query}: {asked:?}");
    }
    let far = "SELECT 99999999999 AS idx, 'a' AS type, 'b' AS data WHERE $1 <> ''";
    assert!(matches!(ask(far, plain), Err(SourceError::Invalid(why)) if why.contains("`idx`")));
    let away = SourceConfig {
        database: "postgresql://u@127.0.0.1:9/d".to_owned(),
        ..database.source(SourceKind::Tables)
    };
    let sources = RecordSources::open(&[away], true).unwrap();
    assert!(matches!(sources.of(b"10.1/A").unwrap().record(b"10.1/A"), Err(SourceError::Unreachable(_))));
}
