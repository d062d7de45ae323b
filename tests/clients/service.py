"""A service for tests with foreign clients: handle-admin, which publishes, and handle-gateway over TLS."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).absolute().parents[2]
PREFIX = "20.500.1"
# The administrator of the prefix, as value of its record, and the secret key.
IDENTITY = f"300:0.NA/{PREFIX}"
SECRET = "open sesame"
TIMEOUT_S = 20
# Where `/help.html` leads.
HELP = "https://example.org/help"


def programs():
    """The directory with the programs: HANDLE_BIN, or the newer build of this repository."""
    if "HANDLE_BIN" in os.environ:
        return pathlib.Path(os.environ["HANDLE_BIN"])
    builds = [ROOT / "target" / profile for profile in ("debug", "release")]
    builds = [build for build in builds if (build / "handle-gateway").exists()]
    if not builds:
        raise SystemExit("build the programs first: cargo build")
    return max(builds, key=lambda build: (build / "handle-gateway").stat().st_mtime)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def administrator(handle, index, permissions="111111111111"):
    value = {"handle": handle, "index": index, "permissions": permissions}
    return {"index": 100, "type": "HS_ADMIN", "data": {"format": "admin", "value": value}}


def text(index, kind, data, **members):
    return {"index": index, "type": kind, "data": {"format": "string", "value": data}, **members}


def records():
    """The record of the prefix, and some below it."""
    own = administrator(f"0.NA/{PREFIX}", 300)
    secret = text(300, "HS_SECKEY", SECRET, permissions="1100")
    return [
        {"handle": f"0.NA/{PREFIX}", "values": [own, secret]},
        {"handle": f"{PREFIX}/hello", "values": [own, text(1, "URL", "https://example.org/hello")]},
        {
            "handle": f"{PREFIX}/many",
            "values": [own, text(1, "URL", "https://example.org/1"), text(2, "EMAIL", "a@example.org"),
                       text(3, "URL", "https://example.org/3"), text(4, "DESC", "hidden", permissions="1100")],
        },
    ]


class Service:
    """The running processes. A context: they end with it, and their files are removed."""

    def __init__(self, further_records=(), further_prefixes=(), further_settings="", further_admin_settings=""):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="handle-clients-"))
        self.port = free_port()
        self.processes = []
        self.records = [*records(), *further_records]
        self.prefixes = [PREFIX, *further_prefixes]
        # Lines of the configurations of the gateway and of handle-admin.
        self.further_settings = further_settings
        self.further_admin_settings = further_admin_settings

    @property
    def url(self):
        return f"https://localhost:{self.port}"

    @property
    def certificate(self):
        return ROOT / "tests" / "tls" / "certificate.pem"

    def run(self, *arguments):
        done = subprocess.run([programs() / "hdl", *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"hdl {' '.join(map(str, arguments))}: {done.stderr}")

    def start(self, name, configuration):
        path = self.directory / f"{name}.toml"
        path.write_text(configuration)
        log = open(self.directory / f"{name}.log", "w")
        command = [programs() / name, "--config", path, "--allow-root"]
        self.processes.append(subprocess.Popen(command, stderr=log))

    def __enter__(self):
        here, admin_port = self.directory, free_port()
        interface = {"query": True, "admin": True, "protocol": "TCP", "port": admin_port}
        site = {
            "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": True,
            "multiPrimary": False, "attributes": [{"name": "desc", "value": "test"}],
            "servers": [{"serverId": 1, "address": "127.0.0.1", "interfaces": [interface]}],
        }
        (here / "site.json").write_text(json.dumps(site))
        (here / "prefixes").write_text("".join(f"{prefix}\n" for prefix in self.prefixes))
        (here / "records").write_text("".join(json.dumps(record) + "\n" for record in self.records))
        shutil.copy(ROOT / "tests" / "tls" / "key.pem", here / "key.pem")
        (here / "key.pem").chmod(0o600)
        (here / "set").mkdir()
        self.run("import", "--create", here / "store", "--from", "prefixes", here / "prefixes")
        self.run("import", here / "store", "--from", "lines", here / "records")
        self.start("handle-admin", f"""
site = "{here}/site.json"
listen = ["127.0.0.1:{admin_port}"]
audit = "{here}/audit"
store.file = "{here}/store"
publish.directory = "{here}/set"
publish.interval_ms = 1
local.socket = "{here}/admin.socket"
{self.further_admin_settings}
""")
        self.wait(lambda: (here / "set" / "MANIFEST").exists())
        self.start("handle-gateway", f"""
snapshot = "{here}/set"
site = "{here}/site.json"
listen = ["127.0.0.1:{self.port}"]
admin.address = "127.0.0.1:{admin_port}"
admin.socket = "{here}/admin.socket"
agencies.prefixes = ["{PREFIX} Tests"]
pages.help_url = "{HELP}"
tls.certificate = "{self.certificate}"
tls.key = "{here}/key.pem"
{self.further_settings}
""")
        self.wait(self.is_open)
        return self

    def is_open(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline or any(it.poll() is not None for it in self.processes):
                logs = [path.read_text() for path in self.directory.glob("*.log")]
                self.__exit__()
                raise SystemExit("the service does not start:\n" + "\n".join(logs))
            time.sleep(0.05)

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
