//! A report as one page that needs nothing else: no network, no script. Drawings are SVG within the page.
//!
//! Every figure is taken from the JSON of the run, so that both say the same.

mod chart;
mod flow;

use std::fmt::Write as _;

use serde_json::Value as Json;

use crate::table::Time;
use chart::{Axis, Line, Scale};

/// Colours for light and dark, and one column or two: what fits.
const STYLE: &str = include_str!("style.css");

/// The page of a run, given the JSON that `run --json` writes.
///
/// # Errors
///
/// When it is not that of a run.
pub fn page(report: &Json) -> Result<String, String> {
    let schema = report["schema"].as_str().unwrap_or_default();
    if !schema.starts_with("handle-loadgen/run/") {
        return Err(format!("it is not the JSON of a run: its schema is {schema:?}"));
    }
    let setting = &report["setting"];
    let title = format!("{} over {}", text(&setting["target"]), text(&setting["transport"]));
    let mut page = String::new();
    // Writing to a string does not fail; here and below.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>handle-loadgen: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n{}</header>\n<main>\n",
        verdict(report)
    );
    page.push_str(&figures(report));
    page.push_str("<div class=\"charts\">\n");
    page.push_str(&flow::accounts(&report["accounts"]));
    page.push_str(&rate_chart(report));
    page.push_str(&time_chart(report));
    page.push_str(&curve_chart(report));
    page.push_str(&histogram_chart(report));
    page.push_str("</div>\n");
    page.push_str(&codes(&report["accounts"]["codes"]));
    page.push_str(&mismatches(&report["verification"]["mismatches"]));
    page.push_str(&table("Setting", setting));
    for (title, name) in [
        ("Pacing", "pacing"),
        ("Verification", "verification"),
        ("Connections", "connections"),
        ("Environment", "environment"),
    ] {
        page.push_str(&table(title, &report[name]));
    }
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(page)
}

