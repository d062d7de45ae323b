"""A mirror of the reference that follows our handle-admin: it dumps all records, and then gets the
transactions of each change."""

import json
import time
from pathlib import Path

from processes import Daemon, free_port, listens, run
from records import starting_records
from services import JAVA, REFERENCE, Ours, reference_program

# The time in which a mirror asks again, with room for a loaded machine.
PATIENCE_S = 150


class Mirror:
    """A mirror of the reference in a directory of its setup program."""

    def __init__(self, directory, primary):
        self.directory, self.primary = Path(directory), primary
        self.directory.mkdir(parents=True)
        self.home = self.directory / "mirror"
        self.port, self.http_port = free_port(), free_port()
        self.daemon = None

    @property
    def queries(self):
        return f"127.0.0.1:{self.port}"

    def make(self):
        answers = ["n", "n", "192.0.2.1", "127.0.0.1", self.port, self.http_port, "n", "manual", "1", "test", "org", "me", "",
                   "me@example.org", "n", "n", "n", "n"]
        done = run(["sh", f"{REFERENCE}/bin/hdl", "setup-server", self.home], stdin="".join(f"{it}\n" for it in answers),
                   env={"JAVA_TOOL_OPTIONS": JAVA})
        path = self.home / "config.dct"
        if not path.exists():
            raise RuntimeError(f"hdl-setup-server: {done.brief()}")
        # It authenticates as the administrator of the service.
        text = path.read_text().replace("300:0.NA/YOUR_PREFIX", self.primary.admin)
        more = '"template_ns_override" = "yes"\n    "allow_na_admins" = "no"\n    "allow_recursion" = "no"'
        path.write_text(text.replace('"case_sensitive"', f'{more}\n    "case_sensitive"'))
        (self.home / "replpriv.bin").write_bytes(self.primary.key.read_bytes())
        self.name_source()
        return self

    def name_source(self):
        """Writes the site record of the primary where the mirror expects it."""
        done = reference_program(self.primary.client_directory, "convert-siteinfo", self.primary.home / "siteinfo.json",
                                 "-o", self.home / "txnsrcsv.bin")
        if not (self.home / "txnsrcsv.bin").exists():
            raise RuntimeError(f"hdl-convert-siteinfo: {done.brief()}")

    def start(self):
        options = f"{JAVA} -Xmx300m -Dnet.handle.configDir={self.primary.client_directory}"
        self.daemon = Daemon(["sh", f"{REFERENCE}/bin/hdl", "server", self.home], self.directory / "mirror.log",
                             {"JAVA_TOOL_OPTIONS": options})
        self.daemon.wait_for(lambda: listens(self.port), "the mirror")
        return self

    def stop(self):
        if self.daemon:
            self.daemon.stop()
        self.daemon = None


def values_at(service, handle, address):
    """The public values of a handle at a server, or the exit code without any."""
    found = service.hdl("resolve", handle, "--server", address, "--tcp", "--json")
    if found.code != 0:
        return found.code
    values = json.loads(found.out)
    values = values.get("values", values) if isinstance(values, dict) else values
    return sorted(values, key=lambda it: it["index"])


def waits_for(question, expected):
    """Repeats a question until the answer is as expected; returns the last answer."""
    until = time.monotonic() + PATIENCE_S
    while (found := question()) != expected and time.monotonic() < until:
        time.sleep(1)
    return found


def dumping(checks, primary, mirror):
    mirror.start()
    status = lambda: [it["progress"]["dumps"] for it in mirrors_of(primary)]
    checks.equal("the mirror dumps all records", waits_for(status, [1]), [1])
    for record in starting_records(primary):
        same_at_both(checks, primary, mirror, record["handle"], "after the dump")


def following(checks, primary, mirror):
    for name in ("one", "two", "three"):
        done = primary.hdl_as_admin("handle", "create", f"{primary.prefix}/{name}", f"1:URL=https://example.org/{name}",
                                    f"100:HS_ADMIN={primary.admin}")
        checks.that(f"{name} is created", done.code == 0, done.brief())
    done = primary.hdl_as_admin("handle", "update", f"{primary.prefix}/two", "1:URL=https://example.org/other")
    checks.that("two is changed", done.code == 0, done.brief())
    done = primary.hdl_as_admin("handle", "delete", f"{primary.prefix}/three")
    checks.that("three is deleted", done.code == 0, done.brief())
    for name in ("one", "two", "three"):
        same_at_both(checks, primary, mirror, f"{primary.prefix}/{name}", "after the first changes")
    primary.hdl_as_admin("handle", "delete", f"{primary.prefix}/one")
    primary.hdl_as_admin("handle", "create", f"{primary.prefix}/three", "1:URL=again", f"100:HS_ADMIN={primary.admin}")
    primary.hdl_as_admin("handle", "update", f"{primary.prefix}/two", "1:URL=https://example.org/last", "2:EMAIL=me@example.org")
    for name in ("one", "two", "three"):
        same_at_both(checks, primary, mirror, f"{primary.prefix}/{name}", "after the second changes")
    checks.equal("the mirror is not behind", waits_for(lambda: [it["behind"] for it in mirrors_of(primary)], [0]), [0])


def continuing(checks, primary, mirror):
    mirror.stop()
    primary.hdl_as_admin("handle", "create", f"{primary.prefix}/while-down", "1:URL=late")
    mirror.start()
    same_at_both(checks, primary, mirror, f"{primary.prefix}/while-down", "after a restart of the mirror")
    dumps = [it["progress"]["dumps"] for it in mirrors_of(primary)]
    checks.equal("the mirror has not dumped again", dumps, [1])


def same_at_both(checks, primary, mirror, handle, when):
    expected = values_at(primary, handle, primary.administration)
    found = waits_for(lambda: values_at(primary, handle, mirror.queries), expected)
    checks.equal(f"{handle[:40]} is the same {when}", found, expected)


def mirrors_of(primary):
    status = primary.hdl("control", "status", "--socket", primary.home / "run" / "handle-admin.sock")
    return json.loads(status.out).get("mirrors", []) if status.code == 0 else []


def all_groups(checks, layout, directory):
    if not checks.wants("mirroring"):
        return
    primary = Ours(directory / "primary", "20.500.8", layout).make(starting_records)
    mirror = Mirror(directory / "mirror", primary)
    try:
        primary.start()
        mirror.make()
        checks.attempt("mirroring: dumping", dumping, primary, mirror)
        checks.attempt("mirroring: following", following, primary, mirror)
        checks.attempt("mirroring: continuing", continuing, primary, mirror)
    finally:
        mirror.stop()
        primary.stop()
