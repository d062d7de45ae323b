//! Unusual site records and services without usable sites, in a lab: `hdl` uses the usable ones,
//! and names the error of the others.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf, SiteFlags};
use handle_proto::json::record_to_json;
use handle_proto::{Value, Version};
use handle_tests::lab::LabProcess;
use handle_tests::process::{fail, hdl, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::fmt::Write as _;

/// A change to the site that has the handles.
type Change = fn(&mut handle_proto::data::site_build::SiteBuilder);

const NO_SITE: &str = "names no usable site";
const NO_INTERFACE: &str = "is reachable from here";
const FOUND: &str = "";

/// Changes to a site, and the results of handles whose prefix has only that site: plain and
/// certified.
const SITES: [(&str, Change, &str, &str); 16] = [
    ("GOOD", |_| (), FOUND, FOUND),
    ("SECONDARY", |site| site.flags = SiteFlags(0), FOUND, FOUND),
    ("NO-SERVERS", |site| site.servers.clear(), NO_SITE, NO_SITE),
    ("NO-INTERFACES", |site| site.servers[0].interfaces.clear(), NO_INTERFACE, NO_INTERFACE),
    ("OUT-OF-SERVICE", |site| of_kind(site, InterfaceKind::NONE), NO_INTERFACE, NO_INTERFACE),
    ("FOR-ADMINISTRATORS", |site| of_kind(site, InterfaceKind::ADMIN), NO_INTERFACE, NO_INTERFACE),
    ("FAR-PORT", |site| at_port(site, 70_000), NO_INTERFACE, NO_INTERFACE),
    ("NO-PORT", |site| at_port(site, 0), "connection refused", "connection refused"),
    ("LATER-PROTOCOL", |site| site.protocol = Version { major: 3, minor: 7 }, FOUND, FOUND),
    ("LAST-PROTOCOL", |site| site.protocol = Version { major: 255, minor: 255 }, FOUND, FOUND),
    ("FIRST-PROTOCOL", |site| site.protocol = Version { major: 1, minor: 0 }, FOUND, FOUND),
    ("LATER-FORMAT", |site| site.format_version = 9, FOUND, FOUND),
    ("ODD-HASH", |site| site.hash_option_number = 9, FOUND, FOUND),
    ("ODD-HASH-OF-TWO", two_by_an_odd_hash, NO_SITE, NO_SITE),
    ("NO-KEY", |site| site.servers[0].public_key.clear(), FOUND, "no key to check"),
    ("NO-USE-OF-UDP", |site| site.servers[0].interfaces[0].port_number = 9, FOUND, FOUND),
];

/// Records that name services, and the result of a handle with such a prefix.
const SERVICES: [(&str, &[&str], &str); 6] = [
    ("ITSELF", &["0.NA/77.ITSELF"], NO_SITE),
    ("ITS-OWN-HANDLE", &["77.ITS-OWN-HANDLE/x"], "finding it requires the service itself"),
    ("GONE", &["0.SERV/none"], NO_SITE),
    ("GONE-AND-GOOD", &["0.SERV/none", "0.NA/77.GOOD"], FOUND),
    // The largest number of records between a prefix and its sites.
    ("DEEP", &["0.SERV/deep-1"], FOUND),
    ("DEEPER", &["0.SERV/deep-0"], NO_SITE),
];
/// Number of consecutive records between a prefix and its sites.
const DEEP: usize = 20;
/// Number of sites of one prefix.
const MANY: i16 = 1000;

fn of_kind(site: &mut handle_proto::data::site_build::SiteBuilder, kind: InterfaceKind) {
    site.servers[0].interfaces.iter_mut().for_each(|interface| interface.kind = kind);
}

fn at_port(site: &mut handle_proto::data::site_build::SiteBuilder, port: u32) {
    site.servers[0].interfaces.iter_mut().for_each(|interface| interface.port_number = port);
}

fn two_by_an_odd_hash(site: &mut handle_proto::data::site_build::SiteBuilder) {
    site.hash_option_number = 9;
    site.servers.push(site.servers[0].clone());
}

fn record<'a>(handle: &str, values: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let values =
        values.into_iter().zip(1..).map(|((kind, data), index)| Value::new(index, kind.as_bytes(), data));
    format!("{}\n", record_to_json(handle.as_bytes(), values))
}

