"""Sends requests that servers may read differently through nginx and HAProxy to handle-gateway.

The proxies run with the configurations of docs/gateway.md, on other ports. Each request of
tests/vectors/smuggling.jsonl is sent with requests behind it on the same connection, and alone on a
connection that stays open. Then other connections ask for records of their own. A fault is

- an answer about another record than that of its request, or answers out of order,
- a request that the gateway has in its log and the proxy has not.

HAProxy, and the gateway directly, also get requests over HTTP/2 whose fields would be other requests
in HTTP/1.1. A gateway without trusted proxies and without a log, which answers plain requests without
its general reader of HTTP, gets all requests directly.

    apt-get install nginx-light haproxy
    python3 tests/clients/smuggling_run.py
"""

import collections
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time

from service import TIMEOUT_S, ROOT, Service, free_port, text

PREFIX = "10.1"
VECTORS = ROOT / "tests" / "vectors" / "smuggling.jsonl"
# Seconds without a byte after which a proxy waits for more of a request.
SILENCE_S = 0.5
VICTIMS = ["victim-a", "victim-b", "victim-c"]
TIMES = """
limits.header_ms = 2000
limits.transfer_ms = 2000
"""


def parts_of(line):
    for part in line["request"]:
        part, count = part if isinstance(part, list) else (part, 1)
        yield part.encode("latin-1") * count


def cases():
    """Names and bytes of the requests. The number of a case is in the name of its hidden record."""
    for number, line in enumerate(map(json.loads, VECTORS.read_text().splitlines())):
        yield line["name"], b"".join(parts_of(line)).replace(b"smuggled-000", b"smuggled-%03d" % number)


def records():
    hidden = [f"smuggled-{number:03}" for number in range(400)]
    return [
        {"handle": f"{PREFIX}/{name}", "values": [text(1, "URL", f"https://example.org/{name}")]}
        for name in ["hello", "probe-a", "probe-b", *VICTIMS, *hidden]
    ]


def documented(language, replacements):
    """A block of docs/gateway.md, with other addresses and files."""
    document = (ROOT / "docs" / "gateway.md").read_text()
    block = re.search(rf"^```{language}\n(.*?)^```", document, re.MULTILINE | re.DOTALL).group(1)
    for old, new in replacements.items():
        if old not in block:
            raise SystemExit(f"docs/gateway.md: the configuration of {language} has no {old!r}")
        block = block.replace(old, str(new))
    return block


