//! The rules of `handle-cache` by prefix.

use handle_cache::policy::{PolicyConfig, PrefixPolicies, PrefixPolicy};
use handle_client::lookup::LookupTarget;
use handle_daemon::settings::SettingSection as _;
use handle_proto::Handle;
use handle_proto::limit::PORT;
use std::net::{IpAddr, SocketAddr};

/// A list of rules is accepted if each of them is a rule, and the rule for a handle is the one that
/// a linear search finds.
///
/// Input: a handle, and then rules, each in a line: `deny PREFIX`, `forward PREFIX=ADDRESS,...`,
/// `alias PREFIX=PREFIX`, `certified PREFIX`, `notified PREFIX`. Other lines are ignored.
pub fn cache_policy(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let mut lines = text.split('\n');
    let handle = lines.next().unwrap_or_default();
    let rules: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
    let of_kind = |kind: &str| -> Vec<String> {
        rules.iter().filter(|(one, _)| *one == kind).map(|(_, rule)| (*rule).to_owned()).collect()
    };
    let config = PolicyConfig {
        deny: of_kind("deny"),
        forward: of_kind("forward"),
        alias: of_kind("alias"),
        certified: of_kind("certified"),
        notified: of_kind("notified"),
        ..PolicyConfig::default()
    };
    let all = |kind: &str, is_valid: &dyn Fn(&str) -> bool| {
        rules.iter().filter(|(one, _)| *one == kind).all(|(_, rule)| is_valid(rule))
    };
    let is_valid = all("deny", &is_prefix)
        && all("certified", &is_prefix)
        && all("notified", &is_prefix)
        && all("forward", &|rule| forward(rule).is_some())
        && all("alias", &|rule| alias(rule).is_some());
    assert_eq!(config.check().is_ok(), is_valid, "{config:?}");
    if !is_valid {
        return;
    }
    let policies = PrefixPolicies::new(&config);
    let prefix = Handle(handle.as_bytes()).naming_authority();
    let has = |one: &str| one.as_bytes().eq_ignore_ascii_case(prefix);
    let [certified, notified] =
        [&config.certified, &config.notified].map(|prefixes| prefixes.iter().any(|one| has(one)));
    let found = Handle(handle.as_bytes());
    assert_eq!((policies.certifies(found), policies.is_notified(found)), (certified, notified));
    match policies.of(Handle(handle.as_bytes())) {
        Some(PrefixPolicy::Deny) => assert!(config.deny.iter().any(|one| has(one))),
        Some(PrefixPolicy::Forward(LookupTarget::Servers(servers))) => {
            assert!(!config.deny.iter().any(|one| has(one)));
            let mut rules = config.forward.iter().filter_map(|rule| forward(rule));
            let (_, expected) = rules.find(|(one, _)| has(one)).expect("a rule for this prefix");
            // Over UDP and over TCP.
            let asked: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
            let expected: Vec<SocketAddr> = expected.into_iter().flat_map(|at| [at, at]).collect();
            assert_eq!(asked, expected);
        }
        Some(PrefixPolicy::Forward(other)) => panic!("a rule names servers: {other:?}"),
        Some(PrefixPolicy::Alias(other)) => {
            assert!(!config.deny.iter().any(|one| has(one)));
            assert!(!config.forward.iter().filter_map(|rule| forward(rule)).any(|(one, _)| has(one)));
            let mut rules = config.alias.iter().filter_map(|rule| alias(rule));
            assert_eq!(rules.find(|(one, _)| has(one)).map(|(_, other)| other.as_bytes()), Some(&other[..]));
        }
        None => {
            let prefixes = config.deny.iter().map(String::as_str);
            let prefixes = prefixes.chain(config.forward.iter().filter_map(|rule| Some(forward(rule)?.0)));
            let mut prefixes = prefixes.chain(config.alias.iter().filter_map(|rule| Some(alias(rule)?.0)));
            assert!(!prefixes.any(has), "a rule is not found");
        }
    }
}

fn is_prefix(text: &str) -> bool {
    !text.is_empty() && !text.bytes().any(|byte| byte == b'/' || byte == b'=')
}

fn alias(rule: &str) -> Option<(&str, &str)> {
    let at = rule.find('=')?;
    let (prefix, other) = (&rule[..at], &rule[at + 1..]);
    (is_prefix(prefix) && is_prefix(other)).then_some((prefix, other))
}

fn forward(rule: &str) -> Option<(&str, Vec<SocketAddr>)> {
    let at = rule.find('=')?;
    let mut servers = vec![];
    for server in rule[at + 1..].split(',') {
        servers.push(match server.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, PORT),
            Err(_) => server.parse().ok()?,
        });
    }
    is_prefix(&rule[..at]).then_some((&rule[..at], servers))
}