/// The records of the prefixes.
fn registry(good: &SiteBuf) -> String {
    let mut records = String::new();
    for (name, change, ..) in SITES {
        let mut site = good.edit();
        change(&mut site);
        records += &record(&format!("0.NA/77.{name}"), [("HS_SITE", site.build().as_bytes())]);
    }
    for (name, services, _) in SERVICES {
        let values = services.iter().map(|service| ("HS_SERV", service.as_bytes()));
        records += &record(&format!("0.NA/77.{name}"), values);
    }
    for number in 0..DEEP {
        let next = format!("0.SERV/deep-{}", number + 1);
        records += &record(&format!("0.SERV/deep-{number}"), [("HS_SERV", next.as_bytes())]);
    }
    records += &record(&format!("0.SERV/deep-{DEEP}"), [("HS_SITE", good.as_bytes())]);
    let many: Vec<SiteBuf> = (0..MANY)
        .map(|serial| {
            let mut site = good.edit();
            site.serial = serial;
            if serial > 0 {
                site.servers[0].public_key.clear();
            }
            site.build()
        })
        .collect();
    records += &record("0.NA/77.MANY", many.iter().map(|site| ("HS_SITE", site.as_bytes())));
    let namespace = b"<namespace><status>inactive</status><statusmsg>Moved.</statusmsg><contact>a@b</contact></namespace>";
    records += &record("0.NA/77.INACTIVE", [("HS_SITE", good.as_bytes()), ("HS_NAMESPACE", namespace)]);
    for (name, data) in [("CUT", &good.as_bytes()[..40]), ("LONGER", &[good.as_bytes(), b"x"].concat())] {
        records += &record(&format!("0.NA/77.{name}"), [("HS_SITE", data)]);
    }
    records + &record("0.NA/77.SMALL", [("hs_site", good.as_bytes())])
}

/// Handles with their results, plain and certified.
fn cases() -> Vec<(String, &'static str, &'static str)> {
    let sites = SITES.map(|(name, _, plain, signed)| (name, plain, signed));
    let services = SERVICES.map(|(name, _, result)| (name, result, result));
    let others = [
        ("MANY", FOUND, FOUND),
        ("INACTIVE", FOUND, FOUND),
        ("CUT", NO_SITE, NO_SITE),
        ("LONGER", NO_SITE, NO_SITE),
        ("SMALL", NO_SITE, NO_SITE),
    ];
    let all = sites.into_iter().chain(services).chain(others);
    all.map(|(name, plain, signed)| (format!("77.{name}/x"), plain, signed)).collect()
}

fn publish(lab: &LabProcess, site: &str, records: &str) {
    let file = lab.directory.path().join(format!("{site}.jsonl"));
    std::fs::write(&file, records).unwrap();
    let set = lab.directory.path().join("lab").join(format!("{site}-1/set"));
    let mut command = hdl(["snapshot", "publish", "--delta"]);
    succeed({
        command.arg(set).arg(file);
        command
    });
}

#[test]
fn usable_sites_are_used_and_errors_of_others_are_named() {
    let lab = LabProcess::up_with(&[]);
    let cases = cases();
    let mut handles = String::new();
    let mut records = String::new();
    for (handle, ..) in &cases {
        writeln!(handles, "{handle}").unwrap();
        records += &record(handle, [("URL", b"https://lab.example/x".as_slice())]);
    }
    publish(&lab, "derived", &records);
    publish(&lab, "registry", &registry(&lab.site("derived")));
    until("the records are served", || run(lab.hdl(&["resolve", "77.GOOD/x"])).status.success());
    let file = lab.directory.path().join("handles");
    std::fs::write(&file, &handles).unwrap();
    for certify in [false, true] {
        let mut command = lab.hdl(&["resolve", "--json", "--file", file.to_str().unwrap()]);
        if certify {
            command.arg("--certify");
        }
        let shown = String::from_utf8(run(command).stdout).unwrap();
        let lines: Vec<Json> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), cases.len());
        for (line, (handle, plain, signed)) in lines.iter().zip(&cases) {
            let expected = if certify { signed } else { plain };
            match *expected {
                FOUND => assert_eq!(
                    line["values"][0]["data"]["value"], "https://lab.example/x",
                    "{handle}: {line}"
                ),
                error => {
                    assert!(line["error"].as_str().unwrap_or_default().contains(error), "{handle}: {line}")
                }
            }
        }
    }
    check_unreachable_servers(&lab);
    check_namespace(&lab);
}