class Proxy:
    """A proxy in front of the gateway; it ends with the context."""

    def __init__(self, name, command, configuration, port, directory):
        self.name, self.port = name, port
        self.log = directory / f"{name}.log"
        path = directory / f"{name}.conf"
        path.write_text(configuration)
        output = open(self.log, "a")
        self.process = subprocess.Popen([*command, path], stdout=output, stderr=output)
        deadline = time.monotonic() + TIMEOUT_S
        while not is_open(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"{name} does not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def nginx(service):
    here, port = service.directory, free_port()
    shutil.copy(service.certificate, here / "certificate.pem")
    block = documented("nginx", {
        "127.0.0.1:8000": f"127.0.0.1:{service.port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/hdl/fullchain.pem": here / "certificate.pem",
        "/etc/ssl/hdl/privkey.pem": here / "key.pem",
        "/var/cache/nginx/handles": here / "nginx-cache",
    })
    user = "user root;" if os.geteuid() == 0 else ""
    kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    temporary = "".join(f"{kind}_temp_path {here}/nginx-{kind};\n" for kind in kinds)
    configuration = f"""{user}
daemon off;
worker_processes 1;
pid {here}/nginx.pid;
error_log {here}/nginx-errors.log;
events {{}}
http {{
{temporary}
log_format requests '$request_method $request_uri';
access_log {here}/nginx.log requests;
{block}
}}
"""
    return Proxy("nginx", ["nginx", "-c"], configuration, port, here)


def haproxy(service, health_port):
    here, port = service.directory, free_port()
    (here / "hdl.pem").write_text(service.certificate.read_text() + (here / "key.pem").read_text())
    block = documented("haproxy", {
        "127.0.0.1:8000": f"127.0.0.1:{service.port}",
        "bind :443": f"bind 127.0.0.1:{port}",
        "/etc/haproxy/hdl.pem": here / "hdl.pem",
        "check port 9643": f"check port {health_port}",
    })
    # The defaults of Debian, and a log with the requests alone.
    configuration = f"""
global
    log stdout format raw local0
defaults
    mode http
    log global
    log-format "%HM %HU"
    timeout connect 5000
    timeout client 50000
    timeout server 50000
{block}"""
    return Proxy("haproxy", ["haproxy", "-db", "-f"], configuration, port, here)


def requests_of(proxy):
    """How often the log of a proxy has each path."""
    lines = proxy.log.read_text("utf-8", "replace").splitlines()
    found = (re.search(rf"/{PREFIX}/[a-z]+-[0-9a-z]+", line) for line in lines)
    return collections.Counter(match.group() for match in found if match)


def requests_of_gateway(service):
    lines = (service.directory / "requests.log").read_text().splitlines()
    paths = (str(json.loads(line).get("path")) for line in lines)
    found = (re.search(rf"/{PREFIX}/[a-z]+-[0-9a-z]+", path) for path in paths)
    return collections.Counter(match.group() for match in found if match)


class Client:
    """A connection over TLS."""

    def __init__(self, port, certificate, protocol="http/1.1"):
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols([protocol])
        plain = socket.create_connection(("127.0.0.1", port))
        self.stream = context.wrap_socket(plain, server_hostname="localhost")
        self.received = b""

    def send(self, data):
        try:
            self.stream.sendall(data)
        except OSError:
            pass  # A refused request may be answered before all of it is sent.

    def read_to_end(self):
        self.stream.settimeout(SILENCE_S)
        try:
            while data := self.stream.recv(65536):
                self.received += data
        except OSError:
            pass
        return self.received

    def answer(self):
        """The next answer, as status and record."""
        self.stream.settimeout(TIMEOUT_S)
        while not (split := split_answer(self.received)):
            data = self.stream.recv(65536)
            if not data:
                return "none", None
            self.received += data
        answer, self.received = split
        return answer

    def close(self):
        self.stream.close()


def split_answer(data, is_head=False):
    """The first answer in `data`, as status and record, and the bytes behind it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if not end or not match:
        return None
    status, body = match.group(1).decode(), b""
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if is_head or status in ("100", "204", "304"):
        pass
    elif re.search(rb"\r\ntransfer-encoding: *chunked", head, re.IGNORECASE):
        chunk = re.compile(rb"([0-9a-fA-F]+)\r\n")
        while True:
            size = chunk.match(rest)
            if not size or len(rest) < size.end() + int(size.group(1), 16) + 2:
                return None
            at, size = size.end(), int(size.group(1), 16)
            body, rest = body + rest[at:at + size], rest[at + size + 2:]
            if size == 0:
                break
    elif length:
        body, rest = rest[:int(length.group(1))], rest[int(length.group(1)):]
        if len(body) < int(length.group(1)):
            return None
    place = re.search(rb"\r\nlocation: *https://example.org/(\S+)", head, re.IGNORECASE)
    place = place or re.search(rb"https://example.org/([a-z0-9-]+)", body)
    return (status, place.group(1).decode() if place else None), rest


def answers_in(data, is_head):
    answers = []
    while split := split_answer(data, is_head):
        answers.append(split[0])
        data, is_head = split[1], False
    return answers


def get(path, close=False):
    ends = "Connection: close\r\n" if close else ""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{ends}\r\n".encode()


class Run:
    """The faults of all requests so far."""

    def __init__(self, service, has_cache=True):
        self.service, self.faults, self.count, self.number = service, [], 0, 0
        self.has_cache = has_cache

    def fault(self, *words):
        self.faults.append(" ".join(map(str, words)))

    def client(self, port, protocol="http/1.1"):
        return Client(port, self.service.certificate, protocol)

    def ask_as_others(self, port, about):
        """Other connections, each with several requests, which no cache can answer."""
        for prefix in ("/", "/api/handles/"):
            client = self.client(port)
            for name in VICTIMS:
                self.number += 1
                query = f"?n={self.number}" if self.has_cache else ""
                client.send(get(f"{prefix}{PREFIX}/{name}{query}"))
                status, record = client.answer()
                self.count += 1
                if record != name:
                    self.fault(about, ":", name, "got", status, record)
                    break
            client.close()

    def check(self, port, about, request):
        """One request, with others behind it, and alone."""
        client = self.client(port)
        probes = get(f"/{PREFIX}/probe-a") + get(f"/{PREFIX}/probe-b", close=True)
        client.send(request + probes)
        answers = answers_in(client.read_to_end(), request.startswith(b"HEAD"))
        client.close()
        self.count += len(answers)
        about_records = [record for _, record in answers]
        if set(about_records) & set(VICTIMS):
            self.fault(about, ": got an answer to another client", answers)
        probes = [record for record in about_records if record in ("probe-a", "probe-b")]
        if probes not in ([], ["probe-a"], ["probe-b"], ["probe-a", "probe-b"]):
            self.fault(about, ": answers out of order", answers)
        if probes and about_records[-1] not in ("probe-a", "probe-b", None):
            self.fault(about, ": an answer behind the last one", answers)
        self.ask_as_others(port, about)
        alone = self.client(port)
        alone.send(request)
        self.ask_as_others(port, f"{about}, with its connection open")
        alone.close()

    def compare_logs(self, proxy):
        """What the gateway was asked, and the proxy was not."""
        time.sleep(1)
        theirs, ours = requests_of(proxy), requests_of_gateway(self.service)
        if not theirs or not ours:
            raise SystemExit(f"{proxy.name}: nothing in the logs")
        for path, count in (ours - self.logged).items():
            if count > theirs[path]:
                self.fault(proxy.name, ": the gateway was asked", count, "times for", path, "and the proxy", theirs[path])
        self.logged = ours

    def check_caches(self, proxy):
        """What a cache has kept is right."""
        client = self.client(proxy.port)
        for name in ["hello", "probe-a", "probe-b", *VICTIMS]:
            for prefix in ("/", "/api/handles/"):
                client.send(get(f"{prefix}{PREFIX}/{name}"))
                status, record = client.answer()
                self.count += 1
                if record != name:
                    self.fault(proxy.name, ": a cache has", status, record, "for", name)
        client.close()


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(data):
    """A string of HPACK, without Huffman coding."""
    prefix = bytes([len(data)]) if len(data) < 127 else None
    if prefix is None:
        rest, prefix = len(data) - 127, b"\x7f"
        while rest >= 128:
            prefix, rest = prefix + bytes([rest % 128 + 128]), rest // 128
        prefix += bytes([rest])
    return prefix + data


def over_http2(fields, body=b"", trailers=()):
    """A connection with one request of these fields."""
    encode = lambda fields: b"".join(b"\x00" + literal(name) + literal(value) for name, value in fields)
    ends = 0 if body or trailers else 1
    out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4 | ends, 1, encode(fields))
    if body:
        out += frame(0, 0 if trailers else 1, 1, body)
    if trailers:
        out += frame(1, 5, 1, encode(trailers))
    return out


def http2_cases(first):
    """Requests of HTTP/2 with parts of others in their fields and bodies."""
    plain = {b":method": b"POST", b":scheme": b"https", b":authority": b"localhost",
             b":path": b"/api/handles/10.1/hello"}
    numbers = iter(range(first, 400))
    hidden = lambda: b"GET /10.1/smuggled-%03d HTTP/1.1\r\nHost: localhost\r\n\r\n" % next(numbers)
    changed = lambda **fields: list({**plain, **{f":{k}".encode(): v for k, v in fields.items()}}.items())
    with_fields = lambda *fields: [*plain.items(), *fields]
    chunked = b"0\r\n\r\n"
    for name, value in [(b"content-length", b"0"), (b"content-length", b"5"), (b"content-length", b"9999"),
                        (b"content-length", b"+5"), (b"transfer-encoding", b"chunked"),
                        (b"transfer-encoding", b"identity"), (b"te", b"chunked"), (b"te", b"trailers"),
                        (b"connection", b"transfer-encoding"), (b"upgrade", b"h2c"), (b"expect", b"100-continue"),
                        (b"Transfer-Encoding", b"chunked"), (b"transfer_encoding", b"chunked"),
                        (b"transfer-encoding ", b"chunked"), (b" transfer-encoding", b"chunked"),
                        (b"transfer-encoding:chunked\r\nx", b"y"), (b"x\r\ntransfer-encoding", b"chunked"),
                        (b"x", b"y\r\nTransfer-Encoding: chunked"), (b"x", b"y\nTransfer-Encoding: chunked"),
                        (b"x", b"y\rTransfer-Encoding: chunked"), (b"x", b"y\x00z"), (b"", b"y"), (b"x:", b"y"),
                        (b"host", b"other.example"), (b"content-length", b"5\r\n\r\n")]:
        yield f"HTTP/2: {name!r}: {value!r}", over_http2(with_fields((name, value)), chunked + hidden())
    yield "HTTP/2: two lengths", over_http2(
        with_fields((b"content-length", b"0"), (b"content-length", b"9")), hidden())
    injected = lambda: b" HTTP/1.1\r\nHost: localhost\r\n\r\n" + hidden()[:-4]
    for field, value in [("path", plain[b":path"]), ("method", b"GET /10.1/hello"), ("authority", b"localhost"),
                         ("scheme", b"https://localhost/10.1/hello")]:
        yield f"HTTP/2: a request in :{field}", over_http2(changed(**{field: value + injected()}))
        yield f"HTTP/2: a line end in :{field}", over_http2(changed(**{field: value + b"\r\nx: y"}))
        yield f"HTTP/2: a blank in :{field}", over_http2(changed(**{field: value + b" x"}))
    yield "HTTP/2: a value with a request", over_http2(with_fields((b"x", b"y\r\n\r\n" + hidden())))
    yield "HTTP/2: an empty :path", over_http2(changed(path=b""))
    yield "HTTP/2: a :path without slash", over_http2(changed(path=b"10.1/hello"))
    yield "HTTP/2: CONNECT", over_http2(changed(method=b"CONNECT"), hidden())
    yield "HTTP/2: two paths", over_http2([*plain.items(), (b":path", b"/10.1/probe-a")])
    yield "HTTP/2: a path behind fields", over_http2([*list(plain.items())[:3], (b"x", b"y"), (b":path", b"/")])
    yield "HTTP/2: a length in trailers", over_http2(plain.items(), chunked, [(b"content-length", b"40")])
    yield "HTTP/2: a coding in trailers", over_http2(plain.items(), chunked, [(b"transfer-encoding", b"chunked")])
    yield "HTTP/2: a path in trailers", over_http2(plain.items(), chunked, [(b":path", b"/10.1/probe-a")])


def check_http2(run, port, first):
    plain = run.client(port, "h2")
    fields = {b":method": b"GET", b":scheme": b"https", b":authority": b"localhost", b":path": b"/api/handles/10.1/hello"}
    plain.send(over_http2(fields.items()))
    if b"https://example.org/hello" not in plain.read_to_end():
        raise SystemExit(f"no HTTP/2 on port {port}")
    plain.close()
    for about, request in http2_cases(first):
        client = run.client(port, "h2")
        client.send(request)
        client.read_to_end()
        run.ask_as_others(port, about)
        client.close()


def main():
    if missing := [name for name in ("nginx", "haproxy") if not shutil.which(name)]:
        raise SystemExit(f"not found: {', '.join(missing)} (apt-get install nginx-light haproxy)")
    health_port = free_port()
    settings = f"""
observe.http = "127.0.0.1:{health_port}"
proxies.trusted = ["127.0.0.1"]
request_log.format = "json"
{TIMES}"""
    service = Service(records(), [PREFIX], settings)
    service.further_settings += f'request_log.path = "{service.directory}/requests.log"\n'
    with service, nginx(service) as first, haproxy(service, health_port) as second:
        run = Run(service)
        run.logged = requests_of_gateway(service)
        all_cases = list(cases())
        for proxy in (first, second):
            for name, request in all_cases:
                run.check(proxy.port, f"{proxy.name}: {name}", request)
            run.check_caches(proxy)
            if proxy is second:
                check_http2(run, proxy.port, len(all_cases))
            run.compare_logs(proxy)
        check_http2(run, service.port, len(all_cases))
    with Service(records(), [PREFIX], TIMES) as service:
        direct = Run(service, has_cache=False)
        for name, request in all_cases:
            direct.check(service.port, f"directly: {name}", request)
    faults, count = run.faults + direct.faults, run.count + direct.count
    for fault in faults:
        print(fault)
    print(f"{len(all_cases)} requests through each proxy and directly, {count} answers read, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
