//! A run as it goes, on a terminal: rate, loss, response times, lag, response codes, and a strip of times.
//!
//! Drawn once a second, from what the run tells of each. The terminal stays in its usual mode, so that Ctrl-C ends
//! the run as everywhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Stdout};

use handle_proto::ResponseCode;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use crate::report::Second;
use crate::table::Time;

/// Most seconds that are remembered: more than any terminal has columns.
const HISTORY_MAX: usize = 1024;

/// Ends of the rows of the strip, in nanoseconds; what is longer is in the last one.
const ROWS_NS: [u64; 8] = [50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000, 25_000_000, u64::MAX];

/// What is shown.
#[derive(Debug, Default)]
pub struct View {
    title: String,
    duration_s: Option<f64>,
    seconds: VecDeque<Shown>,
    last: Second,
    late: u64,
    mismatched: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    answered: u64,
    /// Answers of each row of the strip.
    rows: [u64; ROWS_NS.len()],
}

impl View {
    /// Of a run with this title, which ends after so many seconds if that is known.
    #[must_use]
    pub fn new(title: String, duration_s: Option<f64>) -> Self {
        Self { title, duration_s, ..Self::default() }
    }

    /// Takes what a second saw.
    pub fn add(&mut self, second: &Second) {
        let mut shown = Shown { answered: second.answered, ..Shown::default() };
        for step in second.histogram.iter().flat_map(|histogram| histogram.iter_recorded()) {
            let row = ROWS_NS.iter().position(|end| step.value_iterated_to() <= *end).unwrap_or(0);
            shown.rows[row] += u64::from(step.count_at_value());
        }
        self.seconds.push_back(shown);
        if self.seconds.len() > HISTORY_MAX {
            self.seconds.pop_front();
        }
        self.late += second.late;
        self.mismatched += second.mismatched;
        self.last = second.clone();
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let strip_len = u16::try_from(ROWS_NS.len() + 2).unwrap_or(u16::MAX);
        let rows = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(5),
            Constraint::Length(4),
            Constraint::Length(strip_len),
            Constraint::Min(0),
        ]);
        let [title, rate, times, strip, codes] = rows.areas(frame.area());
        frame.render_widget(Paragraph::new(self.title_lines()), title);
        self.draw_rate(frame, rate);
        let block = Block::bordered().title("response time of the last second");
        frame.render_widget(Paragraph::new(self.times_lines()).block(block), times);
        self.draw_strip(frame, strip);
        let block = Block::bordered().title("response codes so far");
        frame.render_widget(Paragraph::new(self.codes_lines()).block(block), codes);
    }

    fn title_lines(&self) -> Vec<Line<'_>> {
        let Second { elapsed_s, sent_per_s, answered_per_s, lost_so_far, .. } = self.last;
        let of = self.duration_s.map_or_else(String::new, |duration_s| format!(" of {duration_s:.0}"));
        let mut counts = format!(
            "{elapsed_s:.0}{of} s  {sent_per_s:.0}/s sent  {answered_per_s:.0}/s answered  lost {lost_so_far}"
        );
        // Writing to a string does not fail.
        if self.late > 0 {
            let _ = write!(counts, "  late {}", self.late);
        }
        let mut line = vec![Span::raw(counts)];
        if self.mismatched > 0 {
            line.push(Span::styled(format!("  WRONG {}", self.mismatched), Style::new().fg(Color::Red)));
        }
        vec![Line::from(self.title.as_str()), Line::from(line)]
    }

    fn draw_rate(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width.saturating_sub(2));
        let skipped = self.seconds.len().saturating_sub(width);
        let data: Vec<u64> = self.seconds.iter().skip(skipped).map(|shown| shown.answered).collect();
        let max = data.iter().copied().max().unwrap_or(0);
        let block = Block::bordered().title(format!("answered a second, up to {max}"));
        frame.render_widget(Sparkline::default().block(block).data(&data), area);
    }

    fn times_lines(&self) -> Vec<Line<'static>> {
        let at = |quantile: f64| {
            let histogram = self.last.histogram.as_ref();
            Time(histogram.map_or(0, |histogram| histogram.value_at_quantile(quantile)))
        };
        let (max, lag) = (Time(self.last.response_max_ns), Time(self.last.lag_max_ns));
        vec![
            Line::from(format!("p50 {:>8}   p90 {:>8}   p99 {:>8}", at(0.5), at(0.9), at(0.99))),
            Line::from(format!("p99.9 {:>6}   max {max:>8}   lag {lag:>8}", at(0.999))),
        ]
    }

    /// A column for each second, a row for each span of times; the fuller, the more of its answers.
    fn draw_strip(&self, frame: &mut Frame<'_>, area: Rect) {
        const LABEL: usize = 9;
        let width = usize::from(area.width.saturating_sub(2)).saturating_sub(LABEL);
        let skipped = self.seconds.len().saturating_sub(width);
        let lines = (0..ROWS_NS.len()).rev().map(|row| {
            let label = match ROWS_NS[row] {
                u64::MAX => "longer".to_owned(),
                end_ns => format!("{}", Time(end_ns)),
            };
            let cells = self.seconds.iter().skip(skipped).map(|shown| {
                let total: u64 = shown.rows.iter().sum();
                let share = shown.rows[row] as f64 / total.max(1) as f64;
                match share {
                    0.0 => ' ',
                    ..0.001 => '\u{b7}',
                    ..0.05 => '\u{2591}',
                    ..0.25 => '\u{2592}',
                    ..0.6 => '\u{2593}',
                    _ => '\u{2588}',
                }
            });
            Line::from(format!("{label:>8} {}", cells.collect::<String>()))
        });
        let block = Block::bordered().title("response times, second by second");
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
    }

    fn codes_lines(&self) -> Vec<Line<'static>> {
        let line =
            |&(code, count): &(i32, u64)| Line::from(format!("{count:>12}  {code} {}", ResponseCode(code)));
        self.last.codes.iter().map(line).collect()
    }
}

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
    pub fn show(&mut self, view: &View) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::histogram;
    use ratatui::backend::TestBackend;
    use std::sync::Arc;

    fn view(seconds: u64) -> View {
        let mut view = View::new("127.0.0.1:2641 over udp".to_owned(), Some(60.0));
        for number in 1..=seconds {
            let mut times = histogram(2);
            times.record_n(80_000, 900).unwrap();
            times.record_n(4_000_000, 90).unwrap();
            times.record_n(900_000_000, 1).unwrap();
            view.add(&Second {
                elapsed_s: number as f64,
                answered: 991,
                sent_per_s: 1000.0,
                answered_per_s: 991.0,
                lost_so_far: 9,
                mismatched: 1,
                response_max_ns: 900_000_000,
                lag_max_ns: 42_000,
                codes: vec![(1, 990 * number), (100, number)],
                histogram: Some(Arc::new(times)),
                ..Second::default()
            });
        }
        view
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn shows_what_the_run_tells() {
        let shown = screen(&view(5), 80, 30);
        for part in [
            "127.0.0.1:2641 over udp",
            "5 of 60 s  1000/s sent  991/s answered  lost 9  WRONG 5",
            "up to 991",
            "p50  80.4 us",
            "lag  42.0 us",
            "100 us \u{2588}\u{2588}\u{2588}\u{2588}\u{2588} ",
            "5.00 ms \u{2592}\u{2592}\u{2592}\u{2592}\u{2592} ",
            "longer \u{2591}",
            "4950  1 success",
            "5  100 handle not found",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
    }

    #[test]
    fn any_size_is_drawn() {
        let view = view(200);
        for (width, height) in [(1, 1), (10, 5), (40, 20), (80, 24), (300, 100)] {
            screen(&view, width, height);
        }
        assert!(screen(&view, 40, 24).contains("answered"));
        assert!(screen(&View::default(), 80, 24).contains("0 s"));
    }
}
