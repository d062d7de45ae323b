"""A mirror of the reference that follows our handle-admin, and ours that follows a server of the reference:
all records first, and then the transactions of each change."""

import json
import time
from pathlib import Path

from processes import Daemon, free_port, listens, run
from records import starting_records
from services import JAVA, REFERENCE, Ours, Reference, reference_program

# The time in which a mirror asks again, with room for a loaded machine.
TIMEOUT_S = 150


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

    def dump(self):
        """Gets all records. A mirror that is told to dump only says so; its operator runs this program."""
        return reference_program(self.primary.client_directory, "dumpfromprimary", self.home)

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


def homed_at(service):
    """The homed prefixes of the published set, as the names of their records."""
    lines = [json.loads(line) for line in service.hdl("export", service.home / "snapshot", "-").out.splitlines()]
    return [line["homed"] for line in lines if "homed" in line]


def waits_for(question, expected):
    """Repeats a question until the answer is as expected; returns the last answer."""
    until = time.monotonic() + TIMEOUT_S
    while (found := question()) != expected and time.monotonic() < until:
        time.sleep(1)
    return found


def dumping(checks, primary, mirror):
    done = mirror.dump()
    checks.that("hdl-dumpfromprimary gets all records", done.code == 0 and "Exception" not in done.text, done.brief())
    dumps = [it["progress"]["dumps"] for it in mirrors_of(primary)]
    checks.equal("handle-admin has sent one dump", dumps, [1])
    mirror.start()
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
    status = primary.hdl("control", "status", "--socket", primary.home / "run" / "handle-admin.sock", "--json")
    return json.loads(status.out).get("mirrors", []) if status.code == 0 else []


class OurMirror(Ours):
    """A handle-admin and a handled that follow a primary."""

    def follow(self, primary):
        site = self.home / "siteinfo.json"
        site.write_text(json.dumps(json.loads(site.read_text()) | {"primarySite": False}))
        with open(self.home / "handle-admin.toml", "a") as file:
            file.write(f'''
[[mirror.primary]]
name = "reference"
site = "{primary.home / "siteinfo.json"}"
addresses = ["{primary.administration}"]
identity = "{primary.admin}"
key_file = "{primary.key}"
''')
        return self

    def status(self):
        shown = self.hdl("mirror", "status", "--socket", self.home / "run" / "handle-admin.sock", "--json")
        return json.loads(shown.out)[0]


def ours_dumping(checks, primary, mirror):
    mirror.start()
    checks.equal("our mirror dumps all records", waits_for(lambda: mirror.status()["counts"]["dumps"], 1), 1)
    for record in starting_records(primary):
        same_at_both(checks, primary, mirror, record["handle"], "after our dump")
    found = mirror.hdl("export", mirror.home / "snapshot", "-")
    lines = [json.loads(line) for line in found.out.splitlines()]
    names = {line.get("handle", "").upper() for line in lines}
    wanted = {record["handle"].upper() for record in starting_records(primary)}
    upper = lambda text: "".join(char.upper() if char.isascii() else char for char in text)
    missing = {upper(name) for name in wanted} - {upper(name) for name in names}
    checks.equal("every record is in the set", sorted(missing), [])
    private = [value["data"]["value"] for line in lines if line.get("handle", "").upper().endswith("/LOCKED")
               for value in line["values"] if value["index"] == 2]
    checks.equal("private values are there", private, ["nobody may read this"])
    differences = waits_for(lambda: mirror.status()["homed_differences"], 0)
    checks.equal("the homed prefixes are compared and equal", differences, 0)


