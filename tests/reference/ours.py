"""Our programs as clients of a service: of the reference, or of ours."""

import json
import re

from foreign import check_batch
from processes import binaries, run
from records import NAMES, all_operations, by_secret, starting_records
from services import folded


def comparable(values, drop=("timestamp",)):
    """Values by index, without the members to ignore and with default permissions filled in."""
    found = {}
    for one in values:
        one = {key: part for key, part in one.items() if key not in drop}
        found[one["index"]] = {"permissions": "1110", **one}
    return found


def printed_values(outcome):
    """The values in the JSON output of a command."""
    try:
        return comparable(json.loads(outcome.out).get("values", []))
    except (json.JSONDecodeError, AttributeError):
        return {}


def public_values(record):
    return {index: one for index, one in comparable(record["values"]).items() if one["permissions"][2] == "1"}


def resolving(checks, service):
    records = starting_records(service)
    root = ("--root", service.client_directory / "bootstrap_handles")
    ways = (("udp", ("--server", service.queries)), ("tcp", ("--server", service.queries, "--tcp")),
            ("found", root), ("certified", (*root, "--certify")), ("all", ("--server", service.queries, "--all")))
    for record in records:
        for way, options in ways:
            found = service.hdl("resolve", record["handle"], *options, "--json")
            expected = public_values(record)
            if way == "all" and found.code != 0:
                # Requests for values that are not public need an identity.
                checks.that(f"resolve {way}: {record['handle'][:40]} is challenged", len(expected) < len(record["values"]), found.brief())
                continue
            values = printed_values(found)
            checks.equal(f"resolve {way}: {record['handle'][:40]}: indexes", sorted(values), sorted(expected))
            for index, one in list(expected.items())[:25]:
                if one["type"] not in ("HS_PUBKEY", "BLOB"):
                    checks.equal(f"resolve {way}: {record['handle'][:40]}: value {index}", values.get(index), one)
    for way, options in ways:
        checks.equal(f"resolve {way}: error 100 has exit code 3", service.hdl("resolve", f"{service.prefix}/none", *options).code, 3)
    for _ in range(20):
        found = service.hdl("resolve", f"{service.prefix}/big", "--server", service.queries, "--json")
        checks.equal("resolve udp: a value of 60 kB", len(printed_values(found).get(1, {"data": {"value": ""}})["data"]["value"]), 60_000)
    found = service.hdl("resolve", f"{service.prefix}/all", "--server", service.queries, "--type", "URL", "--json")
    checks.that("resolve --type", set(printed_values(found)) >= {1, 13} and 2 not in printed_values(found), found.brief())
    found = service.hdl("resolve", f"{service.prefix}/all", "--server", service.queries, "--index", 2, "--json")
    checks.equal("resolve --index", list(printed_values(found)), [2])
    found = service.hdl("site", f"{service.prefix}/all", "--client-dir", service.client_directory)
    checks.that("site", found.code == 0 and "127.0.0.1" in found.out, found.brief())
    found = service.hdl("check", f"{service.prefix}/all", "--client-dir", service.client_directory)
    checks.that("check: all agree", found.code == 0 and "all agree" in found.out, found.brief())
    found = service.hdl("resolve", f"{service.prefix}/hello", *root, "--trace")
    checks.that("resolve --trace", found.code == 0, found.brief())


