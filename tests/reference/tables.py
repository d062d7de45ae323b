"""The tables of a server of the reference that keeps its records in PostgreSQL: every column, both ways.

Its JDBC driver is Debian's package `libpostgresql-jdbc-java`, in /usr/share/java, or JDBC names it."""

import base64
import glob
import json
import os
import shutil
import subprocess
from pathlib import Path

import services
from processes import free_port, run
from services import Reference, folded, value

DRIVER = os.environ.get("JDBC", "/usr/share/java/postgresql.jar")
PROGRAMS = max(glob.glob("/usr/lib/postgresql/*/bin"), default="")
TABLES = """CREATE TABLE nas (na BYTEA NOT NULL, PRIMARY KEY (na));
CREATE TABLE handles (handle BYTEA NOT NULL, idx INT4 NOT NULL, type BYTEA, data BYTEA, ttl_type INT2, ttl INT4,
    timestamp INT4, refs TEXT, admin_read BOOL, admin_write BOOL, pub_read BOOL, pub_write BOOL, PRIMARY KEY (handle, idx));"""
NAMES = ["plain", "with blank", "ümläut-日本", "percent%20", "quote'\"s", "back\\slash", "tab\tname", "q?x#y", "MiXed", "nl\nx",
         "%0041", "😀", "colon:and:more"]
# Rows as other programs write them, which the reference reads as well.
FOREIGN_REFERENCES = ["1:A\t2:B", "1:A%00092:B%0009", "1:A%20B", "1:é", "1:%00e9", "1:A%2520", "1:A%", "1:A%00", "1:A\\qB", "1: A"]


