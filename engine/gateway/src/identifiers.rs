//! Identifiers that are not handles, served below a path: by a template of their URL, or by a back
//! end over HTTP.
//!
//! - The input of a client is percent-encoded in a URL and never has `.` or `..` as a segment, so
//!   neither the host nor the directory of a target depends on it.
//! - A back end has an address in the configuration. Its redirects are passed to the client and
//!   never followed, and its answers are limited in time and length.

mod backend;

pub use backend::{Backend, BackendAnswer, BackendError};

use crate::proxy::config::is_web_url;
use crate::redirect::redirect_target;
use crate::target;
use crate::tls::trust::{TrustError, client_config, client_without_trust};
use anyhow::{Context as _, ensure};
use handle_daemon::settings::{SettingRule, SettingType};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use regex::{Regex, RegexBuilder};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One `[[target]]` of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentifierTarget {
    /// The start of the path, without a slash before it, such as `ark:` or `isbn/`.
    pub path: String,
    /// A regular expression that the whole rest of the path must match.
    pub pattern: Option<String>,
    /// The URL of the target, with `{0}` for the whole rest and `{1}` to `{9}` for the groups of
    /// the pattern.
    pub template: Option<String>,
    /// The URL of a back end, with the same placeholders.
    pub backend: Option<String>,
    /// File of PEM with the authorities that the certificate of a back end over TLS is verified
    /// with; those of the host if not set.
    pub ca_file: Option<PathBuf>,
    /// Timeout for an answer of the back end.
    pub timeout_ms: Option<u32>,
    /// Maximum length of an answer of the back end.
    pub bytes_max: Option<usize>,
    /// Requests to the back end in progress.
    pub requests: Option<usize>,
}

impl SettingType for IdentifierTarget {
    fn type_name() -> String {
        "table".to_owned()
    }

    fn resolve(&mut self, directory: &Path) {
        self.ca_file.resolve(directory);
    }
}

/// The rule for this setting.
pub const TARGETS: SettingRule<Vec<IdentifierTarget>> = SettingRule {
    words: "at most 256; each with `path` and either `template` or `backend`",
    check: |targets| IdentifierRules::check(targets).map_err(|error| format!("has {error:#}")),
};

/// Maximum number of rules.
const RULES_MAX: usize = 256;
/// Maximum size of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 18;
/// Maximum length of an identifier.
const IDENTIFIER_LEN_MAX: usize = 2048;
/// Default limits of a back end.
const TIMEOUT_MS: u32 = 5000;
const BYTES_MAX: usize = 1 << 20;
const REQUESTS: usize = 64;

/// The characters of an identifier that are percent-encoded in a URL.
const NOT_IN_TEMPLATES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

/// The rules of all identifiers.
#[derive(Debug, Default)]
pub struct IdentifierRules(Vec<IdentifierRule>);

#[derive(Debug)]
struct IdentifierRule {
    path: String,
    pattern: Option<Regex>,
    goal: IdentifierGoal,
}

#[derive(Debug)]
enum IdentifierGoal {
    Template(String),
    Backend(Box<Backend>),
}

/// The result of a rule for a path.
#[derive(Debug)]
pub enum IdentifierMatch<'r> {
    /// A redirect to this URL.
    Redirect(String),
    /// A request for this path to a back end.
    Ask(&'r Backend, String),
    /// An identifier that is not allowed in a URL.
    Invalid,
}

impl IdentifierRules {
    /// Compiles the rules, and reads the authorities for back ends over TLS.
    ///
    /// # Errors
    /// The invalid rule and the reason.
    pub fn open(targets: &[IdentifierTarget]) -> anyhow::Result<Self> {
        let mut trusting_host = None;
        Self::new(targets, &mut |ca_file| match (ca_file, &trusting_host) {
            (None, Some(tls)) => Ok(Arc::clone(tls)),
            (None, None) => Ok(Arc::clone(trusting_host.insert(client_config(None)?))),
            (ca_file, _) => client_config(ca_file),
        })
    }