def private(checks, service):
    """Values for administrators: at both interfaces, with key, secret and group."""
    prefix = service.prefix
    secret = service.directory / "secret"
    secret.write_text("a secret of many letters")
    secret.chmod(0o600)
    by_key = ("--auth", service.admin, "--key", service.key)
    by_secret_key = ("--auth", f"300:{prefix}/secret", "--secret-file", secret)
    for where in dict.fromkeys((service.queries, service.administration)):
        for handle, identity, index in ((f"{prefix}/all", by_key, 7), (f"{prefix}/by-secret", by_secret_key, 2)):
            for command in (("resolve", "--tcp"), ("handle", "get")):
                found = service.hdl(*command, handle, "--server", where, *identity, "--json")
                checks.that(f"{command[0]} {handle} as {identity[1]} at {where == service.queries and 'queries' or 'administration'}",
                            index in printed_values(found), found.brief())
    wrong = service.directory / "wrong-secret"
    wrong.write_text("another")
    wrong.chmod(0o600)
    found = service.hdl("handle", "get", f"{prefix}/by-secret", "--server", service.administration,
                        "--auth", f"300:{prefix}/secret", "--secret-file", wrong)
    checks.equal("a wrong secret is refused", found.code, 6)
    found = service.hdl("handle", "get", f"{prefix}/all", "--root", service.client_directory / "bootstrap_handles", *by_key, "--json")
    checks.that("handle get finds the server without --server", 7 in printed_values(found), found.brief())


def administration(checks, service, count):
    """Single changes, each with its own process."""
    prefix = service.prefix
    value_of = "1:URL=https://example.org/one"
    for number in range(count):
        name = f"{prefix}/created-{number}"
        done = service.hdl_as_admin("handle", "create", name, value_of, f"100:HS_ADMIN={service.admin}")
        checks.equal(f"create {name}", done.code, 0) or print(f"#     {done.brief()}")
    for number in range(count):
        name = f"{prefix}/created-{number}"
        done = service.hdl_as_admin("handle", "update", name, "2:EMAIL=someone@example.org", "1:URL=https://example.org/two")
        checks.that(f"update {name}", done.code == 0, done.brief())
    found = service.hdl_as_admin("handle", "get", f"{prefix}/created-0", "--json")
    checks.equal("update: both values exist", sorted(printed_values(found)), [1, 2, 100])
    for name, args, code in (
            ("create again", ("create", f"{prefix}/created-0", value_of), 6),
            ("update --add", ("update", f"{prefix}/created-0", "3:URL=x", "--add"), 0),
            ("update --add again", ("update", f"{prefix}/created-0", "3:URL=x", "--add"), 6),
            ("update --modify", ("update", f"{prefix}/created-0", "3:URL=y", "--modify"), 0),
            ("update --modify of none", ("update", f"{prefix}/created-0", "9:URL=y", "--modify"), 4),
            ("update --remove", ("update", f"{prefix}/created-0", "--remove", "3"), 0),
            ("update of none", ("update", f"{prefix}/never", "--modify", "3:URL=y"), 3),
            ("get of none", ("get", f"{prefix}/never"), 3),
            ("delete of none", ("delete", f"{prefix}/never"), 3),
            ("create elsewhere", ("create", f"{prefix}.elsewhere/x", value_of), 5)):
        done = service.hdl_as_admin("handle", *args)
        checks.equal(f"{name}: exit code", done.code, code) or print(f"#     {done.brief()}")
    listed = service.hdl_as_admin("handle", "list", prefix)
    names = {line.strip().upper() for line in listed.out.splitlines()}
    for name in [f"{prefix}/{part}".upper() for part in ("all", "many", "created-0", *NAMES[:2])]:
        checks.that(f"list: {name}", name in names, listed.brief())
    found = service.hdl_as_admin("handle", "home", f"{prefix}.8")
    checks.that("home", found.code == 0, found.brief())
    found = service.hdl_as_admin("handle", "list", "--homed")
    checks.that("list --homed", f"{prefix}.8" in found.out, found.brief())
    found = service.hdl_as_admin("handle", "unhome", f"{prefix}.8")
    checks.that("unhome", found.code == 0, found.brief())
    for number in range(0, count, 5):
        names = [f"{prefix}/created-{at}" for at in range(number, min(number + 5, count))]
        done = service.hdl_as_admin("handle", "delete", *names)
        checks.that(f"delete {len(names)} from {number}", done.code == 0, done.brief())
    key = ("--server-key", service.home / ("pubkey.bin" if service.layout == "reference" else "server-public.bin"))
    for number in range(5):
        name = f"{prefix}/session-{number}"
        done = service.hdl_as_admin("handle", "create", name, value_of, f"100:HS_ADMIN={service.admin}", *key)
        checks.that(f"create {name} in a session", done.code == 0, done.brief())
        done = service.hdl_as_admin("handle", "delete", name, *key)
        checks.that(f"delete {name} in a session", done.code == 0, done.brief())


