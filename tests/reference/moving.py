"""Migration from a server of the reference to ours and back."""

import json
import re
import threading
import time

from foreign import answer_values, ask_as
from processes import binaries, free_port, run
from records import starting_records
from services import Ours, Reference, admin_value, file_value, folded, value


class Adopted(Ours):
    """A service of ours in a directory that `hdl init --adopt` created."""

    def __init__(self, directory, old, layout):
        super().__init__(directory, old.prefix, layout)
        self.old, self.home = old, self.directory / "service"
        self.query_port = old.query_port
        self.admin_port = old.query_port if layout == "one-port" else self.admin_port
        self.key, self.public_key = self.home / "admin-private.bin", self.home / "admin-public.bin"
        self.client_directory = old.client_directory

    def adopt(self, *more):
        return self.hdl("init", self.home, "--adopt", self.old.home, "--admin-port", self.admin_port, "--no-metrics", *more)

    def register(self):
        """Puts the new site record into the registry, which is in the same store, so that clients find it."""
        self.site = json.loads((self.home / "siteinfo.json").read_text())
        self.write_client_directory()
        site = value(1, "HS_SITE", self.site, "site")
        values = {"0.NA/0.NA": [site], f"0.NA/{self.prefix}": [
            site, admin_value(100, self.admin_handle, 300), file_value(300, "HS_PUBKEY", self.public_key)]}
        file = self.directory / "registry.jsonl"
        file.write_text("".join(json.dumps({"handle": name, "values": its}) + "\n" for name, its in values.items()))
        return self.hdl("import", self.home / "store.redb", file)


def export_of(checks, service, name):
    """Exports the storage of the reference with its own program."""
    file = service.directory / name
    done = service.java_at("apps.tools.StorageToJson", service.home, file)
    checks.that(f"StorageToJson: {name}", file.exists() and done.code == 0, done.brief())
    return file, json.loads(file.read_text())


def lines_of(export, file):
    """Writes the records as lines, for comparison by handle-loadgen."""
    file.write_text("".join(json.dumps(record) + "\n" for record in export["handleRecords"].values()))
    return file


def exporting(checks, old):
    created = old.hdl_as_admin("handle", "create", f"{old.prefix}/live", "1:URL=x", f"100:HS_ADMIN={old.admin}")
    checks.that("a record is created while the server runs", created.code == 0, created.brief())
    file, export = export_of(checks, old, "live.json")
    checks.that("StorageToJson beside the running server has the record", f"{old.prefix}/LIVE" in export["handleRecords"])
    for record in starting_records(old):
        checks.that(f"StorageToJson: {record['handle'][:40]}", folded(record["handle"]) in export["handleRecords"])
    return file, export


def adopting(checks, old, new, file, export):
    for path in (old.home, old.home / "bdbje", old.home / "bdbje" / "00000000.jdb"):
        done = new.hdl("import", new.directory / "none.redb", "--create", path)
        checks.that(f"import of {path.name} names StorageToJson", done.code != 0 and "StorageToJson" in done.err, done.brief())
    encrypted(checks, old, new)
    done = new.adopt()
    if not checks.that("init --adopt", done.code == 0, done.brief()):
        raise RuntimeError("hdl init --adopt failed")
    again = new.adopt()
    checks.that("init --adopt refuses an existing directory", again.code != 0 and "not empty" in again.err, again.brief())
    site = json.loads((new.home / "siteinfo.json").read_text())
    interfaces = {(one["protocol"], one["query"], one["admin"], one["port"]) for one in site["servers"][0]["interfaces"]}
    expected = {("TCP", True, True, old.query_port)} if new.layout == "one-port" else {
        ("TCP", True, False, old.query_port), ("TCP", False, True, new.admin_port)}
    checks.equal("the site record has the interfaces of both processes", interfaces, expected | {("UDP", True, False, old.query_port)})
    checks.equal("the serial number of the site record is higher", site["serialNumber"], old.site["serialNumber"] + 1)
    checks.equal("the key of the site record is unchanged", site["servers"][0]["publicKey"], old.site["servers"][0]["publicKey"])
    done = run(["unzip", "-p", new.home / "sitebndl.zip", "contactdata.dct"])
    checks.that("the bundle has the contact", "me@example.org" in done.out, done.brief())
    done = new.hdl("import", new.home / "store.redb", file)
    checks.that("import of the export", done.code == 0, done.brief())
    back = new.directory / "back.json"
    done = new.hdl("export", new.home / "store.redb", back, "--format", "reference")
    checks.that("export --format reference", done.code == 0, done.brief())
    same_export(checks, "our export", json.loads(back.read_text()), export)
    for name in ("handle-admin",):
        done = run([binaries() / name, "--check-config", "--config", new.home / f"{name}.toml"],
                   env={"HANDLE_ADMIN_ALLOW_ROOT": "true"})
        checks.that(f"{name} --check-config", done.code == 0, done.brief())