    /// Checks the rules without opening a file.
    ///
    /// # Errors
    /// The invalid rule and the reason.
    pub fn check(targets: &[IdentifierTarget]) -> anyhow::Result<()> {
        Self::new(targets, &mut |_| client_without_trust()).map(|_| ())
    }

    fn new(targets: &[IdentifierTarget], trust: TrustSource<'_>) -> anyhow::Result<Self> {
        ensure!(targets.len() <= RULES_MAX, "{} entries: it may have {RULES_MAX}", targets.len());
        let rules = targets.iter().map(|target| {
            let rule = IdentifierRule::new(target, trust);
            rule.with_context(|| format!("the entry with path {:?}", target.path))
        });
        Ok(Self(rules.collect::<anyhow::Result<_>>()?))
    }

    /// The result of the first rule for a percent-encoded path, which begins with a slash.
    /// Redirects lead only to `schemes`.
    #[must_use]
    pub fn find(&self, path: &str, schemes: &[String]) -> Option<IdentifierMatch<'_>> {
        if self.0.is_empty() {
            return None;
        }
        let path = target::decode(path.strip_prefix('/')?).ok()?;
        self.0.iter().find_map(|rule| rule.apply(&path, schemes))
    }
}

/// Makes a client of TLS that trusts the authorities in a file, or those of the host.
type TrustSource<'t> = &'t mut dyn FnMut(Option<&Path>) -> Result<Arc<ClientConfig>, TrustError>;

impl IdentifierRule {
    fn new(rule: &IdentifierTarget, trust: TrustSource<'_>) -> anyhow::Result<Self> {
        let path = &rule.path;
        let is_own = ["api", "api/", "static/", "admin/"].iter().any(|own| path.starts_with(own));
        ensure!(
            !path.is_empty() && !path.starts_with(|c: char| c == '/' || c.is_ascii_digit()) && !is_own,
            "`path` is empty, begins with a slash or a digit as handles do, or is one of the gateway"
        );
        let compile = |pattern: &String| {
            let anchored = format!("^(?:{pattern})$");
            RegexBuilder::new(&anchored).size_limit(PATTERN_BYTES_MAX).build()
        };
        let pattern = rule.pattern.as_ref().map(compile).transpose().context("`pattern` is not valid")?;
        let groups = pattern.as_ref().map_or(1, Regex::captures_len);
        let check = |template: &str| {
            let remainder = (0..groups.min(10))
                .fold(template.to_owned(), |text, at| text.replace(&format!("{{{at}}}"), ""));
            ensure!(!remainder.contains(['{', '}']), "a place in braces that the pattern does not have");
            Ok(())
        };
        let goal = match (&rule.template, &rule.backend) {
            (Some(template), None) => {
                check(template)?;
                ensure!(rule.ca_file.is_none(), "`ca_file` needs a `backend` that begins with https://");
                let fixed = template.split('{').next().unwrap_or_default();
                // The scheme, and the host if there is one, are fixed.
                let is_url = redirect_target(
                    fixed,
                    b"",
                    &[fixed.split(':').next().unwrap_or_default().to_ascii_lowercase()],
                )
                .is_some();
                let has_path = !fixed.contains("://") || fixed.splitn(4, '/').count() == 4;
                ensure!(
                    is_url && has_path,
                    "`template` must begin with a scheme, and a host followed by a slash"
                );
                IdentifierGoal::Template(template.clone())
            }
            (None, Some(backend)) => {
                check(backend)?;
                let url = backend.split('{').next().unwrap_or_default();
                ensure!(
                    is_web_url(url) && url.splitn(4, '/').count() == 4,
                    "`backend` must begin with http:// or https:// and a host followed by a slash"
                );
                let has_tls = backend.starts_with("https://");
                ensure!(
                    has_tls || rule.ca_file.is_none(),
                    "`ca_file` needs a `backend` that begins with https://"
                );
                let tls = has_tls.then(|| trust(rule.ca_file.as_deref())).transpose()?;
                IdentifierGoal::Backend(Box::new(Backend::new(
                    backend,
                    tls,
                    rule.timeout_ms.unwrap_or(TIMEOUT_MS),
                    rule.bytes_max.unwrap_or(BYTES_MAX),
                    rule.requests.unwrap_or(REQUESTS),
                )?))
            }
            _ => anyhow::bail!("neither or both of `template` and `backend`"),
        };
        Ok(Self { path: path.clone(), pattern, goal })
    }

