//! Rules by prefix: denial, other servers, another prefix.

use crate::config::address_of;
use handle_client::lookup::LookupTarget;
use handle_client::plan::ServerTarget;
use handle_daemon::settings;
use handle_daemon::settings::{SettingRule, SettingType};
use handle_proto::data::site::InterfaceProtocol;
use handle_proto::{Handle, fold};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

/// Rules of the form PREFIX=SERVERS.
const FORWARDS: SettingRule<Vec<String>> = SettingRule {
    words: "`PREFIX=ADDRESS`, with further addresses after commas",
    check: |rules| all_are(rules, |rule| forward(rule).is_some()),
};

/// Rules of the form PREFIX=PREFIX.
const ALIASES: SettingRule<Vec<String>> =
    SettingRule { words: "`PREFIX=PREFIX`", check: |rules| all_are(rules, |rule| alias(rule).is_some()) };

/// Prefixes.
const PREFIXES: SettingRule<Vec<String>> =
    SettingRule { words: "prefixes", check: |prefixes| all_are(prefixes, is_prefix) };

/// What is done with requests that only the responsible service can decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthenticatedRequests {
    /// They are refused, so that clients ask that service.
    #[default]
    Refer,
    /// They are passed on to that service, and its answers to the client.
    Forward,
}

impl SettingType for AuthenticatedRequests {
    fn type_name() -> String {
        "`refer`, `forward`".to_owned()
    }
}

settings! {
    /// Rules for the handles of exactly one prefix, in any case. `deny` comes first, then
    /// `forward`, then `alias`.
    pub struct PolicyConfig {
        /// Set this when handles must not be resolved here: their prefixes, refused with RC 301.
        restart deny: Vec<String> = Vec::new(), PREFIXES;
        /// Set this when certain servers have the handles of a prefix: only these are asked about
        /// them.
        restart forward: Vec<String> = Vec::new(), FORWARDS;
        /// Set this when only signed answers are trusted for certain prefixes: these prefixes. With
        /// `upstream.certified`, it holds for all.
        restart certified: Vec<String> = Vec::new(), PREFIXES;
        /// Set this when clients that reach no other server change records, or ask for more than
        /// public values: `forward` passes such requests, if over TCP and outside sessions, on to
        /// the responsible service; `refer` refuses them.
        restart authenticated: AuthenticatedRequests = AuthenticatedRequests::Refer;
        /// Set this when changes must be seen at once: prefixes that the `handle-admin` of `notify`
        /// publishes. With each set that it announces, what is known about the changed handles
        /// expires.
        restart notified: Vec<String> = Vec::new(), PREFIXES;
        /// Set this when one prefix stands for another: a handle of the first gets the record with
        /// the same suffix under the other.
        restart alias: Vec<String> = Vec::new(), ALIASES;
    } constants {
        /// Seconds after such a notice in which each request for these handles causes a question,
        /// because servers may get the set later than this cache gets the notice.
        notified_s: u32 = 2;
    }
}

fn all_are(rules: &[String], is_valid: impl Fn(&str) -> bool) -> Result<(), String> {
    match rules.iter().find(|rule| !is_valid(rule)) {
        None => Ok(()),
        Some(wrong) => Err(format!("has `{wrong}`, which is not a valid rule")),
    }
}

fn is_prefix(prefix: &str) -> bool {
    !prefix.is_empty() && !prefix.contains(['/', '='])
}

fn forward(rule: &str) -> Option<(&str, Vec<SocketAddr>)> {
    let (prefix, servers) = rule.split_once('=')?;
    let servers: Option<Vec<_>> = servers.split(',').map(address_of).collect();
    Some((prefix, servers?)).filter(|(prefix, _)| is_prefix(prefix))
}

fn alias(rule: &str) -> Option<(&str, &str)> {
    rule.split_once('=').filter(|(prefix, other)| is_prefix(prefix) && is_prefix(other))
}

impl PolicyConfig {
    /// A rule that names servers by their addresses for a prefix whose answers must be certified,
    /// or for any prefix if `all_certified`.
    pub(crate) fn forward_without_key(&self, all_certified: bool) -> Option<&str> {
        let has_prefix = |rule: &&String| {
            let is_of = |one: &String| {
                forward(rule).is_some_and(|(prefix, _)| fold::eq(prefix.as_bytes(), one.as_bytes()))
            };
            all_certified || self.certified.iter().any(is_of)
        };
        self.forward.iter().find(has_prefix).map(String::as_str)
    }
}

/// The rules, by folded prefix.
#[derive(Debug, Default)]
pub struct PrefixPolicies {
    policies: HashMap<Vec<u8>, PrefixPolicy>,
    /// Prefixes whose answers must be certified.
    certified: HashSet<Vec<u8>>,
    /// Prefixes whose changes are announced.
    notified: HashSet<Vec<u8>>,
}

