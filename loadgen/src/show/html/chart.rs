//! Charts as SVG: lines and bars with axes, legible on a phone and on a wide screen.
//!
//! All charts are as wide as a phone's screen, so that text is never scaled down. Each has a
//! description in words.

use std::fmt::Write as _;

use crate::show::human::HumanDuration;

/// Width of every drawing, which is scaled to the available space.
pub(super) const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 224.0;
/// Margins around the plot.
const LEFT: f64 = 54.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 36.0;
/// Approximate width of a letter.
const LETTER: f64 = 7.2;
/// Maximum number of groups of points on a line; each group keeps its lowest and its highest point.
const GROUPS_MAX: usize = 400;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, between the lowest and the highest value.
    Linear,
    /// Linear, from zero.
    LinearFromZero,
    /// Logarithmic.
    Log,
}

/// An axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    pub(super) label: fn(f64) -> String,
}

/// A line, with the classes for its colour and dashes.
pub(super) struct ChartLine {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A named value of an axis.
pub(super) struct ChartMark {
    pub(super) at: f64,
    pub(super) name: String,
}

/// The title of a chart, and its description in words.
pub(super) struct Caption<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) about: String,
}

/// Formats a number with at most three digits before a unit.
pub(super) fn plain(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1e6.. => format!("{}M", trimmed(number / 1e6, 2)),
        1e4.. => format!("{}k", trimmed(number / 1e3, 2)),
        _ => trimmed(number, 2),
    }
}

