//! The live view in a pseudo-terminal: what a person sees while a run goes on, and what is left when it is over.

use std::fs::File;
use std::io::Read as _;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const ROWS: u16 = 36;
const COLUMNS: u16 = 100;

#[test]
fn a_person_sees_the_run_and_then_its_report() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    // Until the process ends: an answer to each request.
    thread::spawn(move || {
        let mut room = [0; 600];
        while let Ok((len, from)) = server.recv_from(&mut room) {
            room[27] = 1;
            let _ = server.send_to(&room[..len], from);
        }
    });
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other_end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
        .args([
            "run",
            "--target",
            &target,
            "--template",
            "10.5072/{1..100}",
            "--rate",
            "200",
            "--duration",
            "2500ms",
        ])
        .stdin(Stdio::null())
        .stdout(other_end.try_clone().unwrap())
        .stderr(other_end)
        .spawn()
        .unwrap();
    let mut parser = vt100::Parser::new(ROWS.try_into().unwrap(), COLUMNS.try_into().unwrap(), 0);
    let (mut live, mut room, mut terminal) = (String::new(), [0; 4096], File::from(terminal));
    // The end of a pseudo-terminal whose other end is closed is an error.
    while let Ok(len @ 1..) = terminal.read(&mut room) {
        parser.process(&room[..len]);
        if parser.screen().alternate_screen() {
            live = parser.screen().contents();
        }
    }
    child.wait().unwrap();
    for part in [
        &format!("handle-loadgen: {target} over udp")[..],
        "/s sent",
        "lost 0",
        "response time of the last second",
        "response times, second by second",
        "1 success",
    ] {
        assert!(live.contains(part), "{part:?} is not in\n{live}");
    }
    let left = parser.screen();
    assert!(!left.alternate_screen() && !left.hide_cursor(), "the terminal is as it was");
    let report = left.contents();
    assert!(report.contains("answered                     500"), "{report}");
    assert!(report.contains("response time"), "{report}");
}