def same_export(checks, what, found, expected):
    checks.equal(f"{what} has the same homed prefixes", sorted(found["homedPrefixes"]), sorted(expected["homedPrefixes"]))
    checks.equal(f"{what} has the same names", sorted(found["handleRecords"]), sorted(expected["handleRecords"]))
    for name, record in expected["handleRecords"].items():
        checks.equal(f"{what}: {name[:40]}", without_new_timestamps(found["handleRecords"].get(name), record), record)


def without_new_timestamps(found, expected):
    """A record without the time stamps that `expected` lacks. An import adds time stamps where there are none."""
    undated = {value["index"] for value in expected["values"] if "timestamp" not in value}
    values = [{name: member for name, member in value.items() if name != "timestamp" or value["index"] not in undated}
              for value in (found or {}).get("values", [])]
    return found and {**found, "values": values}


def encrypted(checks, old, new):
    """A server key with a passphrase, as hdl-keyutil and hdl-convert-key write it."""
    directory = new.directory / "encrypted"
    run(["cp", "-r", old.home, directory])
    (directory / "privkey.bin").unlink()
    old.program("convert-key", "-f", "handle", "-crypt", "-passout", "a long passphrase", "-o", directory / "privkey.bin",
                new_pem(old, new.directory / "server.pem"))
    done = new.hdl("init", new.directory / "from-encrypted", "--adopt", directory)
    checks.that("adopting an encrypted key asks for its passphrase", done.code != 0 and "--server-passphrase-file" in done.err, done.brief())
    passphrase = new.directory / "server-passphrase"
    passphrase.write_text("a long passphrase")
    passphrase.chmod(0o600)
    done = new.hdl("init", new.directory / "from-encrypted", "--adopt", directory, "--server-passphrase-file", passphrase)
    checks.that("adopting an encrypted key with its passphrase", done.code == 0, done.brief())
    (directory / "privkey.bin").rename(directory / "privkey.old")
    new_pem(old, directory / "privkey.pem")
    done = new.hdl("init", new.directory / "from-pem", "--adopt", directory)
    checks.that("adopting a key in PEM", done.code == 0, done.brief())
    old.program("keygen", "-alg", "rsa", "-keysize", 2048, directory / "privkey.bin", directory / "other.bin", stdin="n\n")
    done = new.hdl("init", new.directory / "from-other", "--adopt", directory)
    checks.that("adopting a key that is not in the site record is refused", done.code != 0 and "not the key" in done.err, done.brief())


def new_pem(old, file):
    old.program("convert-key", "-f", "pem", "-o", file, old.home / "privkey.bin")
    return file


def rehearsing(checks, old, new, export):
    """Runs our service beside the old one on other ports, and compares every record at both."""
    real = (new.query_port, new.admin_port)
    new.query_port, new.admin_port = free_port(), free_port()
    new.start(handled=["--listen", f"127.0.0.1:{new.query_port}"], handle_admin=["--listen", f"127.0.0.1:{new.admin_port}"])
    records = lines_of(export, new.directory / "records.jsonl")
    # Over TCP, which handle-admin answers if both share a port.
    ours = new.administration if new.layout == "one-port" else new.queries
    for what, address in (("old", old.queries), ("new", ours)):
        done = run([binaries() / "handle-loadgen", "run", "--target", address, "--transport", "tcp", "--handles", records,
                    "--records", records, "--pattern", "sequential", "--rate", "100", "--duration", "2s", "--timeout", "5s"], timeout=90)
        # On a loaded machine requests are late, which makes the run invalid as a measurement only.
        is_right = done.code == 0 or re.search(r"verified +200 right, 0 wrong, 0 undecided", done.out)
        checks.that(f"every record compared at the {what} server", is_right, done.brief())
    wrong = new.directory / "wrong.jsonl"
    wrong.write_text(records.read_text().replace("https://example.org/0", "https://example.org/other"))
    done = run([binaries() / "handle-loadgen", "run", "--target", ours, "--transport", "tcp", "--handles", wrong,
                "--records", wrong, "--pattern", "sequential", "--rate", "100", "--duration", "2s", "--timeout", "5s"], timeout=90)
    is_found = done.code != 0 and re.search(r"verified.* [1-9][0-9]* wrong", done.out)
    checks.that("a different record is found", is_found, done.brief())
    new.stop()
    new.query_port, new.admin_port = real


class OutageMeter:
    """Sends requests over UDP continuously, and measures the longest time without an answer."""

    def __init__(self, port, handle):
        self.longest, self.is_over = 0.0, False
        self.thread = threading.Thread(target=self.ask, args=(port, handle))
        self.thread.start()

    def ask(self, port, handle):
        last = time.monotonic()
        while not self.is_over:
            reply = ask_as(port, handle, (2, 11), timeout_s=0.1)
            now = time.monotonic()
            if reply:
                self.longest, last = max(self.longest, now - last), now
            time.sleep(0.01)

    def stop(self):
        self.is_over = True
        self.thread.join()
        return self.longest


