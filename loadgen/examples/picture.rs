//! Draws the live view: runs a command in a pseudo-terminal and writes its last screen as SVG.
//!
//! ```sh
//! cargo run --release -p handle-loadgen --example picture -- live.svg 80x24 \
//!     target/release/handle-loadgen run --target 127.0.0.1:2641 --snapshot set --rate 20k \
//!     --duration 60s
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU16;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use vt100::{Color, Screen};

fn main() -> anyhow::Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [file, size, program, rest @ ..] = &args[..] else {
        bail!("usage: picture FILE.svg COLUMNSxROWS PROGRAM ARGUMENT...");
    };
    let (columns, rows) = size.split_once('x').context("a size is like 80x24")?;
    let (columns, rows): (NonZeroU16, NonZeroU16) = (columns.parse()?, rows.parse()?);
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    let size = Winsize { ws_row: rows.get(), ws_col: columns.get(), ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size)?;
    let name = ptsname(&terminal, Vec::new())?;
    let other_end = File::options().read(true).write(true).open(name.to_str()?)?;
    let mut child = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(other_end.try_clone()?)
        .stderr(other_end)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut parser = vt100::Parser::new(rows, columns, 0);
    let (mut picture, mut buffer, mut terminal) = (None, [0; 4096], File::from(terminal));
    // Reading a pseudo-terminal whose other end is closed is an error.
    while let Ok(len @ 1..) = terminal.read(&mut buffer) {
        parser.process(&buffer[..len]);
        let screen = parser.screen();
        if screen.alternate_screen() && !screen.contents().trim().is_empty() {
            picture = Some(svg(screen));
        }
    }
    child.wait()?;
    let Some(picture) = picture else {
        bail!("the command showed no live view:\n{}", parser.screen().contents())
    };
    std::fs::write(file, picture).with_context(|| format!("cannot write {file}"))
}

/// Size of a character.
const CELL: (f64, f64) = (8.4, 16.3);
const MARGIN: f64 = 12.0;

fn svg(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let (width, height) = (f64::from(columns) * CELL.0, f64::from(rows) * CELL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\">\n\
         <title>The live view of handle-loadgen</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#15171a\"/>\n\
         <g font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n",
        width + 2.0 * MARGIN,
        height + 2.0 * MARGIN
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let color = color_at(screen, row, column);
            let start = column;
            let mut text = String::new();
            while column < columns && color_at(screen, row, column) == color {
                let contents = screen.cell(row, column).map(vt100::Cell::contents).unwrap_or_default();
                text.push_str(if contents.is_empty() { " " } else { contents });
                column += 1;
            }
            if text.trim().is_empty() {
                continue;
            }
            // Placed cell by cell, so that every font keeps the columns.
            let (x, y) = (MARGIN + f64::from(start) * CELL.0, MARGIN + f64::from(row) * CELL.1 + 13.0);
            let len = f64::from(column - start) * CELL.0;
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\" textLength=\"{len:.1}\" \
                 lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{text}</text>"
            );
        }
    }
    svg + "</g>\n</svg>\n"
}

/// The colours of the live view, as terminals show them.
fn color_at(screen: &Screen, row: u16, column: u16) -> &'static str {
    match screen.cell(row, column).map(vt100::Cell::fgcolor) {
        Some(Color::Idx(1)) => "#f28b82",
        Some(Color::Idx(2)) => "#7bc98f",
        Some(Color::Idx(3)) => "#e5b155",
        Some(Color::Idx(6)) => "#76b0f2",
        _ => "#d7dbe0",
    }
}
