#!/usr/bin/env python3
"""Drives the pages of handle-gateway with Chromium.

Starts handle-admin and handle-gateway of a build, opens the public pages in every language, signs in with a key file and with a secret key,
creates, copies, edits, uploads and deletes records, registers prefixes as applicant and as reviewer,
checks that the browser logs no error, and runs axe-core on every page, at two widths and in both colour
schemes. README.md has the preparation.

    pages.py --programs target/debug --axe axe.min.js [--screenshots DIR] [--only public]
"""

import argparse
import base64
import csv
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import public_pages

PREFIX = "20.500.12345"
ADMIN = f"300:{PREFIX}/ADMIN"
DERIVED = f"{PREFIX}.7"
SECRET = "a secret for the browser"
ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    """handle-admin and handle-gateway in a directory of their own."""

    def __init__(self, programs, directory):
        self.programs, self.directory = programs, directory
        self.home = directory / "home"
        self.processes = []
        (directory / "passphrase").write_text("open sesame")
        (directory / "passphrase").chmod(0o600)

    def start(self):
        query, admin, http = free_port(), free_port(), free_port()
        self.run(
            "hdl", "init", self.home, "--prefix", PREFIX, "--address", "127.0.0.1", "--bind", "127.0.0.1",
            "--port", str(query), "--admin-port", str(admin), "--no-metrics",
            "--passphrase-file", self.directory / "passphrase",
        )
        # A service that asks for a prefix.
        self.run(
            "hdl", "init", self.directory / "applicant", "--prefix", DERIVED, "--address", "192.0.2.7", "--plain", "--no-metrics",
            "--organization", "Bibliothek & Archiv", "--contact-email", "library@example.org",
            "--description", "A new service",
        )
        socket = self.home / "run/admin.socket"
        self.spawn("handle-admin", "--config", self.home / "handle-admin.toml", "--allow-root")
        self.wait_for(admin)
        self.run(
            "hdl", "handle", "home", f"0.NA/0.NA/{PREFIX}", "--server", f"127.0.0.1:{admin}", "--auth", ADMIN,
            "--key", self.home / "admin-private.bin", "--passphrase-file", self.directory / "passphrase",
        )
        key = self.directory / "key.pem"
        shutil.copy(ROOT / "tests/tls/key.pem", key)
        key.chmod(0o600)
        snapshot = next(path.parent for path in self.manifests())
        gateway = self.directory / "handle-gateway.toml"
        gateway.write_text(
            f'snapshot = "{snapshot}"\nsite = "{self.home / "siteinfo.json"}"\n'
            f'listen = ["127.0.0.1:{http}"]\nallow_root = true\n'
            f'[admin]\naddress = "127.0.0.1:{admin}"\nsocket = "{socket}"\n'
            f'[registration]\ndirectory = "{self.directory / "requests"}"\nreviewers = ["{ADMIN}"]\n'
            f'[tls]\ncertificate = "{ROOT / "tests/tls/certificate.pem"}"\nkey = "{key}"\n'
        )
        self.spawn("handle-gateway", "--config", gateway)
        self.wait_for(http)
        return f"https://localhost:{http}/admin/"

    def manifests(self):
        for _ in range(200):
            found = list(self.home.rglob("MANIFEST"))
            if found:
                return found
            time.sleep(0.05)
        sys.exit("handle-admin has published nothing")

    def run(self, program, *arguments):
        subprocess.run([self.programs / program, *arguments], check=True, stdout=subprocess.DEVNULL)

    def spawn(self, program, *arguments):
        log = open(self.directory / f"{program}.log", "w")
        command = [self.programs / program, *arguments]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def wait_for(self, port):
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"nothing answers on port {port}: see the logs in {self.directory}")

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)


