//! Charts as SVG: lines and bars with axes, legible on a phone and on a wide screen.
//!
//! All are 400 units wide, which is a phone's width, so that text is never shrunk.

use std::fmt::Write as _;

use crate::table::Time;

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 240.0;
/// Room for what is around the plot.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 36.0;

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Evenly, between the lowest and the highest.
    Linear,
    /// Evenly, from zero.
    LinearFromZero,
    /// By their logarithm.
    Log,
}

/// An axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    pub(super) label: fn(f64) -> String,
}

/// A line, with the class that colours it.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A number with at most three digits before a unit.
pub(super) fn plain(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1e6.. => format!("{}M", trimmed(number / 1e6)),
        1e4.. => format!("{}k", trimmed(number / 1e3)),
        _ => trimmed(number),
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
pub(super) fn time(ns: f64) -> String {
    let text = Time(ns.round() as u64).to_string();
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// The percentile above which lies one in so many.
pub(super) fn percentile(one_in: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / one_in);
    let digits = if one_in > 100.5 { (one_in.log10() - 2.0).ceil().clamp(0.0, 6.0) } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let digits = digits as usize;
    format!("{percent:.digits$}")
}

/// An axis with its bounds, between two places on the page.
struct Placed {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Placed {
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
            high = low + 1.0;
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

    /// Where labels go.
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
    // At most a dozen, whatever the numbers are.
    (0..12).map(move |i| first + f64::from(i) * step).take_while(move |at| *at <= last + step * 1e-9)
}

/// Begins a drawing of this height, with a title.
pub(super) fn begin(title: &str, height: f64) -> String {
    format!(
        "<figure><figcaption>{title}</figcaption>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n"
    )
}

pub(super) fn end(mut svg: String) -> String {
    svg.push_str("</svg></figure>\n");
    svg
}

fn axes(svg: &mut String, x: &Placed, y: &Placed) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    // Writing to a string does not fail; here and below.
    for tick in y.ticks() {
        let (at, label) = (y.at(tick), (y.axis.label)(tick));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
        let _ =
            writeln!(svg, "<text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", LEFT - 5.0, at + 4.0);
    }
    for tick in x.ticks() {
        let (at, label) = (x.at(tick), (x.axis.label)(tick));
        let end = bottom + 4.0;
        let _ =
            writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{end}\"/>");
        // At the edge of the page a label ends there instead of being cut off.
        let half = 3.5 * label.len() as f64;
        let (class, at) = if at + half > WIDTH { ("x last", WIDTH - 1.0) } else { ("x", at) };
        let _ =
            writeln!(svg, "<text class=\"{class}\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>", bottom + 16.0);
    }
    let middle = f64::midpoint(LEFT, right);
    let _ = writeln!(
        svg,
        "<text class=\"x title\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
        HEIGHT - 5.0,
        x.axis.title
    );
    let _ = writeln!(svg, "<text class=\"title\" x=\"4\" y=\"14\">{}</text>", y.axis.title);
}

/// Lines over the same axes.
pub(super) fn lines(title: &str, x: Axis, y: Axis, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Placed::new(x, all().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let y = Placed::new(y, all().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut svg = begin(title, HEIGHT);
    axes(&mut svg, &x, &y);
    let mut legend_at = WIDTH - RIGHT;
    for line in lines.iter().rev().filter(|line| !line.points.is_empty()) {
        let points: Vec<_> =
            line.points.iter().map(|&(a, b)| format!("{:.1},{:.1}", x.at(a), y.at(b))).collect();
        let _ = writeln!(svg, "<polyline class=\"{}\" points=\"{}\"/>", line.class, points.join(" "));
        if let [point] = &points[..]
            && let Some((cx, cy)) = point.split_once(',')
        {
            let _ = writeln!(svg, "<circle class=\"{}\" cx=\"{cx}\" cy=\"{cy}\" r=\"2.5\"/>", line.class);
        }
        if lines.len() > 1 {
            let (class, name) = (line.class, line.name);
            let _ =
                writeln!(svg, "<text class=\"legend {class}\" x=\"{legend_at:.1}\" y=\"14\">{name}</text>");
            legend_at -= 7.5 * name.len() as f64 + 14.0;
        }
    }
    end(svg)
}

/// Bars from one value of x to another, with their heights.
pub(super) fn bars(title: &str, x: Axis, y: Axis, bars: &[(f64, f64, f64)]) -> String {
    let edges = bars.iter().flat_map(|bar| [bar.0, bar.1]);
    let x = Placed::new(x, edges, LEFT, WIDTH - RIGHT);
    let y = Placed::new(y, bars.iter().map(|bar| bar.2), HEIGHT - BOTTOM, TOP);
    let mut svg = begin(title, HEIGHT);
    axes(&mut svg, &x, &y);
    for &(from, to, height) in bars.iter().filter(|bar| bar.2 > 0.0) {
        let (left, right, top) = (x.at(from), x.at(to), y.at(height));
        // What is there is seen, however little it is.
        let top = top.min(HEIGHT - BOTTOM - 1.0);
        let (width, height) = ((right - left - 0.5).max(1.0), HEIGHT - BOTTOM - top);
        let _ = writeln!(
            svg,
            "<rect class=\"c2\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
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
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (scale, values) in [
            (Scale::Linear, vec![1.0, 30.0]),
            (Scale::LinearFromZero, vec![99_123.0]),
            (Scale::Log, vec![1_200.0, 9e8]),
            (Scale::Log, vec![]),
            (Scale::Linear, vec![5.0, 5.0]),
            (Scale::LinearFromZero, vec![0.0]),
        ] {
            let axis = Axis { title: "", scale, label: plain };
            let placed = Placed::new(axis, values.iter().copied(), 0.0, 100.0);
            let ticks = placed.ticks();
            assert!((2..=12).contains(&ticks.len()), "{scale:?} {values:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (-0.01..=100.01).contains(&placed.at(*tick))), "{ticks:?}");
            assert!(ticks.windows(2).all(|pair| placed.at(pair[1]) - placed.at(pair[0]) > 5.0), "{ticks:?}");
        }
    }
}
