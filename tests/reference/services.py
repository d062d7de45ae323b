"""The two services of the tests: ours as `hdl init` creates it, and that of the reference."""

import base64
import json
import os
import time
from pathlib import Path

from processes import Daemon, binaries, free_port, listens, run

REFERENCE = os.environ.get("REFERENCE", "")
DIALOGUE = "y\nn\n192.0.2.1\n127.0.0.1\n{port}\n{http}\nn\n1\ntest\norg\nme\n\nme@example.org\nn\nn\nn\n"
JAVA = "-Xmx200m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true"


def value(index, kind, data, format="string", **more):
    return {"index": index, "type": kind, "data": {"format": format, "value": data}, "ttl": 86400, **more}


def admin_value(index, handle, key_index, permissions="111111111111"):
    return value(index, "HS_ADMIN", {"handle": handle, "index": key_index, "permissions": permissions}, "admin")


def file_value(index, kind, path, **more):
    return value(index, kind, base64.b64encode(Path(path).read_bytes()).decode(), "base64", **more)


def folded(handle):
    """The stored form of a name on a case-insensitive service."""
    return "".join(char.upper() if char.isascii() else char for char in handle)


class Service:
    """The common part: a prefix, an administrator with a key, addresses, and the configuration of clients."""

    prefix = admin = key = site = None
    query_port = admin_port = http_port = None

    @property
    def queries(self):
        return f"127.0.0.1:{self.query_port}"

    @property
    def administration(self):
        return f"127.0.0.1:{self.admin_port}"

    def write_client_directory(self, extra_sites=()):
        """Writes the directory in which clients find the global service, which is this service."""
        self.client_directory = self.directory / "dot-handle"
        self.client_directory.mkdir(exist_ok=True)
        values = [value(1, "HS_SITE", self.site, "site")]
        trusted = [file_value(300, "HS_PUBKEY", self.public_key)]
        records = {"0.NA/0.NA": {"handle": "0.NA/0.NA", "values": values},
                   # Without this record, clients ignore the file and query the global registry.
                   "0.0/0.0": {"handle": "0.0/0.0", "values": trusted}}
        root = {"lastUpdate": int(time.time() * 1000), "handles": records}
        (self.client_directory / "bootstrap_handles").write_text(json.dumps(root))
        (self.client_directory / "config.dct").write_text('{ "auto_update_root_info" = "no" "tcp_timeout" = "10000" }\n')
        (self.client_directory / "site.json").write_text(json.dumps(self.site))

    def program(self, name, *args, stdin="", timeout=90):
        """Runs a program of the reference, with this service as the global service."""
        return reference_program(self.client_directory, name, *args, stdin=stdin, timeout=timeout)

    def java_at(self, name, *args, **more):
        """Runs a class of the distribution that has no script."""
        return self.program("java", f"net.handle.{name}", *args, **more)

    def hdl(self, *args, stdin="", timeout=90, env=None):
        """Runs `hdl`."""
        return run([binaries() / "hdl", *args], timeout=timeout, stdin=stdin, cwd=self.directory, env=env)

    def hdl_as_admin(self, *args, **more):
        """Runs `hdl` as the administrator, at the interface for administration."""
        return self.hdl(*args, "--server", self.administration, "--auth", self.admin, "--key", self.key, **more)


def reference_program(client_directory, name, *args, stdin="", timeout=90):
    options = f"{JAVA} -Dnet.handle.configDir={client_directory}"
    return run(["sh", f"{REFERENCE}/bin/hdl", name, *args], timeout=timeout, stdin=stdin,
               env={"JAVA_TOOL_OPTIONS": options, "LC_ALL": "C.UTF-8"})


