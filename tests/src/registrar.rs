//! The pages for registrations of prefixes as browsers without scripts use them: by applicants, and
//! by reviewers who sign in with a key.

use crate::gateway_server::{HttpAnswer, connect_over_tls};
use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_proto::code::DigestAlgorithm;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

/// The header with the media type of forms.
pub const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
const OWN_ORIGIN: &str = "Origin: https://localhost\r\n";

/// A gateway whose pages are used.
#[derive(Clone, Copy, Debug)]
pub struct RegistrationPages {
    /// Its address.
    pub address: SocketAddr,
}

/// Somebody who is signed in.
#[derive(Clone, Debug)]
pub struct SignedInUser {
    /// The header with the cookie.
    pub cookie: String,
    /// The token of forms.
    pub csrf: String,
}

/// A request that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredApplication {
    /// Its number.
    pub id: String,
    /// The path of the page of the applicant.
    pub path: String,
}

/// Percent-encodes a field of a form.
#[must_use]
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// What stands behind `before` in a page, up to a quote.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn quoted<'p>(page: &'p str, before: &str) -> &'p str {
    let (_, rest) = page.split_once(before).unwrap_or_else(|| panic!("no {before} in {page}"));
    rest.split('"').next().unwrap_or_default()
}

/// The body of a form with an archive, and the header with its media type.
#[must_use]
pub fn multipart(fields: &[(&str, &str)], bundle: &[u8]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, text) in fields {
        body.extend(
            format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").bytes(),
        );
    }
    let head = "--XX\r\nContent-Disposition: form-data; name=\"bundle\"; filename=\"sitebndl.zip\"\r\n\
                Content-Type: application/zip\r\n\r\n";
    body.extend([head.as_bytes(), bundle, b"\r\n--XX--\r\n"].concat());
    ("Content-Type: multipart/form-data; boundary=XX\r\n".to_owned(), body)
}

impl RegistrationPages {
    /// Sends a request over TLS, and returns the answer.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, method: &str, target: &str, headers: &str, body: &[u8]) -> HttpAnswer {
        let len = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n"
        );
        let mut stream = connect_over_tls(self.address);
        // A server that refuses a body may close before it has read all of it.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let split = HttpAnswer::split(&answer, method == "HEAD");
        split.unwrap_or_else(|| panic!("{target}: {}", String::from_utf8_lossy(&answer))).0
    }

    /// Sends the form of an applicant.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn apply(&self, headers: &str, fields: &[(&str, &str)], bundle: &[u8]) -> HttpAnswer {
        let (kind, body) = multipart(fields, bundle);
        self.ask("POST", "/register", &format!("{OWN_ORIGIN}{kind}{headers}"), &body)
    }

    /// Sends the form of an applicant, which is stored.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn stored(&self, fields: &[(&str, &str)], bundle: &[u8]) -> StoredApplication {
        let answer = self.apply("Accept: application/json\r\n", fields, bundle);
        assert_eq!(answer.status, 201, "{}", answer.text());
        let json = answer.json();
        let url = json["url"].as_str().expect("a URL");
        let path = url.strip_prefix("https://localhost").expect("a URL of the gateway").to_owned();
        assert_eq!(answer.header("location"), Some(&*path), "it repeats no host");
        StoredApplication { id: json["id"].as_str().expect("a number").to_owned(), path }
    }

    /// The state of a request, as its applicant sees it.
    #[must_use]
    pub fn state(&self, application: &StoredApplication) -> HttpAnswer {
        self.ask("GET", &application.path, "Accept: application/json\r\n", b"")
    }

    /// Signs in with a key.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn sign_in(&self, identity: &str, key: &PrivateKey) -> SignedInUser {
        let page = self.ask("GET", "/admin/sign-in", "", b"").text();
        let nonce = BASE64.decode(quoted(&page, "data-nonce=\"").as_bytes()).expect("a nonce");
        let signature = key.sign(DigestAlgorithm::SHA256, &[&nonce, b"c"]).expect("a signature");
        self.sign_in_with(&[
            ("sessionId", quoted(&page, "name=\"sessionId\" value=\"")),
            ("id", identity),
            ("type", "HS_PUBKEY"),
            ("alg", "SHA256"),
            ("cnonce", &BASE64.encode(b"c")),
            ("signature", &BASE64.encode(&signature)),
        ])
    }

    /// Signs in with these fields.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn sign_in_with(&self, fields: &[(&str, &str)]) -> SignedInUser {
        let answer =
            self.ask("POST", "/admin/sign-in", &format!("{FORM}{OWN_ORIGIN}"), form(fields).as_bytes());
        let set = answer.header("set-cookie").unwrap_or_else(|| panic!("{}", answer.text()));
        let cookie = format!("Cookie: {}\r\n", set.split(';').next().unwrap_or_default());
        let page = self.ask("GET", "/admin/", &cookie, b"").text();
        SignedInUser { csrf: quoted(&page, "name=\"csrf\" value=\"").to_owned(), cookie }
    }

    /// A page for somebody who is signed in.
    #[must_use]
    pub fn get(&self, who: &SignedInUser, target: &str) -> HttpAnswer {
        self.ask("GET", target, &who.cookie, b"")
    }

    /// The page with a request, for a reviewer.
    #[must_use]
    pub fn review(&self, who: &SignedInUser, application: &StoredApplication) -> HttpAnswer {
        self.get(who, &format!("/admin/registration?id={}", application.id))
    }

    /// Sends a form of a reviewer about a request.
    #[must_use]
    pub fn decide(
        &self,
        who: &SignedInUser,
        application: &StoredApplication,
        fields: &[(&str, &str)],
    ) -> HttpAnswer {
        let fields = [&[("id", &*application.id), ("csrf", &*who.csrf)], fields].concat();
        let headers = format!("{FORM}{OWN_ORIGIN}{}", who.cookie);
        self.ask("POST", "/admin/registration", &headers, form(&fields).as_bytes())
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}
