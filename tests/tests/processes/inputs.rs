//! Inputs in every form and from everywhere: files, pipes and standard input, packed or not, for
//! each command that reads records, names or operations.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::{fail, hdl, program, run, succeed};
use handle_tests::records_server::RecordsServer;
use serde_json::{Value as Json, json};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Records of each input: more than a pipe holds, and more than one buffer of a reader.
const RECORDS: usize = 6000;

fn target(number: usize) -> String {
    format!("https://example.org/s/{number}/{}", "x".repeat(60))
}

/// The same records in every form, by name.
fn forms() -> Vec<(&'static str, String)> {
    let each = |text: &dyn Fn(usize, &str) -> String| -> String {
        (0..RECORDS).map(|number| text(number, &target(number))).collect()
    };
    let object = |number: usize, url: &str| {
        json!({ "handle": format!("20.500.9/S{number:05}"), "values": [{ "index": 1, "type": "URL", "data": url,
            "timestamp": "2016-04-29T01:01:06Z" }] })
    };
    let line = |number: usize, url: &str| format!("{}\n", object(number, url));
    let array: Vec<Json> = (0..RECORDS).map(|number| object(number, &target(number))).collect();
    let records: serde_json::Map<String, Json> =
        array.iter().map(|record| (record["handle"].as_str().unwrap().to_owned(), record.clone())).collect();
    let row = |number: usize, url: &str| {
        format!("20.500.9/S{number:05}\t1\tURL\t{url}\t0\t86400\t1461891666\t\\N\tt\tt\tt\tf\n")
    };
    let copy = "COPY public.handles (handle, idx, type, data, ttl_type, ttl, \"timestamp\", refs, admin_read, \
                admin_write, pub_read, pub_write) FROM stdin;\n";
    vec![
        ("lines", format!("\u{feff}# records\r\n{}", each(&line).replace('\n', "\r\n"))),
        ("indented", each(&|number, url| serde_json::to_string_pretty(&object(number, url)).unwrap() + "\n")),
        ("array", serde_json::to_string_pretty(&array).unwrap()),
        ("export", json!({ "homedPrefixes": [], "handleRecords": records }).to_string()),
        (
            "csv",
            format!(
                "sep=;\r\nhandle;index;type;data;timestamp\r\n{}",
                each(&|number, url| {
                    format!("20.500.9/S{number:05};1;URL;{url};2016-04-29T01:01:06Z\r\n")
                })
            ),
        ),
        (
            "mysqldump",
            each(&|number, url| {
                format!(
                    "INSERT INTO `handles` VALUES ('20.500.9/S{number:05}',1,'URL','{url}',0,86400,1461891666,'',1,1,1,0);\n"
                )
            }),
        ),
        ("pg_dump", format!("{copy}{}\\.\n", each(&row))),
        ("copy", each(&row)),
    ]
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), text.to_vec());
    let writer = std::thread::spawn(move || stdin.write_all(&text).unwrap());
    let mut packed = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut packed).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    packed
}

/// Runs a command with `input` at its standard input, which is a pipe.
fn fed(mut command: Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // A command that fails reads nothing more.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(output: &Output) -> String {
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    format!("{:?} {out}{error}", output.status.code())
}

/// A new store with what is imported, and its export.
struct Stores {
    directory: tempfile::TempDir,
    count: AtomicUsize,
}

impl Stores {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), count: AtomicUsize::new(0) }
    }

    fn import(&self, input: &str) -> (PathBuf, Command) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let store = self.directory.path().join(format!("{number}.redb"));
        let mut command = hdl(["import"]);
        command.arg(&store).args([input, "--create"]).current_dir(self.directory.path());
        (store, command)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.directory.path().join(name), bytes).unwrap();
        name.to_owned()
    }
}

fn exported(store: &Path) -> String {
    let mut command = hdl(["export"]);
    command.arg(store).arg("-");
    succeed(command)
}

