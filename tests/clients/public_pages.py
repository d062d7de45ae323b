"""The public pages of handle-gateway in Chromium: pages.py runs this with its browser.

Every page is opened in every language, and checked with axe-core at every width and in every colour
scheme. The keyboard must reach every control in the order of the page.
"""

import http.server
import json
import pathlib
import ssl
import threading
import urllib.error
import urllib.request

from selenium.webdriver.common.keys import Keys

import service

PREFIX = service.PREFIX
LANGUAGES = ("en", "de", "fr")
VECTORS = service.ROOT / "tests" / "vectors"
ARABIC = f"{PREFIX}/مقالة-١٢٣"
HEBREW = f"{PREFIX}/מאמר (2)"
CHINESE = f"{PREFIX}/論文「東京」第三版"
LONG = f"{PREFIX}/" + "a-very-long-name-without-a-space-" * 12
# Where another service should be, and nothing listens: discard, TCP port 9.
FOREIGN_PREFIX = "99.9999"

# What a page must say in each language.
FORM = {"en": "Resolve a handle", "de": "Handle auflösen", "fr": "Résoudre un handle"}
RECORD = {"en": "Values", "de": "Werte", "fr": "Valeurs"}
INVALID = {"en": "Not a handle", "de": "Kein Handle", "fr": "Pas un handle"}
MISSING = {"en": "Handle not found", "de": "Handle nicht gefunden", "fr": "Handle introuvable"}
FAILED = {"en": "Handle service failed", "de": "Handle-Dienst gestört", "fr": "Échec du service de handles"}
REDIRECT = {"en": "The handle refers to:", "de": "Das Handle verweist auf:", "fr": "Le handle désigne :"}


def value_of_vectors(kind):
    """The data of the first value of a type in records.json."""
    records = json.loads((VECTORS / "records.json").read_text())
    values = (value for record in records for value in record["values"])
    return next(value["data"] for value in values if value["type"] == kind)


def records():
    """Records with every kind of value that a page explains."""
    own = service.administrator(f"0.NA/{PREFIX}", 300)
    few = {**service.administrator(f"{PREFIX}/مدير", 0, "010011110000"), "index": 101}
    group = {"index": 200, "type": "HS_VLIST", "data": {"format": "vlist", "value": [
        {"handle": f"0.NA/{PREFIX}", "index": 300}, {"handle": CHINESE, "index": 1}]}}
    of_vectors = [{"index": index, "type": kind, "data": value_of_vectors(kind)}
                  for index, kind in ((300, "HS_PUBKEY"), (301, "HS_SITE"))]
    text = service.text
    return [
        {"handle": f"{PREFIX}/everything", "values": [
            text(1, "URL", "https://example.org/one"), text(2, "EMAIL", "library@example.org"),
            text(3, "DESC", "Two lines\nin one value"), text(4, "URL", "javascript:alert(1)"),
            text(5, "DESC", ""), text(6, "DESC", "العنوان بالعربية، ثم English، ثم עברית"),
            text(7, "HS_ALIAS", CHINESE),
            {"index": 8, "type": "BYTES", "data": {"format": "hex", "value": "00FF" * 700}},
            own, few, group, *of_vectors]},
        {"handle": ARABIC, "values": [text(1, "DESC", "مرحبا"), text(2, "TITLE", "عنوان المقالة"), own]},
        {"handle": HEBREW, "values": [text(1, "DESC", "שלום עולם"), own]},
        {"handle": CHINESE, "values": [text(1, "TITLE", "東京における永続識別子"), own]},
        {"handle": LONG, "values": [
            text(1, "DESC", "x" * 20_000), text(2, "URL", "https://example.org/" + "path/" * 300), own]},
    ]