def batches(checks, service):
    """Runs the same batch files with `hdl batch`, and compares the records with those from hdl-genericbatch."""
    for number, options in enumerate((("--allow-cleartext-secrets",), ("--parallel", 8, "--allow-cleartext-secrets"), ("--parallel", 4, "--server-key"))):
        if "--server-key" in options:
            options = (*options, service.home / ("pubkey.bin" if service.layout == "reference" else "server-public.bin"))
        for kind, batch in (("", all_operations(service, f"hdl-{number}")), ("-secret", by_secret(service, f"hdl-{number}"))):
            check_own_batch(checks, service, f"hdl-batch-{number}{kind}", batch, options)
    theirs = all_operations(service, "theirs")
    check_batch(checks, service, "theirs", theirs)
    service.settle()
    for part in ("1", "list", "file", "site", "never", *(f"bit-{bit}" for bit in range(12))):
        left, right = (printed_values(service.hdl_as_admin("handle", "get", f"{service.prefix}/{tag}-{part}", "--json")) for tag in ("hdl-0", "theirs"))
        checks.that(f"batch: {part} is equal to that from hdl-genericbatch", left and left == right, f"{left}\n{right}")


def check_own_batch(checks, service, name, batch, options):
    file, log = service.directory / f"{name}.txt", service.directory / f"{name}.jsonl"
    file.write_text(batch.text())
    done = service.hdl("batch", file, "--log", log, "--compat-log", service.directory / f"{name}.log",
                       "--server", service.administration, *options)
    results = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    results = [line for line in results if "code" in line or "result" in line or "error" in line]
    compat = service.directory / f"{name}.log"
    lines = re.findall(r"==>(SUCCESS|FAILURE|INVALID)\[\d+\]:? ?(.*)", compat.read_text() if compat.exists() else "")
    checks.equal(f"{name}: as many results as operations", len(lines), len(batch.expected)) or print(f"#     {done.brief()}")
    for operation, expected in batch.expected:
        handle = operation.split(" ", 1)[1].split(":", 1)[-1] if operation.startswith("REMOVE") else operation.split(" ", 1)[1]
        word = operation.split(" ", 1)[0].lower()
        # Parallel operations may change their order, except those on one handle.
        at = next((at for at, line in enumerate(lines) if line[1].startswith(word) and
                   line[1].split(": ")[0].split(":", 1)[-1] == handle), None)
        verdict, text = lines.pop(at) if at is not None else ("missing", done.brief())
        wanted = {"find service": "301"}.get(expected, expected)
        is_good = verdict == "SUCCESS" if wanted == "SUCCESS" else verdict == "FAILURE" and (wanted in text or expected in text)
        checks.that(f"{name}: {operation}: {expected}", is_good, f"{verdict} {text}")


def importing(checks, service):
    """Imports the records of the service over the network."""
    store = service.directory / "imported.redb"
    identity = ("--auth", service.admin, "--key", service.key)
    done = service.hdl("import", store, "--create", "--server", service.administration, "--prefix", service.prefix, *identity, "--keep-going")
    checks.that("import --server --keep-going ends", done.code in (0, 1), done.brief())
    lines = service.hdl("export", store, "-")
    found = {}
    for line in lines.out.splitlines():
        line = json.loads(line)
        if "handle" in line:
            found[folded(line["handle"])] = comparable(line["values"])
    for record in starting_records(service):
        name = folded(record["handle"])
        expected = comparable(record["values"])
        if record["handle"].endswith("/locked"):
            expected = public_values(record) if service.layout != "reference" else expected
        elif record["handle"].endswith(("/by-secret", "/hello", "/by-group")):
            continue  # Other groups change these.
        other = {index: (found.get(name, {}).get(index), one) for index, one in expected.items()
                 if one["type"] != "HS_PUBKEY" and found.get(name, {}).get(index) != one}
        checks.that(f"import: {record['handle'][:40]}", not other, other)


