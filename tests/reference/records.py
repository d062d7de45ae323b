"""The records that both services start with, and batch files that change them."""

import base64

from services import admin_value, file_value, value

LONG = "long text " * 300
NAMES = ["hello", "with blank", "ümläut-日本", "a/b/c", "percent%20", "quote\"s", "q?x#y", "MiXed-Case", "x" * 200, "(1997)12:3<a>"]


def starting_records(service):
    """Values of every kind, public and private, and identities with each kind of key."""
    prefix, admin = service.prefix, service.admin_handle
    kinds = [
        value(1, "URL", "https://example.org/all"), value(2, "EMAIL", "someone@example.org"),
        value(3, "DESC", "ümläut 日本 \"quoted\" \\ text"), value(4, "DESC", LONG),
        value(5, "URN", "", permissions="1110"), value(6, "BLOB", base64.b64encode(bytes(range(256))).decode(), "base64"),
        value(7, "URL", "https://example.org/private", permissions="1100"),
        value(8, "HS_ALIAS", f"{prefix}/hello"), value(9, "HS_SERV", f"0.NA/{prefix}"),
        value(10, "HS_VLIST", [{"index": 300, "handle": admin}, {"index": 301, "handle": admin}], "vlist"),
        value(11, "URL", "https://example.org/unread", permissions="1010"),
        value(12, "10320/loc", "<locations><location href=\"https://example.org\"/></locations>"),
        {**value(13, "URL", "https://example.org/ttl"), "ttl": 7},
        value(2147483647, "URL", "https://example.org/last"),
        admin_value(100, admin, 300), admin_value(101, admin, 301, "000000000011"),
        value(1000, "HS_SITE", service.site, "site"),
        file_value(1001, "HS_PUBKEY", service.public_key),
    ]
    records = [{"handle": f"{prefix}/all", "values": kinds}]
    records += [{"handle": f"{prefix}/{name}", "values": [
        value(1, "URL", f"https://example.org/{number}"), admin_value(100, admin, 300)]}
        for number, name in enumerate(NAMES)]
    records += [
        {"handle": f"{prefix}/many", "values": [
            *(value(number, "URL", f"https://example.org/{number}") for number in range(1, 200)), admin_value(300, admin, 300)]},
        {"handle": f"{prefix}/big", "values": [value(1, "DESC", "b" * 60_000), admin_value(100, admin, 300)]},
        {"handle": f"{prefix}/secret", "values": [
            admin_value(100, admin, 300),
            value(300, "HS_SECKEY", "a secret of many letters", permissions="1100")]},
        {"handle": f"{prefix}/by-secret", "values": [
            value(1, "URL", "https://example.org/"), value(2, "DESC", "for its administrator", permissions="1100"),
            admin_value(100, f"{prefix}/secret", 300)]},
        {"handle": f"{prefix}/group", "values": [
            value(200, "HS_VLIST", [{"index": 300, "handle": f"{prefix}/secret"}], "vlist"), admin_value(100, admin, 300)]},
        {"handle": f"{prefix}/by-group", "values": [
            value(1, "URL", "https://example.org/"), admin_value(100, f"{prefix}/group", 200)]},
        {"handle": f"{prefix}/locked", "values": [
            value(1, "URL", "https://example.org/"), value(2, "DESC", "nobody may read this", permissions="1100"),
            admin_value(100, f"{prefix}/nobody", 300)]},
    ]
    return records


class Batch:
    """A batch file, with the expected result of each operation."""

    def __init__(self):
        self.lines, self.expected = [], []

    def text(self):
        return "\n".join(self.lines) + "\n"

    def authenticate(self, service):
        self.lines += [f"AUTHENTICATE PUBKEY:{service.admin}", str(service.key), ""]
        return self

    def secret(self, prefix):
        self.lines += [f"AUTHENTICATE SECKEY:300:{prefix}/secret", "a secret of many letters", ""]
        return self

    def plain(self, *lines):
        self.lines += [*lines, ""]
        return self

    def add(self, line, *values, expect="SUCCESS"):
        self.lines += [line, *values, ""]
        self.expected.append((line, expect))
        return self


def admin_line(service, index=100, bits="111111111111"):
    return f"{index} HS_ADMIN 86400 1110 ADMIN 300:{bits}:{service.admin_handle}"


def all_operations(service, tag):
    """Every operation of batch files, including refused ones."""
    prefix, handle = service.prefix, f"{service.prefix}/{tag}"
    url = "1 URL 86400 1110 UTF8 https://example.org/"
    admin = admin_line(service)
    batch = Batch().authenticate(service)
    batch.add(f"CREATE {handle}-1", url, "2 EMAIL 3600 1100 UTF8 private@example.org", admin)
    batch.add(f"CREATE {handle}-1", url, admin, expect="101")
    batch.add(f"CREATE {handle} with blanks", url, admin)
    batch.add(f"CREATE {handle}-ümläut", "1 DESC 86400 1110 UTF8 ümläut 日本", admin)
    batch.add(f"CREATE {handle}-list", f"1 HS_VLIST 86400 1110 LIST 300:{service.admin};301:{prefix}/x;", admin)
    batch.add(f"CREATE {handle}-file", f"1 HS_PUBKEY 86400 1110 FILE {service.public_key}", admin)
    batch.add(f"CREATE {handle}-site", f"1 HS_SITE 86400 1110 FILE {service.home}/siteinfo.json", admin)
    batch.add(f"CREATE {handle}-never", "1 URL 0 1111 UTF8 x", admin)
    for number in range(12):
        bits = "".join("1" if at == number else "0" for at in range(12))
        batch.add(f"CREATE {handle}-bit-{number}", url, admin, admin_line(service, 101, bits))
    batch.add(f"ADD {handle}-1", "3 URL 86400 1110 UTF8 https://example.org/3", "4 URL 86400 1110 UTF8 https://example.org/4")
    batch.add(f"ADD {handle}-1", "3 URL 86400 1110 UTF8 https://example.org/again", expect="201")
    batch.add(f"ADD {handle}-none", url, expect="100")
    batch.add(f"MODIFY {handle}-1", "3 URL 60 1110 UTF8 https://example.org/changed")
    batch.add(f"MODIFY {handle}-1", "9 URL 60 1110 UTF8 https://example.org/none", expect="200")
    batch.add(f"MODIFY {handle}-none", url, expect="100")
    batch.add(f"REMOVE 4:{handle}-1")
    batch.add(f"REMOVE 4:{handle}-1", expect="200")
    batch.add(f"REMOVE 1,3:{handle}-1")
    batch.add(f"CREATE {handle}-gone", url, admin)
    batch.add(f"DELETE {handle}-gone")
    batch.add(f"DELETE {handle}-gone", expect="100")
    batch.add(f"CREATE {prefix}.not.here/x", url, admin, expect="find service")
    batch.add(f"MODIFY {prefix}/locked", "1 URL 60 1110 UTF8 https://example.org/mine")
    return batch


def by_secret(service, tag):
    """Operations that an administrator with a secret key may do, directly or by a group, and others."""
    prefix, batch = service.prefix, Batch().secret(service.prefix)
    batch.add(f"MODIFY {prefix}/by-secret", "1 URL 60 1110 UTF8 https://example.org/by-secret")
    batch.add(f"MODIFY {prefix}/by-group", "1 URL 60 1110 UTF8 https://example.org/by-group")
    batch.add(f"MODIFY {prefix}/hello", "1 URL 60 1110 UTF8 https://example.org/not", expect="400")
    batch.add(f"CREATE {prefix}/{tag}-no", "1 URL 86400 1110 UTF8 x", expect="400")
    return batch
