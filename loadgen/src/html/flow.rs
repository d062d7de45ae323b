//! The accounts as a flow: what was scheduled, and what became of it, in widths that add up.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::{chart, count, escape, grouped};

/// A part of what came before it.
struct Part {
    name: String,
    class: &'static str,
    count: u64,
}

fn part(name: &str, class: &'static str, count: u64) -> Part {
    Part { name: name.to_owned(), class, count }
}

/// Width of a column's bars, and how far columns are apart.
const BAR: f64 = 10.0;
const COLUMN: f64 = 100.0;
const TOP: f64 = 10.0;
/// Height of all that was scheduled, and the least room that a name needs.
const FULL: f64 = 180.0;
const NAME: f64 = 26.0;

/// Draws the accounts of a run.
pub(super) fn accounts(accounts: &Json) -> String {
    let of = |name: &str| count(&accounts[name]);
    let total = of("scheduled").max(1);
    let codes = accounts["codes"].as_array().into_iter().flatten().map(|code| {
        let number = code["code"].as_i64().unwrap_or(0);
        let name = code["name"].as_str().unwrap_or_default();
        let class = if matches!(number, 1 | 100 | 200) { "c2" } else { "c3" };
        part(&format!("{number} {}", escape(name)), class, count(&code["count"]))
    });
    let unread = [part("malformed", "c4", of("malformed")), part("truncated", "c4", of("truncated"))];
    let columns = [
        vec![part("scheduled", "c1", of("scheduled"))],
        vec![part("sent", "c1", of("sent")), part("not sent", "c4", of("not_sent"))],
        vec![
            part("answered", "c2", of("answered")),
            part("late", "c3", of("late")),
            part("duplicate only", "c4", of("duplicate_only")),
            part("lost", "c4", of("lost")),
        ],
        codes.chain(unread).collect(),
    ];
    let mut svg = String::new();
    let mut height: f64 = TOP + FULL;
    // What a column's parts flow from is the first part of the column before: they are its division.
    let mut parent: Option<(f64, f64)> = None;
    for (number, column) in (0u32..).zip(&columns) {
        let x = f64::from(number) * COLUMN + 2.0;
        let mut y = TOP;
        let mut from_y = parent.map_or(TOP, |(top, _)| top);
        let mut first = None;
        for part in column.iter().filter(|part| part.count > 0 || part.name == "lost") {
            let exact = part.count as f64 / total as f64 * FULL;
            // What is there is seen, however little it is.
            let seen = if part.count == 0 { 0.0 } else { exact.max(1.5) };
            if parent.is_some() && part.count > 0 {
                band(&mut svg, part.class, (x - COLUMN + BAR, from_y), (x, y), seen);
            }
            from_y += exact;
            let Part { name, class, count } = part;
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{seen:.1}\">\
                 <title>{name}</title></rect>\n\
                 <text class=\"flow\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
                 <text class=\"flow count\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + BAR + 3.0,
                y + 10.0,
                short(name),
                x + BAR + 3.0,
                y + 22.0,
                grouped(*count)
            );
            first.get_or_insert((y, exact));
            y += seen.max(NAME) + 4.0;
            height = height.max(y);
        }
        parent = first;
    }
    chart::end(chart::begin("Accounts", height.ceil()) + &svg)
}

/// A name that fits between two columns; where it is cut, its number says what it is.
fn short(name: &str) -> String {
    const CHARS_MAX: usize = 15;
    if name.chars().count() <= CHARS_MAX {
        return name.to_owned();
    }
    name.chars().take(CHARS_MAX - 1).chain(['\u{2026}']).collect()
}

/// A band of one height from one bar to another.
fn band(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64), height: f64) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let middle = f64::midpoint(x1, x2);
    let (end1, end2) = (y1 + height, y2 + height);
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<path class=\"band {class}\" d=\"M{x1},{y1:.1} C{middle},{y1:.1} {middle},{y2:.1} {x2},{y2:.1} \
         L{x2},{end2:.1} C{middle},{end2:.1} {middle},{end1:.1} {x1},{end1:.1} Z\"/>"
    );
}
