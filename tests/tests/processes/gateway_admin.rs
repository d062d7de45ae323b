//! The administration pages of `handle-gateway` from outside, as a browser without scripts uses
//! them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_gateway::Config;
use handle_proto::code::DigestAlgorithm;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, ask_over_tls, exchange, serve_over_http, use_tls,
};
use handle_tests::needs::{TestNeed, has};
use handle_tests::vectors::{VectorSource, fixture, hex};
use tempfile::TempDir;

const IDENTITY: &str = "300:0.NA/TST";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

struct ServedPages {
    gateway: GatewayServer,
    administration: AdminServer,
    _directory: TempDir,
}

/// Somebody who is signed in.
struct SignedInUser {
    cookie: String,
    csrf: String,
}

fn pages_with(change: impl FnOnce(&mut Config)) -> ServedPages {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.socket");
    let administration = administer_with("root", |config| {
        config.local.socket = Some(socket.clone());
    });
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
        config.admin.socket = Some(socket);
        use_tls(config, directory.path());
        change(config);
    });
    ServedPages { gateway, administration, _directory: directory }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn fields(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

/// What stands behind `before` in a page, up to a quote.
fn quoted<'p>(page: &'p str, before: &str) -> &'p str {
    let (_, rest) = page.split_once(before).unwrap_or_else(|| panic!("no {before} in {page}"));
    rest.split('"').next().unwrap()
}

impl ServedPages {
    fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        ask_over_tls(self.gateway.address(), method, target, headers, body)
    }

    fn sign_in(&self, body: &str) -> HttpAnswer {
        self.ask("POST", "/admin/sign-in", &format!("{FORM}Origin: https://localhost\r\n"), body)
    }

    fn with_secret(&self) -> SignedInUser {
        let answer = self.sign_in(&fields(&[("id", "301:0.NA/TST"), ("secret", "open sesame open")]));
        self.signed_in(&answer)
    }

    /// The form that a browser sends after it has signed; with it, the session of the form.
    fn key_form(&self) -> (String, String) {
        let page = self.ask("GET", "/admin/sign-in", "", "").text();
        let session = quoted(&page, "name=\"sessionId\" value=\"").to_owned();
        let nonce = BASE64.decode(quoted(&page, "data-nonce=\"").as_bytes()).unwrap();
        let record = hex(&fixture("servers.json")["keys"]["admin_rsa"]["handle_private_hex"]);
        let key = PrivateKey::from_record(&record).unwrap();
        let signature = BASE64.encode(&key.sign(DigestAlgorithm::SHA256, &[&nonce, b"c"]).unwrap());
        let client_nonce = BASE64.encode(b"c");
        let body = fields(&[
            ("sessionId", &session),
            ("id", IDENTITY),
            ("type", "HS_PUBKEY"),
            ("alg", "SHA256"),
            ("cnonce", &client_nonce),
            ("signature", &signature),
        ]);
        (session, body)
    }

    /// An administrator of the server, with a key.
    fn with_key(&self) -> SignedInUser {
        let answer = self.sign_in(&self.key_form().1);
        self.signed_in(&answer)
    }

    fn signed_in(&self, answer: &HttpAnswer) -> SignedInUser {
        assert_eq!((answer.status, answer.header("location")), (303, Some("/admin/")), "{}", answer.text());
        let set = answer.header("set-cookie").unwrap();
        for part in ["__Host-", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
            assert!(set.contains(part), "{set}");
        }
        let cookie = format!("Cookie: {}\r\n", set.split(';').next().unwrap());
        let page = self.ask("GET", "/admin/", &cookie, "");
        assert_eq!(page.status, 200);
        SignedInUser { csrf: quoted(&page.text(), "name=\"csrf\" value=\"").to_owned(), cookie }
    }

    fn get(&self, who: &SignedInUser, target: &str) -> HttpAnswer {
        self.ask("GET", target, &who.cookie, "")
    }

    fn post(&self, who: &SignedInUser, target: &str, pairs: &[(&str, &str)]) -> HttpAnswer {
        let body = format!("{}&csrf={}", fields(pairs), encoded(&who.csrf));
        self.ask("POST", target, &format!("{FORM}Origin: https://localhost\r\n{}", who.cookie), &body)
    }
}

