//! A picture of how figures change with the number of records.

use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The figures that are drawn, and their colours.
const LINES: [(&str, &str); 5] = [
    ("set, bytes a handle", "#64748b"),
    ("build by processor time, records/s", "#0f766e"),
    ("lookup, ns", "#b45309"),
    ("lookup in batches of 32, ns", "#be123c"),
    ("publishing 1,000 changes, p99, ms", "#4338ca"),
];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 300.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;
/// Least distance between two labels.
const LABEL_HEIGHT: f64 = 18.0;

/// Draws each figure as a multiple of its value for the smallest number of records, over the
/// numbers on a logarithmic axis. Rates are drawn as times: higher is always dearer.
pub(super) fn draw(sizes: &[u64], columns: &[Map<String, Value>]) -> String {
    let mut lines: Vec<_> = LINES.iter().filter_map(|line| ratios(line, columns)).collect();
    let highest = lines.iter().flat_map(|(.., ratios)| ratios.iter().copied()).fold(2.0, f64::max).ceil();
    let (first, last) = (log(sizes[0]), log(sizes[sizes.len() - 1]));
    let x = |size: u64| {
        let share = if last > first { (log(size) - first) / (last - first) } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |ratio: f64| TOP + (1.0 - ratio / highest) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>Costs of a set by its number of records</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let steps = std::iter::successors(Some(0.0), |step| Some(step + 1.0));
    for step in steps.take_while(|&step| step <= highest) {
        let at = y(step);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#e2e8f0\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\" fill=\"#475569\">{step:.0}×</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    for &size in sizes {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#475569\">{}</text>",
            x(size),
            HEIGHT - BOTTOM + 20.0,
            handle_benches::sets::size_name(size)
        );
    }
    // Labels stand beside the ends of their lines, from the lowest line upwards.
    lines.sort_by(|one, other| end(&one.2).total_cmp(&end(&other.2)));
    let mut free_below = HEIGHT - BOTTOM;
    for (name, colour, ratios) in &lines {
        let points =
            sizes.iter().zip(ratios).map(|(&size, &ratio)| format!("{:.1},{:.1}", x(size), y(ratio)));
        let points = points.collect::<Vec<_>>().join(" ");
        let label_y = y(end(ratios)).min(free_below);
        free_below = label_y - LABEL_HEIGHT;
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}: {:.2}×</text>",
            WIDTH - RIGHT + 10.0,
            label_y + 4.0,
            end(ratios)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn log(size: u64) -> f64 {
    (size as f64).log10()
}

fn end(ratios: &[f64]) -> f64 {
    ratios.last().copied().unwrap_or(1.0)
}

/// A figure for all numbers of records, as multiples of the first. `None` if one lacks it.
fn ratios<'l>(
    &(name, colour): &(&'l str, &'l str),
    columns: &[Map<String, Value>],
) -> Option<(&'l str, &'l str, Vec<f64>)> {
    let values: Vec<f64> = columns.iter().map(|column| column.get(name)?.as_f64()).collect::<Option<_>>()?;
    let first = *values.first()?;
    let ratio = |value: f64| if name.ends_with("/s") { first / value } else { value / first };
    let shown = name.strip_suffix(", records/s").unwrap_or(name);
    Some((shown, colour, values.into_iter().map(ratio).collect()))
}
