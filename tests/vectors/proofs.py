#!/usr/bin/env python3
"""Computes proofs.json: the tree over a few records, its root, and proofs, byte by byte.

This is a second implementation of docs/snapshot-format.md ("The tree over the records",
"Statements", "Proofs") with nothing but hashlib, so that the bytes do not come from the code that
they check. Run it without arguments to print the file; `--check` compares it with the one here.
"""

import hashlib
import json
import pathlib
import struct
import sys

SEED = 0x0123456789ABCDEF
EMPTY = bytes(32)


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def counted(data):
    return struct.pack(">I", len(data)) + data


def value(index, kind, data, permissions):
    """A value in wire form: time 0, a relative TTL of a day, no references."""
    head = struct.pack(">IIBIB", index, 0, 0, 86400, permissions)
    return head + counted(kind) + counted(data) + struct.pack(">I", 0)


# Permissions: 0x0e readable by all, 0x0c by administrators.
def url(name):
    return value(1, b"URL", b"https://example.org/" + name.encode(), 0x0E)


def secret(name):
    return value(300, b"HS_SECKEY", b"secret of " + name.encode(), 0x0C)


def blinding():
    digest = sha(b"handle snapshot blinding", struct.pack("<Q", SEED))
    for _ in range(65536):
        digest = sha(digest)
    return digest


BLINDING = blinding()


def record(name, has_private):
    """Public values, private values with their positions, and both digests."""
    public = url(name)
    private = struct.pack("<H", 1) + secret(name) if has_private else b""
    private_digest = sha(BLINDING, private) if private else EMPTY
    return public, private, private_digest, sha(sha(public), private_digest)


def leaf(place, digest):
    node = bytearray(sha(b"\x00", place, digest))
    node[31] |= 1
    return bytes(node)


def inner(left, right):
    node = bytearray(sha(b"\x01", left, right))
    node[31] &= 0xFE
    return bytes(node)


def bit(place, depth):
    return place[depth // 8] >> (7 - depth % 8) & 1


def subtree(entries, depth):
    """The digest of the subtree at this depth with these (place, digest of the record)."""
    if not entries:
        return EMPTY
    if len(entries) == 1:
        return leaf(*entries[0])
    halves = [[entry for entry in entries if bit(entry[0], depth) == side] for side in (0, 1)]
    return inner(subtree(halves[0], depth + 1), subtree(halves[1], depth + 1))


def path(entries, key):
    """The siblings from the root on, and the entries of the subtree at the end."""
    place, siblings, depth = sha(key), [], 0
    while len(entries) > 1:
        side = bit(place, depth)
        siblings.append(subtree([entry for entry in entries if bit(entry[0], depth) != side], depth + 1))
        entries = [entry for entry in entries if bit(entry[0], depth) == side]
        depth += 1
    return siblings, entries


def proof(records, entries, key):
    """The lines of a proof before those of the statement."""
    siblings, below = path(entries, key)
    lines = ["handle record proof 2", "key " + key.hex()]
    lines += ["sibling " + sibling.hex() for sibling in siblings]
    if not below:
        lines += ["absent -"]
    elif below[0][0] == sha(key):
        public, _, private_digest, _ = records[key]
        lines += ["present 1 " + public.hex(), "private " + private_digest.hex()]
    else:
        lines += ["other " + below[0][0].hex() + " " + below[0][1].hex()]
    return "".join(line + "\n" for line in lines)


def tree(count):
    names = ["10.1/record-%d" % n for n in range(count)]
    keys = {name: name.upper().encode() for name in names}
    made = [(name, record(name, n % 3 == 0)) for n, name in enumerate(names)]
    records = {keys[name]: made_of for name, made_of in made}
    entries = [(sha(key), records[key][3]) for key in records]
    asked = [key.decode() for key in records] + ["10.1/RECORD-%d" % n for n in range(count, count + 8)]
    return {
        "seed": "%016x" % SEED,
        "names": "folded",
        "records": [
            {
                "handle": name,
                "public": public.hex(),
                "private": private.hex(),
                "leaf": leaf(sha(keys[name]), digest).hex(),
            }
            for name, (public, private, _, digest) in made
        ],
        "root": subtree(entries, 0).hex(),
        "proofs": [{"key": key, "text": proof(records, entries, key.encode())} for key in asked],
    }


def main():
    # No record, one, which is not under an inner node, a pair, and a few.
    text = json.dumps([tree(count) for count in (0, 1, 2, 9)], indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        beside = pathlib.Path(__file__).with_name("proofs.json")
        sys.exit(0 if beside.read_text() == text else "proofs.json differs: write it again")
    sys.stdout.write(text)


main()
