//! The processor time that a template costs which is made to cost as much as it can, by one request
//! of anybody. Shown with `--nocapture`; `docs/security.md` has the figures of a release build.

use handle_proto::Value;
use handle_template::limit::CompileBudget;
use handle_template::{Chain, Namespace, Parts, ReferencedTemplates, Templates};
use std::time::{Duration, Instant};

/// Bound on one answer: parsing the namespace of the base, and applying it. A debug build takes ten
/// times as long.
const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1500 } else { 50 });

/// Every reference leads to the same text.
struct SingleText<'t>(&'t [u8]);

impl Templates for SingleText<'_> {
    fn at(&self, _: &[u8], _: i32, budget: &mut CompileBudget) -> Option<ReferencedTemplates> {
        Some(ReferencedTemplates::parse(self.0, true, budget).unwrap_or_default())
    }
}

/// Answers as `handled` does, with a base of 2,040 values and the namespace `content`. Returns the
/// least time of three.
fn time(content: &str, extension: &str, data: &[u8], referenced: &str) -> Duration {
    let xml = format!("<ns>{content}</ns>");
    assert!(xml.len() <= 64 << 10, "{} bytes", xml.len());
    let handle = format!("1/a@{extension}");
    let parts = Parts::of(handle.as_bytes(), b"@").expect("the handle has a delimiter");
    let mut base: Vec<_> = (1..=2040).map(|index| Value::new(index, b"T", data)).collect();
    base.push(Value::new(5000, b"HS_NAMESPACE", xml.as_bytes()));
    let answer = || {
        let since = Instant::now();
        let mut budget = CompileBudget::default();
        let own = Namespace::of_record(base.iter().copied(), true, &mut budget).expect("a namespace");
        let mut chain = Chain::new();
        chain.push(&own);
        // An error is an answer too.
        let _ = chain.build(&parts, &base, &SingleText(referenced.as_bytes()), &mut budget);
        since.elapsed()
    };
    (0..3).map(|_| answer()).min().unwrap_or_default()
}

fn template(content: &str) -> String {
    format!("<template>{content}</template>")
}

fn for_each(content: &str) -> String {
    template(&format!("<foreach>{content}</foreach>"))
}

/// A name; the content of the template, the extension, the data of the base values, and the
/// referenced template.
type CostlyCase = (&'static str, (String, String, &'static [u8], String));

/// Templates that once took seconds, and their neighbours.
fn costly_cases() -> Vec<CostlyCase> {
    let value = |data: &str| format!("<value type='T' data='{data}'/>");
    let matches = |pattern: &str| format!("<if test='matches' expression='{pattern}'/>");
    let many = |text: &str, count: usize| text.repeat(count);
    let definitions: String = (0..1500).map(|n| format!("<def parameter='p{n}'/>")).collect();
    let texts = |content: String| (content, String::new(), &b"x"[..], String::new());
    let with = |content: String, extension: String| (content, extension, &b"x"[..], String::new());
    let long = many("a", 2000);
    vec![
        (
            "1,500 empty definitions, 5,000 references that expand to nothing",
            texts(for_each(&format!("{definitions}{}", value(&many("${p0}", 5000))))),
        ),
        ("names that are not bound", texts(for_each(&value(&many("${p}", 12_000))))),
        ("one index for all values", texts(for_each("<value index='1'/>"))),
        (
            "one index, in definitions",
            texts(template(&many("<def parameter='p'><foreach><value index='1'/></foreach></def>", 50))),
        ),
        ("empty loops", texts(template(&many("<foreach/>", 2000)))),
        (
            "comparisons of long texts",
            with(for_each(&many(&format!("<if expression='{long}'/>"), 30)), long.clone()),
        ),
        (
            "groups of long texts",
            with(
                template(&format!(
                    "<if test='matches' expression='(.*)'><foreach>{}</foreach></if>",
                    many("<if value='1' expression='x'/>", 1500)
                )),
                long.clone(),
            ),
        ),
        ("references to different values", {
            let references: String = (0..2000).map(|n| format!("<template ref='{n}:1/t'/>")).collect();
            (references, String::new(), &b"x"[..], template(&many("<foreach/>", 2000)))
        }),
        ("references to patterns", {
            let references: String = (0..100).map(|n| format!("<template ref='{n}:1/t'/>")).collect();
            (references, String::new(), &b"x"[..], template(&many(&matches("([a-c]?){200}x"), 60)))
        }),
        ("patterns that are large", texts(template(&many(&matches("(.*?)([a-c]?){500}x"), 500)))),
        ("patterns that are too large", texts(template(&many(&matches("((a{99}){99}){99}"), 1000)))),
        ("patterns that are wrong", texts(template(&many(&matches("(a)\\1"), 1200)))),
        ("few classes of Unicode", texts(template(&matches(&many("\\pL", 6))))),
        ("classes of Unicode", texts(template(&matches(&many("\\pL", 18_000))))),
        ("classes of Unicode in many patterns", texts(template(&many(&matches(&many("\\pL", 40)), 300)))),
        ("negated classes of Unicode", texts(template(&matches(&many("[^\\pL\\d]", 5_000))))),
        ("many groups that match", with(template(&many(&matches(&many("(a?)", 200)), 8)), many("a", 190))),
        (
            "nested groups that match",
            with(
                for_each(&format!("<if test='matches' expression='{}.*{}'/>", many("(", 25), many(")", 25))),
                long.clone(),
            ),
        ),
        ("a slow match", with(template(&matches("(?:[a-c]{0,30}[b-d]{0,30}){0,20}x")), many("a", 1900))),
        (
            "a slow match with groups",
            with(template(&matches("(?:([a-c]{0,30})([b-d]{0,30})){0,20}x?")), many("a", 1900)),
        ),
        (
            "many groups in a loop",
            with(for_each(&matches(&format!("{}.*", many("(a?)", 100)))), many("a", 100)),
        ),
    ]
}

#[test]
fn no_answer_takes_long() {
    let mut slow = Vec::new();
    for (name, (content, extension, data, referenced)) in costly_cases() {
        let took = time(&content, &extension, data, &referenced);
        println!("{:>8.2} ms  {name}", took.as_secs_f64() * 1000.0);
        if took > ANSWER_MAX {
            slow.push(format!("{name}: {took:?}"));
        }
    }
    assert!(slow.is_empty(), "{}", slow.join("\n"));
}
