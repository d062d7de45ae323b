//! Registration of prefixes at `handle-gateway`, from outside: applicants, reviewers, limits, and
//! hostile archives.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_formats::bundle::{BundleContact, archive, pack};
use handle_gateway::Config;
use handle_proto::data::site::{Address, Interface, InterfaceKind, InterfaceProtocol, SiteFlags};
use handle_proto::data::{self, ServerBuilder, SiteBuilder};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, exchange, get, serve_over_http, use_tls};
use handle_tests::registrar::{FORM, RegistrationPages, SignedInUser, multipart};
use handle_tests::vectors::{VectorSource, fixture, hex};
use rand::{RngExt as _, SeedableRng as _};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use tempfile::TempDir;

/// An administrator of the server, and somebody who may only read.
const REVIEWER: &str = "300:0.NA/TST";
const READER: &str = "305:0.NA/TST";

struct Registry {
    pages: RegistrationPages,
    gateway: GatewayServer,
    administration: AdminServer,
    directory: TempDir,
}

fn registry_with(change: impl FnOnce(&mut Config)) -> Registry {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.socket");
    let administration = administer_with("root", |config| config.local.socket = Some(socket.clone()));
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
        config.admin.socket = Some(socket);
        config.registration.directory = Some(directory.path().join("requests"));
        config.registration.reviewers = vec![REVIEWER.to_owned()];
        use_tls(config, directory.path());
        change(config);
    });
    let pages = RegistrationPages { address: gateway.address() };
    Registry { pages, gateway, administration, directory }
}

fn registry() -> Registry {
    registry_with(|_| ())
}

fn key_record(name: &str) -> Vec<u8> {
    hex(&fixture("servers.json")["keys"][name]["handle_private_hex"])
}

fn public_key(name: &str) -> Vec<u8> {
    data::PrivateKey::decode(&key_record(name)).unwrap().public().unwrap().to_bytes()
}

fn site() -> Vec<u8> {
    let mut site = SiteBuilder::new();
    site.flags = SiteFlags::PRIMARY;
    site.attribute("desc", "A <new> service");
    let interfaces = [(InterfaceKind::QUERY, 2641), (InterfaceKind::ADMIN, 2642)];
    site.server(ServerBuilder {
        id: 1,
        address: Address::from(IpAddr::from([203, 0, 112, 7])),
        public_key: public_key("server"),
        interfaces: interfaces
            .map(|(kind, port)| Interface::new(kind, InterfaceProtocol::TCP, port))
            .to_vec(),
    });
    site.build().as_bytes().to_vec()
}

/// The archive of a new service.
fn bundle() -> Vec<u8> {
    let contact = BundleContact {
        organization: "Library & <Archive>".to_owned(),
        email: "library@example.org".to_owned(),
        ..BundleContact::default()
    };
    archive(&site(), &public_key("admin_rsa"), &contact).unwrap()
}

/// An archive with these entries, compressed.
fn packed(entries: &[(&str, &[u8])]) -> Vec<u8> {
    pack(entries, true).unwrap()
}

fn has(answer: &HttpAnswer, texts: &[&str]) {
    let page = answer.text();
    for text in texts {
        assert!(page.contains(text), "{text} is missing in {page}");
    }
}

impl Registry {
    fn reviewer(&self) -> SignedInUser {
        self.pages.sign_in(REVIEWER, &PrivateKey::from_record(&key_record("admin_rsa")).unwrap())
    }

    fn reader(&self) -> SignedInUser {
        self.pages.sign_in_with(&[("id", READER), ("secret", "read only admin")])
    }

    /// The files of requests.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path().join("requests")).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
        paths
    }

    fn status(&self, fields: &[(&str, &str)], bundle: &[u8]) -> u16 {
        self.pages.apply("", fields, bundle).status
    }

    /// Whether there is a record, as the administration pages see it.
    fn exists(&self, who: &SignedInUser, handle: &str) -> bool {
        self.pages.get(who, &format!("/admin/record?handle={handle}")).status == 200
    }
}