class Browser:
    """Chromium, and what is checked on every page."""

    def __init__(self, axe, screenshots):
        options = webdriver.ChromeOptions()
        for argument in (
            "--headless=new", "--no-sandbox", "--ignore-certificate-errors", "--lang=en",
            "--disable-dev-shm-usage",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        options.binary_location = shutil.which("chromium")
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.axe, self.screenshots = axe.read_text(), screenshots
        self.failures, self.pages = [], 0

    def check(self, name):
        """Runs axe-core on the page, at every width and in every scheme."""
        for scheme in SCHEMES:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            for width in WIDTHS:
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                # The policy of the page allows no scripts but its own; those of the driver are exempt.
                self.driver.execute_script(self.axe)
                found = self.driver.execute_async_script(
                    "const done = arguments[arguments.length - 1];"
                    "axe.run().then((it) => done(it.violations), (it) => done([{id: String(it), nodes: []}]));"
                )
                for one in found:
                    nodes = [node["html"][:120] for node in one["nodes"]]
                    self.failures.append(f"{name} {width} {scheme}: {one['id']}: {nodes}")
                wide = self.driver.execute_script(
                    "return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                if wide > 0:
                    self.failures.append(f"{name} {width} {scheme}: {wide} pixels wider than the window")
                self.pages += 1
                if self.screenshots:
                    self.picture(f"{name}-{width}-{scheme}.png", width)
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.log(name)

    def picture(self, file, width):
        """Keeps a picture of the whole page, up to a height."""
        content = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": min(content["height"], 4000), "scale": 1}
        picture = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        (self.screenshots / file).write_bytes(base64.b64decode(picture["data"]))

    def log(self, name, status=None):
        """Notes what the browser has logged. The page itself may have the status of an error."""
        for entry in self.driver.get_log("browser"):
            is_expected = status is not None and f"status of {status} " in entry["message"]
            if "favicon" not in entry["message"] and not is_expected:
                self.failures.append(f"{name}: console: {entry['message']}")

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def fill(self, selector, text):
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def click(self, selector):
        """Clicks, and waits for the next page."""
        old = self.find("html")
        target = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView()", target)
        target.click()
        WebDriverWait(self.driver, 20).until(lambda _: self.find("html") != old)
        WebDriverWait(self.driver, 20).until(
            lambda driver: driver.execute_script("return document.readyState") == "complete")

    def expect(self, text, name):
        if text not in self.find("body").text:
            self.failures.append(f"{name}: {text!r} is not on the page: {self.find('body').text[:300]!r}")


def sign_in_with_key(browser, base, service, passphrase):
    browser.driver.get(base)
    browser.fill("#key-id", ADMIN)
    browser.find("#key-file").send_keys(str(service.home / "admin-private.bin"))
    browser.fill("#passphrase", passphrase)


def use(browser, base, service):
    """What an administrator does, page by page."""
    browser.driver.get(base)
    browser.check("sign-in")
    sign_in_with_key(browser, base, service, "wrong")
    browser.find("#key-form button").click()
    WebDriverWait(browser.driver, 20).until(lambda _: browser.find("#key-error").is_displayed())
    browser.check("sign-in-wrong-passphrase")
    sign_in_with_key(browser, base, service, "open sesame")
    browser.click("#key-form button")
    browser.expect(ADMIN, "key")
    browser.check("start")

    browser.driver.get(f"{base}new")
    browser.fill("#handle", f"{PREFIX}/from-a-browser")
    browser.fill("#data-1", "https://example.org/one")
    browser.check("new")
    browser.click("button[value=more]")
    browser.fill("#type-3", "DESC")
    browser.fill("#data-3", "Zwei Zeilen\nin einem Wert")
    browser.click("button[value=save]")
    browser.expect("Created.", "create")
    browser.check("record")
    browser.fill("#data-1", "https://example.org/moved")
    browser.click("button[value=save]")
    browser.expect("Saved.", "edit")
    browser.driver.get(f"{base}record?handle={PREFIX}/from-a-browser&clone=true")
    browser.fill("#handle", f"{PREFIX}/copy")
    browser.check("clone")
    browser.click("button[value=save]")
    browser.expect("Created.", "clone")

    upload_many(browser, base, service)

    browser.driver.get(f"{base}?prefix={PREFIX}/row-1")
    browser.expect("11 records", "list")
    browser.check("list")
    browser.driver.get(f"{base}record?handle={PREFIX}/copy")
    browser.find("input[name=confirmed]").click()
    browser.click("button[value=delete]")
    browser.expect("Deleted", "delete")

    browser.driver.get(f"{base}record?handle={PREFIX}/ADMIN")
    browser.click("button[value=more]")
    last = len(browser.driver.find_elements(By.CSS_SELECTOR, "fieldset.value"))
    for part, text in (("index", "301"), ("type", "HS_SECKEY"), ("permissions", "1100"), ("data", SECRET)):
        browser.fill(f"#{part}-{last}", text)
    browser.click("button[value=save]")
    browser.expect("Saved.", "secret")
    browser.click(".menu form button")
    browser.fill("#secret-id", f"301:{PREFIX}/ADMIN")
    browser.fill("#secret", SECRET)
    browser.click("form[aria-labelledby=secret-title] button")
    browser.expect(f"301:{PREFIX}/ADMIN", "sign in with a secret")


def upload(browser, base, service, name, text, expected, replaces=False, is_pasted=False):
    """Uploads records, and checks the page and the rows of the downloaded result."""
    browser.driver.get(f"{base}upload")
    if is_pasted:
        browser.fill("#upload-text", text)
    else:
        path = service.directory / name
        path.write_text(text)
        browser.find("#upload-file").send_keys(str(path))
    if replaces:
        browser.find("input[name=replace]").click()
    browser.find("#upload-form button").click()
    link = browser.find("#upload-download")
    WebDriverWait(browser.driver, 120).until(lambda _: link.is_displayed())
    done, failed = expected
    browser.expect(f"{done} done, {failed} failed", name)
    progress = browser.find("#upload-progress")
    if progress.get_attribute("value") != progress.get_attribute("max"):
        browser.failures.append(f"{name}: progress {progress.get_attribute('value')}")
    result = service.directory / "result.csv"
    result.unlink(missing_ok=True)
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(service.directory)})
    link.click()
    WebDriverWait(browser.driver, 20).until(lambda _: result.exists())
    with open(result, newline="") as lines:
        rows = list(csv.reader(lines))
    if len(rows) != done + failed + 1:
        browser.failures.append(f"{name}: {len(rows)} rows in the result")
    browser.log(name)