    fn apply<'r>(&'r self, path: &str, schemes: &[String]) -> Option<IdentifierMatch<'r>> {
        let head = path.get(..self.path.len()).filter(|head| head.eq_ignore_ascii_case(&self.path))?;
        let rest = &path[head.len()..];
        if rest.is_empty() {
            return None;
        }
        let groups: Vec<&str> = match &self.pattern {
            Some(pattern) => {
                let captures = pattern.captures(rest)?;
                captures.iter().map(|group| group.map_or("", |group| group.as_str())).collect()
            }
            None => vec![rest],
        };
        let has_dot_segment = rest.split('/').any(|segment| matches!(segment, "." | ".."));
        if rest.len() > IDENTIFIER_LEN_MAX || has_dot_segment || rest.contains(char::is_control) {
            return Some(IdentifierMatch::Invalid);
        }
        Some(match &self.goal {
            IdentifierGoal::Template(template) => {
                match redirect_target(&filled(template, &groups), b"", schemes) {
                    Some(target) => IdentifierMatch::Redirect(target.into()),
                    None => IdentifierMatch::Invalid,
                }
            }
            IdentifierGoal::Backend(backend) => {
                IdentifierMatch::Ask(backend, filled(backend.path_template(), &groups))
            }
        })
    }
}

/// The template with the percent-encoded groups in place of its placeholders. Braces in a group
/// have no effect.
fn filled(template: &str, groups: &[&str]) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let number = rest.get(1..2).and_then(|digit| digit.parse::<usize>().ok());
        match number.filter(|_| rest.get(2..3) == Some("}")) {
            Some(number) => {
                let group = groups.get(number).copied().unwrap_or_default();
                text.extend(utf8_percent_encode(group, NOT_IN_TEMPLATES));
                rest = &rest[3..];
            }
            None => {
                text.push('{');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::SCHEMES;

    fn rules(toml_text: &str) -> anyhow::Result<IdentifierRules> {
        #[derive(Deserialize)]
        struct Targets {
            target: Vec<IdentifierTarget>,
        }
        let targets = toml::from_str::<Targets>(toml_text)?.target;
        IdentifierRules::new(&targets, &mut |_| client_without_trust())
    }

    fn shown(rules: &IdentifierRules, path: &str) -> String {
        match rules.find(path, &SCHEMES.map(str::to_owned)) {
            None => "none".to_owned(),
            Some(IdentifierMatch::Redirect(url)) => url,
            Some(IdentifierMatch::Ask(_, path)) => format!("ask {path}"),
            Some(IdentifierMatch::Invalid) => "invalid".to_owned(),
        }
    }

    #[test]
    fn paths_lead_to_filled_templates() {
        let rules = rules(
            "[[target]]\npath = 'ark:'\npattern = '/?([0-9]{5})/(.+)'\ntemplate = 'https://n2t.example/ark:{1}/{2}?q={0}'\n\
             [[target]]\npath = 'isbn/'\ntemplate = 'urn:isbn:{0}'\n\
             [[target]]\npath = 'orcid/'\nbackend = 'http://127.0.0.1:9/people?id={0}'\n",
        )
        .unwrap();
        for (path, target) in [
            ("/ark:/12345/x", "https://n2t.example/ark:12345/x?q=/12345/x"),
            ("/ARK:12345/a%20b%26c%3Fd", "https://n2t.example/ark:12345/a%20b%26c%3Fd?q=12345/a%20b%26c%3Fd"),
            ("/ark:12345/{1}", "https://n2t.example/ark:12345/%7B1%7D?q=12345/%7B1%7D"),
            ("/ark:12345/../x", "invalid"),
            ("/ark:12345/%2e%2e/x", "invalid"),
            ("/ark:12345/a%0Ab", "none"),
            ("/ark:abc/x", "none"),
            ("/isbn/978-3", "urn:isbn:978-3"),
            ("/isbn/", "none"),
            ("/isbn/%ff", "none"),
            ("/orcid/0000-1&x=y", "ask /people?id=0000-1%26x%3Dy"),
            ("/orcid/..%2Fadmin", "invalid"),
            ("/20.500.1/x", "none"),
        ] {
            assert_eq!(shown(&rules, path), target, "{path}");
        }
        let long = format!("/isbn/{}", "9".repeat(IDENTIFIER_LEN_MAX + 1));
        assert_eq!(shown(&rules, &long), "invalid");
    }

    #[test]
    fn rules_that_leave_the_host_to_the_client_are_refused() {
        let [path, one, scheme, backend, ca_file] = [
            "`path` is empty",
            "neither or both",
            "`template` must begin with a scheme",
            "`backend` must begin with http",
            "`ca_file` needs",
        ];
        for (bad, why) in [
            ("path = ''\ntemplate = 'https://a.example/{0}'", path),
            ("path = '/x'\ntemplate = 'https://a.example/{0}'", path),
            ("path = '10.5/'\ntemplate = 'https://a.example/{0}'", path),
            ("path = 'api/x'\ntemplate = 'https://a.example/{0}'", path),
            ("path = 'x'", one),
            ("path = 'x'\ntemplate = 'https://a.example/{0}'\nbackend = 'http://a.example/{0}'", one),
            ("path = 'x'\ntemplate = 'https://{0}/'", scheme),
            ("path = 'x'\ntemplate = 'https://a.example{0}'", scheme),
            ("path = 'x'\ntemplate = '{0}'", scheme),
            ("path = 'x'\ntemplate = 'https://a.example/{1}'", "a place in braces"),
            ("path = 'x'\npattern = '('\ntemplate = 'https://a.example/{0}'", "unclosed group"),
            (
                "path = 'x'\npattern = '(\\w{1000}){1000}'\ntemplate = 'https://a.example/{0}'",
                "exceeds size limit",
            ),
            ("path = 'x'\nbackend = 'http://{0}/'", backend),
            ("path = 'x'\nbackend = 'https://{0}/'", backend),
            ("path = 'x'\nbackend = 'https://a.example{0}/'", backend),
            ("path = 'x'\nbackend = 'http://a.example/{0}'\nca_file = 'ca.pem'", ca_file),
            ("path = 'x'\ntemplate = 'https://a.example/{0}'\nca_file = 'ca.pem'", ca_file),
            ("path = 'x'\nbackend = 'file:///etc/{0}'", backend),
            ("path = 'x'\nbackend = 'http://a.example/{0}'\nrequests = 0", "requests"),
        ] {
            let refused = format!("{:#}", rules(&format!("[[target]]\n{bad}")).unwrap_err());
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }

    #[test]
    fn authorities_are_read_when_rules_are_opened_and_not_when_they_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let target = |ca_file: &str| {
            let mut target = IdentifierTarget {
                path: "x".to_owned(),
                backend: Some("https://a.example/{0}".to_owned()),
                ca_file: Some(ca_file.into()),
                ..IdentifierTarget::default()
            };
            SettingType::resolve(&mut target, directory.path());
            target
        };
        let missing = [target("missing.pem")];
        assert_eq!(missing[0].ca_file.as_deref(), Some(&*directory.path().join("missing.pem")));
        IdentifierRules::check(&missing).unwrap();
        let error = format!("{:#}", IdentifierRules::open(&missing).unwrap_err());
        assert!(error.contains("path \"x\"") && error.contains("missing.pem"), "{error}");
    }
}
