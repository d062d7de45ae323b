//! The terminal that a view is drawn on.

use std::io::{self, Stdout};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::LiveView;

/// A terminal that shows a view until it is dropped, and is then as it was.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    area: Rect,
}

impl Screen {
    /// Takes the terminal that is standard output.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn open() -> io::Result<Self> {
        let area = size()?;
        let screen = Self { terminal: terminal(area)?, area };
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws a view, in the size that the terminal has now.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn show(&mut self, view: &LiveView) -> io::Result<()> {
        let area = size()?;
        if area != self.area {
            // A new one: to change the old one, it would ask the terminal for its cursor, and wait for the answer.
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
        // A terminal that is gone needs nothing back.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    }
}

/// The size of the terminal that is standard output. Asked for here, because whoever else asks takes the one that
/// controls the process, which may be another.
fn size() -> io::Result<Rect> {
    let size = rustix::termios::tcgetwinsize(io::stdout())?;
    // A terminal that does not know its size has the size of old ones.
    let or = |size: u16, usual: u16| if size == 0 { usual } else { size };
    Ok(Rect::new(0, 0, or(size.ws_col, 80), or(size.ws_row, 24)))
}