fn value<'a>(was: &'a str, index: &'a str, kind: &'a str, data: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("was", was),
        ("index", index),
        ("type", kind),
        ("format", "text"),
        ("data", data),
        ("ttl", "60"),
        ("permissions", "1110"),
    ]
}

#[test]
fn records_are_created_changed_copied_and_deleted() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    let first = value("", "1", "URL", "https://example.org/<one>");
    let new = [vec![("handle", "TST/PAGE"), ("new", "true"), ("action", "save")], first.clone()].concat();
    let created = pages.post(&who, "/admin/record", &new);
    assert_eq!(
        (created.status, created.header("location")),
        (303, Some("/admin/record?handle=TST/PAGE&done=created")),
        "{}",
        created.text()
    );
    let page = pages.get(&who, "/admin/record?handle=TST/PAGE&done=created").text();
    for text in
        ["Created.", "https://example.org/&#60;one&#62;", " TST/PAGE 1:URL=https://example.org/", "curl -u "]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(pages.post(&who, "/admin/record", &new).status, 409, "it exists");
    let changed = [
        vec![("handle", "TST/PAGE"), ("action", "save"), ("remove", "1")],
        value("1", "1", "URL", "https://example.org/"),
        value("", "2", "DESC", "two"),
    ];
    assert_eq!(pages.post(&who, "/admin/record", &changed.concat()).status, 303);
    let page = pages.get(&who, "/admin/record?handle=TST/PAGE").text();
    assert!(page.contains("DESC") && !page.contains("https://example.org/&#60;one"), "{page}");
    let copy = pages.get(&who, "/admin/record?handle=TST/PAGE&clone=true").text();
    assert!(copy.contains("name=\"new\"") && copy.contains("name=\"was\" value=\"\""), "{copy}");
    let more = [vec![("handle", "TST/PAGE"), ("action", "more")], value("2", "2", "DESC", "two")].concat();
    let more = pages.post(&who, "/admin/record", &more);
    assert_eq!((more.status, more.text().matches("name=\"was\"").count()), (200, 2));
    let delete = [("handle", "TST/PAGE"), ("action", "delete")];
    assert_eq!(pages.post(&who, "/admin/record", &delete).status, 400, "not confirmed");
    let confirmed = [delete.to_vec(), vec![("confirmed", "true")]].concat();
    assert_eq!(pages.post(&who, "/admin/record", &confirmed).status, 303);
    assert_eq!(pages.get(&who, "/admin/record?handle=TST/PAGE").status, 404);
}

#[test]
fn records_are_listed_by_the_beginning_of_their_names() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    let rows = (0..100).map(|at| format!("TST/LIST-{at},1,URL,https://example.org/\n"));
    let csv = "handle,index,type,data\n".to_owned() + &rows.collect::<String>();
    let uploaded = pages.post(&who, "/admin/upload", &[("records", &csv)]).text();
    assert!(uploaded.contains("100 done"), "{uploaded}");
    let page = pages.get(&who, "/admin/?prefix=TST").text();
    assert!(page.contains("page=1") && page.matches("<li><a href=\"/admin/record?").count() == 100, "{page}");
    let some = pages.get(&who, "/admin/?prefix=tst/half").text();
    assert!(some.contains("record?handle=TST/HALF") && !some.contains("page=1"), "{some}");
    assert_eq!(pages.get(&who, "/admin/?prefix=99.999").status, 400);
}

#[test]
fn uploads_say_what_became_of_each_record() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    let csv =
        "handle,index,type,data\nTST/U1,1,URL,https://example.org/1\nTST/U2,0,URL,x\nOTHER/U3,1,URL,y\n";
    let answer = pages.post(&who, "/admin/upload", &[("records", csv)]);
    let page = answer.text();
    assert!(answer.status == 200 && page.contains("1 done, 2 failed"), "{page}");
    assert!(page.contains("TST/U1,done,1,"), "{page}");
    assert_eq!(pages.get(&who, "/admin/record?handle=TST/U1").status, 200);
    let again = pages.post(&who, "/admin/upload", &[("records", csv)]).text();
    assert!(again.contains("TST/U1,failed,101,"), "{again}");
    let replaced = pages.post(&who, "/admin/upload", &[("records", csv), ("replace", "true")]).text();
    assert!(replaced.contains("TST/U1,done,1,"), "{replaced}");
    let many = (0..998).map(|at| format!("TST/MANY-{at},1,URL,z\n")).collect::<String>();
    let many = csv.to_owned() + &many;
    assert_eq!(pages.post(&who, "/admin/upload", &[("records", &many)]).status, 400);
    let file = pages.post(&who, "/admin/result.csv", &[("result", "handle,status\n")]);
    assert_eq!(file.header("content-disposition"), Some("attachment; filename=\"result.csv\""));
    assert_eq!(file.body, b"handle,status\n");
}