def keys(checks, service):
    """Keys in all formats, in both directions."""
    directory = service.directory
    created = {}
    for alg, bits in (("rsa", 2048), ("rsa", 1024), ("dsa", 1024)):
        name = directory / f"{alg}{bits}"
        done = service.program("keygen", "-alg", alg, "-keysize", bits, f"{name}-private.bin", f"{name}-public.bin", stdin="n\n")
        checks.that(f"hdl-keygen {alg} {bits}", (directory / f"{alg}{bits}-private.bin").exists(), done.brief())
        created[f"{alg}{bits}"] = name
    fingerprints = {}
    for label, name in created.items():
        for half in ("private", "public"):
            file = f"{name}-{half}.bin"
            run(["chmod", "600", file])
            output = service.hdl("key", "show", file, "--json")
            checks.that(f"key show: {label} {half}", output.code == 0, output.brief())
            fingerprints[label, half] = fingerprint(output)
            for form in ("pem", "jwk"):
                other = f"{name}-{half}.{form}"
                done = service.program("convert-key", "-f", form, "-o", other, file)
                run(["chmod", "600", other])
                output = service.hdl("key", "show", other, "--json")
                checks.that(f"key show: {label} {half} as {form} of hdl-convert-key", output.code == 0, output.brief() + done.brief())
                checks.equal(f"key show: {label} {half} as {form} has the same fingerprint", fingerprint(output), fingerprints[label, half])
        checks.equal(f"{label}: both halves have one fingerprint", fingerprints[label, "private"], fingerprints[label, "public"])
    name = created["rsa2048"]
    passphrase = directory / "passphrase"
    passphrase.write_text("a long passphrase")
    passphrase.chmod(0o600)
    for form in ("pem", "handle"):
        other = f"{name}-encrypted.{form}"
        done = service.program("convert-key", "-f", form, "-crypt", "-passout", "a long passphrase", "-o", other, f"{name}-private.pem"
                               if form == "handle" else f"{name}-private.bin")
        run(["chmod", "600", other])
        output = service.hdl("key", "show", other, "--passphrase-file", passphrase, "--json")
        is_read = output.code == 0 or (form == "pem" and "damaged" not in output.text and "encrypted" in output.text)
        checks.that(f"key show: encrypted {form} is read, or the error says what to do", is_read, output.brief() + done.brief())
    for form in ("native", "pem", "jwk"):
        private, public_half = directory / f"own-{form}", directory / f"own-{form}-public"
        done = service.hdl("key", "generate", private, public_half, "--to", form, "--plain")
        checks.that(f"key generate --to {form}", done.code == 0, done.brief())
        for file in (private, public_half):
            back = f"{file}.back"
            done = service.program("convert-key", "-f", "jwk", "-o", back, file)
            checks.that(f"hdl-convert-key reads {file.name}", run(["test", "-s", back]).code == 0, done.brief())
        native = directory / f"own-{form}.bin"
        done = service.program("convert-key", "-f", "handle", "-o", native, private) if form != "native" else None
        if form != "native":
            checks.equal(f"{form}: the same key in native form", fingerprint(service.hdl("key", "show", make_private(native), "--json")),
                         fingerprint(service.hdl("key", "show", private, "--json")))
    identities(checks, service, created)


