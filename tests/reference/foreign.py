"""Every program of the reference as a client of a service: of ours, or of the reference as the control."""

import json
import re
import socket
import struct

from processes import run
from records import LONG, NAMES, Batch, all_operations, by_secret
from services import REFERENCE, reference_program, value


def printed_values(values_text):
    """The values that a program printed, by index."""
    found = re.findall(r"^\s*index=(-?\d+) type=(\S+) (\S+)(?: ttl=\S+)?(?: timestamp=\S+)? ?\"?(.*?)\"?$", values_text, re.M)
    return {int(index): (kind, permissions, data) for index, kind, permissions, data in found}


def answer_values(outcome):
    """The values of the final answer, without those of requests before it."""
    return printed_values(outcome.out[outcome.out.find("Got Response"):]) if "Got Response" in outcome.out else {}


def resolving(checks, service):
    for name in ("qresolver", "trace"):
        found = service.program(name, f"{service.prefix}/all")
        values = answer_values(found)
        expected = {1: "https://example.org/all", 2: "someone@example.org", 4: LONG, 8: f"{service.prefix}/hello",
                    12: "<locations><location href=\"https://example.org\"/></locations>", 13: "https://example.org/ttl",
                    2147483647: "https://example.org/last"}
        for index, text in expected.items():
            checks.equal(f"hdl-{name}: value {index}", values.get(index, ("", "", ""))[2].strip(), text.strip())
        for index in (3, 5, 6, 9, 10, 100, 101, 1000, 1001):
            checks.that(f"hdl-{name}: value {index}", index in values, found.brief())
        for index in (7, 11):
            checks.that(f"hdl-{name}: value {index} is only for administrators", index == 11 or index not in values, found.brief())
        missing = service.program(name, f"{service.prefix}/none")
        checks.that(f"hdl-{name}: error 100 for a missing handle", "Error(100)" in missing.text, missing.brief())
    for number, name in enumerate(NAMES):
        found = service.program("qresolver", f"{service.prefix}/{name}")
        checks.equal(f"hdl-qresolver: {name[:20]}", answer_values(found).get(1, ("", "", ""))[2], f"https://example.org/{number}")
    found = service.program("qresolver", f"{service.prefix}/HELLO")
    checks.that("hdl-qresolver: the handle in capitals", 1 in answer_values(found), found.brief())
    found = service.program("qresolver", f"{service.prefix}/many")
    checks.equal("hdl-qresolver: 200 values", len(answer_values(found)), 200)
    found = service.program("qresolver", f"{service.prefix}/big")
    checks.equal("hdl-qresolver: a value of 60 kB", len(answer_values(found).get(1, ("", "", ""))[2]), 60_000)
    found = service.java_at("apps.tools.CheckHandleAtSites", f"{service.prefix}/hello")
    checks.that("CheckHandleAtSites: all sites agree", "is the same on all 1 sites" in found.out, found.brief())


def information(checks, service):
    for name, ports in (("queries", service.query_port), ("administration", service.admin_port)):
        file = service.directory / f"got-{name}.site"
        got = service.program("getsiteinfo", "127.0.0.1", ports, file)
        checks.that(f"hdl-getsiteinfo at {name}", file.exists() and file.stat().st_size > 100, got.brief())
        text = run(["sh", "-c", f"sh {REFERENCE}/bin/hdl convert-siteinfo < {file}"]).out
        found = json.loads(text[text.find("{"):] or "{}")
        for member in ("serialNumber", "primarySite", "servers"):
            checks.equal(f"hdl-convert-siteinfo: {member} at {name}", found.get(member), service.site[member])
    file = service.directory / "got.root"
    got = service.program("getrootinfo", "127.0.0.1", service.query_port, file)
    checks.that("hdl-getrootinfo", file.exists() and file.stat().st_size > 100, got.brief())
    got = service.program("server-perf-test", f"{service.prefix}/hello", 200, 1, service.client_directory / "site.json")
    good = re.search(r"successes: (\d+)", got.text)
    checks.equal("hdl-server-perf-test: all of 200 answered", good and int(good[1]), 200)
    checks.that("hdl-server-perf-test: no failures", "failures: 0" in got.text, got.brief())