/// What is done for the handles of a prefix.
#[derive(Clone, Debug)]
pub enum PrefixPolicy {
    /// They are refused.
    Deny,
    /// These servers are asked.
    Forward(LookupTarget),
    /// The handles of this prefix are asked for.
    Alias(Vec<u8>),
}

impl PrefixPolicies {
    /// The rules of a checked configuration.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let mut policies = HashMap::new();
        let mut add = |prefix: &str, policy| {
            policies.entry(fold::folded(prefix.as_bytes())).or_insert(policy);
        };
        config.deny.iter().for_each(|prefix| add(prefix, PrefixPolicy::Deny));
        for (prefix, servers) in config.forward.iter().filter_map(|rule| forward(rule)) {
            add(prefix, PrefixPolicy::Forward(target(servers)));
        }
        for (prefix, other) in config.alias.iter().filter_map(|rule| alias(rule)) {
            add(prefix, PrefixPolicy::Alias(other.as_bytes().to_vec()));
        }
        let set_of = |prefixes: &[String]| {
            prefixes.iter().map(|prefix| fold::folded(prefix.as_bytes())).collect::<HashSet<_>>()
        };
        let (certified, notified) = (set_of(&config.certified), set_of(&config.notified));
        Self { policies, certified, notified }
    }

    /// The rule for `handle`.
    #[must_use]
    pub fn of(&self, handle: Handle<'_>) -> Option<&PrefixPolicy> {
        if self.policies.is_empty() {
            return None;
        }
        self.policies.get(&fold::folded(handle.naming_authority()))
    }

    /// Whether answers about `handle` must be certified.
    #[must_use]
    pub fn certifies(&self, handle: Handle<'_>) -> bool {
        has_prefix_of(&self.certified, handle)
    }

    /// Whether changes of `handle` are announced.
    #[must_use]
    pub fn is_notified(&self, handle: Handle<'_>) -> bool {
        has_prefix_of(&self.notified, handle)
    }
}

fn has_prefix_of(prefixes: &HashSet<Vec<u8>>, handle: Handle<'_>) -> bool {
    !prefixes.is_empty() && prefixes.contains(&fold::folded(handle.naming_authority()))
}

/// Servers that are known by their addresses, over UDP first.
pub(crate) fn target(servers: impl IntoIterator<Item = SocketAddr>) -> LookupTarget {
    let ways = [InterfaceProtocol::UDP, InterfaceProtocol::TCP];
    let targets = servers.into_iter().flat_map(|at| ways.map(|protocol| ServerTarget::at(at, protocol)));
    LookupTarget::Servers(targets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    fn strings(rules: &[&str]) -> Vec<String> {
        rules.iter().map(|rule| (*rule).to_owned()).collect()
    }

    #[test]
    fn a_rule_is_for_its_prefix_in_any_case_and_the_first_kind_counts() {
        let config = PolicyConfig {
            deny: strings(&["10.1"]),
            forward: strings(&["10.1=192.0.2.1", "abc=192.0.2.1,[2001:db8::1]:7"]),
            alias: strings(&["10.2=10.3"]),
            certified: strings(&["10.3"]),
            notified: strings(&["ABC"]),
            ..PolicyConfig::default()
        };
        config.check().unwrap();
        let policies = PrefixPolicies::new(&config);
        let of = |handle: &str| policies.of(Handle(handle.as_bytes())).map(|policy| format!("{policy:?}"));
        assert_eq!(of("10.1/x").unwrap(), "Deny");
        assert!(of("ABC/x").unwrap().contains("[2001:db8::1]:7"));
        assert!(of("10.2/x").unwrap().starts_with("Alias"));
        assert_eq!((of("10.3/x"), of("10.1.1/x")), (None, None));
        assert!(policies.certifies(Handle(b"10.3/x")) && !policies.certifies(Handle(b"10.2/x")));
        assert!(policies.is_notified(Handle(b"abc/x")) && !policies.is_notified(Handle(b"0.NA/abc")));
    }

    #[test]
    fn what_is_no_rule_is_refused_by_name() {
        for config in [
            PolicyConfig { deny: strings(&["10.1/x"]), ..PolicyConfig::default() },
            PolicyConfig { forward: strings(&["10.1"]), ..PolicyConfig::default() },
            PolicyConfig { forward: strings(&["10.1=nonsense"]), ..PolicyConfig::default() },
            PolicyConfig { alias: strings(&["10.1="]), ..PolicyConfig::default() },
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("not a valid rule"), "{error}");
        }
    }
}