def upload_many(browser, base, service):
    rows = [f"{PREFIX}/row-{n},1,URL,https://example.org/{n}" for n in range(50)]
    upload(browser, base, service, "upload.csv",
           "\n".join(["handle,index,type,data", *rows, "99.999/elsewhere,1,URL,x"]), (50, 1))
    browser.check("upload")
    # Lines of JSON, in several parts.
    def line(name, url):
        return json.dumps({"handle": f"{PREFIX}/{name}", "values": [{"index": 1, "type": "URL", "data": url}]})
    lines = [line(f"json-{n}", f"https://example.org/{n}") for n in range(600)]
    bad = ['{"handle": "%s/bad", "values": [{"index": 1}]}' % PREFIX, "{no JSON", line("json-0", "https://example.org/")]
    text = "\n".join([*lines, *bad])
    upload(browser, base, service, "upload.jsonl", text, (600, 3))
    upload(browser, base, service, "upload.jsonl", "\n".join(lines), (0, 600))
    moved = [line(f"json-{n}", f"https://moved.example.org/{n}") for n in range(20)]
    upload(browser, base, service, "moved.jsonl", "\n".join(moved), (20, 0), replaces=True)
    upload(browser, base, service, "pasted", line("pasted", "https://example.org/ü"), (1, 0), is_pasted=True)
    for name, url in (("json-19", "https://moved.example.org/19"), ("json-599", "https://example.org/599"),
                      ("pasted", "https://example.org/ü")):
        browser.driver.get(f"{base}record?handle={PREFIX}/{name}")
        if browser.find("#data-1").get_attribute("value") != url:
            browser.failures.append(f"{name}: {browser.find('#data-1').get_attribute('value')!r}")