#[test]
fn an_upload_of_many_records_is_few_commits() {
    let pages = pages_with(|_| ());
    for (user, who) in [("A", pages.with_key()), ("B", pages.with_secret())] {
        let rows = (0..300).map(|at| format!("TST/UP-{user}{at},1,URL,https://example.org/{at}\n"));
        let csv = format!(
            "handle,index,type,data\n{}TST/BAD,0,URL,x\nOTHER/U,1,URL,y\nTST/X,1",
            String::from_iter(rows)
        );
        let csv = format!("{csv},URL,{}\n", "x".repeat(300_000));
        let commits = || pages.administration.server().shared().service.store.commits().commits;
        let before = commits();
        let answer = pages.post(&who, "/admin/upload", &[("records", &csv), ("replace", "true")]);
        let page = answer.text();
        assert!(answer.status == 200 && page.contains("300 done, 3 failed"), "{page}");
        for row in [
            &*format!("TST/UP-{user}0,done,1,"),
            &*format!("TST/UP-{user}299,done,1,"),
            "TST/BAD,failed,",
            "OTHER/U,failed,301,",
            "TST/X,failed,202,",
        ] {
            assert!(page.contains(row), "{row}: {page}");
        }
        assert!(commits() - before <= 3, "{} commits", commits() - before);
        assert_eq!(pages.get(&who, &format!("/admin/record?handle=TST/UP-{user}299")).status, 200);
    }
    let who = pages.with_key();
    let csv = "handle,index,type,data\nTST/UP-A0,1,URL,https://example.org/\nTST/UP-NEW,1,URL,x\n";
    let page = pages.post(&who, "/admin/upload", &[("records", csv)]).text();
    assert!(page.contains("TST/UP-A0,failed,101,") && page.contains("TST/UP-NEW,done,1,"), "{page}");
}

/// The administrators of a record, as the page of the record shows them.
fn administrators(pages: &ServedPages, who: &SignedInUser, handle: &str) -> usize {
    let page = pages.get(who, &format!("/admin/record?handle={handle}"));
    assert_eq!(page.status, 200, "{handle}: {}", page.text());
    page.text().matches("&#34;format&#34;: &#34;admin&#34;").count()
}

#[test]
fn uploads_make_no_record_that_nobody_can_change() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    let admin = r#"{""handle"":""0.NA/TST"",""index"":300,""permissions"":""011111110011""}"#;
    let csv = format!(
        "handle,index,type,data\nTST/M1,1,URL,x\nTST/M2,1,URL,x\nTST/M3,1,URL,x\nTST/M1,100,HS_ADMIN,\"{admin}\"\n\
         TST/M2,100,HS_ADMIN,300:0.NA/TST\nTST/M3,100,HS_ADMIN,somebody\n"
    );
    let page = pages.post(&who, "/admin/upload", &[("records", &csv)]).text();
    assert!(page.contains("2 done, 1 failed") && page.contains("not an administrator"), "{page}");
    let moved = "handle,index,type,data\nTST/M1,1,URL,moved\nTST/M2,1,URL,moved\nTST/M2,2,DESC,moved\n";
    let page = pages.post(&who, "/admin/upload", &[("records", moved), ("replace", "true")]).text();
    assert!(page.contains("2 done, 0 failed"), "{page}");
    for handle in ["TST/M1", "TST/M2"] {
        assert_eq!(administrators(&pages, &who, handle), 1, "{handle}");
    }
    let taken = "handle,index,type,data\nTST/M1,100,URL,x\n";
    let replace = [("records", taken), ("replace", "true")];
    let page = pages.post(&who, "/admin/upload", &replace).text();
    assert!(page.contains("TST/M1,failed,202,") && page.contains("last HS_ADMIN"), "{page}");
    let orphans = [replace.to_vec(), vec![("allow_orphans", "true")]].concat();
    let page = pages.post(&who, "/admin/upload", &orphans).text();
    assert!(page.contains("TST/M1,done,1,"), "{page}");
    assert_eq!(administrators(&pages, &who, "TST/M1"), 0);
}

