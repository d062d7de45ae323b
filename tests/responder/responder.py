"""A minimal handle server that shares no code with ours, for tests.

It answers resolution requests (RFC 3652 section 3.2) for public values from a file of JSON records: over UDP, also
requests and answers of several datagrams; over TCP, with one request on each connection, or more if the client
asks to keep it open; in the body of a POST over HTTP; and as JSON. Requests for values that are not public are
answered with the demand to authenticate, which is not supported. It is written from the description of the
protocol and uses only the standard library.

    python3 responder.py RECORDS.jsonl

It chooses its ports, and prints them as JSON on its first line of output.
"""

import base64
import hashlib
import http.server
import json
import socket
import socketserver
import struct
import sys
import threading
import time
import urllib.parse
from datetime import datetime, timezone

ENVELOPE = struct.Struct(">BBBBiiII")
HEADER = struct.Struct(">iiIHBBII")
PIECE = 492
TRUNCATED = 0x20
RECURSIVE = 0x10000000
CONTINUED = 0x04000000
KEEP_CONNECTION = 0x02000000
PUBLIC_ONLY = 0x01000000
REQUEST_DIGEST = 0x00800000
PUBLIC_READ, ADMIN_READ = 0x02, 0x08
OP_RESOLUTION = 1
SUCCESS, PROTOCOL_ERROR, NO_OPERATION, NOT_FOUND, NO_VALUES = 1, 4, 5, 100, 200
ACCESS_DENIED, AUTHENTICATION_NEEDED = 401, 402
MESSAGE_MAX = 262144
MEDIA_TYPE = "application/x-hdl-message"
# Most incomplete requests of several datagrams, and the time limit for each.
PARTIAL_MAX, PARTIAL_SECONDS = 256, 5


def text(data):
    return struct.pack(">I", len(data)) + data


class Value:
    """A value in both forms: bytes on the wire, and JSON."""

    def __init__(self, json_value):
        self.json = json_value
        self.index = json_value["index"]
        self.type = json_value["type"].encode()
        data = json_value["data"]
        if data["format"] == "string":
            self.data = data["value"].encode()
        elif data["format"] == "base64":
            self.data = base64.b64decode(data["value"])
        elif data["format"] == "admin":
            admin = data["value"]
            bits = int(admin["permissions"], 2)
            self.data = struct.pack(">H", bits) + text(admin["handle"].encode()) + struct.pack(">I", admin["index"])
        else:
            raise ValueError(f"unknown data format {data['format']}")
        self.permissions = int(json_value.get("permissions", "1110"), 2)
        self.ttl = json_value.get("ttl", 86400)
        stamp = json_value.get("timestamp")
        if stamp:
            when = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
            self.timestamp = int(when.timestamp())
        else:
            self.timestamp = 0

    def wire(self):
        head = struct.pack(">IIBiB", self.index, self.timestamp, 0, self.ttl, self.permissions)
        return head + text(self.type) + text(self.data) + struct.pack(">I", 0)

    def is_public(self):
        return bool(self.permissions & PUBLIC_READ)


def fold(name):
    """Upper case for ASCII letters only."""
    return bytes(byte - 32 if 97 <= byte <= 122 else byte for byte in name)


def type_matches(asked, kind):
    asked, kind = fold(asked), fold(kind)
    if not asked or not kind:
        return False
    if asked.endswith(b"."):
        return kind == asked[:-1] or kind.startswith(asked)
    return kind == asked


class Records:
    def __init__(self, path):
        self.records = {}
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    record = json.loads(line)
                    values = [Value(value) for value in record["values"]]
                    self.records[fold(record["handle"].encode())] = values

    def select(self, name, indexes, types, is_public_only=True):
        """The code of the answer, and its values."""
        values = self.records.get(fold(name))
        if values is None:
            return NOT_FOUND, []
        everything = not indexes and not types
        chosen = [
            value
            for value in values
            if everything or value.index in indexes or any(type_matches(asked, value.type) for asked in types)
        ]
        hidden = [value for value in chosen if not value.is_public()]
        if hidden and not is_public_only:
            is_for_admins = hidden[0].permissions & ADMIN_READ
            return (AUTHENTICATION_NEEDED if is_for_admins else ACCESS_DENIED), []
        chosen = [value for value in chosen if value.is_public()]
        return (SUCCESS, chosen) if chosen else (NO_VALUES, [])


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self):
        (number,) = struct.unpack_from(">I", self.data, self.at)
        self.at += 4
        return number

    def text(self):
        length = self.number()
        if length > len(self.data) - self.at:
            raise ValueError("a length exceeds the message")
        self.at += length
        return self.data[self.at - length : self.at]

    def count(self):
        """The number of items that follow, of at least four bytes each."""
        count = self.number()
        if count > (len(self.data) - self.at) // 4:
            raise ValueError("a list exceeds the message")
        return count


def answer(records, request):
    """The envelope fields and the message of the answer to a whole request."""
    major, minor, flags, minor_max, session, request_id, _, length = ENVELOPE.unpack_from(request)
    major_max = flags & 3
    version = min((major_max, minor_max), (2, 11)) if major_max else (major, minor)
    message = request[ENVELOPE.size : ENVELOPE.size + length]
    operation, _, op_flags, _, recursion, _, _, body_length = HEADER.unpack_from(message)
    body = message[HEADER.size : HEADER.size + body_length]
    out = b""
    if operation != OP_RESOLUTION:
        code = NO_OPERATION
    else:
        try:
            code, out = resolve(records, body, bool(op_flags & PUBLIC_ONLY))
        except (ValueError, struct.error):
            code = PROTOCOL_ERROR
    # Some flags of the request are not repeated in a response, and one is always set.
    op_flags = op_flags & ~(KEEP_CONNECTION | CONTINUED) | RECURSIVE
    if op_flags & REQUEST_DIGEST:
        if version < (2, 1):
            op_flags &= ~REQUEST_DIGEST
        else:
            out = digest(version, message[: HEADER.size + body_length]) + out
    header = HEADER.pack(operation, code, op_flags, 1, recursion, 0, int(time.time()) + 43200, len(out))
    return version, session, request_id, header + out + struct.pack(">I", 0)