def ours_following(checks, primary, mirror):
    create = lambda name, *values: primary.hdl_as_admin(
        "handle", "create", f"{primary.prefix}/{name}", *values, f"100:HS_ADMIN={primary.admin}")
    for name in ("one", "two", "three"):
        done = create(name, f"1:URL=https://example.org/{name}")
        checks.that(f"{name} is created at the reference", done.code == 0, done.brief())
    primary.hdl_as_admin("handle", "update", f"{primary.prefix}/two", "1:URL=https://example.org/other")
    primary.hdl_as_admin("handle", "delete", f"{primary.prefix}/three")
    for name in ("one", "two", "three"):
        same_at_both(checks, primary, mirror, f"{primary.prefix}/{name}", "after changes at the reference")
    primary.hdl_as_admin("handle", "delete", f"{primary.prefix}/one")
    create("three", "1:URL=again")
    for name in ("one", "three"):
        same_at_both(checks, primary, mirror, f"{primary.prefix}/{name}", "after more changes at the reference")
    # What homes prefixes derived from another one, and then not any more.
    derived = f"0.NA/0.NA/{primary.prefix}"
    for command, is_homed in (("home", True), ("unhome", False)):
        done = primary.hdl_as_admin("handle", command, derived)
        checks.that(f"{derived} is changed by {command} at the reference", done.code == 0, done.brief())
        found = waits_for(lambda: derived in homed_at(mirror), is_homed)
        checks.equal(f"what our mirror homes after {command}", found, is_homed)
    checks.that("the prefix itself stays", f"0.NA/{primary.prefix}" in homed_at(mirror), homed_at(mirror))
    checks.equal("the homed prefixes are still equal", waits_for(lambda: mirror.status()["homed_differences"], 0), 0)
    refused = primary.hdl("handle", "create", f"{primary.prefix}/no", "1:URL=no", "--server", mirror.administration,
                          "--auth", primary.admin, "--key", primary.key)
    checks.that("our mirror refuses a change and names the primary",
                refused.code != 0 and primary.administration in refused.text, refused.brief())


def ours_continuing(checks, primary, mirror):
    mirror.stop()
    primary.hdl_as_admin("handle", "create", f"{primary.prefix}/while-down", "1:URL=late",
                         f"100:HS_ADMIN={primary.admin}")
    mirror.start()
    same_at_both(checks, primary, mirror, f"{primary.prefix}/while-down", "after a restart of our mirror")
    checks.equal("our mirror has not dumped again", mirror.status()["counts"]["dumps"], 0)


def ours_taking_over(checks, primary, mirror):
    primary.stop()
    socket = mirror.home / "run" / "handle-admin.sock"
    done = mirror.hdl("mirror", "promote", "--socket", socket)
    checks.that("our mirror is promoted", done.code == 0, done.brief())
    done = primary.hdl("handle", "create", f"{primary.prefix}/after", "1:URL=after", "--server", mirror.administration,
                       "--auth", primary.admin, "--key", primary.key)
    checks.that("it makes changes for the same administrator", done.code == 0, done.brief())
    found = waits_for(lambda: values_of(mirror, f"{primary.prefix}/after"), ["after"])
    checks.equal("which are resolved", found, ["after"])


def values_of(service, handle):
    found = values_at(service, handle, service.queries)
    return [it["data"]["value"] for it in found if it["type"] == "URL"] if isinstance(found, list) else found


def following_ours(checks, layout, directory):
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


def following_the_reference(checks, layout, directory):
    primary = Reference(directory / "reference", "20.500.9").make(starting_records)
    mirror = OurMirror(directory / "ours", "20.500.9", layout).make(homed=()).follow(primary)
    try:
        primary.start()
        checks.attempt("mirroring: ours dumping", ours_dumping, primary, mirror)
        checks.attempt("mirroring: ours following", ours_following, primary, mirror)
        checks.attempt("mirroring: ours continuing", ours_continuing, primary, mirror)
        checks.attempt("mirroring: ours taking over", ours_taking_over, primary, mirror)
    finally:
        mirror.stop()
        primary.stop()


def all_groups(checks, layout, directory):
    if not checks.wants("mirroring"):
        return
    following_ours(checks, layout, directory)
    following_the_reference(checks, layout, directory)
