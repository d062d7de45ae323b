"""Both services in one resolution tree: identities and prefixes of one service are used at the other."""

import json
import struct

from foreign import answer_values, ask_as, check_batch
from records import Batch, starting_records
from services import Ours, Reference, admin_value, file_value, value


def both_services(layout, directory):
    """Our service is also the global service. It refers to the service of the reference for 20.500.9."""
    theirs = Reference(directory / "theirs", "20.500.9").make(lambda service: [
        *starting_records(service),
        {"handle": "0.NA/20.500.9.D", "values": [value(1, "HS_SITE", service.site, "site")]}])
    ours = Ours(directory / "ours", "20.500.8", layout)

    def records(service):
        return [
            *starting_records(service),
            {"handle": "0.NA/20.500.9", "values": [
                value(1, "HS_SITE", theirs.site, "site"), value(2, "HS_SITE.PREFIX", theirs.site, "site"),
                admin_value(100, theirs.admin_handle, 300)]},
            {"handle": "0.NA/20.500.8", "values": [
                value(1, "HS_SITE", service.site, "site"), admin_value(100, service.admin_handle, 300),
                file_value(300, "HS_PUBKEY", service.public_key)]},
            {"handle": "20.500.8/of-another", "values": [
                value(1, "URL", "https://example.org/"), value(2, "DESC", "private", permissions="1100"),
                admin_value(100, theirs.admin_handle, 300), admin_value(101, f"{theirs.prefix}/secret", 300)]},
            {"handle": "20.500.8/of-the-prefix", "values": [
                value(1, "URL", "https://example.org/"), value(2, "DESC", "private", permissions="1100"),
                admin_value(100, "0.NA/20.500.8", 300)]},
        ]
    root = ours.directory / "dot-handle" / "bootstrap_handles"
    ours.make(records, settings=f'\n[remote]\nenabled = true\nroot = "{root}"\n')
    return ours, theirs


def finding(checks, ours, theirs):
    for name in (f"{theirs.prefix}/hello", f"{ours.prefix}/hello"):
        found = ours.program("qresolver", name)
        checks.that(f"hdl-qresolver finds {name} from the root, which is our service", 1 in answer_values(found), found.brief())
        found = ours.hdl("resolve", name, "--root", ours.client_directory / "bootstrap_handles", "--certify")
        checks.that(f"hdl resolve --certify finds {name}", found.code == 0, found.brief())


def identities(checks, ours, theirs):
    """Administrators whose record is at the other service."""
    batch = Batch()
    batch.lines += [f"AUTHENTICATE PUBKEY:{theirs.admin}", str(theirs.key), ""]
    batch.add(f"MODIFY {ours.prefix}/of-another", "1 URL 60 1110 UTF8 https://example.org/by-another")
    batch.add(f"MODIFY {ours.prefix}/hello", "1 URL 60 1110 UTF8 https://example.org/not", expect="400")
    check_batch(checks, ours, "of-another", batch)
    secret = ours.directory / "secret"
    secret.write_text("a secret of many letters")
    secret.chmod(0o600)
    prefix_identity = f"300:0.NA/{ours.prefix}"
    for what, handle, identity in (
            ("a key", "of-another", ("--auth", theirs.admin, "--key", theirs.key)),
            ("a secret", "of-another", ("--auth", f"300:{theirs.prefix}/secret", "--secret-file", secret)),
            ("the key of the prefix record", "of-the-prefix", ("--auth", prefix_identity, "--key", ours.key))):
        for transport in ((), ("--tcp",)):
            for address in dict.fromkeys((ours.queries, ours.administration)):
                if address == ours.administration and not transport and ours.layout == "two-ports":
                    continue  # No datagrams there.
                found = ours.hdl("resolve", f"{ours.prefix}/{handle}", "--server", address, *identity, "--index", 2, *transport, "--json")
                place = "administration" if address == ours.administration else "queries"
                checks.that(f"a private value by {what}, {' '.join(transport) or '--udp'} at {place}", '"private"' in found.out, found.brief())
    found = ours.hdl("resolve", f"{ours.prefix}/of-another", "--server", ours.queries, "--index", 2, "--json",
                     "--auth", theirs.admin, "--key", ours.key)
    checks.that("an identity with the key of another is refused", '"private"' not in found.out, found.brief())


def referrals(checks, ours, theirs):
    """Clients that understand prefix referrals get them; for others, the service resolves."""
    for version, codes in (((2, 11), {303}), ((2, 10), {303}), ((2, 9), {1}), ((2, 5), {1}), ((2, 1), {1})):
        reply = ask_as(ours.query_port, "0.NA/20.500.9.D", version)
        code = struct.unpack(">I", reply[24:28])[0] if len(reply) >= 28 else None
        checks.that(f"a delegated derived prefix in version {version[0]}.{version[1]}", code in codes, f"code {code}")


def many_programs(checks, directory):
    """Programs of the reference do not end their sessions; more of them than one source may have sessions can still run."""
    service = Ours(directory / "sessions", "20.500.8", "two-ports").make()
    for name in ("service.toml", "handled.toml", "handle-admin.toml"):
        path = service.home / name
        if path.exists():
            path.write_text(path.read_text().replace('socket = "run/sessions"', 'socket = "run/sessions"\nsessions = 100'))
    try:
        service.start()
        for number in range(8):
            created = service.program("create", service.admin_handle, 300, service.key, f"{service.prefix}/s{number}")
            checks.that(f"program {number + 1} with its own session, at a limit of 4 per source", "Got Response" in created.out, created.brief())
    finally:
        service.stop()


def partial_import(checks, directory):
    """Records are imported as far as the identity may read them, and missing values are reported."""
    service = Ours(directory / "import", "20.500.8", "two-ports").make(starting_records)
    for name, setting in (("service.toml", "server_full_access"), ("handled.toml", "server_reads_all"), ("handle-admin.toml", "server_full_access")):
        path = service.home / name
        if path.exists() and "[administrators]" in path.read_text():
            path.write_text(path.read_text().replace("[administrators]", f"[administrators]\n{setting} = false"))
    try:
        service.start()
        store = service.directory / "partial.redb"
        done = service.hdl_as_admin("import", store, "--create", "--prefix", service.prefix, "--keep-going")
        checks.that("import --server --keep-going names the record that it could not read whole", "locked" in done.text.lower(), done.brief())
        found = {line["handle"].upper(): [value["index"] for value in line["values"]]
                 for line in map(json.loads, service.hdl("export", store, "-").out.splitlines()) if "handle" in line}
        checks.equal("the readable values of that record are imported", found.get(f"{service.prefix}/LOCKED"), [1, 100])
        for name, index in (("ALL", 7), ("HELLO", 1), ("SECRET", 300)):
            checks.that(f"the other records are imported: {name}", index in found.get(f"{service.prefix}/{name}", []), done.brief())
    finally:
        service.stop()


def all_groups(checks, layout, directory):
    if not checks.wants("together"):
        return
    ours, theirs = both_services(layout, directory)
    try:
        theirs.start()
        ours.start()
        checks.attempt("together finding", finding, ours, theirs)
        checks.attempt("together identities", identities, ours, theirs)
        checks.attempt("together referrals", referrals, ours, theirs)
    finally:
        ours.stop()
        theirs.stop()
    if layout == "two-ports":
        checks.attempt("together many programs", many_programs, directory)
        checks.attempt("together partial import", partial_import, directory)