#[test]
fn a_request_is_reviewed_accepted_and_becomes_a_prefix_record() {
    let registry = registry();
    let pages = registry.pages;
    let form = pages.ask("GET", "/register", "", b"");
    has(&form, &["enctype=\"multipart/form-data\"", "<h1>Register a prefix</h1>"]);
    let sent = pages.apply("", &[("prefix", "TST.WRONG"), ("note", "two\r\n<lines>")], &bundle());
    assert_eq!(sent.status, 303, "{}", sent.text());
    let path = sent.header("location").unwrap();
    assert!(path.starts_with("/register/request?token="), "{path}");
    has(&pages.ask("GET", path, "", b""), &["waiting for review", "TST.WRONG", path]);

    let who = registry.reviewer();
    let list = pages.get(&who, "/admin/registrations");
    has(&list, &["1 requests", "TST.WRONG", "Library &#38; &#60;Archive&#62;"]);
    let id = handle_tests::registrar::quoted(&list.text(), "/admin/registration?id=").to_owned();
    let application = handle_tests::registrar::StoredApplication { id, path: path.to_owned() };
    let review = pages.review(&who, &application);
    has(&review, &["203.0.112.7", "TCP 2641 (queries)", "TCP 2642 (administration)", "SHA256:", "RSA 2048"]);
    has(&review, &["library@example.org", "two\n&#60;lines&#62;", "127.0.0.1", "A &#60;new&#62; service"]);
    has(
        &review,
        &["hdl handle create", "0.NA/TST.WRONG 1:HS_SITE=@siteinfo.json 2:EMAIL=library@example.org"],
    );
    assert!(!review.text().contains("cannot be reached"), "the address is public");

    let accepted = pages.decide(&who, &application, &[("action", "accept"), ("prefix", " TST.NEW ")]);
    assert_eq!(accepted.status, 303, "{}", accepted.text());
    has(&pages.get(&who, accepted.header("location").unwrap()), &["the prefix record exists"]);
    let record = pages.get(&who, "/admin/record?handle=0.NA/TST.NEW");
    assert_eq!(record.status, 200);
    has(
        &record,
        &["HS_SITE", "library@example.org", "HS_ADMIN", "0.NA/TST.NEW", "HS_PUBKEY", "111111111111"],
    );
    let shown = pages.ask("GET", path, "", b"");
    has(
        &shown,
        &["The prefix TST.NEW is registered.", "300:0.NA/TST.NEW", "curl https://localhost/api/handles/"],
    );
    has(&shown, &["hdl handle home 0.NA/TST.NEW --server 203.0.112.7:2642 ", "0.NA/TST.NEW?noredirect"]);
    let state = pages.state(&application).json();
    assert_eq!((&state["state"], &state["prefix"]), (&"accepted".into(), &"TST.NEW".into()));
    assert!(state["decided"].as_str().unwrap().ends_with('Z') && state["reason"].is_null(), "{state}");

    for fields in [[("action", "accept"), ("prefix", "TST.TWO")], [("action", "refuse"), ("reason", "no")]] {
        assert_eq!(pages.decide(&who, &application, &fields).status, 409, "it is decided");
    }
    assert!(!registry.exists(&who, "0.NA/TST.TWO"));
    let counts = registry.gateway.gateway.state().writing.registrations.as_ref().unwrap().store.counts();
    assert_eq!((counts.received.get(), counts.accepted.get(), counts.refused.get()), (1, 1, 0));
}

#[test]
fn of_two_decisions_at_once_one_counts() {
    let registry = registry();
    let pages = registry.pages;
    let application = pages.stored(&[("prefix", "TST.ONCE")], &bundle());
    let who = registry.reviewer();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let decide =
            || pages.decide(&who, &application, &[("action", "accept"), ("prefix", "TST.ONCE")]).status;
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(decide)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|&&status| status == 303).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|&&status| status == 409).count(), 5, "{statuses:?}");
    assert_eq!(pages.state(&application).json()["state"], "accepted");
}