/// Text that is safe between tags and in attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// A value for people.
fn text(value: &Json) -> String {
    match value {
        Json::String(text) => escape(text),
        Json::Null => "none".to_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        other => escape(&other.to_string()),
    }
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn count(value: &Json) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn verdict(report: &Json) -> String {
    let reasons: Vec<_> = report["invalid"].as_array().into_iter().flatten().map(text).collect();
    if reasons.is_empty() {
        return "<p class=\"good\">The run counts: the load was what was asked for.</p>\n".to_owned();
    }
    let items: String = reasons.iter().map(|reason| format!("<li>{reason}</li>")).collect();
    format!("<div class=\"bad\"><p>The run does not count:</p><ul>{items}</ul></div>\n")
}

/// The numbers that are looked at first.
fn figures(report: &Json) -> String {
    let (accounts, response) = (&report["accounts"], &report["response_ns"]);
    let sent = count(&accounts["sent"]).max(1);
    let loss = count(&accounts["lost"]) as f64 / sent as f64 * 100.0;
    let time = |name: &str| Time(count(&response[name])).to_string();
    let mut rows = vec![
        ("answered a second", format!("{:.0}", number(&report["answered_per_s"]))),
        ("sent a second", format!("{:.0}", number(&report["sent_per_s"]))),
        ("lost", format!("{loss:.3} %")),
        ("p50", time("p50")),
        ("p99", time("p99")),
        ("p99.9", time("p99_9")),
        ("max", time("max")),
        ("lag p99", Time(count(&report["schedule_error_ns"]["p99"])).to_string()),
    ];
    if let Some(share) = report["share"]["share"].as_f64() {
        rows.push(("of the limit", format!("{:.1} %", share * 100.0)));
    }
    if let Some(wrong) = report["verification"]["mismatched"].as_u64() {
        rows.push(("wrong answers", grouped(wrong)));
    }
    let mut html = "<dl class=\"figures\">\n".to_owned();
    for (name, value) in rows {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html + "</dl>\n"
}

/// The end of each second, with one of its values.
fn series(report: &Json, name: &str) -> Vec<(f64, f64)> {
    let seconds = report["seconds"].as_array().into_iter().flatten();
    let sending = seconds.filter(|second| count(&second["sent"]) > 0);
    sending.map(|second| (number(&second["elapsed_s"]), number(&second[name]))).collect()
}

fn rate_chart(report: &Json) -> String {
    let lines = [
        Line { name: "sent", class: "c1", points: series(report, "sent_per_s") },
        Line { name: "answered", class: "c2", points: series(report, "answered_per_s") },
    ];
    let x = Axis { title: "seconds", scale: Scale::Linear, label: chart::plain };
    let y = Axis { title: "a second", scale: Scale::LinearFromZero, label: chart::plain };
    chart::lines("Rate over time", x, y, &lines)
}

fn time_chart(report: &Json) -> String {
    let lines = [
        Line { name: "p50", class: "c2", points: series(report, "response_p50_ns") },
        Line { name: "p99", class: "c3", points: series(report, "response_p99_ns") },
        Line { name: "max", class: "c4", points: series(report, "response_max_ns") },
        Line { name: "lag max", class: "c1", points: series(report, "lag_max_ns") },
    ];
    let x = Axis { title: "seconds", scale: Scale::Linear, label: chart::plain };
    let y = Axis { title: "response time", scale: Scale::Log, label: chart::time };
    chart::lines("Response time over time", x, y, &lines)
}

fn curve_chart(report: &Json) -> String {
    let points = report["response_curve"].as_array().into_iter().flatten();
    // An axis on which each further nine is as wide as the one before.
    let at = |point: &Json| (1.0 / (1.0 - number(&point["share"])), number(&point["ns"]));
    let points = points.filter(|point| number(&point["share"]) < 1.0).map(at).collect();
    let x = Axis { title: "percentile", scale: Scale::Log, label: chart::percentile };
    let y = Axis { title: "response time", scale: Scale::Log, label: chart::time };
    chart::lines("Percentiles of response time", x, y, &[Line { name: "response", class: "c2", points }])
}

fn histogram_chart(report: &Json) -> String {
    let buckets = report["response_histogram"].as_array().into_iter().flatten();
    let bars: Vec<_> = buckets
        .map(|bucket| (number(&bucket["from_ns"]), number(&bucket["to_ns"]), number(&bucket["count"])))
        .collect();
    let x = Axis { title: "response time", scale: Scale::Log, label: chart::time };
    let y = Axis { title: "answers", scale: Scale::LinearFromZero, label: chart::plain };
    chart::bars("Histogram of response time", x, y, &bars)
}

fn codes(list: &Json) -> String {
    let mut html = "<section><h2>Answers by response code</h2>\n<table>\n".to_owned();
    for code in list.as_array().into_iter().flatten() {
        let name = format!("{} {}", text(&code["code"]), text(&code["name"]));
        let _ = writeln!(html, "<tr><th>{name}</th><td>{}</td></tr>", grouped(count(&code["count"])));
    }
    html + "</table>\n</section>\n"
}

fn mismatches(list: &Json) -> String {
    let Some(list) = list.as_array().filter(|list| !list.is_empty()) else { return String::new() };
    let mut html = "<section><h2>First wrong answers</h2>\n".to_owned();
    for mismatch in list {
        let _ = writeln!(
            html,
            "<details><summary>{}: {}</summary><p>answer</p><code>{}</code><p>expected values</p><code>{}</code></details>",
            text(&mismatch["handle"]),
            text(&mismatch["difference"]),
            text(&mismatch["answer_hex"]),
            text(&mismatch["expected_values_hex"])
        );
    }
    html + "</section>\n"
}

/// Members of an object that are no lists of objects, as rows.
fn table(title: &str, object: &Json) -> String {
    let Some(object) = object.as_object() else { return String::new() };
    let mut html = format!("<section><h2>{title}</h2>\n<table>\n");
    for (name, value) in object {
        let is_list = value.as_array().is_some_and(|items| items.iter().any(Json::is_object));
        if !is_list && !value.is_null() {
            let _ = writeln!(html, "<tr><th>{}</th><td>{}</td></tr>", escape(name), text(value));
        }
    }
    html + "</table>\n</section>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    fn of_report() -> (Json, String) {
        let json = serde_json::to_value(report()).unwrap();
        let page = page(&json).unwrap();
        (json, page)
    }

    #[test]
    fn the_page_is_self_contained_and_well_formed() {
        let (_, page) = of_report();
        for outside in ["http:", "https:", "<script", "<link", "url(", "@import"] {
            let rest = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!rest.contains(outside), "{outside}");
        }
        let mut open = Vec::new();
        let mut rest = &page[page.find("<html").unwrap()..];
        while let Some(start) = rest.find('<') {
            let end = start + rest[start..].find('>').unwrap();
            let tag = &rest[start + 1..end];
            let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed), "at {}", &rest[start..]);
            } else if !tag.ends_with('/') && name != "meta" {
                open.push(name);
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
        assert_eq!(page.matches("<svg").count(), 5);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn its_figures_are_those_of_the_json() {
        let (json, page) = of_report();
        for name in ["scheduled", "sent", "answered", "lost"] {
            let count = grouped(json["accounts"][name].as_u64().unwrap());
            assert!(page.contains(&count), "{name} {count}");
        }
        assert!(page.contains("<dt>p99</dt><dd>2.00 ms</dd>"));
        assert!(page.contains("<dt>answered a second</dt><dd>990</dd>"));
        assert!(page.contains("server too busy"), "the codes are named");
        assert!(page.contains("The run counts"));
    }

    #[test]
    fn what_came_from_outside_is_text() {
        let mut json = serde_json::to_value(report()).unwrap();
        json["setting"]["names"] = "<img src=x onerror=alert(1)>".into();
        json["invalid"] = serde_json::json!(["<b>"]);
        let page = page(&json).unwrap();
        assert!(!page.contains("<img") && !page.contains("<b>") && page.contains("does not count"));
    }

    #[test]
    fn other_json_is_refused_and_an_empty_run_is_a_page() {
        assert!(super::page(&serde_json::json!({})).is_err());
        let empty = serde_json::json!({"schema": "handle-loadgen/run/2", "setting": {"target": "x"}});
        let page = super::page(&empty).unwrap();
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
