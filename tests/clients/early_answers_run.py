"""Requests that handle-gateway refuses before it has read their bodies, made by common clients.

Each client sends bodies without credentials on connections that it keeps, and must see status 401
every time: curl, http.client, requests, httpx and Java's client, over HTTP/1.1 and HTTP/2 where it
speaks both. Clients that are not installed are left out, and named.

    python3 -m venv target/early && target/early/bin/pip install requests 'httpx[http2]'
    target/early/bin/python tests/clients/early_answers_run.py
"""

import collections
import http.client
import pathlib
import shutil
import ssl
import subprocess
import sys

from service import PREFIX, Service

COUNT = 20
# A body of one packet, and one that does not fit into the windows of HTTP/2.
LENGTHS = (1000, 2_000_000)
JSON = {"Content-Type": "application/json"}


def with_curl(service, url, body, version):
    if not shutil.which("curl"):
        raise ImportError("curl")
    path = service.directory / "body"
    path.write_bytes(body)
    one = ["-sS", version, "--cacert", service.certificate, "-X", "PUT", "-H", "Content-Type: application/json", "-H", "Expect:",
           "--data-binary", f"@{path}", "-o", "/dev/null", "-w", "%{http_code}\n", url]
    seen = []
    for _ in range(COUNT // 2):
        # Two requests of one process, on a connection that is kept.
        done = subprocess.run(["curl", *one, "--next", *one], capture_output=True, text=True)
        seen += (done.stdout.split() + [done.stderr, done.stderr])[:2]
    return seen


def with_http_client(service, url, body, _):
    context = ssl.create_default_context(cafile=service.certificate)
    connection = http.client.HTTPSConnection("localhost", service.port, context=context, timeout=10)
    seen = []
    for _ in range(COUNT):
        connection.request("PUT", url.split(str(service.port), 1)[1], body, JSON)
        answer = connection.getresponse()
        answer.read()
        seen.append(answer.status)
    return seen


def with_requests(service, url, body, _):
    import requests
    session, trusted = requests.Session(), str(service.certificate)
    answers = (session.put(url, data=body, headers=JSON, timeout=10, verify=trusted) for _ in range(COUNT))
    return [answer.status_code for answer in answers]


def with_httpx(service, url, body, version):
    import httpx
    context = ssl.create_default_context(cafile=service.certificate)
    with httpx.Client(http1=version == "1", http2=version == "2", verify=context, timeout=10) as client:
        return [client.put(url, content=body, headers=JSON).status_code for _ in range(COUNT)]


def with_java(service, url, body, _):
    if not shutil.which("java"):
        raise ImportError("java")
    source = pathlib.Path(__file__).with_name("EarlyAnswers.java")
    command = ["java", source, url, service.certificate, str(len(body)), str(COUNT)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


CLIENTS = [
    ("curl, HTTP/1.1", with_curl, "--http1.1"), ("curl, HTTP/2", with_curl, "--http2"),
    ("http.client", with_http_client, None), ("requests", with_requests, None),
    ("httpx, HTTP/1.1", with_httpx, "1"), ("httpx, HTTP/2", with_httpx, "2"), ("Java", with_java, None),
]


def main():
    faults = 0
    with Service() as service:
        for name, client, version in CLIENTS:
            for length in LENGTHS:
                for path in (f"/api/handles/{PREFIX}/hello", "/api/batch"):
                    # A PUT of a batch is refused for its method, also before its body is read.
                    expected = "401" if "handles" in path else "405"
                    try:
                        seen = client(service, service.url + path, b" " * length, version)
                    except ImportError as missing:
                        print(f"left out: {name} ({missing})")
                        continue
                    except Exception as error:
                        seen = [repr(error)]
                    counts = collections.Counter(map(str, seen))
                    is_good = set(counts) == {expected}
                    faults += not is_good
                    print("ok" if is_good else "FAULT", name, path, length, dict(counts))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