fn check_unreachable_servers(lab: &LabProcess) {
    for name in ["NO-INTERFACES", "OUT-OF-SERVICE", "FOR-ADMINISTRATORS", "FAR-PORT"] {
        let output = run(lab.hdl(&["check", &format!("77.{name}/x"), "--json"]));
        let json: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), json["agree"].as_bool()), (Some(1), Some(false)), "{json}");
        let [server] = json["servers"].as_array().unwrap().as_slice() else { panic!("{json}") };
        assert_eq!(
            (&server["says"], &server["protocol"]),
            (&"no interface that is reachable from here".into(), &Json::Null)
        );
    }
    // All protocols of a server are checked, or the requested one.
    for (args, count) in [(&[][..], 2), (&["--tcp"], 1)] {
        let mut command = lab.hdl(&["check", "77.GOOD/x", "--json"]);
        command.args(args);
        let json: Json = serde_json::from_str(&succeed(command)).unwrap();
        assert_eq!(json["servers"].as_array().unwrap().len(), count, "{json}");
    }
    // A further protocol is checked as well; here nothing listens.
    let mut site = lab.site("derived").edit();
    site.servers[0].interfaces.push(Interface::new(InterfaceKind::QUERY, InterfaceProtocol::HTTP, 9));
    let file = lab.directory.path().join("local_info.json");
    let site = handle_proto::json::site_to_json(&site.build().view());
    std::fs::write(&file, serde_json::json!([{ "nas": ["0.NA/77.GOOD"], "site": site }]).to_string())
        .unwrap();
    let (exit, shown) = {
        let output = run(lab.hdl(&["check", "77.GOOD/x", "--local-info", file.to_str().unwrap()]));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let of_http = shown.lines().find(|line| line.contains("HTTP")).unwrap_or_else(|| panic!("{shown}"));
    assert!(exit == Some(1) && of_http.contains("!!") && of_http.contains("connection refused"), "{shown}");
}

fn check_namespace(lab: &LabProcess) {
    let shown = succeed(lab.hdl(&["site", "77.INACTIVE"]));
    assert!(shown.contains("\n  inactive: Moved.\n  contact a@b\n"), "{shown}");
    let json: Json = serde_json::from_str(&succeed(lab.hdl(&["site", "77.INACTIVE", "--json"]))).unwrap();
    let expected = serde_json::json!({ "contact": "a@b", "status": "inactive", "statusMessage": "Moved." });
    assert_eq!(json["namespace"], expected);
    for (handle, warns) in [("77.INACTIVE/x", true), ("77.GOOD/x", false)] {
        let output = run(lab.hdl(&["resolve", handle, "--url"]));
        assert_eq!(output.stdout, b"https://lab.example/x\n");
        let warning = format!("hdl: the prefix of {handle} is inactive: Moved.\n");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), if warns { warning } else { String::new() });
    }
    // Options in a reference are applied, or refused where they cannot be.
    for (reference, expected) in
        [("hdl:77.NO-KEY/x?cert", "no key to check"), ("hdl:77.SECONDARY/x?auth", "primary site")]
    {
        let (_, error) = fail(lab.hdl(&["resolve", reference]));
        assert!(error.contains(expected), "{reference}: {error}");
    }
    for (reference, option) in
        [("hdl://127.0.0.1/77.GOOD/x?cert", "?cert"), ("hdl://127.0.0.1/77.GOOD/x?auth", "?auth")]
    {
        let (exit, error) = fail(lab.hdl(&["resolve", reference]));
        assert!(exit == 2 && error.contains(&format!("{option} cannot be used")), "{error}");
    }
    let address = "https://handles.example/77.GOOD/x";
    assert!(fail(lab.hdl(&["resolve", address])).1.contains("not known as a proxy"));
    let shown = succeed(lab.hdl(&["resolve", address, "--url", "--host", "handles.example"]));
    assert_eq!(shown, "https://lab.example/x\n");
}

/// Clients would refuse every signature of such a server.
#[test]
fn a_server_key_that_is_not_the_one_of_the_site_record_is_named_before_the_start() {
    let service = InitialisedService::make();
    succeed(service.hdl(["key", "generate", "site/other.bin", "site/other-public.bin", "--plain"]));
    std::fs::copy(service.path("site/other.bin"), service.path("site/server-private.bin")).unwrap();
    for mut command in [service.handled_command(), service.admin_command()] {
        command.arg("--check-config");
        let (_, error) = fail(command);
        assert!(error.contains("is not the one of this server in the site record"), "{error}");
    }
}
