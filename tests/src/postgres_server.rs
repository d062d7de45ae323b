//! A server of PostgreSQL for tests: started when it is first needed, and stopped with the process.

use super::needs::{TestNeed, has};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time that the server has to recover.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a server in the directory `$1` with the programs in `$2`. It runs until its standard
/// input is closed, so also when the process of the test is killed, and then removes the directory.
const SCRIPT: &str = r#"
owner=postgres
run() {
    if [ "$(id -u)" = 0 ]; then
        exec setpriv --reuid="$owner" --regid="$(id -g "$owner")" --clear-groups "$@"
    fi
    exec "$@"
}
if [ "$(id -u)" = 0 ]; then chown "$owner" "$1"; fi
cd "$1" || exit 1
(run "$2/initdb" -D "$1/data" -U handle -A trust -E UTF8 --locale=C -N) >"$1/log" 2>&1 || { cat "$1/log" >&2; exit 1; }
exec 3>&1 >/dev/null
run "$2/postgres" -D "$1/data" -k "$1" -c listen_addresses= -c fsync="$3" -c max_connections=200 >>"$1/log" 2>&1 </dev/null 3>&- &
server=$!
for _ in $(seq 1200); do
    if "$2/pg_isready" -q -h "$1" -U handle -d postgres; then echo "$server" >&3; break; fi
    sleep 0.05
done
exec 3>&-
cat
kill -INT "$server"
wait "$server"
rm -rf "$1"
"#;

/// A running server.
#[derive(Debug)]
pub struct PostgresServer {
    directory: PathBuf,
    /// The shell that stops it when its input is closed.
    shell: Child,
}

/// The directory of the programs, if they are installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let found = versions.flatten().map(|version| version.path().join("bin"));
    found.filter(|bin| bin.join("initdb").exists()).max()
}

/// The same; if there are none, the test is reported as left out.
fn installed_programs() -> Option<PathBuf> {
    let found = programs();
    has(TestNeed::Postgres, found.is_some()).then_some(found).flatten()
}

impl PostgresServer {
    /// Starts a server; `None` if its programs are not installed, for which see
    /// [`has`].
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(is_durable: bool) -> Option<Self> {
        let bin = installed_programs()?;
        let directory = tempfile::Builder::new().prefix("handle-postgres").tempdir().expect("a directory");
        let directory = directory.keep();
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).args([&directory, &bin]).arg(if is_durable { "on" } else { "off" });
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line).expect("its output");
        assert!(
            line.trim().parse::<u32>().is_ok(),
            "PostgreSQL did not start: {}",
            std::fs::read_to_string(directory.join("log")).unwrap_or_default()
        );
        Some(Self { directory, shell })
    }

    /// The server that all tests of the process share, which loses data if the machine crashes.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<PostgresServer>> = OnceLock::new();
        // Each test that lacks them is reported, not the first one alone.
        installed_programs()?;
        SHARED.get_or_init(|| Self::start(false)).as_ref()
    }

    /// Makes an empty database, and returns its URL.
    pub fn new_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        format!("postgresql:///{name}?host={}&user=handle", self.directory.display())
    }

    /// Runs a statement, and returns what `psql` prints. While the server recovers from the death
    /// of one of its processes, it is asked again.
    ///
    /// # Panics
    /// If the statement fails for another reason, or the server does not recover in time.
    pub fn psql(&self, database: &str, statement: &str) -> String {
        const RECOVERS: [&str; 3] = [
            "the database system is",
            "crash of another server process",
            "server closed the connection unexpectedly",
        ];
        let begun = Instant::now();
        loop {
            let mut psql = Command::new(programs().expect("installed").join("psql"));
            psql.arg("-h").arg(&self.directory);
            psql.args(["-U", "handle", "-d", database, "-At", "-c", statement]);
            let output = psql.output().expect("psql");
            if output.status.success() {
                return String::from_utf8_lossy(&output.stdout).trim().to_owned();
            }
            let error = String::from_utf8_lossy(&output.stderr);
            // A test that ends this connection waits for the error.
            let is_ended = error.contains("due to administrator command");
            let recovers = !is_ended && RECOVERS.iter().any(|why| error.contains(why));
            assert!(recovers && begun.elapsed() < TIMEOUT, "{statement}: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
