"""A service as `hdl init` makes it, with default settings and a few records, and what it uses."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from wire import SUCCESS, NativeClient, query

ROOT = pathlib.Path(__file__).absolute().parents[2]
PREFIX = "20.500.12345"
# An identity with all rights on handles of the prefix, and its secret key.
IDENTITY, SECRET = f"301:{PREFIX}/ADMIN", "open sesame"
START_S = 20
GATEWAY, ADMIN, HANDLED = "handle-gateway", "handle-admin", "handled"

# The values of `PREFIX/long` and of `PREFIX/longest`, which are 267 kB and 1.2 MB of JSON.
LONG, LONGEST = "x" * 239_000 + '"' * 14_000, "\x01" * 200_000
# Values of the record of `spelling`.
MANY = 2000


def spelling(number):
    """One of 1024 spellings of a handle."""
    return f"{PREFIX}/" + "".join("Aa"[number >> at & 1 ^ 1] for at in range(10))


def programs():
    """The directory with the programs: BIN or HANDLE_BIN, else the release build of this repository."""
    named = os.environ.get("BIN") or os.environ.get("HANDLE_BIN") or ROOT / "target" / "release"
    place = pathlib.Path(named).absolute()
    if not (place / "handle-gateway").exists():
        raise SystemExit(f"no programs in {place}: cargo build --release, or set BIN")
    return place


def text(index, kind, data, **members):
    return {"index": index, "type": kind, "data": {"format": "string", "value": data}, **members}


def administrator():
    value = {"handle": f"{PREFIX}/ADMIN", "index": 301, "permissions": "111111111111"}
    return {"index": 101, "type": "HS_ADMIN", "data": {"format": "admin", "value": value}}


def template(content):
    return f"<namespace><template delimiter='@'>{content}</template></namespace>"


def costly_template():
    """A template of 60 kB whose parts cost more than its answer."""
    definitions = "".join(f"<def parameter='p{number}'/>" for number in range(1500))
    return template(f"<foreach>{definitions}<value type='T' data='{'${p0}' * 5000}'/></foreach>")


def revealing_template():
    """A template that copies a value which its author may not read."""
    chosen = "<foreach><if value='type' test='equals' expression='HS_SECKEY'><value/></if></foreach>"
    return template(f"<def parameter='s'>{chosen}</def><value type='URL' data='https://e.org/${{s}}'/>")


def attacked_records():
    """The records that attacks ask for. Honest clients ask for `PREFIX/short`."""
    private = text(300, "HS_SECKEY", "not for strangers", permissions="1100")
    cheap = template("<value type='T' data='cheap'/>")
    return [
        {"handle": f"{PREFIX}/short", "values": [text(1, "URL", "https://example.org/")]},
        {"handle": f"{PREFIX}/long", "values": [text(1, "DESC", LONG)]},
        {"handle": f"{PREFIX}/longest", "values": [text(1, "DESC", LONGEST)]},
        {"handle": spelling(0), "values": [text(index, "DESC", "x") for index in range(1, MANY + 1)]},
        {"handle": f"{PREFIX}/reveals", "values": [text(1, "HS_NAMESPACE", revealing_template()), private]},
        {"handle": f"{PREFIX}/cheap", "values": [text(1, "HS_NAMESPACE", cheap)]},
        {"handle": f"{PREFIX}/costly", "values": [
            *(text(index, "T", "") for index in range(1, 2041)), text(5000, "HS_NAMESPACE", costly_template())]},
        *({"handle": f"{PREFIX}/eight-{number}", "values": [text(1, "DESC", "x" * 226_000)]} for number in range(8)),
    ]


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Service:
    """The running processes. A context: they end with it, and their files are removed."""

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="handle-attacks-"))
        self.query_port, self.admin_port, self.http_port = free_ports(3)
        self.processes = {}
        here = self.directory / "service"
        self.run("init", here, "--prefix", PREFIX, "--address", "127.0.0.1", "--bind", "127.0.0.1", "--plain", "--no-metrics",
                 "--port", self.query_port, "--admin-port", self.admin_port, "--gateway-port", self.http_port)
        self.run("export", here / "store.redb", self.directory / "first")
        records = [json.loads(line) for line in (self.directory / "first").read_text().splitlines()]
        for record in records:
            if record.get("handle") == f"0.NA/{PREFIX}":
                # Its template gives the handles of the prefix a delimiter, so that their own apply.
                record["values"] += [administrator(), text(700, "HS_NAMESPACE", template(""))]
            if record.get("handle") == f"{PREFIX}/ADMIN":
                record["values"].append(text(301, "HS_SECKEY", SECRET, permissions="1100"))
        lines = [json.dumps(record) + "\n" for record in [*records, *attacked_records()]]
        (self.directory / "records").write_text("".join(lines))
        self.run("import", here / "store.redb", self.directory / "records")
        # `handle-admin` publishes a set with the further records.
        shutil.rmtree(here / "snapshot")
        (here / "snapshot").mkdir(0o750)
        try:
            self.start(ADMIN, self.admin_port)
            self.wait_for(lambda: (here / "snapshot" / "MANIFEST").exists(), ADMIN)
            self.start(HANDLED, self.query_port)
            self.wait_for(lambda: has_record(self.query_port), HANDLED)
            self.start(GATEWAY, self.http_port)
        except SystemExit:
            self.__exit__()
            raise
        return self

    def run(self, *arguments):
        command = [programs() / "hdl", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")

    def start(self, name, port):
        configuration = self.directory / "service" / f"{name}.toml"
        with open(self.directory / f"{name}.log", "ab") as log:
            command = [programs() / name, "--config", configuration, "--allow-root"]
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_for(lambda: listens(port), name)

    def stop(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self):
        """Processes that have counted nothing yet."""
        for name, port in ((HANDLED, self.query_port), (ADMIN, self.admin_port), (GATEWAY, self.http_port)):
            self.stop(name)
            self.start(name, port)
        time.sleep(0.5)

    def restart_gateway(self):
        """A gateway whose memory has not been used yet."""
        self.stop(GATEWAY)
        self.start(GATEWAY, self.http_port)

    def wait_for(self, condition, name):
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline or self.processes[name].poll() is not None:
                log = (self.directory / f"{name}.log").read_text("utf-8", "replace")
                raise SystemExit(f"{name} does not start: {log[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_):
        for name in list(self.processes):
            self.stop(name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def processor_s(self, name):
        """Processor time that a process has used, with threads that have ended. clock_getcpuclockid(3)."""
        return time.clock_gettime(~self.processes[name].pid << 3 | 2)

    def held_bytes(self, name):
        """Anonymous memory of a process."""
        return self.status_bytes(name, "RssAnon")

    def peak_bytes(self, name):
        """The most memory since `forget_peak`."""
        return self.status_bytes(name, "VmHWM")

    def status_bytes(self, name, key):
        status = pathlib.Path(f"/proc/{self.processes[name].pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{key}:"))
        return int(line.split()[1]) * 1024

    def forget_peak(self, name):
        pathlib.Path(f"/proc/{self.processes[name].pid}/clear_refs").write_text("5")


def has_record(port):
    return NativeClient(port, "127.0.0.1", keeps=False).ask(query(f"{PREFIX}/short"))[0] == SUCCESS


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