#[test]
fn every_form_is_imported_whole_from_files_pipes_and_packed() {
    let stores = Stores::new();
    let mut expected: Option<String> = None;
    for (form, input) in forms() {
        let packed = gzip(input.as_bytes());
        let file = stores.write(form, &input);
        let (store, command) = stores.import(&file);
        succeed(command);
        let mut found = vec![("file", exported(&store))];
        for (place, bytes) in
            [("-", input.as_bytes()), ("/dev/stdin", input.as_bytes()), ("/dev/stdin", &packed)]
        {
            let (store, command) = stores.import(place);
            let output = fed(command, bytes);
            assert!(output.status.success(), "{form} {place}: {}", text(&output));
            found.push((place, exported(&store)));
        }
        let file = stores.write(&format!("{form}.gz"), &packed);
        let (store, command) = stores.import(&file);
        succeed(command);
        found.push(("gzip", exported(&store)));
        for (place, found) in found {
            assert_eq!(found.lines().count(), RECORDS, "{form} {place}");
            let expected = expected.get_or_insert_with(|| found.clone());
            assert!(found == *expected, "{form} {place}");
        }
        // A pipe that ends early is no whole input, where the form shows it.
        let (_, command) = stores.import("/dev/stdin");
        let output = fed(command, &packed[..packed.len() - 10]);
        assert!(
            text(&output).starts_with("Some(1) ") && text(&output).contains("cut"),
            "{form}: {}",
            text(&output)
        );
    }
}

#[test]
fn a_fifo_and_a_descriptor_of_the_shell_are_read_once() {
    let stores = Stores::new();
    let (_, lines) = forms().swap_remove(0);
    let file = stores.write("records.jsonl", &lines);
    let fifo = stores.directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (store, mut command) = stores.import("fifo");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    std::fs::File::options().write(true).open(&fifo).unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(exported(&store).lines().count(), RECORDS);
    // `<(...)` of a shell, for the other commands that read records.
    let program = program("handle-cli", "hdl");
    for (arguments, expected) in [
        ("import piped.redb <(cat records.jsonl) --create", "6,000 written"),
        ("reconcile <(cat records.jsonl) records.jsonl", "6,000"),
        ("reconcile records.jsonl <(gzip -c records.jsonl)", "6,000"),
        ("snapshot publish set <(cat records.jsonl)", "6,000 handles"),
        ("snapshot build layer <(gzip -c records.jsonl)", "6,000 handles"),
        ("batch <(cat records.jsonl) --dry-run", "6,000 operations, 0 invalid"),
    ] {
        let mut bash = Command::new("bash");
        bash.current_dir(stores.directory.path())
            .arg("-c")
            .arg(format!("'{}' {arguments}", program.display()));
        let output = run(bash);
        assert!(
            output.status.success() && text(&output).contains(expected),
            "{arguments}: {}",
            text(&output)
        );
    }
    drop(file);
}

#[test]
fn what_has_no_end_ends_with_an_error() {
    let program = program("handle-cli", "hdl");
    for arguments in [
        &["batch", "/dev/zero"][..],
        &["batch", "/dev/zero", "--dry-run"],
        &["reconcile", "/dev/zero", "/dev/zero"],
        &["resolve", "--file", "/dev/zero", "--server", "127.0.0.1:9"],
        &["import", "/nonexistent/store.redb", "/dev/zero", "--create"],
        &["import", "/nonexistent/store.redb", "/dev/zero", "--create", "--from", "lines", "--keep-going"],
    ] {
        let mut bounded = Command::new("timeout");
        bounded.arg("30").arg(&program).args(arguments).stdin(Stdio::null());
        let (code, error) = fail(bounded);
        assert!(code == 1 || code == 2, "{arguments:?}: {code} {error}");
    }
    // Endless lines that are no operations: one block, or many.
    for (lines, expected) in
        [("nothing", "no end of a block"), ("$'x\\n'", "more than 10000 invalid operations")]
    {
        let mut endless = Command::new("bash");
        endless.args(["-c", &format!("yes {lines} | timeout 60 '{}' batch -", program.display())]);
        let (code, error) = fail(endless);
        assert!(code == 1 && error.contains(expected), "{lines}: {code} {error}");
    }
}