class Ours(Service):
    """handled and handle-admin in the directory of `hdl init`, with one port each or one for both."""

    def __init__(self, directory, prefix, layout):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.prefix, self.layout = prefix, layout
        self.admin_handle, self.admin = f"{prefix}/ADMIN", f"300:{prefix}/ADMIN"
        self.query_port = free_port()
        self.admin_port = self.query_port if layout == "one-port" else free_port()
        self.home = self.directory / "service"
        self.daemons = []

    def make(self, records=lambda service: (), homed=("0.NA/0.NA",), settings=""):
        init_port = free_port() if self.layout == "one-port" else self.admin_port
        created = self.hdl("init", self.home, "--prefix", self.prefix, "--address", "127.0.0.1", "--bind", "127.0.0.1",
                        "--port", self.query_port, "--admin-port", init_port, "--plain", "--no-metrics")
        if created.code != 0:
            raise RuntimeError(f"hdl init: {created.brief()}")
        if self.layout == "one-port":
            self.join_ports(init_port)
        self.key, self.public_key = self.home / "admin-private.bin", self.home / "admin-public.bin"
        self.site = json.loads((self.home / "siteinfo.json").read_text())
        lines = [{"homed": name} for name in homed]
        lines += [{"handle": "0.NA/0.NA", "values": [value(1, "HS_SITE", self.site, "site")]},
                  {"handle": f"0.NA/{self.prefix}", "values": [
                      value(1, "HS_SITE", self.site, "site"), admin_value(100, self.admin_handle, 300)]}, *records(self)]
        file = self.directory / "first.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        imported = self.hdl("import", self.home / "store.redb", file)
        if imported.code != 0:
            raise RuntimeError(f"hdl import: {imported.brief()}")
        if settings:
            with open(self.home / "handle-admin.toml", "a") as file:
                file.write(settings)
        self.write_client_directory()
        return self

    def join_ports(self, admin_port):
        """Gives both one port number: datagrams go to handled, connections to handle-admin."""
        for name in ("handled.toml", "handle-admin.toml"):
            path = self.home / name
            text = path.read_text().replace(f":{admin_port}", f":{self.query_port}")
            path.write_text(text + ("\n[tcp]\nenabled = false\n" if name == "handled.toml" else ""))
        path = self.home / "siteinfo.json"
        site = json.loads(path.read_text())
        site["servers"][0]["interfaces"] = [
            {"query": True, "admin": True, "protocol": "TCP", "port": self.query_port},
            {"query": True, "admin": False, "protocol": "UDP", "port": self.query_port}]
        path.write_text(json.dumps(site))

    def start(self, handled=(), handle_admin=(), names=("handle-admin", "handled")):
        root = {"HANDLE_ADMIN_ALLOW_ROOT": "true", "HANDLED_ALLOW_ROOT": "true"}
        more = {"handle-admin": handle_admin, "handled": ["--workers", "1", *handled]}
        for name in names:
            daemon = Daemon([binaries() / name, "--config", self.home / f"{name}.toml", *more[name]],
                            self.directory / f"{name}.log", root)
            self.daemons.append(daemon)
            socket = self.home / "run" / f"{name}.sock"
            daemon.wait_for(lambda: self.hdl("control", "status", "--socket", socket).code == 0, name)
            if name == "handle-admin":
                manifest = self.home / "snapshot" / "MANIFEST"
                daemon.wait_for(manifest.exists, "handle-admin (no published set)")
        return self

    def settle(self):
        """Waits until changes are published, which can take some tens of milliseconds."""
        time.sleep(0.3)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.stop()
        self.daemons = []


class Reference(Service):
    """A server of the reference, with a directory from its setup program."""

    layout = "reference"

    def __init__(self, directory, prefix):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.prefix, self.admin_handle, self.admin = prefix, f"{prefix}/ADMIN", f"300:{prefix}/ADMIN"
        self.query_port = self.admin_port = free_port()
        self.http_port = free_port()
        self.home = self.directory / "svr"
        self.daemon = None

    def make(self, records=lambda service: (), homed=("0.NA/0.NA",), settings="", server_admins=None):
        answers = DIALOGUE.format(port=self.query_port, http=self.http_port)
        created = run(["sh", f"{REFERENCE}/bin/hdl", "setup-server", self.home], stdin=answers,
                   env={"JAVA_TOOL_OPTIONS": JAVA})
        path = self.home / "config.dct"
        if not path.exists():
            raise RuntimeError(f"hdl-setup-server: {created.brief()}")
        text = path.read_text().replace("300:0.NA/YOUR_PREFIX", server_admins or self.admin)
        text = text.replace("YOUR_PREFIX", self.prefix)
        # Without these settings the server queries the global registry.
        more = f'"template_ns_override" = "yes"\n    "allow_na_admins" = "no"\n    {settings}'
        path.write_text(text.replace('"case_sensitive"', f'{more}\n    "case_sensitive"'))
        path = self.home / "siteinfo.json"
        self.site = json.loads(path.read_text())
        self.site["servers"][0]["address"] = "127.0.0.1"
        path.write_text(json.dumps(self.site))
        self.key, self.public_key = self.home / "admpriv.bin", self.home / "admpub.bin"
        for path in self.home.glob("*priv*"):
            path.chmod(0o600)
        self.write_client_directory()
        self.load([
            {"handle": "0.NA/0.NA", "values": [value(1, "HS_SITE", self.site, "site")]},
            {"handle": f"0.NA/{self.prefix}", "values": [
                value(1, "HS_SITE", self.site, "site"), admin_value(100, self.admin_handle, 300),
                file_value(300, "HS_PUBKEY", self.public_key)]},
            {"handle": self.admin_handle, "values": [
                admin_value(100, self.admin_handle, 300), file_value(300, "HS_PUBKEY", self.public_key)]},
            *records(self)], [f"0.NA/{self.prefix}", *homed])
        return self

    def load(self, records, homed):
        """Loads records into the storage of the stopped server with a program of the reference."""
        names = {folded(record["handle"]): record | {"handle": folded(record["handle"])} for record in records}
        file = self.directory / "first.json"
        file.write_text(json.dumps({"homedPrefixes": list(homed), "handleRecords": names}))
        done = self.java_at("apps.tools.LoadHandlesIntoStorageFromJson", "-f", file, "-h", self.home)
        if done.code != 0 or "Exception" in done.text:
            raise RuntimeError(f"LoadHandlesIntoStorageFromJson: {done.brief()}")

    def start(self):
        options = f"{JAVA} -Xmx300m -Dnet.handle.configDir={self.client_directory}"
        self.daemon = Daemon(["sh", f"{REFERENCE}/bin/hdl", "server", self.home], self.directory / "server.log",
                             {"JAVA_TOOL_OPTIONS": options})
        self.daemon.wait_for(lambda: listens(self.query_port) and listens(self.http_port), "the reference server")
        return self

    def settle(self):
        """Changes take effect immediately."""

    def stop(self):
        if self.daemon:
            self.daemon.stop()
        self.daemon = None