def listing(checks, service, has):
    """Programs that list; opcodes 105 and 302 go to the first interface for queries over TCP."""
    identity = (service.admin_handle, 300, service.key)
    found = service.program("list", *identity, f"0.NA/{service.prefix}")
    names = {line.upper() for line in found.out.splitlines()}
    for name in has:
        checks.that(f"hdl-list: {name}", f"{service.prefix}/{name}".upper() in names, found.brief())
    checks.that("hdl-list: the administrator", service.admin_handle.upper() in names, found.brief())
    found = service.program("list", "-s", *identity, service.prefix)
    lines = [line.strip().upper() for line in found.out.splitlines()]
    for name in has:
        checks.that(f"hdl-list -s: {name}", f"{service.prefix}/{name}".upper() in lines, found.brief())
    checks.that("hdl-list -s: values", any("https://example.org/all".upper() in line for line in lines), found.brief())
    found = service.program("list", *identity, f"0.NA/{service.prefix}.none")
    checks.that("hdl-list: an unknown prefix does not hang", found.code != "timeout", found.brief())


def single(checks, service, count):
    """hdl-create, hdl-delete, hdl-home-na: one session each."""
    identity = (service.admin_handle, 300, service.key)
    names = [f"{service.prefix}/single-{number}" for number in range(count)]
    for name in names:
        created = service.program("create", *identity, name)
        checks.that(f"hdl-create {name}", "Got Response" in created.out, created.brief())
    service.settle()
    for name in names:
        found = service.program("qresolver", name)
        checks.that(f"hdl-create: {name} exists", 100 in answer_values(found), found.brief())
    again = service.program("create", *identity, names[0])
    checks.that("hdl-create: error 101 the second time", "Error(101)" in again.text, again.brief())
    wrong = service.directory / "wrong-private.bin"
    if not wrong.exists():
        reference_program(service.client_directory, "keygen", "-alg", "rsa", "-keysize", 2048, wrong,
                          service.directory / "wrong-public.bin", stdin="n\n")
    refused = service.program("create", service.admin_handle, 300, wrong, f"{service.prefix}/wrong")
    checks.that("hdl-create: a wrong key is refused", "Got Response" not in refused.out, refused.brief())
    file = service.directory / "names"
    file.write_text("\n".join(names[1:]) + "\n")
    deleted = service.program("delete", *identity, file)
    for name in names[1:]:
        checks.that(f"hdl-delete FILE: {name}", f"deleted {name}" in deleted.out, deleted.brief())
    deleted = service.program("delete", *identity, "-", stdin=names[0] + "\n")
    checks.that("hdl-delete -", f"deleted {names[0]}" in deleted.out, deleted.brief())
    deleted = service.program("delete", *identity, "-", stdin=names[0] + "\n")
    checks.that("hdl-delete: deleting a missing handle fails", "deleted" not in deleted.out, deleted.brief())
    prefix = f"{service.prefix}.5"
    homed = service.program("home-na", *identity, "127.0.0.1", service.admin_port, f"0.NA/{prefix}")
    checks.that("hdl-home-na", homed.code == 0 and "Error" not in homed.text, homed.brief())
    listed = service.hdl("handle", "list", "--homed", "--server", service.administration, "--auth", service.admin, "--key", service.key)
    checks.that("hdl-home-na: the prefix is homed", prefix in listed.out, listed.brief())


def batches(checks, service, tag="batch"):
    """hdl-genericbatch: each operation, with public and with secret key, in a session and outside."""
    for kind, setup in (("", []), ("no-session", ["SESSIONSETUP", "USESESSION:0"]),
                        ("encrypted", ["SESSIONSETUP", "USESESSION:1", "OPTIONS:111", "TIMEOUT:1"])):
        name = f"{tag}-{kind}" if kind else tag
        for batch, part in ((all_operations(service, name), name), (by_secret(service, name), f"{name}-secret")):
            if setup:
                batch.lines[3:3] = [*setup, ""]
            check_batch(checks, service, part, batch)
        home = Batch().authenticate(service).add(f"HOME 127.0.0.1:{service.admin_port}:TCP", f"0.NA/{service.prefix}.7")
        home.add(f"UNHOME 127.0.0.1:{service.admin_port}:TCP", f"0.NA/{service.prefix}.7")
        file = service.directory / "home.txt"
        file.write_text(home.text())
        done = service.program("genericbatch", file)
        checks.equal(f"hdl-genericbatch {name}: home and unhome", done.text.count("==>SUCCESS"), 2)


def check_batch(checks, service, name, batch):
    """Runs a batch file with hdl-genericbatch, and checks the result of each operation in its log."""
    file, log = service.directory / f"{name}.txt", service.directory / f"{name}.log"
    file.write_text(batch.text())
    done = service.program("genericbatch", file, log)
    lines = re.findall(r"==>(SUCCESS|FAILURE|INVALID)\[\d+\]:? ?(.*)", log.read_text() if log.exists() else "")
    for at, (operation, expected) in enumerate(batch.expected):
        verdict, text = lines[at] if at < len(lines) else ("missing", done.brief())
        is_as_expected = verdict == "SUCCESS" if expected == "SUCCESS" else verdict == "FAILURE" and expected in text
        checks.that(f"hdl-genericbatch {name}: {operation}: {expected}", is_as_expected, f"{verdict} {text}")