def switching(checks, old, new):
    """Stops the old server and starts ours under the same addresses. With one port, clients need no new site record."""
    late = old.hdl_as_admin("handle", "create", f"{old.prefix}/late", "1:URL=late")
    gone = old.hdl_as_admin("handle", "delete", f"{old.prefix}/live")
    checks.that("the old server changes records until the switch", late.code == gone.code == 0, late.brief() + gone.brief())
    meter = OutageMeter(old.query_port, f"{old.prefix}/hello")
    old.stop()
    # Answers come from the set of the rehearsal while the last export runs.
    new.start(names=("handled",))
    file, _ = export_of(checks, old, "last.json")
    store = new.home / "new.redb"
    done = new.hdl("import", store, file, "--create")
    checks.that("import of the last export into a new store", done.code == 0, done.brief())
    store.rename(new.home / "store.redb")
    if new.layout == "two-ports":
        done = new.register()
        checks.that("the new site record is in the registry", done.code == 0, done.brief())
    new.start(names=("handle-admin",))
    found = wait_for_answers(new)
    checks.equal("the record created last exists, and the one deleted last does not", found, [0, 3])
    gap = meter.stop()
    print(f"# no answers for {gap:.2f} s")
    checks.that("the outage is at most some seconds", gap < 20, f"{gap}")
    found = old.program("qresolver", f"{old.prefix}/hello")
    checks.that("clients with the old site record resolve", 1 in answer_values(found), found.brief())
    identity = (new.admin_handle, 300, new.key)
    created = new.program("create", *identity, f"{new.prefix}/after")
    checks.that("hdl-create at our service with the old administrator and key", "Got Response" in created.out, created.brief())
    new.settle()
    found = new.program("qresolver", f"{new.prefix}/after")
    checks.that("hdl-qresolver finds the new handle", 100 in answer_values(found), found.brief())
    listed = new.program("list", *identity, new.prefix)
    checks.that("hdl-list lists the new handle", f"{new.prefix}/after".upper() in listed.out.upper(), listed.brief())
    found = new.hdl("resolve", f"{new.prefix}/after", "--root", new.client_directory / "bootstrap_handles", "--certify")
    checks.that("answers are signed with the old server key", found.code == 0, found.brief())


def wait_for_answers(new):
    """Exit codes for the record created last and for the one deleted last, once the set is published."""
    for _ in range(100):
        found = [new.hdl("resolve", f"{new.prefix}/{name}", "--server", new.queries).code for name in ("late", "live")]
        if found == [0, 3]:
            break
        time.sleep(0.1)
    return found


def going_back(checks, old, new):
    """Moves all records back to a server of the reference."""
    new.stop()
    file = new.directory / "going-back.json"
    done = new.hdl("export", new.home / "store.redb", file, "--format", "reference")
    checks.that("export --format reference after the switch", done.code == 0, done.brief())
    (old.home / "bdbje").rename(old.home / "bdbje.old")
    done = old.java_at("apps.tools.LoadHandlesIntoStorageFromJson", "-f", file, "-h", old.home)
    checks.that("LoadHandlesIntoStorageFromJson", done.code == 0 and "Exception" not in done.text, done.brief())
    _, again = export_of(checks, old, "again.json")
    same_export(checks, "the storage of the reference", again, json.loads(file.read_text()))
    old.write_client_directory()
    old.start()
    found = old.program("qresolver", f"{old.prefix}/after")
    checks.that("a handle created at our service exists", 100 in answer_values(found), found.brief())
    old.stop()


def over_the_wire(checks, old, new, export):
    """Imports the records over the network, without access to the storage."""
    store = new.directory / "wire.redb"
    done = new.hdl("import", store, "--create", "--server", old.administration, "--prefix", old.prefix, "--auth", old.admin, "--key", old.key)
    checks.that("import --server", done.code == 0, done.brief())
    file = new.directory / "wire.json"
    new.hdl("export", store, file, "--format", "reference")
    found = json.loads(file.read_text())["handleRecords"] if file.exists() else {}
    for name, record in export["handleRecords"].items():
        if not name.startswith("0.NA/"):
            checks.equal(f"import --server: {name[:40]}", without_new_timestamps(found.get(name), record), record)


def all_groups(checks, layout, directory):
    if not checks.wants("moving"):
        return
    old = Reference(directory / "old", "20.500.9").make(starting_records).start()
    new = Adopted(directory / "new", old, layout)
    try:
        file, export = exporting(checks, old)
        checks.attempt("moving over the wire", over_the_wire, old, new, export)
        checks.attempt("moving adopting", adopting, old, new, file, export)
        checks.attempt("moving rehearsing", rehearsing, old, new, export)
        checks.attempt("moving switching", switching, old, new)
        checks.attempt("moving going back", going_back, old, new)
    finally:
        new.stop()
        old.stop()