def apply(browser, root, service, prefix):
    """Sends the form of an applicant, and returns the URL of the page of the request."""
    browser.driver.get(f"{root}register")
    browser.find("#bundle").send_keys(str(service.directory / "applicant/sitebndl.zip"))
    browser.fill("#prefix", prefix)
    browser.fill("#name", "Änne Beispiel")
    browser.fill("#note", "Two lines\nabout the service")
    browser.click("main form button")
    browser.expect("waiting for review", "apply")
    return browser.driver.current_url


def register(browser, base, service):
    """What an applicant for a prefix and a reviewer do, page by page."""
    root = base.removesuffix("admin/")
    browser.driver.get(f"{root}register")
    browser.check("register")
    browser.find("#bundle").send_keys(str(service.home / "siteinfo.json"))
    browser.fill("#email", "library@example.org")
    browser.click("main form button")
    browser.expect("not a ZIP archive", "a wrong file")
    browser.log("register-wrong-file", status=400)
    browser.check("register-wrong-file")
    first = apply(browser, root, service, DERIVED)
    browser.check("registered-pending")
    second = apply(browser, root, service, DERIVED)

    sign_in_with_key(browser, base, service, "open sesame")
    browser.click("#key-form button")
    browser.click(".menu a[href$=registrations]")
    browser.expect("2 requests", "registrations")
    browser.check("registrations")
    browser.click(".requests li:last-child a")
    for text in ("192.0.2.7", "Bibliothek & Archiv", "Other requests for this prefix", "SHA256:"):
        browser.expect(text, "review")
    browser.check("registration")
    browser.fill("#prefix", "not a prefix")
    browser.click("button[value=accept]")
    browser.expect("This is not a prefix", "a wrong prefix")
    browser.log("registration-wrong-prefix", status=400)
    browser.check("registration-wrong-prefix")
    browser.fill("#prefix", DERIVED)
    browser.click("button[value=accept]")
    browser.expect("Accepted: the prefix record exists.", "accept")
    browser.check("registration-accepted")

    browser.driver.get(f"{base}registrations")
    browser.click(".requests li:first-child a")
    browser.expect(f"The prefix {DERIVED} is registered already.", "a prefix that exists")
    browser.check("registration-prefix-exists")
    browser.fill("#reason", "The prefix is registered already.\nAsk for another one.")
    browser.click("button[value=refuse]")
    browser.expect("Refused.", "refuse")
    browser.check("registration-refused")

    pages = {}
    for url in (first, second):
        browser.driver.get(url)
        pages[url] = "accepted" if "is registered." in browser.find("main").text else "refused"
        browser.check(f"registered-{pages[url]}")
        wanted = "What to do next" if pages[url] == "accepted" else "Ask for another one."
        browser.expect(wanted, pages[url])
    if sorted(pages.values()) != ["accepted", "refused"]:
        browser.failures.append(f"the applicants see {sorted(pages.values())}")
    browser.driver.get(f"{base}registrations")
    browser.click(".requests li:first-child a")
    browser.find("input[name=confirmed]").click()
    browser.click("button[value=delete]")
    browser.expect("Deleted.", "delete a request")
    browser.expect("1 requests", "delete a request")
    browser.click(".menu form button")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="directory of the programs")
    parser.add_argument("--axe", type=pathlib.Path, required=True, help="axe.min.js of axe-core")
    parser.add_argument("--screenshots", type=pathlib.Path, help="directory for pictures of the pages")
    parser.add_argument("--only", choices=("public", "admin"), help="check only these pages")
    options = parser.parse_args()
    os.environ["HANDLE_BIN"] = str(options.programs.resolve())
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        service = Service(options.programs.resolve(), pathlib.Path(directory))
        browser = None
        try:
            browser = Browser(options.axe, options.screenshots)
            if options.only != "admin":
                public_pages.check(browser, directory)
            if options.only != "public":
                base = service.start()
                use(browser, base, service)
                browser.click(".menu form button")
                register(browser, base, service)
            failures = browser.failures
        finally:
            if browser:
                browser.driver.quit()
            service.stop()
    for failure in failures:
        print(failure)
    print(f"{browser.pages} pages checked, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    os.umask(0o077)
    main()
