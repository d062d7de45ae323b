"""Differences of docs/conformance.md that no vector has, each seen at both services."""

import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request

from processes import Daemon, binaries, free_port, listens
from records import starting_records
from services import Ours, Reference, admin_value, value

SECRET = "a secret of many letters"
# The right to add values alone, and every right, as JSON has them.
ADDING, ALL = "000001000000", "111111111111"
# Texts of one address each; deployed versions write the last of them.
ADDRESSES = [("2001:0DB8:0:0:8:0:0:2", "2001:db8::8:0:0:2"), ("::ffff:192.0.2.1", "192.0.2.1"), ("FE80::1", "fe80::1")]


def further_records(service):
    prefix = service.prefix
    hidden = [value(1, "URL", "https://example.org/"), value(2, "DESC", "hidden", permissions="1100")]
    site = json.loads(json.dumps(service.site))
    sites = []
    for number, (address, _) in enumerate(ADDRESSES):
        site["servers"][0]["address"] = address
        sites.append({"handle": f"{prefix}/site-{number}", "values": [value(1, "HS_SITE", json.loads(json.dumps(site)), "site")]})
    return [*starting_records(service), *sites,
            {"handle": f"{prefix}/adding", "values": [*hidden, admin_value(100, f"{prefix}/secret", 300, ADDING)]},
            {"handle": f"{prefix}/all-rights", "values": [*hidden, admin_value(100, f"{prefix}/secret", 300, ALL)]}]


