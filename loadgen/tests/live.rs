//! The live view in a pseudo-terminal: during the run, and after its end.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::fs::File;
use std::io::Read as _;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// An answer to each request, until the process ends; its address.
fn server() -> String {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut buffer = [0; 600];
        while let Ok((len, from)) = server.recv_from(&mut buffer) {
            buffer[27] = 1;
            let _ = server.send_to(&buffer[..len], from);
        }
    });
    target
}

/// The generator on a terminal.
struct TerminalSession {
    child: Child,
    terminal: File,
    parser: vt100::Parser,
    /// All bytes written.
    bytes: Vec<u8>,
    /// The last screen of the run.
    live: String,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl TerminalSession {
    fn start((rows, columns): (u16, u16), duration: &str, variable: (&str, &str)) -> Self {
        let terminal: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, size(rows, columns)).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let other_end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
            .args(["run", "--target", &server(), "--template", "10.5072/{1..100}", "--rate", "200"])
            .args(["--duration", duration])
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .env(variable.0, variable.1)
            .stdin(Stdio::null())
            .stdout(other_end.try_clone().unwrap())
            .stderr(other_end)
            .spawn()
            .unwrap();
        let parser = vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0);
        Self { child, terminal: terminal.into(), parser, bytes: Vec::new(), live: String::new() }
    }

    /// Waits until `is_seen` accepts the screen; returns whether it did before the end.
    fn look(&mut self, is_seen: impl Fn(&str) -> bool) -> bool {
        let mut buffer = [0; 4096];
        // Reading a pseudo-terminal whose other end is closed is an error.
        while let Ok(len @ 1..) = self.terminal.read(&mut buffer) {
            self.bytes.extend(&buffer[..len]);
            self.parser.process(&buffer[..len]);
            if self.parser.screen().alternate_screen() {
                self.live = self.parser.screen().contents();
                if is_seen(&self.live) {
                    return true;
                }
            }
        }
        false
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        tcsetwinsize(&self.terminal, size(rows, columns)).unwrap();
        self.parser.screen_mut().set_size(rows.try_into().unwrap(), columns.try_into().unwrap());
    }

    fn finish(mut self) -> (ExitStatus, String, Vec<u8>) {
        self.look(|_| false);
        let left = self.parser.screen();
        assert!(!left.alternate_screen() && !left.hide_cursor(), "the terminal is not restored");
        (self.child.wait().unwrap(), left.contents(), self.bytes)
    }
}

fn contains_all(shown: &str, parts: &[&str]) {
    for part in parts {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

#[test]
fn the_terminal_shows_the_run_and_then_its_report() {
    let mut seen = TerminalSession::start((36, 100), "2500ms", ("LANG", "C.UTF-8"));
    seen.look(|_| false);
    contains_all(
        &seen.live,
        &[
            "handle-loadgen: 127.0.0.1:",
            "of 2 s",
            "/s sent",
            "lost 0 (0.000 %)",
            "response time of the last second",
            "p99.9",
            "lag",
            "response times, second by second",
            "1 success",
        ],
    );
    let (status, report, bytes) = seen.finish();
    assert!(String::from_utf8_lossy(&bytes).contains("\u{1b}[38;5;"), "the view has no colours");
    // On a loaded machine, a late generator is reported and the run ends with another code.
    assert!(status.code() == Some(0) || report.contains("INVALID"), "{report}");
    contains_all(&report, &["answered                     500", "response time"]);
}

#[test]
fn the_view_follows_the_size_of_the_terminal() {
    let mut seen = TerminalSession::start((12, 40), "1h", ("LANG", "C.UTF-8"));
    assert!(seen.look(|live| live.contains("x success")), "{}", seen.live);
    contains_all(&seen.live, &["lost 0", "p50", "lag"]);
    assert!(!seen.live.contains("second by second"), "a small terminal has frames: {}", seen.live);
    seen.resize(30, 90);
    assert!(seen.look(|live| live.contains("response times, second by second")), "{}", seen.live);
    seen.resize(12, 40);
    assert!(
        seen.look(|live| !live.contains("second by second") && live.contains("x success")),
        "{}",
        seen.live
    );
    assert!(seen.live.lines().all(|line| line.chars().count() <= 40), "{}", seen.live);
    let _ = seen.child.kill();
    let _ = seen.child.wait();
}

#[test]
fn an_interrupt_restores_the_terminal_and_shows_the_results() {
    let mut seen = TerminalSession::start((24, 80), "1h", ("NO_COLOR", "1"));
    assert!(seen.look(|live| live.contains("1 success")), "{}", seen.live);
    kill_process(Pid::from_child(&seen.child), Signal::INT).unwrap();
    let (status, report, bytes) = seen.finish();
    assert_eq!(status.code(), Some(3), "{report}");
    contains_all(&report, &["INVALID     stopped early", "response time"]);
    let written = String::from_utf8_lossy(&bytes);
    let colors = ["\u{1b}[38;", "\u{1b}[48;", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"];
    assert!(colors.iter().all(|color| !written.contains(color)), "NO_COLOR: {written:?}");
}

#[test]
fn a_terminal_without_capabilities_gets_lines() {
    // The report of a late generator has more lines, below which the first one must stay visible.
    let (_, report, bytes) = TerminalSession::start((48, 120), "1500ms", ("TERM", "dumb")).finish();
    assert!(!bytes.contains(&0x1b), "{report}");
    contains_all(&report, &["/s answered  lost 0  p50", "answered                     300"]);
}
