//! The page of a run in a browser: it shows the figures of the JSON, on a phone and on a wide
//! screen.
//!
//! With Chromium, the rendered page is checked; without it, the same figures are read from the
//! file. `HANDLE_PICTURES=DIR` keeps the screenshots.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

#[path = "../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use needs::{TestNeed, has};
use serde_json::Value as Json;

/// Widths of a phone and of a large screen, in pixels.
const WIDTHS: [u32; 2] = [390, 1600];
/// The smallest legible letters, in pixels.
const LETTERS_MIN: f64 = 10.0;
/// Long enough for a browser on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Does a run, and returns the paths of its JSON and of its page.
fn run_in(dir: &Path) -> (PathBuf, PathBuf) {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut buffer, mut number) = ([0; 600], 0u8);
        while let Ok((len, from)) = server.recv_from(&mut buffer) {
            number = number.wrapping_add(1);
            // Some of everything: answers of three kinds, and sometimes none.
            buffer[27] = [1, 1, 1, 100, 200][usize::from(number % 5)];
            if !number.is_multiple_of(50) {
                let _ = server.send_to(&buffer[..len], from);
            }
        }
    });
    let (json, page) = (dir.join("report.json"), dir.join("page.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
        .args(["run", "--target", &target, "--template", "10.5072/{1..100}", "--steps", "100,300,200"])
        .args(["--duration", "4500ms", "--timeout", "400ms", "--quiet"])
        .args(["--assert", "p50<1s", "--assert", "loss<0.1%", "--json"])
        .arg(&json)
        .arg("--html")
        .arg(&page)
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(1 | 3)), "{}", String::from_utf8_lossy(&output.stdout));
    (json, page)
}

/// The figures of a page, each with its place in the JSON, and their number.
fn compare_figures(page: &str, report: &Json) -> usize {
    let figures: Vec<_> = page.split("<data data-of=\"").skip(1).collect();
    for figure in &figures {
        let (pointer, rest) = figure.split_once("\" value=\"").unwrap();
        let (value, _) = rest.split_once("\">").unwrap();
        let value =
            value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'");
        let value: Json = serde_json::from_str(&value.replace("&amp;", "&")).unwrap();
        assert_eq!(Some(&value), report.pointer(pointer), "{pointer}");
    }
    figures.len()
}

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"];
    let mut files = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    files.find(|file| file.is_file())
}

/// Standard output and standard error of the browser.
fn browse(browser: &Path, args: &[String], profile: &Path) -> (String, String) {
    let out = profile.with_extension("out");
    let err = profile.with_extension("err");
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(args)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::fs::File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("{} does not end: {}", browser.display(), std::fs::read_to_string(&err).unwrap());
        }
        thread::sleep(Duration::from_millis(20));
    }
    (
        std::fs::read_to_string(out).unwrap(),
        String::from_utf8_lossy(&std::fs::read(err).unwrap()).into_owned(),
    )
}

/// A page with another one in frames of each of the widths. It measures their extent, the letter
/// size of the drawings, overlapping letters, and network requests.
fn measuring(page: &str) -> String {
    let page = serde_json::to_string(page).unwrap().replace('<', "\\u003c");
    let script = r"
        const found = [];
        for (const width of WIDTHS) {
            const frame = document.createElement('iframe');
            frame.width = width;
            frame.height = 2000;
            frame.onload = () => {
                const page = frame.contentDocument;
                let letters = 1000, overlaps = [];
                for (const drawing of page.querySelectorAll('svg')) {
                    const scale = drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
                    const texts = [...drawing.querySelectorAll('text')];
                    const boxes = texts.map(text => text.getBoundingClientRect());
                    texts.forEach((text, i) => {
                        const size = parseFloat(frame.contentWindow.getComputedStyle(text).fontSize);
                        letters = Math.min(letters, size * scale);
                        for (let j = 0; j < i; j++) {
                            const [a, b] = [boxes[i], boxes[j]];
                            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                            // Boxes of letters include some margin.
                            if (across > 1 && down > 5) {
                                overlaps.push(text.textContent + ' on ' + texts[j].textContent);
                            }
                        }
                    });
                }
                const resources = frame.contentWindow.performance.getEntriesByType('resource').length;
                const reach = page.documentElement.scrollWidth;
                found.push({width, reach, letters, overlaps, resources, drawings: page.querySelectorAll('svg').length});
                if (found.length === WIDTHS.length) {
                    document.body.innerHTML = '<pre>' + JSON.stringify(found) + '</pre>';
                }
            };
            frame.srcdoc = PAGE;
            document.body.append(frame);
        }";
    format!(
        "<!doctype html><meta charset=\"utf-8\"><body><script>const WIDTHS = {WIDTHS:?}, PAGE = {page};{script}</script>"
    )
}

#[test]
fn a_browser_shows_the_figures_of_the_json_on_a_phone_and_on_a_wide_screen() {
    let dir = tempfile::tempdir().unwrap();
    let (json, page_path) = run_in(dir.path());
    let report: Json = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&page_path).unwrap();
    let figures = compare_figures(&page, &report);
    assert!(figures > 50, "{figures}");
    let browser = chromium();
    if !has(TestNeed::Chromium, browser.is_some()) {
        return;
    }
    let browser = browser.unwrap();
    let url = |path: &Path| format!("file://{}", path.display());

    let (shown, browser_log) =
        browse(&browser, &["--dump-dom".to_owned(), url(&page_path)], &dir.path().join("shown"));
    assert_eq!(compare_figures(&shown, &report), figures, "the page shows another number of figures");
    assert!(!browser_log.contains("CONSOLE"), "{browser_log}");

    let frames = dir.path().join("frames.html");
    std::fs::write(&frames, measuring(&page)).unwrap();
    let (measured, browser_log) =
        browse(&browser, &["--dump-dom".to_owned(), url(&frames)], &dir.path().join("measured"));
    assert!(!browser_log.contains("CONSOLE"), "{browser_log}");
    let found = measured.split_once("<pre>").and_then(|(_, rest)| rest.split_once("</pre>"));
    let found: Vec<Json> =
        serde_json::from_str(found.unwrap_or_else(|| panic!("{measured:.2000}")).0).unwrap();
    assert_eq!(found.len(), WIDTHS.len());
    for found in found {
        assert_eq!(found["reach"], found["width"], "the page is wider than the screen: {found}");
        assert!(found["letters"].as_f64().unwrap() >= LETTERS_MIN, "{found}");
        assert_eq!(found["overlaps"].as_array().map(Vec::len), Some(0), "{found}");
        assert_eq!(found["resources"], 0, "{found}");
        assert_eq!(found["drawings"], 6, "{found}");
    }

    let pictures = std::env::var_os("HANDLE_PICTURES").map_or(dir.path().to_owned(), PathBuf::from);
    for width in WIDTHS {
        let picture = pictures.join(format!("page-{width}.png"));
        let frame = dir.path().join(format!("frame-{width}.html"));
        let style = format!("border: 0; width: {width}px; height: 1400px");
        let text = format!(
            "<!doctype html><body style=\"margin: 0\"><iframe style=\"{style}\" src=\"{}\"></iframe>",
            url(&page_path)
        );
        std::fs::write(&frame, text).unwrap();
        let args = [
            format!("--screenshot={}", picture.display()),
            format!("--window-size={width},1400"),
            url(&frame),
        ];
        browse(&browser, &args, &dir.path().join(format!("screenshot-{width}")));
        let len = std::fs::metadata(&picture).unwrap().len();
        assert!(len > 20_000, "{} has {len} bytes: the page is empty", picture.display());
    }
}
