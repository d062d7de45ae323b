//! The live view of a run on a terminal: rate, loss, response times, lag, response codes, and a
//! strip of times.
//!
//! Drawn once a second from the ticks of the run. The terminal stays in its normal mode, so that
//! Ctrl-C ends the run as usual. A small terminal shows the most important parts only.

mod screen;

use std::collections::VecDeque;

use handle_proto::ResponseCode;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, LineGauge, Paragraph, Sparkline};

use crate::show::human::HumanDuration;
use crate::show::report::SecondCounts;
pub use screen::Screen;

/// Maximum number of seconds kept: more than any terminal has columns.
const HISTORY_MAX: usize = 1024;

/// Upper ends of the rows of the strip, in nanoseconds, and their colours; the last row has all
/// longer times.
const ROWS: [(u64, Color); 8] = [
    (50_000, Color::Green),
    (100_000, Color::Green),
    (250_000, Color::Green),
    (500_000, Color::Green),
    (1_000_000, Color::Green),
    (5_000_000, Color::Yellow),
    (25_000_000, Color::Yellow),
    (u64::MAX, Color::Red),
];
/// Width of the row names.
const LABEL_LEN: usize = 9;
/// Height of the strip with its border and the row of lost requests.
const STRIP_LEN: u16 = 11;
/// The smallest terminal with space for all parts in frames.
const FRAMED: (u16, u16) = (64, 24);
/// Lines of a small terminal above its drawings.
const PLAIN_LEN: u16 = 7;

/// The data of the view.
#[derive(Debug, Default)]
pub struct LiveView {
    title: String,
    duration_s: Option<f64>,
    is_colored: bool,
    seconds: VecDeque<ShownSecond>,
    last: SecondCounts,
    sent: u64,
    late: u64,
    mismatched: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ShownSecond {
    answered: u64,
    /// Answers of each row of the strip.
    rows: [u64; ROWS.len()],
    /// Whether requests were given up or answered late.
    has_lost: bool,
}

impl LiveView {
    /// Creates a view of a run with this title, which ends after `duration_s` if that is known.
    #[must_use]
    pub fn new(title: String, duration_s: Option<f64>, is_colored: bool) -> Self {
        Self { title, duration_s, is_colored, ..Self::default() }
    }

    /// Adds a second.
    pub fn add(&mut self, second: &SecondCounts) {
        let has_lost = second.late > 0 || second.lost_so_far > self.last.lost_so_far;
        let mut shown = ShownSecond { answered: second.answered, has_lost, ..ShownSecond::default() };
        for step in second.histogram.iter().flat_map(|histogram| histogram.iter_recorded()) {
            let row = ROWS.iter().position(|(end, _)| step.value_iterated_to() <= *end).unwrap_or(0);
            shown.rows[row] += u64::from(step.count_at_value());
        }
        self.seconds.push_back(shown);
        if self.seconds.len() > HISTORY_MAX {
            self.seconds.pop_front();
        }
        self.sent += second.sent;
        self.late += second.late;
        self.mismatched += second.mismatched;
        self.last = second.clone();
    }