#[test]
fn the_page_of_a_record_keeps_its_last_administrator() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    let csv = "handle,index,type,data\nTST/LAST,1,URL,x\nTST/LAST,100,HS_ADMIN,300:0.NA/TST\n";
    pages.post(&who, "/admin/upload", &[("records", csv)]);
    let change = |fields: Vec<(&str, &str)>| {
        let fields = [vec![("handle", "TST/LAST"), ("action", "save")], fields].concat();
        pages.post(&who, "/admin/record", &fields)
    };
    let removal = [value("100", "100", "HS_ADMIN", "300:0.NA/TST"), vec![("remove", "100")]].concat();
    for refused in [change(removal.clone()), change(value("100", "100", "DESC", "no longer"))] {
        assert!(refused.status == 400 && refused.text().contains("last HS_ADMIN"), "{}", refused.text());
        assert_eq!(administrators(&pages, &who, "TST/LAST"), 1);
    }
    let text = change(value("100", "100", "HS_ADMIN", "somebody"));
    assert!(text.status == 400 && text.text().contains("not an administrator"), "{}", text.text());
    let allowed = change([removal, vec![("allow_orphans", "true")]].concat());
    assert_eq!((allowed.status, administrators(&pages, &who, "TST/LAST")), (303, 0), "{}", allowed.text());
}

/// The script sends an upload in parts, each of which replaces whole records.
#[test]
fn the_script_keeps_the_rows_of_a_record_together() {
    let script = include_str!("../../../engine/console/src/pages/admin.js");
    let start = script.find("  const columnsOf").unwrap();
    let end = script.find("  // The parts in which").unwrap();
    let tables = [
        "handle,index,type,data\na/1,1,URL,x\na/2,1,URL,y\na/1,2,DESC,\"two\nlines, a/2\"\n",
        "index,Handle,type,data\r\n1,a/1,URL,x\r\n1,a/2,URL,y\r\n2,a/1,URL,z",
        "\u{feff}sep=;\nindex;handle\n1;\"a/1,;x\"\n2;a/2\n# comment\n3;\"a/1,;x\"\n",
        "{\"handle\": 1}\n\n{\"handle\": 2}",
    ];
    let code = format!(
        "{}\nprocess.stdout.write(JSON.stringify({}.map(splitRecords)))",
        &script[start..end],
        serde_json::to_string(&tables).unwrap()
    );
    let ran = std::process::Command::new("node").arg("-e").arg(code).output();
    if !has(TestNeed::Node, ran.is_ok()) {
        return;
    }
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let split: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let expected = [
        ("handle,index,type,data", ["a/1,1,URL,x\na/1,2,DESC,\"two\nlines, a/2\"", "a/2,1,URL,y"]),
        ("index,Handle,type,data", ["1,a/1,URL,x\n2,a/1,URL,z", "1,a/2,URL,y"]),
        ("sep=;\nindex;handle", ["1;\"a/1,;x\"\n3;\"a/1,;x\"", "2;a/2"]),
        ("", ["{\"handle\": 1}", "{\"handle\": 2}"]),
    ];
    let expected =
        expected.map(|(header, records)| serde_json::json!({ "header": header, "records": records }));
    assert_eq!(split, serde_json::json!(expected));
}

#[test]
fn an_upload_that_nobody_takes_says_so_for_each_record() {
    let pages = pages_with(|_| ());
    let who = pages.with_key();
    std::fs::remove_file(pages.administration.config.local.socket.as_ref().unwrap()).unwrap();
    let csv = "handle,index,type,data\nTST/U1,1,URL,x\nTST/U2,1,URL,x\n";
    let answer = pages.post(&who, "/admin/upload", &[("records", csv)]);
    let page = answer.text();
    assert!(answer.status == 200 && page.contains("0 done, 2 failed"), "{page}");
    assert!(page.contains("TST/U1,failed,2,") && page.contains("TST/U2,failed,2,"), "{page}");
    assert_eq!(pages.get(&who, "/admin/record?handle=TST/U1").status, 404);
}