def loading(checks, service):
    """Programs of the distribution that have no script."""
    handles = [f"{service.prefix}/LOADED-{number}" for number in range(5)]
    records = {name: {"handle": name, "values": [
        value(1, "URL", f"https://example.org/{name}"), value(2, "DESC", "private", permissions="1100")]} for name in handles}
    file = service.directory / "load.json"
    file.write_text(json.dumps({"homedPrefixes": [], "handleRecords": records}))
    done = service.java_at("apps.tools.LoadHandlesFromJson", "-f", file, "-i", "127.0.0.1", "-p", service.admin_port,
                           "-authid", service.admin, "-privatekey", service.key)
    for name in handles:
        checks.that(f"LoadHandlesFromJson: {name}", f"Created: {name}" in done.out, done.brief())
    service.settle()
    names = service.directory / "ttl-names"
    names.write_text(f"{service.prefix}/hello\n{handles[0]}\n")
    done = service.java_at("apps.simple.HDLSetTTL", service.admin_handle, service.key, 777, names)
    for name in (f"{service.prefix}/hello", handles[0]):
        checks.that(f"HDLSetTTL: {name}", f"success: changed {name}" in done.text, done.brief())
    service.settle()
    found = service.java_at("apps.tools.CheckHandleAtSites", handles[0])
    checks.that("HDLSetTTL: all values have the TTL", "ttl=0/777" in found.out and "ttl=0/86400" not in found.out, found.brief())
    found = service.java_at("apps.simple.HDLShowAdmin", f"{service.prefix}/hello")
    checks.that("HDLShowAdmin", f"0.NA/{service.prefix}" in found.text, found.brief())


def not_offered(checks, service):
    """Operations that handle-admin does not support: the programs end with an error, without hanging."""
    identity = (service.admin_handle, 300, "PRIVATE", service.key)
    done = service.program("docheckpoint", service.client_directory / "site.json", *identity, timeout=60)
    checks.that("hdl-docheckpoint ends", done.code != "timeout", done.brief())
    found = service.program("qresolver", f"{service.prefix}/hello")
    checks.that("the service still answers", 1 in answer_values(found), found.brief())


def old_client(checks, service, versions=((2, 1), (2, 3), (2, 5), (2, 7), (2, 9), (2, 11))):
    """A request of each version over UDP, with the bytes that client libraries of that version send."""
    for major, minor in versions:
        reply = ask_as(service.query_port, f"{service.prefix}/hello", (major, minor))
        code = struct.unpack(">I", reply[24:28])[0] if len(reply) >= 28 else None
        checks.equal(f"a request of version {major}.{minor} over UDP is answered", code, 1)


def ask_as(port, handle, version, timeout_s=5):
    """The reply to a plain request for all values of a handle, over UDP."""
    name = handle.encode()
    body = struct.pack(">I", len(name)) + name + struct.pack(">II", 0, 0)
    # Header: opcode 1, no response code, flags REC and PO, no site serial, expiry.
    header = struct.pack(">IIIHBBII", 1, 0, 0x11000000, 0xFFFF, 0, 0, 0x7FFFFFFF, len(body))
    message = header + body + struct.pack(">I", 0)
    major, minor = version
    envelope = struct.pack(">BBBBIIII", major, minor, major, minor, 0, 0x1234, 0, len(message))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_s)
        client.sendto(envelope + message, ("127.0.0.1", port))
        try:
            return client.recv(65536)
        except (TimeoutError, ConnectionError):
            return b""


def skipped(checks):
    for name, reason in (("hdl-testtool", "its class is missing in the distribution 9.3.1"),
                      ("hdl-admintool, hdl-oldadmintool, hdl-qresolverGUI", "they need a display"),
                      ("hdl-dumpfromprimary", "it fills a mirror, which handled and handle-admin do not serve")):
        print(f"# skip {name}: {reason}")


def all_groups(checks, service):
    checks.attempt("foreign resolving", resolving, service)
    checks.attempt("foreign information", information, service)
    checks.attempt("foreign old client", old_client, service)
    checks.attempt("foreign single", single, service, 10)
    checks.attempt("foreign listing", listing, service, ["all", "many", "with blank"])
    checks.attempt("foreign batches", batches, service)
    checks.attempt("foreign loading", loading, service)
    checks.attempt("foreign not offered", not_offered, service)
    skipped(checks)