    /// Draws the view.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        if area.width >= FRAMED.0 && area.height >= FRAMED.1 {
            self.draw_framed(frame, area);
        } else {
            self.draw_plain(frame, area);
        }
    }

    fn draw_framed(&self, frame: &mut Frame<'_>, area: Rect) {
        // Extra space goes to the codes as far as they need it, and then to the rate.
        let codes_len = u16::try_from(self.last.codes.len()).unwrap_or(u16::MAX);
        let spare = area.height - FRAMED.1;
        let figures_len = 5 + codes_len.saturating_sub(3).min(spare);
        let rows = Layout::vertical([
            Constraint::Length(3),
            Constraint::Min(5),
            Constraint::Length(figures_len),
            Constraint::Length(STRIP_LEN),
        ]);
        let [head, rate, figures, strip] = rows.areas(area);
        let [title, progress, counts] = Layout::vertical([Constraint::Length(1); 3]).areas(head);
        frame.render_widget(Paragraph::new(self.title.as_str()).style(self.tint(Color::Cyan)), title);
        self.draw_progress(frame, progress);
        let mut line = self.rates();
        line.push(Span::raw("  "));
        line.extend(self.losses());
        frame.render_widget(Paragraph::new(Line::from(line)), counts);
        let data = self.rate_data(rate.width.saturating_sub(2));
        let block = Block::bordered().title(format!("answered per second, up to {}", highest(&data)));
        frame.render_widget(self.sparkline(&data).block(block), rate);
        let [times, codes] = Layout::horizontal([Constraint::Length(40), Constraint::Min(0)]).areas(figures);
        let block = Block::bordered().title("response time of the last second");
        let times_lines = self.times().map(|[a, b]| Line::from(format!(" {a}  {b}")));
        frame.render_widget(Paragraph::new(times_lines.to_vec()).block(block), times);
        let block = Block::bordered().title("response codes so far");
        let lines = self.codes_lines(usize::from(figures_len - 2));
        frame.render_widget(Paragraph::new(lines).block(block), codes);
        let block = Block::bordered().title("response times, second by second");
        let lines = self.strip_lines(strip.width.saturating_sub(2));
        frame.render_widget(Paragraph::new(lines).block(block), strip);
    }

    /// Draws without frames: first the numbers, then drawings as far as there is space.
    fn draw_plain(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines = vec![
            Line::from(self.title.as_str()).style(self.tint(Color::Cyan)),
            Line::from([vec![Span::raw(self.elapsed()), Span::raw("  ")], self.losses()].concat()),
            Line::from(self.rates()),
        ];
        lines.extend(self.times().map(|[a, b]| Line::from(format!("{a}  {b}"))));
        let codes = self.last.codes.iter().map(|(code, count)| format!("{count} x {}", ResponseCode(*code)));
        lines.push(Line::from(codes.collect::<Vec<_>>().join(", ")));
        let [text, drawing] =
            Layout::vertical([Constraint::Length(PLAIN_LEN), Constraint::Min(0)]).areas(area);
        frame.render_widget(Paragraph::new(lines), text);
        if drawing.height >= STRIP_LEN - 2 {
            frame.render_widget(Paragraph::new(self.strip_lines(drawing.width)), drawing);
        } else {
            frame.render_widget(self.sparkline(&self.rate_data(drawing.width)), drawing);
        }
    }

    /// A colour, if colours are used.
    fn tint(&self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    fn elapsed(&self) -> String {
        let of = self.duration_s.map_or_else(String::new, |duration_s| format!(" of {duration_s:.0}"));
        format!("{:.0}{of} s", self.last.elapsed_s)
    }

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(duration_s) = self.duration_s.filter(|duration_s| *duration_s > 0.0) else {
            frame.render_widget(Paragraph::new(self.elapsed()), area);
            return;
        };
        let gauge = LineGauge::default()
            .ratio((self.last.elapsed_s / duration_s).clamp(0.0, 1.0))
            .label(self.elapsed())
            .filled_symbol(symbols::line::THICK_HORIZONTAL)
            .unfilled_symbol(symbols::line::HORIZONTAL)
            .filled_style(self.tint(Color::Cyan));
        frame.render_widget(gauge, area);
    }

    fn rates(&self) -> Vec<Span<'static>> {
        let SecondCounts { sent_per_s, answered_per_s, .. } = self.last;
        vec![Span::raw(format!("{sent_per_s:.0}/s sent  {answered_per_s:.0}/s answered"))]
    }

    /// Lost requests and, if there are any, late and wrong answers.
    fn losses(&self) -> Vec<Span<'static>> {
        let lost = self.last.lost_so_far;
        let percent = lost as f64 / self.sent.max(1) as f64 * 100.0;
        let color = if lost > 0 { self.tint(Color::Yellow) } else { Style::new() };
        let mut spans = vec![Span::styled(format!("lost {lost} ({percent:.3} %)"), color)];
        if self.late > 0 {
            spans.push(Span::styled(format!("  late {}", self.late), self.tint(Color::Yellow)));
        }
        if self.mismatched > 0 {
            spans.push(Span::styled(format!("  WRONG {}", self.mismatched), self.tint(Color::Red)));
        }
        spans
    }

    fn rate_data(&self, width: u16) -> Vec<u64> {
        self.latest(usize::from(width)).map(|shown| shown.answered).collect()
    }

    fn sparkline<'a>(&self, data: &'a [u64]) -> Sparkline<'a> {
        Sparkline::default().data(data).style(self.tint(Color::Cyan))
    }

    /// The last `n` seconds.
    fn latest(&self, width: usize) -> impl Iterator<Item = &ShownSecond> {
        self.seconds.iter().skip(self.seconds.len().saturating_sub(width))
    }

    fn times(&self) -> [[String; 2]; 3] {
        // A second without an answer has no times.
        let none = || "-".to_owned();
        let at = |quantile: f64| {
            let histogram = self.last.histogram.as_ref().filter(|histogram| !histogram.is_empty());
            histogram.map_or_else(none, |histogram| {
                HumanDuration(histogram.value_at_quantile(quantile)).to_string()
            })
        };
        let SecondCounts { response_max_ns, lag_max_ns, .. } = self.last;
        let max = if self.last.answered == 0 { none() } else { HumanDuration(response_max_ns).to_string() };
        let lag = if self.last.sent == 0 { none() } else { HumanDuration(lag_max_ns).to_string() };
        [
            [format!("p50 {:>8}", at(0.5)), format!("p99.9 {:>8}", at(0.999))],
            [format!("p90 {:>8}", at(0.9)), format!("max   {max:>8}")],
            [format!("p99 {:>8}", at(0.99)), format!("lag   {lag:>8}")],
        ]
    }

    /// A column for each second, a row for each range of times; the fuller, the more answers.
    fn strip_lines(&self, width: u16) -> Vec<Line<'static>> {
        let width = usize::from(width).saturating_sub(LABEL_LEN);
        let mut lines: Vec<_> = (0..ROWS.len())
            .rev()
            .map(|row| {
                let (end_ns, color) = ROWS[row];
                let label =
                    if end_ns == u64::MAX { "longer".to_owned() } else { HumanDuration(end_ns).to_string() };
                let cells = self.latest(width).map(|shown| shade(shown, row)).collect::<String>();
                Line::from(vec![Span::raw(format!("{label:>8} ")), Span::styled(cells, self.tint(color))])
            })
            .collect();
        let lost = self.latest(width).map(|shown| if shown.has_lost { '\u{25cf}' } else { ' ' });
        let lost = Span::styled(lost.collect::<String>(), self.tint(Color::Red));
        lines.push(Line::from(vec![Span::raw(format!("{:>8} ", "lost")), lost]));
        lines
    }

    /// The codes in at most `lines_max` lines; the last line counts the rest.
    fn codes_lines(&self, lines_max: usize) -> Vec<Line<'static>> {
        let line = |&(code, count): &(i32, u64)| {
            let color = if matches!(code, 1 | 100 | 200) { Color::Reset } else { Color::Yellow };
            Line::from(format!("{count:>10}  {code} {}", ResponseCode(code))).style(self.tint(color))
        };
        let codes = &self.last.codes;
        let shown_len = if codes.len() > lines_max { lines_max.saturating_sub(1) } else { codes.len() };
        let mut lines: Vec<_> = codes[..shown_len].iter().map(line).collect();
        if shown_len < codes.len() {
            let more = format!("and {} more", codes.len() - shown_len);
            lines.push(Line::from(more).alignment(Alignment::Right));
        }
        lines
    }
}