class RedirectServer(http.server.BaseHTTPRequestHandler):
    """Shows the page of a redirect, which a browser follows otherwise."""

    gateway = ""

    def do_GET(self):
        headers = {name: self.headers[name] for name in ("Accept", "Accept-Language") if self.headers[name]}
        request = urllib.request.Request(self.gateway + self.path, headers=headers)
        try:
            answer = OPENER.open(request)
        except urllib.error.HTTPError as error:
            answer = error
        body = answer.read()
        self.send_response(200)
        for name in ("Content-Type", "Content-Security-Policy"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class RedirectPages(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_):
        return None


def insecure():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


OPENER = urllib.request.build_opener(RedirectPages, urllib.request.HTTPSHandler(context=insecure()))


def focusable(browser):
    """The controls of the page in their order, and the position of the one with the focus."""
    return browser.driver.execute_script("""
        const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea")];
        window.controls = all.filter((it) => !it.disabled && it.getClientRects().length > 0);
        return [window.controls.length, window.controls.indexOf(document.activeElement)];
    """)


def check_tab_order(browser, name):
    """Presses Tab from the current control to the last one."""
    count, position = focusable(browser)
    body = browser.find("body")
    for expected in range(position + 1, count):
        (body if expected == 0 else browser.driver.switch_to.active_element).send_keys(Keys.TAB)
        at, shown = browser.driver.execute_script("""
            const active = document.activeElement, box = active.getBoundingClientRect();
            const style = getComputedStyle(active);
            const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
            return [window.controls.indexOf(active), box.width > 0 && box.height > 0 && isMarked];
        """)
        if at != expected:
            browser.failures.append(f"{name}: Tab reaches control {at}, not {expected}")
            return
        if not shown:
            browser.failures.append(f"{name}: control {at} does not show that it has the focus")


def path_of(handle):
    return urllib.request.quote(handle, safe="/")


def pages(gateway, redirects):
    """The name of each page, its URL, its status, and what it says in each language."""
    record = lambda handle: f"{gateway}/{path_of(handle)}?noredirect"
    return [
        ("form", f"{gateway}/", 200, FORM),
        ("record", record(f"{PREFIX}/everything") + "&ignore_aliases", 200, RECORD),
        ("record-of-alias", record(f"{PREFIX}/everything"), 200, RECORD),
        ("record-unsafe", f"{gateway}/{PREFIX}/everything?index=4&ignore_aliases", 200, RECORD),
        ("record-arabic", record(ARABIC), 200, RECORD),
        ("record-hebrew", record(HEBREW), 200, RECORD),
        ("record-chinese", record(CHINESE), 200, RECORD),
        ("record-long", record(LONG), 200, RECORD),
        ("error-400", f"{gateway}/%FF", 400, INVALID),
        ("error-404", f"{gateway}/{path_of(ARABIC)}-none", 404, MISSING),
        ("error-502", f"{gateway}/{FOREIGN_PREFIX}/abc", 502, FAILED),
        ("redirect", f"{redirects}/{PREFIX}/hello", 200, REDIRECT),
    ]


def check(browser, directory):
    """Opens every page in every language."""
    upstream = pathlib.Path(directory) / "upstream.json"
    interface = {"query": True, "admin": False, "protocol": "TCP", "port": 9}
    upstream.write_text(json.dumps({
        "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": True, "multiPrimary": False,
        "attributes": [], "servers": [{"serverId": 1, "address": "127.0.0.1", "interfaces": [interface]}]}))
    with service.Service(records(), further_settings=f'upstream.resolver_site = "{upstream}"') as served:
        RedirectServer.gateway = served.url
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RedirectServer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            open_all(browser, served.url, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            browser.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})


def open_all(browser, gateway, redirects):
    browser.driver.execute_cdp_cmd("Network.enable", {})
    for language in LANGUAGES:
        browser.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Accept-Language": language}})
        for name, url, status, texts in pages(gateway, redirects):
            name = f"public-{name}-{language}"
            browser.driver.get(url)
            browser.expect(texts[language], name)
            if browser.find("html").get_attribute("lang") != language:
                browser.failures.append(f"{name}: lang is {browser.find('html').get_attribute('lang')}")
            check_tab_order(browser, name)
            browser.log(name, status=None if status == 200 else status)
            browser.check(name)
