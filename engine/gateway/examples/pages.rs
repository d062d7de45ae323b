//! Writes sample pages in every language to a directory, to look at them in browsers:
//! `cargo run -p handle-gateway --example pages -- DIR`.

use handle_gateway::pages::{
    AnswerDetails, AnswerSource, ErrorPage, FormPage, ICON, ICON_PATH, LANGUAGES, PageError, PageFrame,
    RecordPage, RedirectPage, STYLE, STYLE_PATH,
};
use handle_gateway::redirect::{RedirectRules, ShowReason};
use handle_proto::json::{Reading, data_from_json};
use handle_proto::value::Ttl;
use handle_proto::{Handle, Permissions, Value};
use serde_json::{Value as Json, json};
use std::path::Path;

fn data(json: &Json) -> Vec<u8> {
    data_from_json(json, Reading::Documented).expect("sample data")
}

/// A value of each kind: type, data, and permissions.
fn samples() -> Vec<(&'static str, Vec<u8>, u8)> {
    let key = json!({ "kty": "RSA", "e": "AQAB", "n": format!("x{}Q", "A1b2".repeat(85)) });
    let text = |text: &str| text.as_bytes().to_vec();
    let loc = "<locations chooseby=\"locatt,country,weighted\">\n  <location id=\"0\" href=\"https://uk.example.org/\" \
         country=\"gb\" weight=\"0\" />\n  <location id=\"1\" href=\"https://a.example.org/\" weight=\"1\" />\n</locations>";
    let site = json!({
        "version": 1, "protocolVersion": "2.11", "serialNumber": 3, "primarySite": true, "multiPrimary": false,
        "hashOption": 2, "attributes": [{ "name": "desc", "value": "مكتبة الإسكندرية" }],
        "servers": [{
            "serverId": 1, "address": "2001:db8::10", "publicKey": { "format": "key", "value": key },
            "interfaces": [
                { "query": true, "admin": true, "protocol": "TCP", "port": 2641 },
                { "query": true, "admin": false, "protocol": "UDP", "port": 2641 },
            ],
        }],
    });
    let admin = |permissions: &str, index: i32| {
        let admin = json!({ "handle": "0.NA/20.500.1", "index": index, "permissions": permissions });
        data(&json!({ "format": "admin", "value": admin }))
    };
    let members =
        json!([{ "handle": "20.500.1/ADMIN", "index": 300 }, { "handle": "20.500.1/日本", "index": 301 }]);
    vec![
        (
            "URL",
            text("https://example.org/a/very/long/path/that/has/to/be/wrapped/somewhere/on/a/phone?query=1"),
            0xe,
        ),
        ("URL", text("javascript:alert(document.cookie)"), 0xe),
        ("EMAIL", text("author@example.org"), 0xe),
        ("DESC", text("A description with <b>markup</b> & \"quotes\",\nof two lines."), 0xe),
        ("DESC", text("وصف باللغة العربية يبدأ من اليمين"), 0xf),
        ("DESC", text("日本語の説明。東京大学附属図書館。"), 0xe),
        ("10320/loc", text(loc), 0xe),
        ("21.T11148/b415e16fbe4ca40f2270", text("{\"checksum\":\"9f86d081884c7d659a2feaa0c55ad015\"}"), 0xe),
        ("HS_ALIAS", text("20.500.1/other"), 0xe),
        ("HS_ADMIN", admin("011111110011", 200), 0xe),
        ("HS_ADMIN", admin("111111111111", 0), 0xc),
        ("HS_VLIST", data(&json!({ "format": "vlist", "value": members })), 0xe),
        ("HS_PUBKEY", data(&json!({ "format": "key", "value": key })), 0xe),
        ("HS_SITE", data(&json!({ "format": "site", "value": site })), 0xe),
        ("THUMBNAIL", (0..=255).cycle().take(700).collect(), 0xe),
        ("EMPTY", vec![], 0xe),
    ]
}

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: cargo run -p handle-gateway --example pages -- DIR");
        std::process::exit(2);
    };
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory.join("static"))?;
    std::fs::write(directory.join(STYLE_PATH), STYLE)?;
    std::fs::write(directory.join(ICON_PATH), ICON)?;
    let samples = samples();
    let values: Vec<Value<'_>> = (1..)
        .zip(&samples)
        .map(|(index, (kind, data, permissions))| {
            let mut value = Value::new(index, kind.as_bytes(), data);
            (value.timestamp, value.permissions) = (1_551_962_767, Permissions(*permissions));
            if index == 3 {
                value.ttl = Ttl::absolute(1_800_000_000);
            }
            value
        })
        .collect();
    let schemes = RedirectRules::default().schemes;
    let steps =
        ["20.500.1/x  (the question)".to_owned(), "192.0.2.1:2641 answers 1 success, 3 ms".to_owned()];
    for language in &LANGUAGES {
        let frame = PageFrame {
            language,
            service: "Handles of Example University",
            base: "https://hdl.example.org/",
        };
        let write = |name: &str, html: String| {
            std::fs::write(directory.join(format!("{name}.{}.html", language.tag)), html)
        };
        write("form", FormPage { frame, handle: "" }.html())?;
        write("redirect", RedirectPage { frame, location: "https://example.org/" }.html())?;
        let set = AnswerSource::Set { name: "main", generation: 4711, published_unix_s: Some(1_763_800_000) };
        let details = AnswerDetails { source: set, certified: false, took_us: 140, aliases: &[], steps: &[] };
        let page = |name: &str, values: &[Value<'_>], details: &AnswerDetails<'_>, reason: &ShowReason| {
            RecordPage::new(frame, Handle(name.as_bytes()), values, details, reason, &schemes).html()
        };
        write("record", page("20.500.1/july95-arms", &values, &details, &ShowReason::Requested))?;
        let aliases = [Handle("20.500.1/ألف/واحد".as_bytes())];
        let server = AnswerSource::Server { name: "192.0.2.1:2641 over UDP" };
        let server_details = AnswerDetails {
            source: server,
            certified: true,
            took_us: 31_400,
            aliases: &aliases,
            steps: &steps,
        };
        let unsafe_location = ShowReason::UnsafeLocation("javascript:alert(1)".to_owned());
        write(
            "odd",
            page("20.500.1/日本語/مقال \u{202e}txt'", &values[4..6], &server_details, &unsafe_location),
        )?;
        for error in PageError::ALL {
            let page = ErrorPage::new(frame, error).about(Handle("20.500.1/july95-armes/".as_bytes()));
            let page = match error {
                PageError::Invalid => page.because("% at byte 9 is not followed by two hexadecimal digits"),
                PageError::NotFound => {
                    page.with_notice(Some("pids@example.org"), Some("This prefix has moved."))
                }
                PageError::TooMany => page.retry_after(90),
                _ => page,
            };
            write(&format!("error-{error:?}").to_lowercase(), page.html())?;
        }
    }
    Ok(())
}