def identities(checks, service, created):
    """Administrators with keys of each kind, in each format."""
    import base64
    for label, name in created.items():
        public_half = open(f"{name}-public.bin", "rb").read()
        handle = f"{service.prefix}/identity-{label}"
        values = [{"index": 300, "type": "HS_PUBKEY", "ttl": 86400,
                   "data": {"format": "base64", "value": base64.b64encode(public_half).decode()}}]
        file = service.directory / f"identity-{label}.json"
        file.write_text(json.dumps({"handle": handle, "values": values}))
        done = service.hdl_as_admin("handle", "create", handle, "--json-values", file)
        checks.that(f"create {handle}", done.code == 0, done.brief())
        done = service.hdl_as_admin("handle", "create", f"{handle}-its", "1:URL=x", f"100:HS_ADMIN=300:{handle}", "2:DESC=private")
        checks.that(f"create {handle}-its", done.code == 0, done.brief())
        service.settle()
        for form in ("bin", "pem", "jwk"):
            file = f"{name}-private.{form}"
            done = service.hdl("handle", "update", f"{handle}-its", "1:URL=y", "--server", service.administration,
                               "--auth", f"300:{handle}", "--key", file)
            checks.that(f"update as {label} with {form}", done.code == 0, done.brief())
        done = service.hdl("handle", "update", f"{handle}-its", "1:URL=z", "--server", service.administration,
                           "--auth", f"300:{handle}", "--key", f"{name}-public.bin")
        checks.that(f"--key with the public half of {label} is refused with that reason", done.code != 0 and "public" in done.text, done.brief())


def make_private(path):
    run(["chmod", "600", path])
    return path


def fingerprint(outcome):
    try:
        return json.loads(outcome.out).get("fingerprint")
    except (json.JSONDecodeError, AttributeError):
        return None


# Reasons why a run is no measurement that only say that the machine is loaded.
LATE = re.compile("behind schedule$|^requests not sent")


def has_run(done):
    """Whether a run of handle-loadgen ended well, or was late only, as on a loaded machine."""
    invalid = re.findall(r"INVALID +(.*)", done.out)
    return done.code == 0 or (done.code == 3 and invalid and all(LATE.search(why) for why in invalid))


def loading(checks, service):
    """handle-loadgen: rates, verification, find-max."""
    program = binaries() / "handle-loadgen"
    names = service.directory / "names.txt"
    names.write_text("".join(f"{service.prefix}/{name}\n" for name in ("all", "hello", "many", "(1997)12:3<a>")))
    report = service.directory / "load.json"
    for transport in ("udp", "tcp"):
        done = run([program, "run", "--target", service.queries, "--transport", transport, "--handles", names, "--rate", "200",
                    "--duration", "3s", "--timeout", "3s", "--json", report], timeout=60)
        checks.that(f"loadgen over {transport}: no request is lost", has_run(done) and re.search(r"lost +0$", done.out, re.M), done.brief())
    exported = service.directory / "exported.jsonl"
    store = service.directory / "imported.redb"
    if store.exists():
        exported.unlink(missing_ok=True)
        service.hdl("export", store, exported)
        # Over TCP: answers of more than four datagrams are not sent over UDP.
        done = run([program, "run", "--target", service.queries, "--transport", "tcp", "--handles", names, "--rate", "100",
                    "--duration", "2s", "--timeout", "3s", "--records", exported], timeout=60)
        is_right = has_run(done) and re.search(r"verified +200 right, 0 wrong", done.out)
        checks.that("loadgen --records reads the output of hdl export", is_right, done.brief())
    done = run([program, "find-max", "--target", service.queries, "--handles", names, "--from", "200", "--to", "2000", "--trial", "1s", "--confirm", "1s", "--repeat", "1"], timeout=100)
    checks.that("loadgen find-max reports a rate", done.code == 0, done.brief())


def all_groups(checks, service):
    checks.attempt("ours resolving", resolving, service)
    checks.attempt("ours private", private, service)
    checks.attempt("ours importing", importing, service)
    checks.attempt("ours loading", loading, service)
    checks.attempt("ours administration", administration, service, 30)
    checks.attempt("ours batches", batches, service)
    checks.attempt("ours keys", keys, service)