#[test]
fn a_refused_applicant_reads_the_reason_and_the_request_can_be_deleted() {
    let registry = registry();
    let (pages, who) = (registry.pages, registry.reviewer());
    let application = pages.stored(&[("prefix", "TST.NO")], &bundle());
    for reason in ["", "  ", &"x".repeat(1025), "a\u{202e}b"] {
        let refused = pages.decide(&who, &application, &[("action", "refuse"), ("reason", reason)]);
        assert_eq!(refused.status, 400, "{reason:?}");
    }
    let reason = "Not <yet>:\r\nsend the statutes.";
    assert_eq!(pages.decide(&who, &application, &[("action", "refuse"), ("reason", reason)]).status, 303);
    let shown = pages.ask("GET", &application.path, "Accept-Language: de\r\n", b"");
    has(&shown, &["abgelehnt", "Not &#60;yet&#62;:\nsend the statutes."]);
    let state = pages.state(&application).json();
    assert_eq!(
        (&state["state"], &state["reason"]),
        (&"refused".into(), &"Not <yet>:\nsend the statutes.".into())
    );
    assert!(!registry.exists(&who, "0.NA/TST.NO"));
    assert_eq!(pages.decide(&who, &application, &[("action", "delete")]).status, 400, "not confirmed");
    let deleted = pages.decide(&who, &application, &[("action", "delete"), ("confirmed", "true")]);
    assert_eq!(
        (deleted.status, deleted.header("location")),
        (303, Some("/admin/registrations?done=deleted"))
    );
    assert!(registry.files().is_empty());
    for gone in [pages.ask("GET", &application.path, "", b""), pages.state(&application)] {
        assert_eq!(gone.status, 404);
        has(&gone, &["There is no such request."]);
    }
    assert_eq!(pages.review(&who, &application).status, 404);
    assert_eq!(pages.decide(&who, &application, &[("action", "accept"), ("prefix", "TST.NO")]).status, 404);
}

#[test]
fn a_prefix_is_registered_once() {
    let registry = registry();
    let (pages, who) = (registry.pages, registry.reviewer());
    let first = pages.stored(&[("prefix", "TST.BOTH")], &bundle());
    let second = pages.stored(&[("prefix", "tst.both")], &bundle());
    has(&pages.review(&who, &second), &["Other requests for this prefix:", &first.id]);
    assert_eq!(pages.decide(&who, &first, &[("action", "accept"), ("prefix", "TST.BOTH")]).status, 303);
    has(&pages.review(&who, &second), &["The prefix tst.both is registered already.", &first.id]);
    let refused = pages.decide(&who, &second, &[("action", "accept"), ("prefix", "TST.both")]);
    assert_eq!(refused.status, 409);
    has(&refused, &["The prefix TST.both is registered already.", "value=\"TST.both\""]);
    assert_eq!(pages.state(&second).json()["state"], "pending");
    for (prefix, status) in [("0.NA/X", 400), ("TST..X", 400), ("", 400), ("TST.OTHER", 303)] {
        let decided = pages.decide(&who, &second, &[("action", "accept"), ("prefix", prefix)]);
        assert_eq!(decided.status, status, "{prefix}");
    }
}

#[test]
fn the_rights_of_a_reviewer_are_those_at_handle_admin() {
    let registry = registry_with(|config| config.registration.reviewers.push("305:0.NA/TST".to_owned()));
    let (pages, who) = (registry.pages, registry.reader());
    let application = pages.stored(&[("prefix", "TST.RIGHTS")], &bundle());
    let refused = pages.decide(&who, &application, &[("action", "accept"), ("prefix", "TST.RIGHTS")]);
    assert_eq!(refused.status, 403, "{}", refused.text());
    has(&refused, &["This identity may not do that."]);
    assert_eq!(pages.state(&application).json()["state"], "pending");
    let who = registry.reviewer();
    assert!(!registry.exists(&who, "0.NA/TST.RIGHTS"));
    assert_eq!(
        pages.decide(&who, &application, &[("action", "accept"), ("prefix", "TST.RIGHTS")]).status,
        303
    );
}

