"""Processes and ports of the tests, which stay on loopback."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = ("hdl", "handled", "handle-admin", "handle-loadgen")


def free_port():
    """A port that is free over TCP and UDP, below the range from which the kernel chooses."""
    start = 20000 + (os.getpid() * 37) % 9000
    for port in range(start, start + 3000):
        if port in free_port.given:
            continue
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        free_port.given.add(port)
        return port
    raise RuntimeError("no free port")


free_port.given = set()


def binaries():
    """The directory of our programs: HANDLE_BIN, or the newest build of this repository."""
    named = os.environ.get("HANDLE_BIN")
    places = [Path(named).resolve()] if named else [REPOSITORY / "target" / kind for kind in ("release", "debug")]
    places = [place for place in places if all((place / name).exists() for name in PROGRAMS)]
    if not places:
        raise SystemExit("our programs are not built: cargo build --release, or set HANDLE_BIN")
    return max(places, key=lambda place: (place / "handled").stat().st_mtime)


class Outcome:
    """Exit code and output of a program."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def text(self):
        return self.out + self.err

    def brief(self):
        """The end of the output, for a line of a report."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith(("Picked up JAVA_TOOL_OPTIONS", "at net.handle", "at java."))]
        return f"exit {self.code}: " + " | ".join(lines[-4:])[-400:]


def run(command, timeout=90, stdin="", env=None, cwd=None):
    """Runs a program to its end. After the timeout, it is killed together with its children."""
    started = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True)
    try:
        out, err = process.communicate(stdin.encode(), timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code = "timeout"
    return Outcome(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), time.monotonic() - started)


class Daemon:
    """A server process."""

    def __init__(self, command, log, env=None):
        self.log = Path(log)
        with open(self.log, "ab") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **(env or {})}, start_new_session=True)

    def wait_for(self, is_ready, what, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if is_ready():
                return
            time.sleep(0.1)
        raise RuntimeError(f"{what} did not start: {self.log.read_text('utf-8', 'replace')[-2000:]}")

    def stop(self):
        """Sends SIGTERM, then SIGKILL if the process does not end."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def listens(port):
    """Whether the port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
