//! The accounts as a flow: the fate of all scheduled requests, in proportional widths.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::{chart, count, escape, grouped};
use chart::Caption;

/// A part of the column before it.
struct FlowPart {
    name: String,
    class: &'static str,
    count: u64,
}

fn part(name: &str, class: &'static str, count: u64) -> FlowPart {
    FlowPart { name: name.to_owned(), class, count }
}

/// Width of the bars of a column, and distance of the columns.
const BAR: f64 = 8.0;
const COLUMN: f64 = 90.0;
const TOP: f64 = 4.0;
/// Height of all scheduled requests.
const FULL: f64 = 190.0;
/// Line height of text, and number of letters between two columns.
const LINE: f64 = 13.0;
const LETTERS_MAX: usize = 13;

/// Draws the accounts of a run.
pub(super) fn accounts(accounts: &Json) -> String {
    let columns = columns(accounts);
    let total = columns[0][0].count.max(1);
    let mut svg = String::new();
    let mut height: f64 = TOP + FULL;
    // The parts of a column divide the first part of the column before it.
    let mut parent: Option<(f64, f64)> = None;
    for (number, column) in (0u32..).zip(&columns) {
        let x = f64::from(number) * COLUMN + 1.0;
        let mut y = TOP;
        let mut from_y = parent.map_or(TOP, |(top, _)| top);
        let mut first = None;
        for part in column.iter().filter(|part| part.count > 0 || part.name == "lost") {
            let exact = part.count as f64 / total as f64 * FULL;
            // Small values stay visible.
            let seen = if part.count == 0 { 0.0 } else { exact.max(1.5) };
            if parent.is_some() && part.count > 0 {
                band(&mut svg, part.class, [x - COLUMN + BAR, from_y], [x, y], seen);
            }
            from_y += exact;
            let lines = label(&mut svg, part, x, y, seen);
            first.get_or_insert((y, exact));
            y += seen.max(LINE * lines + 2.0) + 5.0;
            height = height.max(y);
        }
        parent = first;
    }
    chart::end(chart::begin(&caption(&columns), height.ceil()) + &svg)
}

fn columns(accounts: &Json) -> [Vec<FlowPart>; 4] {
    let of = |name: &str| count(&accounts[name]);
    let codes = accounts["codes"].as_array().into_iter().flatten().map(|code| {
        let number = code["code"].as_i64().unwrap_or(0);
        let name = code["name"].as_str().unwrap_or_default();
        let class = if matches!(number, 1 | 100 | 200) { "c2" } else { "c3" };
        part(&format!("{number} {name}"), class, count(&code["count"]))
    });
    let unread = [part("malformed", "c4", of("malformed")), part("truncated", "c4", of("truncated"))];
    [
        vec![part("scheduled", "c1", of("scheduled"))],
        vec![part("sent", "c1", of("sent")), part("not sent", "c4", of("not_sent"))],
        vec![
            part("answered", "c2", of("answered")),
            part("late", "c3", of("late")),
            part("duplicate only", "c4", of("duplicate_only")),
            part("lost", "c4", of("lost")),
        ],
        codes.chain(unread).collect(),
    ]
}

fn caption(columns: &[Vec<FlowPart>]) -> Caption<'static> {
    let parts = columns.iter().flatten().filter(|part| part.count > 0);
    let part_texts: Vec<_> =
        parts.map(|part| format!("{} {}", grouped(part.count), escape(&part.name))).collect();
    Caption { id: "accounts", title: "Fate of the requests", about: part_texts.join(", ") }
}

/// Draws the bar of a part and its text, count and name; returns the number of text lines.
fn label(svg: &mut String, part: &FlowPart, x: f64, y: f64, height: f64) -> f64 {
    let FlowPart { name, class, count } = part;
    // Writing to a string does not fail; here and below.
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{height:.1}\">\
         <title>{}</title></rect>",
        escape(name)
    );
    let (text_x, mut text_y) = (x + BAR + 3.0, y + 10.0);
    let _ = writeln!(
        svg,
        "<text class=\"flow count\" x=\"{text_x}\" y=\"{text_y:.1}\">{}</text>",
        grouped(*count)
    );
    let lines = wrapped(name);
    for line in &lines {
        text_y += LINE;
        let line = escape(line);
        let _ = writeln!(svg, "<text class=\"flow name\" x=\"{text_x}\" y=\"{text_y:.1}\">{line}</text>");
    }
    1.0 + lines.len() as f64
}

/// Splits a name into lines that fit between two columns.
fn wrapped(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LETTERS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.chars().take(LETTERS_MAX).collect()),
        }
    }
    lines
}

/// A band of constant height from one bar to another.
fn band(svg: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], height: f64) {
    let middle = f64::midpoint(x1, x2);
    let (end1, end2) = (y1 + height, y2 + height);
    let _ = writeln!(
        svg,
        "<path class=\"band {class}\" d=\"M{x1},{y1:.1} C{middle},{y1:.1} {middle},{y2:.1} {x2},{y2:.1} \
         L{x2},{end2:.1} C{middle},{end2:.1} {middle},{end1:.1} {x1},{end1:.1} Z\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_between_two_columns_and_bars_add_up() {
        assert_eq!(wrapped("100 handle not found"), ["100 handle", "not found"]);
        assert_eq!(wrapped("lost"), ["lost"]);
        let svg = accounts(&serde_json::json!({
            "scheduled": 100, "sent": 90, "not_sent": 10, "answered": 60, "late": 0, "lost": 30,
            "codes": [{"code": 1, "name": "success", "count": 60}],
        }));
        let height = |name: &str| {
            let end = svg.find(&format!("<title>{name}</title></rect>")).unwrap();
            let rect = &svg[svg[..end].rfind("height=\"").unwrap() + 8..end];
            rect[..rect.find('"').unwrap()].parse::<f64>().unwrap()
        };
        assert_eq!(height("scheduled"), FULL);
        assert!((height("sent") + height("not sent") - FULL).abs() < 0.11);
        assert!((height("answered") + height("lost") - height("sent")).abs() < 0.11);
        assert!(!svg.contains(">late<"), "an empty account is shown");
        assert!(
            svg.contains("100 scheduled, 90 sent, 10 not sent, 60 answered, 30 lost, 60 1 success"),
            "{svg}"
        );
    }
}
