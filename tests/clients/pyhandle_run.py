"""Runs the tests of pyhandle for its REST client against handle-admin and handle-gateway over TLS.

The tests are those of the source distribution, which the installed package has too: reading, writing,
and reverse lookup at `/hrls/handles`. The test that a handle of the public Handle System is found is
left out. In addition, records are found by reverse lookup, and changed with client certificates, for
which `openssl` makes the key.

    pip install pyhandle==1.5.0 pytest mock
    python3 tests/clients/pyhandle_run.py TESTS

TESTS is the directory `pyhandle/tests` of the unpacked source distribution
(`pip download --no-deps --no-binary :all: pyhandle==1.5.0`).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from service import SECRET, Service, administrator, free_port, programs, text

PREFIX = "21.T14999"
ADMINISTRATOR = f"{PREFIX}/B2HANDLE_INTEGRATION_TESTS"
# The modules that talk to a server over HTTP.
MODULES = ["handleclient_read_integration_test", "handleclient_write_integration_test",
           "handleclient_search_integration_test"]
# What reverse lookup needs of the processes.
SEARCH = "admin.search = true"
INDEX = 'index.types = ["URL", "CHECKSUM"]'
# The index of the public key of the administrator.
KEY_INDEX = 301


class ClientCertificate:
    """A key with a certificate for the administrator, in files of their own and in one file."""

    def __init__(self, directory):
        self.key, self.certificate, self.both = (directory / name for name in ("key.pem", "crt.pem", "both.pem"))
        subject = f"/UID={KEY_INDEX}:{ADMINISTRATOR}".replace("/21", "\\/21").replace("/B2", "\\/B2")
        command = ["openssl", "req", "-x509", "-new", "-newkey", "rsa:2048", "-nodes", "-days", "30",
                   "-subj", subject, "-keyout", self.key, "-out", self.certificate]
        subprocess.run(command, check=True, capture_output=True)
        self.key.chmod(0o600)
        self.both.write_text(self.certificate.read_text() + self.key.read_text())
        shown = subprocess.run([programs() / "hdl", "key", "show", self.key, "--json"], check=True,
                               capture_output=True, text=True)
        self.public_key = json.loads(shown.stdout)["publicKey"]

    def value(self):
        return {"index": KEY_INDEX, "type": "HS_PUBKEY", "data": {"format": "key", "value": self.public_key}}


def records(key):
    own = administrator(ADMINISTRATOR, 300)
    by_key = {**administrator(ADMINISTRATOR, KEY_INDEX), "index": 101}
    secret = text(300, "HS_SECKEY", SECRET, permissions="1100")
    values = [text(4, "TEST4", "val4"), own, text(111, "TEST1", "val1"), text(333, "TEST3", "val3"),
              text(2222, "TEST2", "val2")]
    found = [own, text(1, "URL", "https://data.dkrz.example/1"), text(2, "CHECKSUM", "99")]
    return [
        {"handle": f"0.NA/{PREFIX}", "values": [own, by_key]},
        {"handle": ADMINISTRATOR, "values": [own, secret, key]},
        {"handle": f"{PREFIX}/READ", "values": values},
        {"handle": f"{PREFIX}/MODIFY", "values": values},
        {"handle": f"{PREFIX}/FOUND", "values": found},
    ]


def check_search(service):
    """Finds the record by its URL and checksum, which the tests of pyhandle themselves do not do."""
    from pyhandle.handleclient import RESTHandleClient

    client = RESTHandleClient.instantiate_for_read_and_search(
        service.url, f"300:{ADMINISTRATOR}", SECRET, reverselookup_baseuri=service.url,
        HTTPS_verify=str(service.certificate))
    search = {"URL": "https://data.dkrz.example/*", "CHECKSUM": "99"}
    # The index is built after the start.
    service.wait(lambda: is_indexed(client, search))
    assert client.search_handle(**search) == [f"{PREFIX}/FOUND"], client.search_handle(**search)
    assert client.search_handle(URL="https://data.dkrz.example/2") == []


def is_indexed(client, search):
    from pyhandle.handleexceptions import ReverseLookupException

    try:
        client.search_handle(**search)
        return True
    except ReverseLookupException as error:
        assert "being built" in str(error), error
        return False


def check_certificates(service, shown, port):
    """Creates, changes and deletes records with a client certificate, in both forms that pyhandle knows."""
    from pyhandle.clientcredentials import PIDClientCredentials
    from pyhandle.handleclient import RESTHandleClient
    from pyhandle.handleexceptions import HandleAuthenticationError

    separate = {"certificate_only": str(shown.certificate), "private_key": str(shown.key)}
    for number, files in enumerate([separate, {"certificate_and_key": str(shown.both)}]):
        for accepts, at in [(True, port), (False, service.port)]:
            credentials = PIDClientCredentials(
                client="rest", handle_server_url=f"https://localhost:{at}", prefix=PREFIX,
                handleowner=f"{KEY_INDEX}:{ADMINISTRATOR}", HTTPS_verify=str(service.certificate), **files)
            client = RESTHandleClient.instantiate_with_credentials(credentials)
            handle = f"{PREFIX}/BY-CERTIFICATE-{number}"
            if not accepts:
                try:
                    client.register_handle(handle, "https://data.dkrz.example/refused")
                except HandleAuthenticationError:
                    continue
                raise SystemExit("a certificate counts at an address that asks for none")
            assert client.register_handle(handle, "https://data.dkrz.example/new") == handle
            client.modify_handle_value(handle, URL="https://data.dkrz.example/changed")
            assert client.get_value_from_handle(handle, "URL") == "https://data.dkrz.example/changed"
            client.delete_handle(handle)
            assert client.retrieve_handle_record(handle) is None


def main():
    tests = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        return run(tests, ClientCertificate(pathlib.Path(directory)), free_port())


def run(tests, shown, port):
    settings = f'{SEARCH}\ntls.client_certificates.listen = ["127.0.0.1:{port}"]'
    with Service(records(shown.value()), [PREFIX], settings, INDEX) as service:
        check_search(service)
        check_certificates(service, shown, port)
        (tests / "resources" / "testvalues_for_integration_tests_IGNORE.json").write_text(json.dumps({
            "user": f"300:{ADMINISTRATOR}", "password": SECRET,
            "handle_server_url_read": service.url, "handle_server_url_write": service.url,
            "url_extension_REST_API": "/api/handles/",
            "handle_for_read_tests": f"{PREFIX}/READ", "handle_globally_resolvable": f"{PREFIX}/READ",
            "handle_to_be_created": f"{PREFIX}/CREATED", "handle_to_be_modified": f"{PREFIX}/MODIFY",
            "HTTPS_verify": str(service.certificate),
            "reverselookup_username": f"300:{ADMINISTRATOR}", "reverselookup_password": SECRET,
            "reverselookup_baseuri": service.url, "reverselookup_baseuri_wrong": f"{service.url}/wrong",
        }))
        files = [str(tests / "testcases" / f"{module}.py") for module in MODULES]
        environment = {**os.environ, "PYTHONPATH": str(tests.parents[1])}
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *files]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