#[test]
fn a_key_signs_in_without_being_sent() {
    let pages = pages_with(|_| ());
    let (session, body) = pages.key_form();
    let answer = pages.sign_in(&body);
    let who = pages.signed_in(&answer);
    assert!(!who.cookie.contains(&session), "the cookie has another id than the form");
    assert!(pages.get(&who, "/admin/").text().contains(IDENTITY));
    assert_eq!(pages.sign_in(&body).status, 403, "used");
    let out = pages.post(&who, "/admin/sign-out", &[]);
    assert!(out.header("set-cookie").unwrap().ends_with("Max-Age=0"));
    assert_eq!(pages.get(&who, "/admin/").status, 303, "signed out");
}

#[test]
fn forms_of_other_sites_and_without_a_token_do_nothing() {
    let pages = pages_with(|_| ());
    let who = pages.with_secret();
    let change =
        [vec![("handle", "TST/FORGED"), ("new", "true"), ("action", "save")], value("", "1", "URL", "x")];
    let change = fields(&change.concat());
    let post = |headers: &str, body: &str| {
        pages.ask("POST", "/admin/record", &format!("{FORM}{headers}{}", who.cookie), body).status
    };
    let with_token = format!("{change}&csrf={}", encoded(&who.csrf));
    assert_eq!(post("Origin: https://localhost\r\n", &change), 403, "no token");
    assert_eq!(post("Origin: https://localhost\r\n", &format!("{change}&csrf=x")), 403, "a wrong token");
    for origin in ["https://evil.example", "http://localhost", "null", "https://localhost.evil.example"] {
        assert_eq!(post(&format!("Origin: {origin}\r\n"), &with_token), 403, "{origin}");
    }
    let other = pages.with_secret();
    let foreign = format!("{change}&csrf={}", encoded(&other.csrf));
    assert_eq!(post("Origin: https://localhost\r\n", &foreign), 403, "the token of another session");
    assert_eq!(pages.get(&who, "/admin/record?handle=TST/FORGED").status, 404);
    assert_eq!(post("Origin: https://localhost\r\n", &with_token), 303);
}

#[test]
fn strangers_see_the_form_and_every_page_is_guarded() {
    let pages = pages_with(|_| ());
    for target in ["/admin", "/admin/", "/admin/record?handle=TST/HALF", "/admin/upload"] {
        let answer = pages.ask("GET", target, "Cookie: __Host-handle-session=AAAAAAAAAAAAAAAAAAAAAA\r\n", "");
        assert_eq!((answer.status, answer.header("location")), (303, Some("/admin/sign-in")), "{target}");
    }
    let wrong = pages.sign_in(&fields(&[("id", "301:0.NA/TST"), ("secret", "open barley")]));
    assert!(wrong.status == 403 && wrong.header("set-cookie").is_none());
    assert!(!wrong.text().contains("barley"), "the secret is not repeated");
    let page = pages.ask("GET", "/admin/sign-in", "Origin: https://evil.example\r\n", "");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("script-src 'self';"), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("access-control-allow-origin"), None);
    let plain = exchange(
        pages.gateway.address(),
        b"GET /admin/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let plain = HttpAnswer::split(&plain, false).unwrap().0;
    assert_eq!((plain.status, plain.header("location")), (307, Some("https://localhost/admin/")));
    let script = pages.ask("GET", "/static/admin.js", "", "");
    assert_eq!(script.header("content-type"), Some("text/javascript;charset=utf-8"));
    let without = pages_with(|config| config.admin_pages.enabled = false);
    assert_ne!(without.ask("GET", "/admin/sign-in", "", "").header("content-security-policy"), Some(policy));
    assert_eq!(pages.gateway.gateway.state().counters.bugs.get(), 0);
}

#[test]
fn identities_without_rights_get_an_error() {
    let pages = pages_with(|_| ());
    let answer = pages.sign_in(&fields(&[("id", "305:0.NA/TST"), ("secret", "read only admin")]));
    let who = pages.signed_in(&answer);
    let change =
        [vec![("handle", "TST/NO"), ("new", "true"), ("action", "save")], value("", "1", "URL", "x")];
    let refused = pages.post(&who, "/admin/record", &change.concat());
    assert!(refused.status == 403 && refused.text().contains("This identity may not do that."));
    assert!(refused.text().contains("TST/NO"), "what was typed is still there");
    let new = pages.get(&who, "/admin/new").text();
    assert!(new.contains("HS_ADMIN") && new.contains("305"), "the creator administers a new record");
}