class Http:
    """Requests over HTTPS, whose certificate is not verified."""

    def __init__(self, port):
        self.base = f"https://127.0.0.1:{port}/api/"
        self.context = ssl._create_unverified_context()

    def ask(self, method, path, body=None, authorization=None):
        """Status and JSON of an answer; an empty object without JSON."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if authorization:
            headers["Authorization"] = authorization
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.context) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, {}

    def code(self, *args):
        status, answer = self.ask(*args)
        return status, answer.get("responseCode")


def basic(identity, secret=SECRET):
    return "Basic " + base64.b64encode(f"{urllib.parse.quote(identity, safe='')}:{secret}".encode()).decode()


def is_prime(number):
    return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13))


def modulus(bits, has_small_factor):
    """A modulus of this length: of two primes, or a multiple of 3."""
    if has_small_factor:
        number = (1 << (bits - 1)) | 1
        return number + 2 * (-number * pow(2, -1, 3) % 3)
    primes = []
    while len(primes) < 2:
        candidate = int.from_bytes(os.urandom(bits // 16), "big") | 3 << (bits // 2 - 2) | 1
        if is_prime(candidate):
            primes.append(candidate)
    return primes[0] * primes[1]


def small_key(bits, has_small_factor=False):
    number = modulus(bits, has_small_factor)
    assert number.bit_length() == bits and (number % 3 == 0) == has_small_factor
    text = base64.urlsafe_b64encode(number.to_bytes(bits // 8, "big")).decode().rstrip("=")
    return {"kty": "RSA", "n": text, "e": "AQAB"}


def short_keys(checks, service, http, of_two_primes):
    """Keys below 512 bits, by the JSON that has them. Of two libraries of the reference, the second takes some."""
    admin = basic(f"300:{service.prefix}/secret")
    key = value(300, "HS_PUBKEY", small_key(384, has_small_factor=True), "key")
    found = http.code("PUT", f"handles/{service.prefix}/by-secret?index=300", [key], admin)
    checks.equal("a key of RSA with 384 bits in JSON, of which 3 is a factor", found, (400, 4))
    for bits, expected in ((384, of_two_primes), (512, (200, 1)), (1024, (200, 1))):
        key = value(300, "HS_PUBKEY", small_key(bits), "key")
        found = http.code("PUT", f"handles/{service.prefix}/by-secret?index=300", [key], admin)
        found = (200, 1) if found == (201, 1) else found
        checks.equal(f"a key of RSA with {bits} bits in JSON", found, expected)


def derived_lengths(checks, service, http, allowed):
    """Proofs by PBKDF2 with derived keys of other lengths than usual."""
    for bits in (128, 160, 256, 512):
        _, session = http.ask("POST", "sessions", {})
        client_nonce, salt = os.urandom(16), os.urandom(16)
        message = base64.b64decode(session["nonce"]) + client_nonce
        key = hashlib.pbkdf2_hmac("sha1", SECRET.encode(), salt, 1000, bits // 8)
        proof = hmac.new(key, message, "sha1").digest()
        body = {"sessionId": session["sessionId"], "id": f"300:{service.prefix}/secret", "type": "HS_SECKEY",
                "cnonce": base64.b64encode(client_nonce).decode(), "alg": "PBKDF2WithHmacSHA1",
                "signature": base64.b64encode(proof).decode(), "salt": base64.b64encode(salt).decode(),
                "iterations": 1000, "length": bits}
        status, answer = http.ask("PUT", "sessions/this", body)
        is_in = status == 200 and answer.get("authenticated") is True
        checks.equal(f"a proof by PBKDF2 with a derived key of {bits} bits counts", is_in, bits in allowed)


def overwriting(checks, service, http, by_adding):
    """Overwriting a hidden value by an equal one, and by another one."""
    caller = basic(f"300:{service.prefix}/secret")
    for name, expected in (("adding", by_adding), ("all-rights", {"hidden": (200, 1), "other": (200, 1)})):
        for text in ("hidden", "other"):
            body = [value(2, "DESC", text, permissions="1100")]
            found = http.code("PUT", f"handles/{service.prefix}/{name}?index=2", body, caller)
            checks.equal(f"overwriting a hidden value, {name}, by {text!r}", found, expected[text])


def unknown_identities(checks, service, http, reading, changing):
    """`Basic` credentials of an identity that does not exist."""
    unknown = basic(f"300:{service.prefix}/nobody")
    found = http.code("GET", f"handles/{service.prefix}/hello?publicOnly=true", None, unknown)
    checks.equal("a public read with credentials of nobody", found, reading)
    found = http.code("PUT", f"handles/{service.prefix}/by-secret?index=9", [value(9, "DESC", "x")], unknown)
    checks.equal("a change with credentials of nobody", found, changing)


def addresses(checks, service, http):
    """IPv6 addresses in the JSON of site records."""
    for number, (text, written) in enumerate(ADDRESSES):
        _, answer = http.ask("GET", f"handles/{service.prefix}/site-{number}")
        found = [one["data"]["value"]["servers"][0]["address"] for one in answer.get("values", [])]
        checks.equal(f"the address {text} in JSON", found, [written])


def restricted_at_a_cache(checks, service):
    """Values that are not public, asked for at handle-cache in front of the service and at the service itself."""
    port = free_port()
    cache = Daemon([binaries() / "handle-cache", "--listen", f"127.0.0.1:{port}", "--upstream", service.queries,
                    "--workers", "1", "--allow-root"], service.directory / "cache.log")
    try:
        cache.wait_for(lambda: listens(port), "handle-cache")
        secret = service.directory / "cache-secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        identity = ("--auth", f"300:{service.prefix}/secret", "--secret-file", secret)
        for what, address, code in (("at handle-cache", f"127.0.0.1:{port}", 5), ("at the service", service.administration, 0)):
            found = service.hdl("resolve", f"{service.prefix}/by-secret", "--server", address, "--index", 2, "--tcp", *identity)
            checks.equal(f"a restricted value {what}", found.code, code)
            found = service.hdl("resolve", f"{service.prefix}/by-secret", "--server", address, "--index", 1, "--tcp")
            checks.equal(f"a public value {what}", found.code, 0)
    finally:
        cache.stop()


def all_groups(checks, layout, directory):
    if not checks.wants("differences"):
        return
    for service in (Reference(directory / "theirs", "20.500.9"), Ours(directory / "ours", "20.500.8", layout)):
        is_ours = isinstance(service, Ours)
        name = "ours" if is_ours else "the reference"
        gateway = None
        service.make(further_records)
        try:
            if is_ours:
                service.http_port = free_port()
            service.start()
            if is_ours:
                path = service.home / "handle-gateway.toml"
                text = path.read_text().replace(":8000", f":{service.http_port}")
                # With one port, it is not the one of `hdl init`.
                address = f'\\naddress = "{service.administration}"'
                path.write_text(re.sub(r'\naddress = "[^"]*"', address, text))
                gateway = Daemon([binaries() / "handle-gateway", "--config", path, "--allow-root"], service.directory / "gateway.log")
                gateway.wait_for(lambda: listens(service.http_port), "handle-gateway")
            http = Http(service.http_port)
            checks.attempt(f"differences: short keys, {name}", short_keys, service, http, (400, 4) if is_ours else (200, 1))
            checks.attempt(f"differences: derived lengths, {name}", derived_lengths, service, http,
                           (160, 256) if is_ours else (128, 160, 256, 512))
            refused, changed = (403, 400), (200, 1)
            checks.attempt(f"differences: overwriting, {name}", overwriting, service, http,
                           {"hidden": refused if is_ours else changed, "other": refused})
            checks.attempt(f"differences: unknown identities, {name}", unknown_identities, service, http,
                           (200, 1) if is_ours else (401, None), (403, 400) if is_ours else (401, None))
            checks.attempt(f"differences: addresses, {name}", addresses, service, http)
            checks.attempt(f"differences: restricted values at a cache, {name}", restricted_at_a_cache, service)
        finally:
            if gateway:
                gateway.stop()
            service.stop()
