//! Templates over the network: namespaces in the set and in the configuration, references, and
//! missing bases.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::settings::SettingSection as _;
use handle_proto::{Permissions, ResponseCode, Value};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::client::{ReceivedReply, TestClient, exchange_over_tcp, request};
use handle_tests::source_addresses::udp_from;
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::Datapath;
use handle_worker::templates::TemplatesConfig;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Handles with their values, in ascending order of folded handles.
type Records<'r> = &'r [(&'r str, &'r [Value<'r>])];

fn publish(directory: &Path, generation: u64, records: Records<'_>) {
    let mut homed = HomedPrefixes::default();
    homed.add(b"1234");
    homed.add(b"5678");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: generation };
    let mut publisher = SetPublisher::open(directory).unwrap();
    let published = publisher.publish_base(generation, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (at, (handle, values)) in records.iter().enumerate() {
            builder.add(at as u64, handle.as_bytes(), values.iter().copied())?;
        }
        builder.finish(file)
    });
    published.unwrap();
}

fn start(directory: &Path, templates: TemplatesConfig) -> (Server, TestClient) {
    let mut config = test_server::config(directory, Datapath::Auto);
    config.templates = templates;
    let server = Server::start(&config).unwrap();
    let client = TestClient::new(server.addresses()[0]);
    (server, client)
}

/// The data of all values, separated by blanks, or the response code.
fn joined_data(answer: Option<ReceivedReply>) -> Result<String, ResponseCode> {
    let answer = answer.expect("an answer");
    if answer.code != ResponseCode::SUCCESS {
        return Err(answer.code);
    }
    let (mut rest, mut data) = (answer.values.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (value, after) = Value::split(rest).unwrap();
        data.push(String::from_utf8_lossy(value.data).into_owned());
        rest = after;
    }
    Ok(data.join(" "))
}

fn namespace(content: &str) -> String {
    format!("<namespace>{content}</namespace>")
}

const PLAIN: &str = "<template delimiter='@'><value type='T' data='${base}|${extension}'/></template>";

#[test]
fn the_namespace_of_the_prefix_precedes_that_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let (own, by_reference) = (
        namespace(
            "<template delimiter='#'><if expression='no'><notfound/></if><else><value type='T' data='own'/></else></template>",
        ),
        namespace("<template ref='7:1234/template'/><template ref='8:1234/template'/>"),
    );
    let of_prefix = namespace(PLAIN);
    publish(
        directory.path(),
        1,
        &[
            ("0.NA/1234", &[Value::new(3, b"HS_NAMESPACE", of_prefix.as_bytes())]),
            ("1234/base", &[Value::new(1, b"URL", b"u")]),
            ("1234/owner", &[Value::new(1, b"HS_NAMESPACE", own.as_bytes())]),
            ("1234/referring", &[Value::new(1, b"HS_NAMESPACE", by_reference.as_bytes())]),
            (
                "1234/template",
                &[
                    Value::new(7, b"XML", b"<template><value type='T' data='7'/></template>"),
                    Value::new(8, b"XML", b"<x><template><value type='T' data='8'/></template></x>"),
                ],
            ),
        ],
    );
    let configured = TemplatesConfig { delimiter: Some("--".into()), ..TemplatesConfig::default() };
    let (server, mut client) = start(directory.path(), configured);
    let mut ask = |handle: &str| joined_data(client.resolve(handle.as_bytes()));
    assert_eq!(ask("1234/base@x").unwrap(), "1234/base|x");
    assert_eq!(ask("1234/BASE@x").unwrap(), "1234/BASE|x");
    assert_eq!(ask("1234/none@x").unwrap(), "1234/none|x", "a missing base has no values");
    // The delimiter comes from the prefix, the templates from the base.
    assert_eq!(ask("1234/owner@x").unwrap(), "own");
    assert_eq!(ask("1234/owner@no").unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(ask("1234/referring@x").unwrap(), "7 8");
    assert_eq!(ask("1234/base").unwrap(), "u", "stored records are not computed");
    assert_eq!(ask("1234/none").unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    // Without a namespace, only the delimiter applies, and the base is the answer.
    assert_eq!(ask("5678/none--x").unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    drop(server);

    let only_here = TemplatesConfig {
        namespace: Some(namespace("<template><value type='T' data='configured'/></template>")),
        delimiter: Some("--".into()),
        override_prefixes: true,
        ..TemplatesConfig::default()
    };
    let (_server, mut client) = start(directory.path(), only_here);
    let mut ask = |handle: &str| joined_data(client.resolve(handle.as_bytes()));
    assert_eq!(ask("1234/base@x").unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(ask("1234/base--x").unwrap(), "configured");
}

#[test]
fn without_a_namespace_the_base_is_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    publish(directory.path(), 1, &[("1234/base", &[Value::new(1, b"URL", b"u")])]);
    let configured = TemplatesConfig { delimiter: Some("/".into()), ..TemplatesConfig::default() };
    let (server, mut client) = start(directory.path(), configured);
    let mut ask = |handle: &str| joined_data(client.resolve(handle.as_bytes()));
    // The first slash after the prefix is the delimiter.
    assert_eq!(ask("1234/base/x").unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    drop(server);
    let configured = TemplatesConfig { delimiter: Some("@".into()), ..TemplatesConfig::default() };
    let (server, mut client) = start(directory.path(), configured.clone());
    assert_eq!(joined_data(client.resolve(b"1234/base@x")).unwrap(), "u");
    drop(server);
    let (_server, mut client) = start(directory.path(), TemplatesConfig { enabled: false, ..configured });
    assert_eq!(joined_data(client.resolve(b"1234/base@x")).unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
}

#[test]
fn a_new_set_brings_its_templates() {
    let directory = tempfile::tempdir().unwrap();
    publish(directory.path(), 1, &[("1234/base", &[Value::new(1, b"URL", b"u")])]);
    let (server, mut client) = start(directory.path(), TemplatesConfig::default());
    assert_eq!(joined_data(client.resolve(b"1234/base@x")).unwrap_err(), ResponseCode::HANDLE_NOT_FOUND);
    let of_prefix = namespace(PLAIN);
    let prefix_record = [Value::new(3, b"HS_NAMESPACE", of_prefix.as_bytes())];
    publish(
        directory.path(),
        2,
        &[("0.NA/1234", &prefix_record), ("1234/base", &[Value::new(1, b"URL", b"u")])],
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.shared().live.current().generation() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Workers switch to the new set between two batches, slow threads between two requests.
    let mut last = None;
    while last.as_deref() != Some("1234/base|x") && Instant::now() < deadline {
        last = joined_data(client.resolve(b"1234/base@x")).ok();
    }
    assert_eq!(last.as_deref(), Some("1234/base|x"));
}

#[test]
fn endless_and_invalid_templates_give_an_error_and_the_server_continues() {
    let directory = tempfile::tempdir().unwrap();
    let endless = namespace("<template delimiter='@' ref='1:1234/ring'/>");
    let refused = namespace(r"<template delimiter='@'><if test='matches' expression='(a)\1'/></template>");
    publish(
        directory.path(),
        1,
        &[
            ("0.NA/1234", &[Value::new(1, b"HS_NAMESPACE", endless.as_bytes())]),
            ("0.NA/5678", &[Value::new(1, b"HS_NAMESPACE", refused.as_bytes())]),
            ("1234/ring", &[Value::new(1, b"XML", b"<template ref='1:1234/ring'/>")]),
        ],
    );
    let (_server, mut client) = start(directory.path(), TemplatesConfig::default());
    let mut ask = |handle: &str| joined_data(client.resolve(handle.as_bytes()));
    assert_eq!(ask("1234/a@x").unwrap_err(), ResponseCode::ERROR);
    assert_eq!(ask("5678/a@x").unwrap_err(), ResponseCode::ERROR);
    assert!(ask("1234/ring").is_ok());
}

/// Whoever may write a namespace need not be able to read the values of the record.
#[test]
fn a_template_publishes_no_private_value() {
    let directory = tempfile::tempdir().unwrap();
    let private = |value| Value { permissions: Permissions(0x0c), ..value };
    let select = |kind: &str, content: &str| {
        format!("<foreach><if value='type' test='equals' expression='{kind}'>{content}</if></foreach>")
    };
    let of_secret = namespace(&format!(
        "<template delimiter='@'><def parameter='s'>{}</def>{}<value type='URL' data='https://e.org/${{s}}'/></template>",
        select("HS_SECKEY", "<value/>"),
        select("HS_SECKEY", "<value/>"),
    ));
    let of_private = namespace(&format!(
        "<template delimiter='@'><def parameter='s'>{}</def>{}{}<value type='URL' data='https://e.org/${{s}}'/></template>",
        select("EMAIL", "<value/>"),
        "<foreach><if value='data' test='matches' expression='p.*'><notfound/></if></foreach>",
        "<foreach><if value='data' test='matches' expression='p.*'><value index='1'/></if></foreach>",
    ));
    let hidden = namespace("<template delimiter='@'><value type='URL' data='hidden'/></template>");
    let (secret, email) =
        (Value::new(300, b"HS_SECKEY", b"secret"), private(Value::new(2, b"EMAIL", b"private")));
    publish(
        directory.path(),
        1,
        &[
            (
                "1234/hidden",
                &[private(Value::new(1, b"HS_NAMESPACE", hidden.as_bytes())), Value::new(9, b"T", b"t")],
            ),
            ("1234/private", &[Value::new(1, b"HS_NAMESPACE", of_private.as_bytes()), email]),
            ("1234/public-secret", &[Value::new(1, b"HS_NAMESPACE", of_secret.as_bytes()), secret]),
            ("1234/secret", &[Value::new(1, b"HS_NAMESPACE", of_secret.as_bytes()), private(secret)]),
        ],
    );
    let configured = TemplatesConfig { delimiter: Some("@".into()), ..TemplatesConfig::default() };
    let (_server, mut client) = start(directory.path(), configured);
    let mut ask = |handle: &str| joined_data(client.resolve(handle.as_bytes()));
    assert_eq!(ask("1234/secret@x").unwrap(), "https://e.org/");
    assert_eq!(ask("1234/public-secret@x").unwrap(), "https://e.org/");
    assert_eq!(ask("1234/private@x").unwrap(), "https://e.org/");
    assert_eq!(ask("1234/hidden@x").unwrap(), "t", "a namespace that is not public does not apply");
}

/// Bound on a costly answer, also of an unoptimised build on a loaded machine. Without bounds on
/// its work, one took 11 to 16 s.
const COSTLY_WITHIN: Duration = Duration::from_secs(10);

/// A template that is made to cost as much as it can, asked for from eight forged addresses, and a
/// ninth whose requests take the slow path as well.
#[test]
fn costly_templates_do_not_keep_others_from_the_slow_path() {
    let directory = tempfile::tempdir().unwrap();
    let definitions: String = (0..1500).map(|n| format!("<def parameter='p{n}'/>")).collect();
    let costly = namespace(&format!(
        "<template delimiter='@'><foreach>{definitions}<value type='T' data='{}'/></foreach></template>",
        "${p0}".repeat(7000)
    ));
    let mut base: Vec<_> = (1..=2040).map(|index| Value::new(index, b"T", b"")).collect();
    base.push(Value::new(5000, b"HS_NAMESPACE", costly.as_bytes()));
    let cheap = namespace("<template delimiter='@'><value type='T' data='cheap'/></template>");
    publish(
        directory.path(),
        1,
        &[("1234/cheap", &[Value::new(1, b"HS_NAMESPACE", cheap.as_bytes())]), ("1234/costly", &base)],
    );
    let configured = TemplatesConfig { delimiter: Some("@".into()), ..TemplatesConfig::default() };
    let (server, mut client) = start(directory.path(), configured);
    let since = Instant::now();
    assert_eq!(joined_data(client.resolve(b"1234/costly@x")).unwrap_err(), ResponseCode::ERROR);
    let costly_took = since.elapsed();
    assert!(costly_took < COSTLY_WITHIN, "{costly_took:?}");
    let address = server.addresses()[0];
    let ends = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            let forged: Vec<_> = (1..=8).map(|n| udp_from([127, 8, n, 1], address)).collect();
            let message = request(b"1234/costly@x", 7);
            while !ends.load(Ordering::Relaxed) {
                forged.iter().for_each(|socket| drop(socket.send(&message)));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        // Over TCP, to which a datagram is sent for which there is no permit. The result is looked
        // at outside of the scope, which would wait for the flood.
        let ask = |number| {
            let since = Instant::now();
            let answer = exchange_over_tcp(address, &request(b"1234/cheap@x", number))?;
            let is_computed = answer.windows(5).any(|bytes| bytes == b"cheap");
            is_computed.then(|| since.elapsed())
        };
        let answers: Vec<_> = (0..10).map(ask).collect();
        ends.store(true, Ordering::Relaxed);
        answers
    });
    // A costly answer may be before it.
    assert!(longest.iter().all(|took| took.is_some_and(|took| took < COSTLY_WITHIN)), "{longest:?}");
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    for (templates, setting) in [
        (TemplatesConfig { namespace: Some("<ns>".into()), ..Default::default() }, "templates.namespace"),
        (
            TemplatesConfig {
                namespace: Some(namespace("<template><if test='matches' expression='(?=a)'/></template>")),
                ..Default::default()
            },
            "(?=a)",
        ),
        (TemplatesConfig { delimiter: Some(String::new()), ..Default::default() }, "templates.delimiter"),
        (TemplatesConfig { delimiter: Some("x".repeat(256)), ..Default::default() }, "templates.delimiter"),
    ] {
        let error = templates.check_within("templates").unwrap_err().to_string();
        assert!(error.contains(setting), "{error}");
    }
    let delimiter = Some("x".repeat(255));
    assert!(TemplatesConfig { delimiter, ..Default::default() }.check().is_ok());
}
