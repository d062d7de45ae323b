//! The terminal of the live view.

use std::io::{self, Stdout};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::LiveView;

/// A terminal that shows a view until it is dropped, which restores it.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    area: Rect,
}

impl Screen {
    /// Takes over the terminal on standard output.
    ///
    /// # Errors
    ///
    /// If standard output is not a terminal.
    pub fn open() -> io::Result<Self> {
        let area = size()?;
        let screen = Self { terminal: terminal(area)?, area };
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws a view in the current size of the terminal.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn show(&mut self, view: &LiveView) -> io::Result<()> {
        let area = size()?;
        if area != self.area {
            // A new one: resizing the old one would query the cursor of the terminal and wait for
            // the answer.
            execute!(io::stdout(), Clear(ClearType::All))?;
            (self.terminal, self.area) = (terminal(area)?, area);
        }
        self.terminal.draw(|frame| view.draw(frame)).map(|_| ())
    }
}

fn terminal(area: Rect) -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    let options = TerminalOptions { viewport: Viewport::Fixed(area) };
    Terminal::with_options(CrosstermBackend::new(io::stdout()), options)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be restored.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    }
}

/// The size of the terminal on standard output. Other functions use the controlling terminal, which
/// may be another.
fn size() -> io::Result<Rect> {
    let size = rustix::termios::tcgetwinsize(io::stdout())?;
    // A terminal that does not report its size counts as 80 by 24.
    let or = |size: u16, usual: u16| if size == 0 { usual } else { size };
    Ok(Rect::new(0, 0, or(size.ws_col, 80), or(size.ws_row, 24)))
}
