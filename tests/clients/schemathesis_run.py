"""Runs schemathesis against handle-gateway with the OpenAPI document that it serves.

It makes requests for every operation of the document, valid and invalid ones, and checks that no
answer has status 5xx, and none a status, media type, header or body that the document does not have.

    pip install schemathesis
    python3 tests/clients/schemathesis_run.py [--examples N] [--seed N]
"""

import argparse
import base64
import http.client
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import urllib.parse

from service import IDENTITY, SECRET, Service

CHECKS = ",".join([
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "allow_header_conformance",
])
# Unknown methods are answered with 501, so only known ones are tried where they are not described.
CONFIGURATION = """
phases.coverage.unexpected-methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"]
"""


def basic():
    text = f"{IDENTITY.replace(':', '%3A')}:{SECRET}"
    return "Basic " + base64.b64encode(text.encode()).decode()


def cookie(service):
    """The cookie of an administrator who has signed in at the administration pages."""
    context = ssl.create_default_context(cafile=service.certificate)
    connection = http.client.HTTPSConnection("localhost", service.port, context=context)
    form = urllib.parse.urlencode({"id": IDENTITY, "secret": SECRET})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": service.url}
    connection.request("POST", "/admin/sign-in", form, headers)
    answer = connection.getresponse()
    if answer.status != 303:
        raise SystemExit(f"cannot sign in: status {answer.status}")
    return answer.headers["Set-Cookie"].split(";")[0]


def run(service, headers, arguments):
    """Runs schemathesis once; returns whether it has found anything."""
    directory = pathlib.Path(tempfile.mkdtemp(dir=service.directory))
    (directory / "schemathesis.toml").write_text(CONFIGURATION)
    here = pathlib.Path(__file__).absolute().parent
    environment = {**os.environ, "PYTHONPATH": str(here), "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", f"{service.url}/api/openapi.json",
        "--url", service.url, "--tls-verify", str(service.certificate), "--checks", CHECKS,
        "--max-examples", str(arguments.examples), "--seed", str(arguments.seed),
        "--phases", "examples,coverage,fuzzing", "--max-redirects", "0", "--continue-on-failure",
        "--generation-database", "none", "--warnings", "off", "--no-color",
    ]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    is_clean = subprocess.run(command, cwd=directory, env=environment).returncode == 0
    ended = [process.args[0] for process in service.processes if process.poll() is not None]
    for name in ended:
        print(f"{name} has ended")
    return not is_clean or bool(ended)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=30, help="random requests for each operation")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random requests")
    arguments = parser.parse_args()
    found = False
    print("--- without credentials, and with those that schemathesis invents", flush=True)
    with Service() as service:
        found |= run(service, {}, arguments)
    print("--- as administrator", flush=True)
    with Service() as service:
        found |= run(service, {"Authorization": basic(), "Cookie": cookie(service)}, arguments)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