#[test]
fn only_reviewers_see_requests() {
    let registry = registry();
    let (pages, who) = (registry.pages, registry.reader());
    let application = pages.stored(&[("prefix", "TST.SECRET")], &bundle());
    assert!(!pages.get(&who, "/admin/").text().contains("/admin/registrations"));
    let by_id = |path: &str| format!("/admin/registration{path}?id={}", application.id);
    let targets = ["s".to_owned(), by_id(""), by_id("/siteinfo.json"), by_id("/admin-public.bin")];
    for target in targets.iter().map(|it| if it == "s" { "/admin/registrations" } else { it }) {
        let answer = pages.get(&who, target);
        assert_eq!(answer.status, 403, "{target}");
        assert!(!answer.text().contains("example.org") && !answer.text().contains("TST.SECRET"), "{target}");
        assert_eq!(pages.ask("GET", target, "", b"").status, 303, "{target} without a session");
    }
    for fields in [
        [("action", "accept"), ("prefix", "TST.SECRET")],
        [("action", "refuse"), ("reason", "x")],
        [("action", "delete"), ("confirmed", "true")],
    ] {
        assert_eq!(pages.decide(&who, &application, &fields).status, 403, "{fields:?}");
    }
    assert_eq!(pages.state(&application).json()["state"], "pending");
    let who = registry.reviewer();
    has(&pages.get(&who, "/admin/"), &["/admin/registrations"]);
    assert_eq!(pages.get(&who, &by_id("/admin-public.bin")).body, public_key("admin_rsa"));
    let site = pages.get(&who, &by_id("/siteinfo.json")).json();
    assert_eq!(site["servers"][0]["address"], "203.0.112.7");
}

#[test]
fn forms_of_other_sites_do_nothing_and_pages_are_guarded() {
    let registry = registry();
    let pages = registry.pages;
    let (kind, body) = multipart(&[], &bundle());
    for origin in ["https://evil.example", "http://localhost", "null"] {
        let headers = format!("Origin: {origin}\r\n{kind}");
        assert_eq!(pages.ask("POST", "/register", &headers, &body).status, 403, "{origin}");
    }
    assert!(registry.files().is_empty());
    let application = pages.stored(&[("prefix", "TST.CSRF")], &bundle());
    let who = registry.reviewer();
    let forged = SignedInUser { csrf: "x".to_owned(), ..who.clone() };
    let accept = [("action", "accept"), ("prefix", "TST.CSRF")];
    assert_eq!(pages.decide(&forged, &application, &accept).status, 403);
    let body = format!("id={}&action=accept&prefix=TST.CSRF&csrf={}", application.id, who.csrf);
    let headers = format!("{FORM}Origin: https://evil.example\r\n{}", who.cookie);
    assert_eq!(pages.ask("POST", "/admin/registration", &headers, body.as_bytes()).status, 403);
    assert_eq!(pages.state(&application).json()["state"], "pending");
    // The URL of a request is a secret. Without a referrer, forms would have no origin.
    for (target, referrer) in [("/register", "same-origin"), (&*application.path, "no-referrer")] {
        let page = pages.ask("GET", target, "Origin: https://evil.example\r\n", b"");
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("script-src"), "{policy}");
        assert!(policy.contains("form-action 'self';") && !page.text().contains("<script"), "{policy}");
        let others = ["cache-control", "referrer-policy", "access-control-allow-origin", "set-cookie"];
        let others = others.map(|name| page.header(name));
        assert_eq!(others, [Some("no-store"), Some(referrer), None, None], "{target}");
    }
    let plain = get(pages.address, &application.path, "");
    let https = format!("https://localhost{}", application.path);
    assert_eq!((plain.status, plain.header("location")), (307, Some(&*https)));
    let (_, body) = multipart(&[], &bundle());
    let head = format!(
        "POST /register HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let refused = exchange(pages.address, &[head.as_bytes(), &body].concat());
    assert!(refused.starts_with(b"HTTP/1.1 403 "), "personal data is sent over TLS only");
    let put = pages.ask("PUT", "/register", "", b"");
    assert_eq!((put.status, put.header("allow")), (405, Some("GET, HEAD, POST, OPTIONS")));
    for path in ["/register/other", "/register/request", "/register/request?token=x"] {
        assert_eq!(pages.ask("GET", path, "", b"").status, 404, "{path}");
    }
}