fn shade(shown: &ShownSecond, row: usize) -> char {
    let total: u64 = shown.rows.iter().sum();
    match shown.rows[row] as f64 / total.max(1) as f64 {
        0.0 => ' ',
        ..0.001 => '\u{b7}',
        ..0.05 => '\u{2591}',
        ..0.25 => '\u{2592}',
        ..0.6 => '\u{2593}',
        _ => '\u{2588}',
    }
}

fn highest(data: &[u64]) -> u64 {
    data.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::latency::histogram;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use std::sync::Arc;

    fn view(seconds: u64, is_colored: bool) -> LiveView {
        let mut view = LiveView::new("127.0.0.1:2641 over udp".to_owned(), Some(60.0), is_colored);
        for number in 1..=seconds {
            let mut times = histogram(2);
            times.record_n(80_000, 900).unwrap();
            times.record_n(4_000_000, 90).unwrap();
            times.record_n(900_000_000, 1).unwrap();
            view.add(&SecondCounts {
                elapsed_s: number as f64,
                sent: 1000,
                answered: 991,
                sent_per_s: 1000.0,
                answered_per_s: 991.0,
                lost_so_far: if number < 3 { 0 } else { 10 },
                mismatched: 1,
                response_max_ns: 900_000_000,
                lag_max_ns: 42_000,
                codes: vec![(1, 990 * number), (100, number)],
                histogram: Some(Arc::new(times)),
                ..SecondCounts::default()
            });
        }
        view
    }

    fn drawn(view: &LiveView, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal
    }

    fn screen(view: &LiveView, width: u16, height: u16) -> String {
        drawn(view, width, height).backend().to_string()
    }

    fn contains_all(shown: &str, parts: &[&str]) {
        for part in parts {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
    }

    #[test]
    fn shows_the_figures_of_the_run() {
        let parts = [
            "127.0.0.1:2641 over udp",
            "5 of 60 s \u{2501}",
            "1000/s sent  991/s answered  lost 10 (0.200 %)  WRONG 5",
            "up to 991",
            "p50  80.4 us  p99.9",
            "p90  80.4 us  max     900 ms",
            "lag    42.0 us",
            "100 us \u{2588}\u{2588}\u{2588}\u{2588}\u{2588} ",
            "5.00 ms \u{2592}\u{2592}\u{2592}\u{2592}\u{2592} ",
            "longer \u{2591}",
            "lost   \u{25cf}  ",
            "4950  1 success",
            "5  100 handle not found",
        ];
        contains_all(&screen(&view(5, true), 80, 24), &parts);
        contains_all(&screen(&view(5, true), 120, 40), &parts);
    }

    #[test]
    fn a_small_terminal_has_the_numbers() {
        let shown = screen(&view(5, true), 40, 12);
        contains_all(
            &shown,
            &[
                "127.0.0.1:2641 over udp",
                "5 of 60 s  lost 10 (0.200 %)  WRONG 5",
                "1000/s sent  991/s answered",
                "p50  80.4 us  p99.9  ",
                "lag    42.0 us",
                "4950 x success, 5 x handle not found",
                "\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}",
            ],
        );
        contains_all(&screen(&view(5, true), 40, 20), &["longer \u{2591}", "lost   \u{25cf}  "]);
    }

    #[test]
    fn any_size_is_drawn() {
        let view = view(200, true);
        for width in [1, 10, 40, 63, 64, 80, 300] {
            for height in [1, 5, 12, 23, 24, 25, 100] {
                screen(&view, width, height);
            }
        }
        assert!(screen(&LiveView::default(), 80, 24).contains("0 s"));
    }

    #[test]
    fn more_codes_than_lines_are_counted() {
        let mut view = view(2, false);
        view.last.codes = (1..=9).map(|code| (code, 1)).collect();
        assert!(screen(&view, 80, 24).contains("and 7 more"), "{}", screen(&view, 80, 24));
        assert!(!screen(&view, 80, 40).contains("more"), "{}", screen(&view, 80, 40));
    }

    #[test]
    fn colours_are_used_only_if_enabled() {
        let colored = |buffer: &Buffer| buffer.content.iter().any(|cell| cell.fg != Color::Reset);
        for (width, height) in [(80, 24), (40, 12)] {
            assert!(colored(drawn(&view(9, true), width, height).backend().buffer()));
            assert!(!colored(drawn(&view(9, false), width, height).backend().buffer()));
        }
    }
}
