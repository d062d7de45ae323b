//! A report as a self-contained page: no network, no scripts; drawings are inline SVG.
//!
//! Every figure comes from the JSON of the run, and the page contains its exact value and its place
//! there: `<data data-of="/response_ns/p99" value="5111807">5.11 ms</data>`.

mod chart;
mod flow;

use std::fmt::Write as _;

use serde_json::Value as Json;

use crate::read::check_schema;
use crate::show::human::HumanDuration;
use crate::show::report::{RUN_SCHEMA, SCHEDULE_ERROR_P99_NS_MAX};
use chart::{Axis, Caption, ChartLine, ChartMark, Scale};

/// Colours for light and dark mode, and as many columns as fit.
const STYLE: &str = include_str!("style.css");

/// Share of the limit from which the page warns about the generator.
const SHARE_NEAR: f64 = 0.7;

/// The page of a run, from the JSON that `run --json` writes.
///
/// # Errors
///
/// If it is not the JSON of a run.
pub fn page(report: &Json) -> Result<String, String> {
    check_schema(report["schema"].as_str().unwrap_or_default(), RUN_SCHEMA)?;
    let setting = &report["setting"];
    let title = format!("{} over {}", text(&setting["target"]), text(&setting["transport"]));
    let mut page = String::new();
    // Writing to a string does not fail; here and below.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>handle-loadgen: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<p>{}</p>\n<h1>{title}</h1>\n<p>{}</p>\n</header>\n<main>\n",
        start_time(report),
        load(setting)
    );
    page.push_str(&verdict(report));
    page.push_str(&figures(report));
    page.push_str("<div class=\"grid\">\n");
    page.push_str(&flow::accounts(&report["accounts"]));
    page.push_str(&rate_chart(report));
    page.push_str(&time_chart(report));
    page.push_str(&curve_chart(report));
    page.push_str(&histogram_chart(report));
    page.push_str(&lag_chart(report));
    page.push_str("</div>\n<div class=\"tables\">\n");
    page.push_str(&times(report));
    page.push_str(&steps(report));
    page.push_str(&codes(report));
    page.push_str(&statuses(report));
    page.push_str(&table(report, "Setting", "setting"));
    for (title, name) in [
        ("Environment", "environment"),
        ("Pacing", "pacing"),
        ("Verification", "verification"),
        ("Connections", "connections"),
    ] {
        page.push_str(&table(report, title, name));
    }
    page.push_str("</div>\n");
    page.push_str(&mismatches(&report["verification"]["mismatches"]));
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(page)
}

/// Escapes text for use between tags and in attributes.
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

/// Formats a value for people.
fn text(value: &Json) -> String {
    match value {
        Json::String(text) => escape(text),
        Json::Null => "none".to_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        Json::Number(number) if number.is_f64() => chart::trimmed(number.as_f64().unwrap_or(0.0), 4),
        other => escape(&other.to_string()),
    }
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn count(value: &Json) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Formats a number in groups of three digits.
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

/// Formats a figure together with its exact value at this pointer of the JSON.
fn figure(report: &Json, pointer: &str, show: impl Fn(&Json) -> String) -> String {
    let value = report.pointer(pointer).unwrap_or(&Json::Null);
    let exact = escape(&value.to_string());
    format!("<data data-of=\"{}\" value=\"{exact}\">{}</data>", escape(pointer), show(value))
}

/// The same for a time; without samples there is no percentile.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn time_figure(report: &Json, pointer: &str) -> String {
    let times = pointer.rsplit_once('/').and_then(|(times, _)| report.pointer(times));
    let is_none = times.is_some_and(|times| times["count"] == 0);
    figure(report, pointer, |ns| match is_none {
        true => "none".to_owned(),
        false => HumanDuration(number(ns).round() as u64).to_string(),
    })
}

fn start_time(report: &Json) -> String {
    let started = report["started_unix_ms"].as_i64().unwrap_or(0);
    let date = jiff::Timestamp::from_millisecond(started).unwrap_or_default();
    format!("handle-loadgen, {}", date.strftime("%Y-%m-%d %H:%M:%S UTC"))
}