#[test]
fn limits_hold_at_their_edges() {
    const BUNDLE_LEN_MAX: usize = 64 << 10;
    const UNPACKED_LEN_MAX: usize = 256 << 10;
    const FIELD_LEN_MAX: usize = 1024;
    let (site, key) = (site(), public_key("admin_rsa"));
    let with_third =
        |bytes: &[u8]| packed(&[("siteinfo.bin", &site), ("admpub.bin", &key), ("repl_admin", bytes)]);
    let mut noise = vec![0; BUNDLE_LEN_MAX];
    rand::rngs::StdRng::seed_from_u64(1).fill(&mut noise[..]);
    let first = BUNDLE_LEN_MAX - with_third(&[]).len() - 100;
    let mut archives = (first..noise.len()).map(|len| with_third(&noise[..len]));
    let large = archives.find(|archive| archive.len() >= BUNDLE_LEN_MAX).unwrap();
    assert_eq!(large.len(), BUNDLE_LEN_MAX);
    let email = ("email", "a@example.org");
    let note = |len| "x".repeat(len);
    let expect = |registry: &Registry, note: &str, bundle: &[u8], status: u16| {
        let answer = registry.pages.apply("", &[email, ("note", note)], bundle);
        assert_eq!(answer.status, status, "{} bytes: {}", bundle.len(), answer.text());
    };
    let exact = registry();
    expect(&exact, &note(FIELD_LEN_MAX), &large, 303);
    expect(&exact, &note(FIELD_LEN_MAX + 1), &large, 413);
    expect(&exact, "", &[&large[..], b"x"].concat(), 413);
    assert_eq!(exact.files().len(), 1);
    let third_len = UNPACKED_LEN_MAX - site.len() - key.len();
    expect(&exact, "", &with_third(&vec![0; third_len]), 303);
    expect(&exact, "", &with_third(&vec![0; third_len + 1]), 400);
    for (count, is_too_many) in [(8, false), (9, true)] {
        let names: Vec<String> = (0..count).map(|at| format!("f{at}")).collect();
        let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b""[..])).collect();
        let answer = exact.pages.apply("", &[email], &packed(&entries));
        assert_eq!((answer.status, answer.text().contains("too many entries")), (400, is_too_many));
    }
    // Three undecided requests of a source.
    let many = registry_with(|config| config.registration.forms_per_hour = 9);
    let (pages, who, small) = (many.pages, many.reviewer(), with_third(b""));
    let first = pages.stored(&[], &bundle());
    expect(&many, "", &small, 303);
    expect(&many, "", &small, 303);
    expect(&many, "", &small, 429);
    assert_eq!(pages.decide(&who, &first, &[("action", "refuse"), ("reason", "no")]).status, 303);
    expect(&many, "", &small, 303);
    has(&pages.get(&who, "/admin/registrations"), &["4 requests"]);
    assert_eq!(pages.decide(&who, &first, &[("action", "delete"), ("confirmed", "true")]).status, 303);
    expect(&many, "", &small, 429);
    let few = registry_with(|config| config.registration.forms_per_hour = 2);
    expect(&few, "", &small, 303);
    expect(&few, "", b"wrong", 400);
    let limited = few.pages.apply("", &[], &bundle());
    let retry_after: u32 = limited.header("retry-after").unwrap().parse().unwrap();
    assert!(limited.status == 429 && (1000..=1800).contains(&retry_after), "{retry_after}");
    let exempt = registry_with(|config| {
        config.registration.forms_per_hour = 1;
        config.request_rate.exempt = vec!["127.0.0.0/8".to_owned()];
    });
    assert_eq!([exempt.status(&[], &bundle()), exempt.status(&[], b"wrong")], [303, 400]);
}

