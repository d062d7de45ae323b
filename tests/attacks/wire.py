"""Requests over HTTP/1.1, HTTP/2 and the handle protocol, from chosen addresses of loopback."""

import base64
import hashlib
import json
import socket
import ssl
import struct
import time

TIMEOUT_S = 20


def connect(port, source, timeout=TIMEOUT_S):
    stream = socket.create_connection(("127.0.0.1", port), timeout, (source, 0))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


# The certificate of the service is its own. Authorities, which take long to read, are not needed.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE
TLS.set_alpn_protocols(["http/1.1"])


def connect_over_tls(port, source):
    return TLS.wrap_socket(connect(port, source), server_hostname="127.0.0.1")


def basic(identity, secret):
    named = f"{identity.replace(':', '%3A')}:{secret}"
    return f"Authorization: Basic {base64.b64encode(named.encode()).decode()}\r\n"


def request(method, target, headers="", body=b""):
    """A request of HTTP/1.1 as bytes."""
    framing = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{framing}{headers}\r\n".encode() + body


def resolve_request(names, **filters):
    body = json.dumps({"handles": names, **filters}, separators=(",", ":")).encode()
    return request("POST", "/api/resolve", "Content-Type: application/json\r\n", body)


class HttpClient:
    """A client over a kept connection, which is made again when the server has closed it."""

    def __init__(self, port, source, tls=False):
        self.port, self.source, self.tls = port, source, tls
        self.stream, self.rest = None, b""

    def send(self, message):
        if self.stream is None:
            self.stream = (connect_over_tls if self.tls else connect)(self.port, self.source)
            self.rest = b""
        self.stream.sendall(message)

    def ask(self, message):
        """The status of the answer, and its body."""
        for attempt in range(2):
            is_kept = self.stream is not None
            try:
                self.send(message)
                return self.receive()
            except (OSError, EOFError):
                self.close()
                if not is_kept or attempt:
                    raise

    def receive(self):
        while b"\r\n\r\n" not in self.rest:
            self.more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        status, head = int(head[9:12]), head.lower()
        if b"\r\ntransfer-encoding: chunked" in head:
            body = b"".join(iter(self.chunk, b""))
        else:
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            body = self.take(int(length or b"0"))
        if b"\r\nconnection: close" in head:
            self.close()
        return status, body

    def chunk(self):
        while b"\r\n" not in self.rest:
            self.more()
        length, _, self.rest = self.rest.partition(b"\r\n")
        return self.take(int(length, 16) + 2)[:-2]

    def take(self, length):
        parts, missing = [self.rest[:length]], length - len(self.rest)
        self.rest = self.rest[length:]
        while missing > 0:
            part = self.stream.recv(min(missing, 1 << 20))
            if not part:
                raise EOFError("the answer ends early")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def more(self):
        part = self.stream.recv(1 << 18)
        if not part:
            raise EOFError("the connection was closed")
        self.rest += part

    def close(self):
        if self.stream is not None:
            self.stream.close()
            self.stream = None


# HTTP/2, RFC 9113.
DATA, HEADERS, WINDOW_UPDATE, END_STREAM, END_HEADERS = 0, 1, 8, 1, 4


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def http2_fields(method, path, *literals):
    """Fields by their index of the static table (RFC 7541), and literals."""
    fields = bytes([method, 0x86, 0x01, 1]) + b"x" + bytes([0x04, len(path)]) + path.encode()
    return fields + b"".join(bytes([0x0f, index - 15, len(value)]) + value for index, value in literals)


def get_over_http2(stream, path):
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, http2_fields(0x82, path))


def post_over_http2(stream, path, body):
    head = http2_fields(0x83, path, (31, b"application/json"))
    return frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, body)


def connect_without_window(port, source):
    """A connection of HTTP/2 whose client allows no byte of any answer."""
    stream = connect(port, source)
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
    return stream


# The handle protocol, RFC 3652.
RESOLUTION, VERIFY_CHALLENGE, SESSION_SETUP = 1, 201, 400
PLAIN, CERTIFY, KEEP_CONNECTION, REQUEST_DIGEST = 0x19000000, 0x40000000, 0x02000000, 0x00800000
SUCCESS = 1


def string(value):
    return struct.pack(">I", len(value)) + value


def message(operation, body, flags=PLAIN, request_id=1):
    header = struct.pack(">iiIhBBII", operation, 0, flags, -1, 0, 0, int(time.time()) + 43200, len(body))
    content = header + body + bytes(4)
    return struct.pack(">BBBBiiiI", 2, 11, 2, 11, 0, request_id, 0, len(content)) + content


def query(handle, flags=PLAIN):
    return message(RESOLUTION, string(handle.encode()) + bytes(8), flags)


def verification(identity, secret):
    """Whether an answer to a challenge, a SHA-256 over the secret, is right."""
    index, handle = identity.split(":", 1)
    nonce, digest = bytes(16), bytes(20)
    answer = b"\x03" + hashlib.sha256(secret + nonce + digest + secret).digest()
    body = string(handle.encode()) + struct.pack(">i", int(index)) + string(nonce) + b"\x02" + digest + string(answer)
    return message(VERIFY_CHALLENGE, body, PLAIN | KEEP_CONNECTION)


# RFC 2409 section 6.2, which deployed clients use.
OAKLEY_2 = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381FFFFFFFFFFFFFFFF", 16)


def session_setup():
    """An anonymous request for a session with a key exchange by Diffie-Hellman."""
    public = pow(2, int.from_bytes(hashlib.sha256(b"attacks").digest() * 2, "big"), OAKLEY_2)
    numbers = [public.to_bytes(129, "big"), OAKLEY_2.to_bytes(129, "big"), b"\x02"]
    key = string(b"DH_PUB_KEY") + bytes(2) + b"".join(map(string, numbers))
    body = struct.pack(">Hi", 4, 0) + string(b"") + struct.pack(">i", -1) + string(key) + bytes(2)
    return message(SESSION_SETUP, body, PLAIN | CERTIFY | REQUEST_DIGEST)


class NativeClient:
    """A client of the handle protocol over TCP. Answers are code and body."""

    def __init__(self, port, source, keeps=True):
        self.port, self.source, self.keeps = port, source, keeps
        self.stream, self.rest = None, b""

    def ask(self, question):
        if self.stream is None:
            self.stream, self.rest = connect(self.port, self.source), b""
        try:
            self.stream.sendall(question)
            return self.receive()
        finally:
            if not self.keeps:
                self.close()

    def receive(self):
        length = struct.unpack(">I", self.take(20)[16:])[0]
        content = self.take(length)
        return struct.unpack(">i", content[4:8])[0], content[24:]

    def take(self, length):
        while len(self.rest) < length:
            part = self.stream.recv(1 << 16)
            if not part:
                self.close()
                raise EOFError("the connection was closed")
            self.rest += part
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def close(self):
        if self.stream is not None:
            self.stream.close()
            self.stream = None