/// The setting, on one line.
fn load(setting: &Json) -> String {
    let rate = setting["rate"].as_u64().map(|rate| format!("{}/s", grouped(rate)));
    let window = setting["window"].as_u64().map(|window| format!("{window} waiting in each thread"));
    let schedule = (!setting["schedule"].is_null()).then(|| text(&setting["schedule"]));
    let poisson = (setting["arrivals"] == "poisson").then(|| "at random".to_owned());
    let duration = format!("{} s", text(&setting["duration_s"]));
    let threads = match count(&setting["threads"]) {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let parts =
        [Some(text(&setting["model"])), rate, window, schedule, poisson, Some(duration), Some(threads)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Whether the run is valid, which assertions hold, and how close the generator was to its limit.
fn verdict(report: &Json) -> String {
    let reasons: Vec<_> = report["invalid"].as_array().into_iter().flatten().collect();
    let assertions: Vec<_> = report["assertions"].as_array().into_iter().flatten().collect();
    let (class, summary) = match (reasons.is_empty(), assertions.iter().all(|one| one["holds"] == true)) {
        (false, _) => ("bad", "The run is invalid."),
        (true, false) => ("bad", "The run is valid, but not all assertions hold."),
        (true, true) if assertions.is_empty() => {
            ("good", "The run is valid: the generator sent the requested load.")
        }
        (true, true) => ("good", "The run is valid, and all assertions hold."),
    };
    let mut html = format!("<section class=\"card verdict {class}\">\n<p><strong>{summary}</strong></p>\n");
    if reasons.len() + assertions.len() > 0 {
        html.push_str("<ul>\n");
        for reason in reasons {
            let _ = writeln!(html, "<li class=\"fails\">{}</li>", text(reason));
        }
        for assertion in assertions {
            let class = if assertion["holds"] == true { "holds" } else { "fails" };
            let (promise, found) = (text(&assertion["promise"]), text(&assertion["found"]));
            let _ = writeln!(html, "<li class=\"{class}\"><code>{promise}</code>: {found}</li>");
        }
        html.push_str("</ul>\n");
    }
    if let Some(share) = report["share"]["share"].as_f64() {
        let percent = figure(report, "/share/share", |share| format!("{:.1} %", number(share) * 100.0));
        let limit = figure(report, "/share/limit_answers_per_s", |limit| format!("{:.0}/s", number(limit)));
        let (near, hint) = match share > SHARE_NEAR {
            true => (" near", ": check the generator before the server"),
            false => ("", ""),
        };
        let width = (share * 100.0).clamp(0.0, 100.0);
        let _ = writeln!(
            html,
            "<p class=\"share\">{percent} of the limit of this machine, {limit}{hint}</p>\n\
             <div class=\"meter{near}\"><span style=\"width:{width:.1}%\"></span></div>"
        );
    }
    html + "</section>\n"
}

/// The main figures.
fn figures(report: &Json) -> String {
    let rate = |pointer: &str| figure(report, pointer, |rate| format!("{:.0}/s", number(rate)));
    let accounts = &report["accounts"];
    let sent = count(&accounts["sent"]).max(1) as f64;
    let [lost, late] = ["/accounts/lost", "/accounts/late"].map(|pointer| {
        figure(report, pointer, |requests| format!("{:.3} %", number(requests) / sent * 100.0))
    });
    let mut rows = vec![
        ("answered", rate("/answered_per_s")),
        ("sent", rate("/sent_per_s")),
        ("lost", lost),
        ("late", late),
        ("p50", time_figure(report, "/response_ns/p50")),
        ("p99", time_figure(report, "/response_ns/p99")),
        ("p99.9", time_figure(report, "/response_ns/p99_9")),
        ("max", time_figure(report, "/response_ns/max")),
    ];
    rows.push(match report["verification"]["mismatched"].is_null() {
        true => ("lag p99", time_figure(report, "/schedule_error_ns/p99")),
        false => ("wrong", figure(report, "/verification/mismatched", |wrong| grouped(count(wrong)))),
    });
    let mut html = "<dl class=\"figures\">\n".to_owned();
    for (name, value) in rows {
        let _ = writeln!(html, "<div class=\"card\"><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html + "</dl>\n"
}

/// The end of each second, with one of its values.
fn series(report: &Json, name: &str) -> Vec<(f64, f64)> {
    let seconds = report["seconds"].as_array().into_iter().flatten();
    let sending = seconds.filter(|second| count(&second["sent"]) > 0);
    sending.map(|second| (number(&second["elapsed_s"]), number(&second[name]))).collect()
}

const SECONDS: Axis = Axis { title: "seconds", scale: Scale::Linear, label: chart::plain };
const TIME: Axis = Axis { title: "response time", scale: Scale::Log, label: chart::time };

fn rate_chart(report: &Json) -> String {
    let lines = [
        ChartLine { name: "answered", class: "c2", points: series(report, "answered_per_s") },
        ChartLine { name: "sent", class: "c1 dashed", points: series(report, "sent_per_s") },
    ];
    let y = Axis { title: "per second", scale: Scale::LinearFromZero, label: chart::plain };
    let about = format!(
        "Requests per second: {} sent, {} answered.",
        chart::span(&lines[1].points, chart::plain),
        chart::span(&lines[0].points, chart::plain)
    );
    chart::lines(&Caption { id: "rate", title: "Rate over time", about }, SECONDS, y, &lines, &[])
}

fn time_chart(report: &Json) -> String {
    let lines = [
        ChartLine { name: "p50", class: "c2", points: series(report, "response_p50_ns") },
        ChartLine { name: "p99", class: "c3 dashed", points: series(report, "response_p99_ns") },
        ChartLine { name: "max", class: "c4 dotted", points: series(report, "response_max_ns") },
    ];
    let line_texts = lines.iter().map(|line| format!("{} {}", line.name, chart::span_of_times(&line.points)));
    let about = format!("For each second: {}.", line_texts.collect::<Vec<_>>().join(", "));
    chart::lines(
        &Caption { id: "times", title: "Response time over time", about },
        SECONDS,
        TIME,
        &lines,
        &[],
    )
}

/// The longest lag of each second; nothing in a closed loop.
fn lag_chart(report: &Json) -> String {
    if count(&report["schedule_error_ns"]["count"]) == 0 {
        return String::new();
    }
    let points = series(report, "lag_max_ns");
    let about = format!("Longest lag of each second: {}.", chart::span_of_times(&points));
    let caption = Caption { id: "lag", title: "Lag behind the schedule", about };
    let y = Axis { title: "maximum lag", ..TIME };
    let bound_ns = SCHEDULE_ERROR_P99_NS_MAX as f64;
    let bound = ChartMark { at: bound_ns, name: format!("{} for p99", chart::time(bound_ns)) };
    chart::lines(&caption, SECONDS, y, &[ChartLine { name: "lag", class: "c1", points }], &[bound])
}

fn curve_chart(report: &Json) -> String {
    // An axis on which each further nine takes equal space.
    let at = |point: &Json| (1.0 / (1.0 - number(&point["share"])), number(&point["ns"]));
    let curve = |name: &str| {
        let points = report[name].as_array().into_iter().flatten();
        points.filter(|point| number(&point["share"]) < 1.0).map(at).collect()
    };
    let lines = [
        ChartLine { name: "response", class: "c2", points: curve("response_curve") },
        ChartLine { name: "service", class: "c1 dashed", points: curve("service_curve") },
    ];
    let x = Axis { title: "percentile", scale: Scale::Log, label: chart::percentile };
    let y = Axis { title: "time", ..TIME };
    let percentile_texts = ["p50", "p90", "p99", "p99_9", "max"].map(|name| {
        format!("{} {}", name.replace('_', "."), HumanDuration(count(&report["response_ns"][name])))
    });
    let about = format!("Response times: {}.", percentile_texts.join(", "));
    chart::lines(&Caption { id: "curve", title: "Percentiles", about }, x, y, &lines, &[])
}

fn histogram_chart(report: &Json) -> String {
    let buckets = report["response_histogram"].as_array().into_iter().flatten();
    let bars: Vec<_> = buckets
        .map(|bucket| (number(&bucket["from_ns"]), number(&bucket["to_ns"]), number(&bucket["count"])))
        .collect();
    let y = Axis { title: "answers", scale: Scale::LinearFromZero, label: chart::plain };
    let response = &report["response_ns"];
    let marks: Vec<_> = [("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9")]
        .into_iter()
        .filter(|_| !bars.is_empty())
        .map(|(name, member)| ChartMark { at: number(&response[member]), name: name.to_owned() })
        .collect();
    let of = bars.iter().max_by(|a, b| a.2.total_cmp(&b.2));
    let about = of.map_or_else(
        || "No answers.".to_owned(),
        |(from, to, _)| format!("Most answers took {} to {}.", chart::time(*from), chart::time(*to)),
    );
    let caption = Caption { id: "histogram", title: "Histogram of response time", about };
    chart::bars(&caption, TIME, y, &bars, &marks)
}

/// The times as a table: the numbers of the curves.
fn times(report: &Json) -> String {
    const COLUMNS: [(&str, &str); 3] =
        [("response", "response_ns"), ("service", "service_ns"), ("lag", "schedule_error_ns")];
    const ROWS: [(&str, &str); 8] = [
        ("min", "min"),
        ("p50", "p50"),
        ("p90", "p90"),
        ("p99", "p99"),
        ("p99.9", "p99_9"),
        ("p99.99", "p99_99"),
        ("max", "max"),
        ("mean", "mean"),
    ];
    let columns = || COLUMNS.iter().filter(|(_, member)| count(&report[*member]["count"]) > 0);
    let heads: String = columns().map(|(name, _)| format!("<th scope=\"col\">{name}</th>")).collect();
    let mut html = format!(
        "<section class=\"card\"><h2>Times of answers in time</h2>\n<table class=\"times\">\n<thead><tr><td></td>{heads}</tr></thead>\n<tbody>\n"
    );
    for (name, member) in ROWS {
        let cells: String = columns()
            .map(|(_, times)| format!("<td>{}</td>", time_figure(report, &format!("/{times}/{member}"))))
            .collect();
        let _ = writeln!(html, "<tr><th scope=\"row\">{name}</th>{cells}</tr>");
    }
    html + "</tbody>\n</table>\n</section>\n"
}

/// Each phase of a schedule with several phases.
fn steps(report: &Json) -> String {
    let Some(steps) = report["steps"].as_array().filter(|steps| !steps.is_empty()) else {
        return String::new();
    };
    let mut html = "<section class=\"card\"><h2>Steps</h2>\n<table class=\"times\">\n<thead><tr>".to_owned();
    for name in ["per second", "answered", "missing", "p50", "p99"] {
        let _ = write!(html, "<th scope=\"col\">{name}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (at, step) in steps.iter().enumerate() {
        let of = |member: &str| format!("/steps/{at}/{member}");
        let rate = |member: &str| figure(report, &of(member), |rate| chart::plain(number(rate)));
        let is_constant = step["rate_from"] == step["rate_to"];
        let rates = match is_constant {
            true => rate("rate_from"),
            false => format!("{} to {}", rate("rate_from"), rate("rate_to")),
        };
        let missing = figure(report, &of("unanswered"), |missing| grouped(count(missing)));
        let [p50, p99] =
            ["response_ns/p50", "response_ns/p99"].map(|member| time_figure(report, &of(member)));
        let _ = writeln!(
            html,
            "<tr><td>{rates}</td><td>{}</td><td>{missing}</td><td>{p50}</td><td>{p99}</td></tr>",
            rate("answered_per_s")
        );
    }
    html + "</tbody>\n</table>\n</section>\n"
}

/// Answers by HTTP status; empty for other transports.
fn statuses(report: &Json) -> String {
    let statuses = report["statuses"].as_array().filter(|statuses| !statuses.is_empty());
    let Some(statuses) = statuses else { return String::new() };
    let mut html =
        "<section class=\"card\"><h2>Answers by HTTP status</h2>\n<table class=\"counts\">\n".to_owned();
    for (number, status) in statuses.iter().enumerate() {
        let pointer = format!("/statuses/{number}/count");
        let counted = figure(report, &pointer, |counted| grouped(count(counted)));
        let name = text(&status["status"]);
        let _ = writeln!(html, "<tr><th scope=\"row\">{name}</th><td>{counted}</td></tr>");
    }
    html.push_str("</table>\n</section>\n");
    html
}

fn codes(report: &Json) -> String {
    let mut html =
        "<section class=\"card\"><h2>Answers by response code</h2>\n<table class=\"counts\">\n".to_owned();
    let mut row = |name: &str, pointer: &str| {
        let counted = figure(report, pointer, |counted| grouped(count(counted)));
        let _ = writeln!(html, "<tr><th scope=\"row\">{name}</th><td>{counted}</td></tr>");
    };
    for (number, code) in report["accounts"]["codes"].as_array().into_iter().flatten().enumerate() {
        let name = format!("{} {}", text(&code["code"]), text(&code["name"]));
        row(&name, &format!("/accounts/codes/{number}/count"));
    }
    for name in [
        "malformed",
        "truncated",
        "late",
        "duplicate_only",
        "lost",
        "duplicates",
        "unmatched",
        "kernel_drops",
        "not_sent",
    ] {
        if count(&report["accounts"][name]) > 0 {
            row(&name.replace('_', " "), &format!("/accounts/{name}"));
        }
    }
    html + "</table>\n</section>\n"
}

fn mismatches(list: &Json) -> String {
    let Some(list) = list.as_array().filter(|list| !list.is_empty()) else { return String::new() };
    let mut html = "<section class=\"card\"><h2>First wrong answers</h2>\n".to_owned();
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

/// The members of an object of the report as rows, except lists of objects.
fn table(report: &Json, title: &str, object: &str) -> String {
    let Some(members) = report[object].as_object() else { return String::new() };
    let mut html = format!("<section class=\"card\"><h2>{title}</h2>\n<table>\n");
    for (name, value) in members {
        let is_list = value.as_array().is_some_and(|items| items.iter().any(Json::is_object));
        if is_list || value.is_null() || value.is_object() {
            continue;
        }
        let (name_text, unit) = [("_ms", " ms"), ("_s", " s")]
            .into_iter()
            .find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, unit)))
            .unwrap_or((name, ""));
        let value = figure(report, &format!("/{object}/{name}"), |value| text(value) + unit);
        let name_text = escape(&name_text.replace('_', " "));
        let _ = writeln!(html, "<tr><th scope=\"row\">{name_text}</th><td>{value}</td></tr>");
    }
    html + "</table>\n</section>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::report::tests::report;

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
        assert_eq!((page.matches("<svg").count(), page.matches("<desc").count()), (6, 6));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn its_figures_are_those_of_the_json() {
        let (json, page) = of_report();
        let figures: Vec<_> = page.split("<data data-of=\"").skip(1).collect();
        assert!(figures.len() > 50, "{}", figures.len());
        for figure in figures {
            let (pointer, rest) = figure.split_once("\" value=\"").unwrap();
            let (value, _) = rest.split_once("\">").unwrap();
            assert_eq!(value, escape(&json.pointer(pointer).unwrap().to_string()), "{pointer}");
        }
        for name in ["scheduled", "sent", "answered"] {
            let count = grouped(json["accounts"][name].as_u64().unwrap());
            assert!(page.contains(&format!(">{count}</text>")), "{name} {count}");
        }
        assert!(
            page.contains("<dt>p99</dt><dd><data data-of=\"/response_ns/p99\" value=\"2000000\">2.00 ms<")
        );
        assert!(page.contains("value=\"990.0\">990/s</data>"));
        assert!(page.contains("server too busy"), "the code has no name");
        assert!(page.contains("The run is valid: the generator sent the requested load."));
        assert!(page.contains("open loop, 1\u{202f}000/s, 2 s, 1 thread"));
    }

    #[test]
    fn assertions_and_the_share_of_the_limit_are_shown() {
        let (mut json, _) = of_report();
        let promise = |text: &str, found: &str, holds: bool| serde_json::json!({"promise": text, "found": found, "holds": holds});
        json["assertions"] = serde_json::json!([promise("p99<5ms", "measured 2.000 ms", true)]);
        json["share"] = serde_json::json!({"limit_answers_per_s": 1320.0, "share": 0.75});
        let good = page(&json).unwrap();
        assert!(good.contains("The run is valid, and all assertions hold."));
        assert!(good.contains("<li class=\"holds\"><code>p99&lt;5ms</code>: measured 2.000 ms</li>"));
        assert!(
            good.contains(">75.0 %</data> of the limit") && good.contains("check the generator"),
            "{good}"
        );
        assert!(good.contains("<span style=\"width:75.0%\">"));
        json["assertions"] = serde_json::json!([promise("loss<1%", "measured 1.0000 %", false)]);
        assert!(page(&json).unwrap().contains("The run is valid, but not all assertions hold."));
        json["invalid"] = serde_json::json!(["stopped early"]);
        assert!(page(&json).unwrap().contains("<strong>The run is invalid.</strong>"));
    }

    #[test]
    fn without_answers_there_are_no_times() {
        let (mut json, before) = of_report();
        assert!(!before.contains(">none</data></dd>"), "{before}");
        json["response_ns"] = serde_json::to_value(crate::show::latency::ResponseTimes::default()).unwrap();
        let page = super::page(&json).unwrap();
        for name in ["p50", "p99", "p99_9", "max"] {
            let none = format!("<data data-of=\"/response_ns/{name}\" value=\"0\">none</data>");
            assert!(page.contains(&none), "{none} is not in {page}");
        }
    }

    #[test]
    fn external_text_is_escaped() {
        let mut json = serde_json::to_value(report()).unwrap();
        let hostile = "<img src=x onerror=alert(1)>";
        json["setting"]["names"] = hostile.into();
        json["setting"]["<img>"] = hostile.into();
        json["accounts"]["codes"][0]["name"] = hostile.into();
        json["invalid"] = serde_json::json!(["<b>"]);
        let page = page(&json).unwrap();
        assert!(!page.contains("<img") && !page.contains("<b>") && page.contains("is invalid"));
    }

    #[test]
    fn other_json_is_refused_and_an_empty_run_is_a_page() {
        assert!(super::page(&serde_json::json!({})).is_err());
        let later = super::page(&serde_json::json!({"schema": "handle-loadgen/run/2"})).unwrap_err();
        assert!(later.contains("run/2, and this program reads handle-loadgen/run/1"), "{later}");
        let empty = serde_json::json!({"schema": "handle-loadgen/run/1", "setting": {"target": "x"}});
        let page = super::page(&empty).unwrap();
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    /// The relative luminance of a colour, as the guidelines for accessible pages (WCAG 2) define
    /// it.
    fn luminance(color: &str) -> f64 {
        let channel = |at: usize| {
            let share = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
    }

    #[test]
    fn text_and_lines_stand_out_in_light_and_in_dark() {
        let modes: Vec<_> =
            STYLE.split(":root {").skip(1).map(|rest| &rest[..rest.find('}').unwrap()]).collect();
        assert_eq!(modes.len(), 2);
        for mode in modes {
            let color = |name: &str| {
                let at = mode.find(&format!("--{name}: #")).unwrap() + name.len() + 5;
                luminance(&mode[at..at + 6])
            };
            for (front, back) in ["fg", "dim", "good", "bad", "c1", "c2", "c3", "c4"]
                .into_iter()
                .flat_map(|front| [(front, "bg"), (front, "card")])
            {
                let (one, other) = (color(front), color(back));
                let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
                assert!(contrast >= 4.5, "{front} on {back}: {contrast:.2}");
            }
        }
    }
}