/// Formats a number with up to `digits` decimals.
pub(super) fn trimmed(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
pub(super) fn time(ns: f64) -> String {
    let text = HumanDuration(ns.round() as u64).to_string();
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// The percentile above which one in `n` lies.
pub(super) fn percentile(one_in: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / one_in);
    let digits = if one_in > 100.5 { (one_in.log10() - 2.0).ceil().clamp(0.0, 6.0) } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let digits = digits as usize;
    format!("{percent:.digits$}")
}

/// The lowest and the highest of times, in words; times of 0 are ignored.
pub(super) fn span_of_times(points: &[(f64, f64)]) -> String {
    let measured: Vec<_> = points.iter().copied().filter(|point| point.1 > 0.0).collect();
    span(&measured, time)
}

/// The lowest and the highest of the shown values, in words.
pub(super) fn span(points: &[(f64, f64)], label: fn(f64) -> String) -> String {
    let values = || points.iter().map(|point| point.1);
    if points.is_empty() {
        return "no data".to_owned();
    }
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    format!("{} to {}", label(low), label(high))
}

/// An axis with its bounds, between two positions on the page.
struct PlacedAxis {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl PlacedAxis {
    fn new(axis: Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let values = values.filter(|value| value.is_finite() && (axis.scale != Scale::Log || *value > 0.0));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match axis.scale {
            Scale::Linear => {}
            Scale::LinearFromZero => (low, high) = (low.min(0.0), high * 1.05),
            // Whole decades, so that there is a label at each end.
            Scale::Log => (low, high) = (decade(low.log10().floor()), decade(high.log10().ceil())),
        }
        if high <= low {
            high = if axis.scale == Scale::Log { low * 10.0 } else { low + 1.0 };
        }
        Self { axis, low, high, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.axis.scale {
            Scale::Log => {
                let value = value.max(self.low);
                (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
            }
            _ => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Positions of the labels.
    fn ticks(&self) -> Vec<f64> {
        if self.axis.scale == Scale::Log {
            let (first, last) = (self.low.log10().round(), self.high.log10().round());
            let step = ((last - first) / 6.0).ceil().max(1.0);
            return steps(first, last, step).map(decade).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let unit = decade(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        steps((self.low / step).ceil() * step, self.high, step).collect()
    }
}

fn decade(power: f64) -> f64 {
    10f64.powf(power)
}

fn steps(first: f64, last: f64, step: f64) -> impl Iterator<Item = f64> {
    // At most a dozen, for any numbers.
    (0..12).map(move |i| first + f64::from(i) * step).take_while(move |at| *at <= last + step * 1e-9)
}

/// Begins a drawing of this height; screen readers read its description.
pub(super) fn begin(caption: &Caption<'_>, height: f64) -> String {
    let Caption { id, title, about } = caption;
    format!(
        "<figure id=\"{id}\"><figcaption>{title}</figcaption>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-about\">\n\
         <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-about\">{about}</desc>\n"
    )
}

pub(super) fn end(mut svg: String) -> String {
    svg.push_str("</svg></figure>\n");
    svg
}

fn axes(svg: &mut String, x: &PlacedAxis, y: &PlacedAxis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    // Writing to a string does not fail; here and below.
    for tick in y.ticks() {
        let (at, label) = (y.at(tick), (y.axis.label)(tick));
        let _ = writeln!(
            svg,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
             <text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            LEFT - 5.0,
            at + 4.0
        );
    }
    let mut free_from = 0.0;
    for tick in x.ticks() {
        let (at, label) = (x.at(tick), (x.axis.label)(tick));
        let end = bottom + 4.0;
        let _ =
            writeln!(svg, "<line class=\"rule\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{end}\"/>");
        let half = LETTER / 2.0 * label.len() as f64;
        // A label at the edge of the page is aligned to end there instead of being cut off.
        let (class, at, starts_at) =
            if at + half > WIDTH { ("last", WIDTH - 1.0, WIDTH - 2.0 * half) } else { ("x", at, at - half) };
        if starts_at >= free_from {
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>",
                bottom + 17.0
            );
            free_from = starts_at + 2.0 * half + LETTER;
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"x title\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
         <text class=\"title\" x=\"4\" y=\"14\">{}</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 4.0,
        x.axis.title,
        y.axis.title
    );
}

/// Reduces many points to the lowest and highest of each group, so that the size of a page is
/// bounded.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * GROUPS_MAX {
        return points.to_vec();
    }
    let ends = |group: &[(f64, f64)]| {
        let low = (0..group.len()).min_by(|&a, &b| group[a].1.total_cmp(&group[b].1)).unwrap_or(0);
        let high = (0..group.len()).max_by(|&a, &b| group[a].1.total_cmp(&group[b].1)).unwrap_or(0);
        [group[low.min(high)], group[low.max(high)]]
    };
    points.chunks(points.len().div_ceil(GROUPS_MAX)).flat_map(ends).collect()
}

/// Draws lines over the same axes; the area below the first is filled if y begins at zero.
pub(super) fn lines(
    caption: &Caption<'_>,
    x: Axis,
    y: Axis,
    lines: &[ChartLine],
    marks: &[ChartMark],
) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = PlacedAxis::new(x, all().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let marked = marks.iter().map(|mark| mark.at);
    let y = PlacedAxis::new(y, all().map(|point| point.1).chain(marked), HEIGHT - BOTTOM, TOP);
    let mut svg = begin(caption, HEIGHT);
    axes(&mut svg, &x, &y);
    for ChartMark { at, .. } in marks {
        let (at, right) = (y.at(*at), WIDTH - RIGHT);
        let _ =
            writeln!(svg, "<line class=\"at\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
    }
    let mut legend_at = WIDTH - RIGHT;
    for (number, line) in lines.iter().enumerate().rev().filter(|(_, line)| !line.points.is_empty()) {
        let ChartLine { name, class, points } = line;
        let points = thinned(points);
        // Zero has no logarithm: the line has a gap where nothing was measured.
        let is_gap = |point: &(f64, f64)| y.axis.scale == Scale::Log && point.1 <= 0.0;
        for piece in points.split(is_gap).filter(|piece| !piece.is_empty()) {
            draw_piece(&mut svg, &x, &y, piece, class, number == 0);
        }
        if lines.len() > 1 {
            let width = LETTER * name.len() as f64;
            let _ = writeln!(
                svg,
                "<text class=\"legend {class}\" x=\"{legend_at:.1}\" y=\"14\">{name}</text>\n\
                 <polyline class=\"{class}\" points=\"{:.1},10 {:.1},10\"/>",
                legend_at - width - 20.0,
                legend_at - width - 4.0
            );
            legend_at -= width + 30.0;
        }
    }
    // Drawn last, so that no line crosses the names.
    for ChartMark { at, name } in marks {
        let (x, y) = (WIDTH - RIGHT, y.at(*at) - 4.0);
        let _ = writeln!(svg, "<text class=\"legend flow name\" x=\"{x}\" y=\"{y:.1}\">{name}</text>");
    }
    end(svg)
}

/// Draws a line without gaps, and the area below it if there is a zero.
fn draw_piece(
    svg: &mut String,
    x: &PlacedAxis,
    y: &PlacedAxis,
    piece: &[(f64, f64)],
    class: &str,
    has_area: bool,
) {
    let points: Vec<_> = piece.iter().map(|&(a, b)| format!("{:.1},{:.1}", x.at(a), y.at(b))).collect();
    let points = points.join(" ");
    if has_area && y.axis.scale == Scale::LinearFromZero {
        let (first, last, bottom) = (x.at(piece[0].0), x.at(piece[piece.len() - 1].0), y.at(0.0));
        let _ = writeln!(
            svg,
            "<path class=\"area {class}\" d=\"M{first:.1},{bottom:.1} L{points} L{last:.1},{bottom:.1} Z\"/>"
        );
    }
    let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{points}\"/>");
    if let ([_], Some((cx, cy))) = (piece, points.split_once(',')) {
        let _ = writeln!(svg, "<circle class=\"{class}\" cx=\"{cx}\" cy=\"{cy}\" r=\"2.5\"/>");
    }
}

/// Draws bars from one value of x to another, with their heights.
pub(super) fn bars(
    caption: &Caption<'_>,
    x: Axis,
    y: Axis,
    bars: &[(f64, f64, f64)],
    marks: &[ChartMark],
) -> String {
    let edges = bars.iter().flat_map(|bar| [bar.0, bar.1]);
    let x = PlacedAxis::new(x, edges, LEFT, WIDTH - RIGHT);
    let y = PlacedAxis::new(y, bars.iter().map(|bar| bar.2), HEIGHT - BOTTOM, TOP);
    let mut svg = begin(caption, HEIGHT);
    axes(&mut svg, &x, &y);
    for &(from, to, height) in bars.iter().filter(|bar| bar.2 > 0.0) {
        let (left, right, top) = (x.at(from), x.at(to), y.at(height));
        // Small values stay visible.
        let top = top.min(HEIGHT - BOTTOM - 1.0);
        let (width, drawn) = ((right - left - 0.5).max(1.0), HEIGHT - BOTTOM - top);
        let (from, to) = ((x.axis.label)(from), (x.axis.label)(to));
        let _ = writeln!(
            svg,
            "<rect class=\"c2\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{drawn:.1}\">\
             <title>{from} to {to}: {height}</title></rect>"
        );
    }
    let mut free_from = LEFT + 4.0 * LETTER;
    for ChartMark { at, name } in marks {
        let (at, bottom) = (x.at(*at), HEIGHT - BOTTOM);
        let half = LETTER / 2.0 * name.len() as f64;
        let _ = writeln!(
            svg,
            "<line class=\"at\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{bottom}\"/>",
            TOP - 6.0
        );
        if at - half >= free_from && at + half <= WIDTH {
            let _ = writeln!(svg, "<text class=\"mark\" x=\"{at:.1}\" y=\"14\">{name}</text>");
            free_from = at + half + LETTER;
        }
    }
    end(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        for (number, label) in
            [(0.0, "0"), (5.0, "5"), (2.5, "2.5"), (9999.0, "9999"), (20_000.0, "20k"), (1.5e6, "1.5M")]
        {
            assert_eq!(plain(number), label);
        }
        for (one_in, label) in
            [(1.0, "0"), (10.0, "90"), (100.0, "99"), (1000.0, "99.9"), (10_000.0, "99.99")]
        {
            assert_eq!(percentile(one_in), label);
        }
        assert_eq!(
            (time(1e6), time(1e3), time(1.5e9)),
            ("1 ms".to_owned(), "1 us".to_owned(), "1.5 s".to_owned())
        );
        assert_eq!(span(&[(1.0, 2e6), (2.0, 5e5)], time), "500 us to 2 ms");
        assert_eq!(span_of_times(&[(1.0, 2e6), (2.0, 0.0), (3.0, 5e5)]), "500 us to 2 ms");
        assert_eq!(span_of_times(&[(1.0, 0.0)]), "no data");
    }

    #[test]
    fn a_line_is_broken_where_nothing_was_measured() {
        let axis = Axis { title: "t", scale: Scale::Linear, label: plain };
        let times = Axis { scale: Scale::Log, ..axis };
        let points = vec![(1.0, 1e5), (2.0, 1e5), (3.0, 0.0), (4.0, 0.0), (5.0, 1e6), (6.0, 0.0), (7.0, 1e4)];
        let caption = Caption { id: "a", title: "b", about: "c".to_owned() };
        let svg = lines(&caption, axis, times, &[ChartLine { name: "n", class: "c1", points }], &[]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (3, 2), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (scale, values) in [
            (Scale::Linear, vec![1.0, 30.0]),
            (Scale::LinearFromZero, vec![99_123.0]),
            (Scale::Log, vec![1_200.0, 9e8]),
            (Scale::Log, vec![]),
            (Scale::Log, vec![1000.0]),
            (Scale::Linear, vec![5.0, 5.0]),
            (Scale::LinearFromZero, vec![0.0]),
        ] {
            let axis = Axis { title: "", scale, label: plain };
            let placed = PlacedAxis::new(axis, values.iter().copied(), 0.0, 100.0);
            let ticks = placed.ticks();
            assert!((2..=12).contains(&ticks.len()), "{scale:?} {values:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (-0.01..=100.01).contains(&placed.at(*tick))), "{ticks:?}");
            assert!(ticks.windows(2).all(|pair| placed.at(pair[1]) - placed.at(pair[0]) > 5.0), "{ticks:?}");
        }
    }

    fn drawn(points: Vec<(f64, f64)>) -> String {
        let axis = Axis { title: "t", scale: Scale::LinearFromZero, label: plain };
        let caption = Caption { id: "a", title: "b", about: "c".to_owned() };
        lines(&caption, axis, axis, &[ChartLine { name: "n", class: "c1", points }], &[])
    }

    #[test]
    fn a_line_goes_where_its_numbers_are() {
        // Axes end 5 % above the highest value, so a value of 10 is at 10 of 10.5.
        let at = |share: f64, from: f64, to: f64| from + share / 1.05 * (to - from);
        let (x, y) = (at(1.0, LEFT, WIDTH - RIGHT), at(1.0, HEIGHT - BOTTOM, TOP));
        let bottom = HEIGHT - BOTTOM;
        let line = format!("points=\"{LEFT:.1},{bottom:.1} {x:.1},{y:.1}\"");
        let svg = drawn(vec![(0.0, 0.0), (10.0, 10.0)]);
        assert!(svg.contains(&line), "{line} is not in {svg}");
    }

    #[test]
    fn a_long_run_keeps_its_extremes_and_a_bounded_size() {
        let mut points: Vec<_> = (0..604_800u32).map(|second| (f64::from(second), 100.0)).collect();
        points[123_456].1 = 9.0;
        points[500_000].1 = 777.0;
        let thin = thinned(&points);
        assert!(thin.len() <= 2 * GROUPS_MAX, "{}", thin.len());
        assert!(thin.contains(&(123_456.0, 9.0)) && thin.contains(&(500_000.0, 777.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0), "the points are not in order");
        assert!(drawn(points).len() < 40_000);
    }
}