def digest(version, asked):
    """The digest of header and body of the request, at the start of a response."""
    return b"\3" + hashlib.sha256(asked).digest() if version >= (2, 7) else b"\2" + hashlib.sha1(asked).digest()


def resolve(records, body, is_public_only):
    """The code and the body of the answer to a resolution."""
    reader = Reader(body)
    name = reader.text()
    indexes = [reader.number() for _ in range(reader.count())]
    types = [reader.text() for _ in range(reader.count())]
    if reader.at != len(body):
        raise ValueError("bytes after the lists")
    code, values = records.select(name, indexes, types, is_public_only)
    if code != SUCCESS:
        return code, b""
    return code, text(name) + struct.pack(">I", len(values)) + b"".join(value.wire() for value in values)


def envelope(version, flags, session, request_id, sequence, length):
    return ENVELOPE.pack(version[0], version[1], flags | 2, 11, session, request_id, sequence, length)


def is_request(data):
    if len(data) < ENVELOPE.size + HEADER.size:
        return False
    length, code = ENVELOPE.unpack_from(data)[7], HEADER.unpack_from(data, ENVELOPE.size)[1]
    return HEADER.size <= length <= len(data) - ENVELOPE.size and code == 0


def keeps_connection(data):
    return bool(HEADER.unpack_from(data, ENVELOPE.size)[2] & KEEP_CONNECTION)


class Partial:
    """Incomplete requests of several datagrams, oldest first."""

    def __init__(self):
        self.requests = {}

    def add(self, data, peer):
        """Adds a datagram; returns the request once it is complete, and no bytes before."""
        _, _, flags, _, _, request_id, sequence, length = ENVELOPE.unpack_from(data)
        if not flags & TRUNCATED:
            return data
        now, key = time.monotonic(), (peer, request_id)
        for old in [key for key, (since, _) in self.requests.items() if since + PARTIAL_SECONDS < now]:
            del self.requests[old]
        if length > MESSAGE_MAX or (key not in self.requests and len(self.requests) >= PARTIAL_MAX):
            return b""
        _, pieces = self.requests.setdefault(key, (now, {}))
        pieces[sequence] = data[ENVELOPE.size :]
        message = b"".join(pieces[number] for number in sorted(pieces))
        if len(message) < length or sorted(pieces) != list(range(len(pieces))):
            return b""
        del self.requests[key]
        return data[: ENVELOPE.size] + message


def serve_udp(records, sock):
    partial = Partial()
    while True:
        data, peer = sock.recvfrom(2048)
        data = partial.add(data, peer) if len(data) >= ENVELOPE.size else b""
        if not is_request(data):
            continue
        version, session, request_id, message = answer(records, data)
        flags = TRUNCATED if len(message) > PIECE else 0
        for number, at in enumerate(range(0, len(message), PIECE)):
            head = envelope(version, flags, session, request_id, number, len(message))
            sock.sendto(head + message[at : at + PIECE], peer)


class Tcp(socketserver.StreamRequestHandler):
    """One request on each connection, unless the client asks to keep it open."""

    def handle(self):
        while True:
            head = self.rfile.read(ENVELOPE.size)
            if len(head) < ENVELOPE.size:
                return
            length = ENVELOPE.unpack(head)[7]
            data = head + self.rfile.read(min(length, MESSAGE_MAX))
            if not is_request(data):
                return
            version, session, request_id, message = answer(self.server.records, data)
            self.wfile.write(envelope(version, 0, session, request_id, 0, len(message)) + message)
            if not keeps_connection(data):
                return


class Http(http.server.BaseHTTPRequestHandler):
    """The protocol in the body of a POST, and the JSON API for reading."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        name = urllib.parse.unquote_to_bytes(url.path.removeprefix("/api/handles/"))
        query = urllib.parse.parse_qs(url.query)
        indexes = [int(index) for index in query.get("index", [])]
        types = [kind.encode() for kind in query.get("type", [])]
        code, values = self.server.records.select(name, indexes, types)
        reply = {"responseCode": code, "handle": name.decode("utf-8", "replace")}
        if code != NOT_FOUND:
            reply["values"] = [value.json for value in values]
        status = 404 if code == NOT_FOUND else 200
        self.reply(status, "application/json;charset=utf-8", json.dumps(reply).encode())

    def do_POST(self):
        length = int(self.headers.get("Content-Length", "0"))
        data = self.rfile.read(min(length, MESSAGE_MAX))
        if self.headers.get("Content-Type") != MEDIA_TYPE or not is_request(data):
            self.reply(400, "text/plain", b"not a message")
            return
        version, session, request_id, message = answer(self.server.records, data)
        head = envelope(version, 0, session, request_id, 0, len(message))
        self.reply(200, MEDIA_TYPE, head + message)

    def reply(self, status, media_type, body):
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def main():
    records = Records(sys.argv[1])
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    servers = [Threads(("127.0.0.1", 0), handler) for handler in (Tcp, Http)]
    for server in servers:
        server.records = records
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=serve_udp, args=(records, udp), daemon=True).start()
    tcp, web = (server.server_address[1] for server in servers)
    print(json.dumps({"udp": udp.getsockname()[1], "tcp": tcp, "http": web}), flush=True)
    # The parent process closes the input to end this process.
    sys.stdin.read()


if __name__ == "__main__":
    main()