#[test]
fn batches_are_records_in_any_form() {
    let batch = "CREATE 10.1/a\n1 URL 86400 1110 UTF8 x\n\nCREATE 10.1/b\n1 URL 86400 1110 UTF8 y\n";
    let url = |data: &str| json!([{ "index": 1, "type": "URL", "data": data }]);
    let lines = [
        json!({ "handle": "10.1/a", "values": url("x") }),
        json!({ "handle": "10.1/b", "values": url("z") }),
        json!({ "operation": "modify", "handle": "10.1/b", "values": url("y") }),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let table = "handle;index;type;data\n10.1/a;1;URL;x\n10.1/b;1;URL;y\n";
    let mut expected = None;
    for (name, input) in [("batch", batch), ("lines", &lines), ("table", table)] {
        for input in
            [input.as_bytes().to_vec(), format!("\u{feff}{input}").into_bytes(), gzip(input.as_bytes())]
        {
            let server = RecordsServer::start();
            let mut command = hdl(["batch", "/dev/stdin", "--allow-cleartext-secrets", "--server"]);
            command.arg(server.address.to_string());
            let output = fed(command, &input);
            assert!(output.status.success(), "{name}: {}", text(&output));
            let records = server.records();
            assert_eq!(records.len(), 2, "{name}");
            assert_eq!(expected.get_or_insert_with(|| records.clone()), &records, "{name}");
        }
    }
}

#[test]
fn a_dump_that_is_cut_is_refused() {
    let stores = Stores::new();
    let (_, dump) = forms().into_iter().find(|(form, _)| *form == "pg_dump").unwrap();
    let end = dump.rfind("\\.").unwrap();
    let (_, command) = stores.import(&stores.write("cut.sql", &dump[..end]));
    let (code, error) = fail(command);
    assert!(code == 1 && error.contains("the line `\\.` after the rows"), "{error}");
    assert!(error.contains("nothing was written"), "{error}");
    let named = format!("--\n-- PostgreSQL database dump\n--\n{dump}");
    let (store, command) = stores.import(&stores.write("named.sql", &named));
    let output = run(command);
    assert!(output.status.success() && text(&output).contains("it may be cut"), "{}", text(&output));
    assert_eq!(exported(&store).lines().count(), RECORDS);
    let complete = format!("{named}--\n-- PostgreSQL database dump complete\n--\n");
    let (_, command) = stores.import(&stores.write("complete.sql", &complete));
    assert!(!text(&run(command)).contains("cut"));
}

/// PostgreSQL writes rows in the order in which they were changed.
#[test]
fn a_dump_of_tables_that_were_changed_is_imported_whole() {
    let Some(server) = PostgresServer::shared() else { return };
    let database = server.new_database();
    let name = database.split(['/', '?']).nth(3).unwrap().to_owned();
    server.psql(&name, super::sources_tables::TABLES);
    server.psql(
        &name,
        "INSERT INTO handles SELECT convert_to('10.1/R' || n, 'UTF8'), idx, 'URL', 'x', 0, 86400, 1700000000, '', \
         true, true, true, false FROM generate_series(1, 300) AS n, generate_series(1, 3) AS idx; \
         UPDATE handles SET data = 'changed' WHERE idx = 2;",
    );
    let stores = Stores::new();
    let host = database.split("host=").nth(1).unwrap().split('&').next().unwrap();
    for (name_of_input, arguments) in [
        ("dump.sql", format!("pg_dump -h {host} -U handle {name}")),
        ("inserts.sql", format!("pg_dump --inserts -h {host} -U handle {name}")),
        (
            "rows.tsv",
            format!(
                "psql -h {host} -U handle -d {name} -c '\\copy handles (handle, idx, type, data, ttl_type, \
            ttl, timestamp, refs, admin_read, admin_write, pub_read, pub_write) TO STDOUT'"
            ),
        ),
    ] {
        let dump = run({
            let mut command = Command::new("bash");
            command.args(["-c", &format!("PATH=$PATH:$(echo /usr/lib/postgresql/*/bin); {arguments}")]);
            command
        });
        assert!(dump.status.success(), "{}", text(&dump));
        let (store, command) = stores.import(&stores.write(name_of_input, &dump.stdout));
        let shown = succeed(command);
        assert!(shown.contains("300 records: 300 written"), "{name_of_input}: {shown}");
        let lines = exported(&store);
        let records = lines.lines().filter(|line| line.contains("\"values\""));
        for record in records {
            let record: Json = serde_json::from_str(record).unwrap();
            let values: Vec<_> = record["values"].as_array().unwrap().iter().collect();
            let data = |at: usize| values[at]["data"]["value"].as_str();
            assert_eq!((values.len(), data(0), data(1)), (3, Some("x"), Some("changed")), "{record}");
        }
    }
}