#[test]
fn hostile_and_wrong_archives_are_refused() {
    let registry = registry_with(|config| config.registration.forms_per_hour = 3000);
    let (site, key, good) = (site(), public_key("admin_rsa"), bundle());
    let bomb = packed(&[("siteinfo.bin", &site), ("admpub.bin", &key), ("repl_admin", &vec![0; 32 << 20])]);
    assert!(bomb.len() < 64 << 10, "{}", bomb.len());
    let many: Vec<String> = (0..400).map(|at| format!("f{at}")).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|name| (&**name, &b""[..])).collect();
    let nested = packed(&[("siteinfo.bin", &good), ("admpub.bin", &good)]);
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    let cases: [(&str, Vec<u8>, &str); 12] = [
        ("a bomb", bomb, "too long"),
        ("many entries", packed(&many), "too many entries"),
        ("no archive", b"MZ\x90\0".to_vec(), "not a ZIP archive"),
        ("nothing", Vec::new(), "Choose the file"),
        ("archives in an archive", nested, "siteinfo.bin is not a site record"),
        ("a changed byte", flipped, "not a ZIP archive, or is incomplete"),
        ("another directory", packed(&[("../../siteinfo.bin", &site)]), "../../siteinfo.bin"),
        ("an absolute path", packed(&[("/etc/passwd", &site)]), "/etc/passwd"),
        ("markup in a name", packed(&[("<script>\u{1b}", &site)]), "&#60;script&#62;"),
        ("no key", packed(&[("siteinfo.bin", &site)]), "has no admpub.bin"),
        ("another key", packed(&[("siteinfo.bin", &site), ("admpub.bin", b"ssh-rsa")]), "not a public key"),
        (
            "a contact",
            packed(&[("siteinfo.bin", &site), ("admpub.bin", &key), ("contactdata.dct", b"{ a")]),
            "contactdata.dct: line 1",
        ),
    ];
    for (what, bundle, text) in cases {
        let answer = registry.pages.apply("", &[("email", "a@example.org"), ("name", "kept")], &bundle);
        assert_eq!(answer.status, 400, "{what}");
        has(&answer, &[text, "role=\"alert\"", "value=\"kept\""]);
        let message = registry.pages.apply("Accept: application/json\r\n", &[], &bundle).json();
        assert!(message["message"].is_string(), "{what}: {message}");
    }
    for len in (0..good.len()).step_by(37) {
        assert_eq!(registry.status(&[], &good[..len]), 400, "cut to {len}");
    }
    for (fields, status) in [
        (&[("prefix", "no prefix")][..], 400),
        (&[("email", "nobody")], 400),
        (&[("name", "a\u{7}")], 400),
        (&[("surprise", "x")], 400),
        (&[("name", "a"), ("name", "b")], 400),
    ] {
        assert_eq!(registry.status(fields, &good), status, "{fields:?}");
    }
    let weak = [FORM, "Content-Type: text/plain\r\n", "Content-Type: multipart/form-data\r\n"];
    for kind in weak {
        assert_eq!(registry.pages.ask("POST", "/register", kind, b"prefix=10").status, 400, "{kind}");
    }
    assert!(registry.files().is_empty());
    assert_eq!(registry.gateway.gateway.state().counters.bugs.get(), 0);
    assert!(registry.gateway.gateway.state().counters.registration_forms_refused.get() > 40);
    assert_eq!(registry.status(&[], &good), 303);
}

#[test]
fn without_a_directory_nothing_is_registered() {
    let without = registry_with(|config| config.registration.directory = None);
    let page = without.pages.ask("GET", "/register", "", b"");
    assert!(page.status != 200 && !page.text().contains("Register a prefix"), "{}", page.text());
    let who = without.reviewer();
    assert_eq!(without.pages.get(&who, "/admin/registrations").status, 404);
    assert!(!without.pages.get(&who, "/admin/").text().contains("registrations"));
}

#[test]
fn while_handle_admin_is_away_nothing_is_decided_by_half() {
    let mut registry = registry();
    let (pages, who) = (registry.pages, registry.reviewer());
    let application = pages.stored(&[("prefix", "TST.AWAY")], &bundle());
    registry.administration.stop();
    let unanswered = pages.decide(&who, &application, &[("action", "accept"), ("prefix", "TST.AWAY")]);
    assert_eq!(unanswered.status, 502, "{}", unanswered.text());
    has(
        &unanswered,
        &["The prefix TST.AWAY was accepted, but it is not known whether its record was created."],
    );
    assert_eq!(pages.state(&application).json()["state"], "pending");
    for fields in [[("action", "refuse"), ("reason", "x")], [("action", "delete"), ("confirmed", "true")]] {
        assert_eq!(pages.decide(&who, &application, &fields).status, 409, "{fields:?}");
    }
}