class Database:
    """A server of PostgreSQL below a directory, as the user `postgres` if this one is root."""

    def __init__(self, directory):
        self.directory, self.port = Path(directory), free_port()
        self.directory.mkdir(parents=True)
        self.user = []
        if os.getuid() == 0:
            self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            for path in (self.directory, *self.directory.parents):
                if path == Path("/tmp"):
                    break
                path.chmod(0o711)
            shutil.chown(self.directory, "postgres")
        self.program("initdb", "-D", self.directory / "data", "-U", "handle", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        options = f"-p {self.port} -k {self.directory} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.program("pg_ctl", "-D", self.directory / "data", "-o", options, "-l", self.directory / "log", "-w", "start")

    def program(self, name, *args, check=True):
        command = [*self.user, f"{PROGRAMS}/{name}", *map(str, args)]
        done = subprocess.run(command, cwd="/tmp", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if check and done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr.decode()[-500:]}")
        return done.stdout

    def stop(self):
        self.program("pg_ctl", "-D", self.directory / "data", "-m", "immediate", "stop", check=False)

    def connection(self, name):
        return ["-h", "127.0.0.1", "-p", self.port, "-U", "handle", "-d", name]

    def psql(self, name, *statements):
        options = [option for statement in statements for option in ("-c", statement)]
        return self.program("psql", *self.connection(name), "-At", "-v", "ON_ERROR_STOP=1", *options).decode()

    def create(self, name):
        self.psql("postgres", f"CREATE DATABASE {name}")
        self.psql(name, TABLES)
        return self

    def dump(self, name, *options):
        return self.program("pg_dump", *self.connection(name), *options)

    def url(self, name):
        return f"postgresql://handle@127.0.0.1:{self.port}/{name}"


def distribution(directory):
    """The distribution with the driver on its class path."""
    made = Path(directory)
    shutil.copytree(f"{services.REFERENCE}/bin", made / "bin")
    (made / "lib").mkdir()
    for jar in [*Path(services.REFERENCE, "lib").iterdir(), Path(DRIVER)]:
        (made / "lib" / jar.name).symlink_to(jar)
    return made


def settings(database, name):
    """Settings for config.dct; the storage of the directory is not used."""
    return f""""storage_type" = "sql"
    "sql_settings" = {{ "sql_url" = "jdbc:postgresql://127.0.0.1:{database.port}/{name}" "sql_driver" = "org.postgresql.Driver"
        "sql_login" = "handle" "sql_passwd" = "handle" "sql_read_only" = "no" }}"""


def records(service):
    """Values that use every column in every way."""
    def referring(index, *references):
        return {**value(index, "REFS", "x"), "references": [{"handle": handle, "index": at} for handle, at in references]}
    made = []
    for name in NAMES:
        handle = f"{service.prefix}/{name}"
        made.append({"handle": handle, "values": [
            {**value(1, "URL", f"https://example.org/{name}"), "timestamp": "2020-01-01T00:00:00Z"},
            {**value(2, "Tüp%25'x", "d\tx\\y\n", permissions="0111"), "ttl": "2030-01-01T00:00:00Z", "timestamp": "2001-02-03T04:05:06Z"},
            {**value(3, "BLOB", base64.b64encode(bytes(range(256))).decode(), "base64"), "timestamp": "2020-01-01T00:00:00Z"},
            {**value(4, "EMPTY", ""), "timestamp": "2020-01-01T00:00:00Z"},
            {**referring(5, (handle, 1), ("0.NA/10.1", 200), ("a:b", -3), ("", 7)), "timestamp": "2020-01-01T00:00:00Z"},
            {**referring(6, (handle, 300)), "timestamp": "2020-01-01T00:00:00Z"},
            {**value(7, "LATE", "x"), "timestamp": "2037-01-01T00:00:00Z", "ttl": 0},
        ]})
    return made


def plain(records):
    """Records by name; the values by index, without the times that an import gives."""
    def one(record):
        return {each["index"]: {name: member for name, member in each.items()
                                if name != "timestamp" or not member.startswith("1970")} for each in record["values"]}
    return {name: one(record) for name, record in records.items()}


def storage_of(service, name):
    """The records of the reference, as its own program writes them."""
    file = service.directory / name
    done = service.java_at("apps.tools.StorageToJson", service.home, file)
    if not file.exists():
        raise RuntimeError(f"StorageToJson: {done.brief()}")
    return json.loads(file.read_text())["handleRecords"]


def ours_of(checks, service, what, *source):
    """What `hdl import` reads, as `hdl export` writes it for the reference."""
    store, file = service.directory / f"{what}.redb", service.directory / f"{what}.json"
    done = service.hdl("import", store, *source, "--create")
    checks.that(f"hdl import of {what}", done.code == 0, done.brief())
    done = service.hdl("export", store, file, "--format", "reference")
    checks.that(f"hdl export of {what}", done.code == 0, done.brief())
    return json.loads(file.read_text())["handleRecords"]


def equal_records(checks, what, found, expected):
    found, expected = plain(found), plain(expected)
    checks.equal(f"{what}: the same handles", sorted(found), sorted(expected))
    for name in sorted(set(found) & set(expected)):
        checks.equal(f"{what}: {name[:40]!r}", found[name], expected[name])


def reading(checks, service, database):
    """What the reference has written, we read as it does: from dumps, as they are and after changes."""
    expected = storage_of(service, "reference.json")
    for what, options in (("dump.sql", ()), ("inserts.sql", ("--inserts",))):
        (service.directory / what).write_bytes(database.dump("theirs", *options))
        equal_records(checks, what, ours_of(checks, service, what, service.directory / what), expected)
    database.psql("theirs", "UPDATE handles SET ttl = 7 WHERE idx IN (2, 5)")
    (service.directory / "changed.sql").write_bytes(database.dump("theirs"))
    changed = storage_of(service, "changed.json")
    equal_records(checks, "changed.sql", ours_of(checks, service, "changed.sql", service.directory / "changed.sql"), changed)


def reading_foreign(checks, service, database):
    """Rows that other programs have written."""
    for number, text in enumerate(FOREIGN_REFERENCES, 1):
        quoted = text.replace("'", "''")
        database.psql("theirs", f"INSERT INTO handles VALUES ('{service.prefix}/FOREIGN{number}', 1, 'URL', 'x', 0, 1, 1, "
                                f"'{quoted}', true, true, true, false)")
    database.psql("theirs", f"INSERT INTO handles VALUES ('{service.prefix}/NULLS', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
                            "true, NULL)", f"INSERT INTO handles VALUES ('{service.prefix}/LATER', 1, 'URL', 'x', 1, -1770359296, "
                            "-1770359296, '', true, true, true, false)")
    (service.directory / "foreign.sql").write_bytes(database.dump("theirs"))
    expected = storage_of(service, "foreign.json")
    equal_records(checks, "foreign rows", ours_of(checks, service, "foreign.sql", service.directory / "foreign.sql"), expected)


def writing(checks, service, database):
    """What we write into the columns of references, the reference reads as the same: by `hdl export` and its loader, and
    back through its own storage into the same rows."""
    rows = "SELECT encode(handle, 'hex'), idx, encode(type, 'hex'), md5(data), ttl_type, ttl, timestamp, refs, admin_read, admin_write, " \
           "pub_read, pub_write FROM handles ORDER BY 1, 2"
    before = database.psql("theirs", rows)
    store, file = service.directory / "again.redb", service.directory / "again.json"
    (service.directory / "all.sql").write_bytes(database.dump("theirs"))
    done = service.hdl("import", store, service.directory / "all.sql", "--create")
    checks.that("hdl import of everything", done.code == 0, done.brief())
    service.hdl("export", store, file, "--format", "reference")
    database.psql("theirs", "DELETE FROM handles", "DELETE FROM nas")
    done = service.java_at("apps.tools.LoadHandlesIntoStorageFromJson", "-f", file, "-h", service.home)
    checks.that("the loader of the reference takes our export", done.code == 0 and "Exception" not in done.text, done.brief())
    after = database.psql("theirs", rows)
    def untimed(text):
        # An import gives a time to values that have none.
        return sorted("|".join(part for at, part in enumerate(line.split("|")) if at != 6) for line in text.splitlines())
    checks.equal("the rows are the same as before", untimed(after), untimed(before))


def all_groups(checks, directory):
    """Reads and writes the tables; skipped, with a word, where a program is missing."""
    if not PROGRAMS or not Path(DRIVER).exists():
        print("skipped: PostgreSQL or its JDBC driver is not installed (Debian: postgresql, libpostgresql-jdbc-java)")
        return
    directory = Path(directory)
    directory.mkdir(parents=True)
    original = services.REFERENCE
    services.REFERENCE = str(distribution(directory / "distribution"))
    database = Database(directory / "database").create("theirs")
    try:
        service = Reference(directory / "reference", "20.500.7")
        service.make(records, settings=settings(database, "theirs"))
        found = set(storage_of(service, "first.json"))
        checks.that("the reference keeps its records in the tables", {folded(f"{service.prefix}/{name}") for name in NAMES} <= found)
        checks.attempt("tables: reading", reading, service, database)
        checks.attempt("tables: writing", writing, service, database)
        checks.attempt("tables: rows of other programs", reading_foreign, service, database)
    finally:
        database.stop()
        services.REFERENCE = original
