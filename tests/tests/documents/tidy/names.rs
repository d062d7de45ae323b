//! Rules for names: what a type, a module or a function that answers yes or no is called, and that
//! each parameter has a name.

use super::{defined, sources};
use std::collections::BTreeSet;
use std::path::Path;

/// Endings of nouns for things, actors and properties.
const NOUN_ENDINGS: [&str; 12] =
    ["er", "or", "ion", "ment", "ance", "ence", "ity", "ness", "ure", "age", "ory", "ency"];

/// Established terms of one word that do not end as nouns do, and that no longer name ends in.
const TERMS: &str = "\
    Algorithm Arrival Assembly Attack Attribute Audit Bulk Child Code Contestant Copy Daemon \
    Delivery Device Dump Echo Envelope Err Export Fetch Ghost Health Heartbeat Histogram Inode \
    Interface Intermediate Interrupt Interval Judge Jws Loopback Lru Mac Manifest Merge Mismatch \
    Namespace Nginx Outbox Override Paint Pbkdf2 Pebble Pipeline Printable Probe Proposal Pull \
    Reassembly Referral Refresh Registry Replica Runtime Sample Scale Scenario Scene Schedule \
    Scheme Scratch Screen Shutdown Slab Spread Statistic Stopwatch System Tls Trace Train \
    Transmit Trial Upstream Verify Vlist Watchdog Workload Zipf";

/// Nouns that end as participles do.
const GERUNDS: &str = "\
    Coding Feed Finding Fixing Heading Listing Mapping Need Pacing Reading Recording Ring Seed \
    Setting Sharing Shipping Speed Spelling String";

/// Modules whose names end as past participles do and are nouns, or the property that the module
/// is about.
const MODULE_TERMS: &str = "\
    all authenticated certified changed delayed feed fleets_killed forwarded gateway_batch_killed \
    guarded handled homed last_served left_out mirroring_compared mirroring_homed mirroring_killed \
    mirroring_promoted mixed named paced promote_stopped pulled replication_killed saved seed \
    shared sign_in signed sorted sourced up";

/// Words that say where, when, how or who, and not what.
const CLOSED_WORDS: &str = "\
    about above after again all any around away back before behind below beside between both by \
    down elsewhere ever every first from here how in inside into it last left less many more \
    most much never next no none not now off on once one only other out outside over own same so some soon such than that then there these this those to today too \
    under until up upon usual very we well what when where whether which who whom whose why with \
    within without you";

/// The words of a name in camel case.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words: Vec<String> = Vec::new();
    for (at, &letter) in letters.iter().enumerate() {
        let begins = letter.is_uppercase()
            && (at == 0
                || !letters[at - 1].is_uppercase()
                || letters.get(at + 1).is_some_and(|next| next.is_lowercase()));
        match words.last_mut().filter(|_| !begins) {
            Some(word) => word.push(letter),
            None => words.push(letter.to_string()),
        }
    }
    words
}

/// The singular of a noun that may be in the plural.
fn singular(word: &str) -> String {
    match word {
        _ if word.ends_with("ies") => format!("{}y", &word[..word.len() - 3]),
        _ if word.ends_with("ss") => word.to_owned(),
        _ => word.strip_suffix('s').unwrap_or(word).to_owned(),
    }
}

/// Why `name` is no name for a type, if it is none. `heads` has the last words of longer names.
fn fault_of_type(name: &str, heads: &BTreeSet<String>) -> Option<&'static str> {
    let words = words(name);
    let last = words.last()?;
    let is_in = |list: &str, word: &str| list.split_whitespace().any(|it| it == word);
    // The header field of HTTP.
    if name == "RetryAfter" {
        return None;
    }
    if (last.ends_with("ed") || last.ends_with("ing")) && !is_in(GERUNDS, last) {
        return Some("ends in a participle");
    }
    if is_in(CLOSED_WORDS, &last.to_lowercase()) {
        return Some("ends in a word that names nothing");
    }
    let noun = singular(last);
    let is_noun = heads.contains(&noun)
        || NOUN_ENDINGS.iter().any(|end| noun.ends_with(end))
        || is_in(TERMS, &noun)
        || is_in(TERMS, last)
        || is_in(GERUNDS, &noun);
    (words.len() == 1 && !is_noun).then_some("is one word, and no noun that other names end in")
}

/// The names of types that `text` defines, with their lines.
fn types(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let kinds = ["struct", "enum", "trait", "type", "union"];
    text.lines().enumerate().filter_map(move |(at, line)| {
        let name = kinds.iter().find_map(|kind| defined(line, kind))?;
        name.starts_with(|c: char| c.is_ascii_uppercase()).then_some((at + 1, name))
    })
}

/// The last words of the names of types with several words, in the singular.
fn heads(sources: &[(String, String)]) -> BTreeSet<String> {
    let names = sources.iter().flat_map(|(_, text)| types(text)).map(|(_, name)| words(name));
    names.filter(|words| words.len() > 1).filter_map(|words| Some(singular(words.last()?))).collect()
}

#[test]
fn types_are_nouns() {
    let sources = sources();
    let heads = heads(&sources);
    let mut wrong = Vec::new();
    for (file, text) in &sources {
        for (line, name) in types(text) {
            if let Some(fault) = fault_of_type(name, &heads) {
                wrong.push(format!("{file}:{line}: {name} {fault}"));
            }
        }
    }
    assert!(wrong.is_empty(), "CONTRIBUTING.md has the rules for names:\n{}", wrong.join("\n"));
}

#[test]
fn names_without_meaning_are_found() {
    let heads = ["Record", "Work", "Choice", "Slot"].map(str::to_owned).into();
    for name in "Asked Told Came Said Known Left Elsewhere Back Which Why Gone AskedWho RecordFetched \
         Waiting Behind Around Kept KeyBefore Whose Lately"
        .split_whitespace()
    {
        assert!(fault_of_type(name, &heads).is_some(), "{name}");
    }
    for name in "Record Records ParsedRequest RemoteFacts ChallengeOutcome Builder Manifest StreamSetting \
         HTTPPeer Sha256Sum Permissions"
        .split_whitespace()
    {
        assert_eq!(fault_of_type(name, &heads), None, "{name}");
    }
}

#[test]
fn modules_are_called_what_they_contain() {
    let mut wrong = Vec::new();
    for (file, _) in sources() {
        let stem = Path::new(&file).file_stem().unwrap().to_string_lossy().into_owned();
        let last = stem.rsplit('_').next().unwrap_or_default();
        let is_term = MODULE_TERMS.split_whitespace().any(|term| term == stem);
        let is_closed = CLOSED_WORDS.split(' ').any(|word| word == last);
        if (last.ends_with("ed") || is_closed) && !is_term {
            wrong.push(file);
        }
    }
    assert!(wrong.is_empty(), "files are called by a participle or a word that names nothing: {wrong:?}");
}

/// The text of `text` with comments and the contents of strings blanked.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// Splits at the commas that are in no brackets.
fn split_list(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut parts, mut before) = (0_i32, 0, Vec::new(), ' ');
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        before = letter;
    }
    parts.push(text[begin..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The name and the parameters of each function in `code`, which has no comments.
fn signatures(code: &str) -> Vec<(&str, Vec<&str>)> {
    let keyword = ["fn", ""].join(" ");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&keyword) {
        let is_word = code[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || c == '(');
        let rest = &code[at + keyword.len()..];
        let name_len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
        let (name, mut rest) = rest.split_at(name_len);
        if !is_word || name.is_empty() {
            continue;
        }
        if rest.starts_with('<') {
            let Some(end) = end_of_brackets(rest) else { continue };
            rest = &rest[end + 1..];
        }
        if !rest.starts_with('(') {
            continue;
        }
        let Some(end) = end_of_brackets(rest) else { continue };
        found.push((name, split_list(&rest[1..end])));
    }
    found
}

/// Where the bracket closes with which `text` begins.
fn end_of_brackets(text: &str) -> Option<usize> {
    let (mut depth, mut before) = (0_i32, ' ');
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        before = letter;
    }
    None
}

/// Whether a parameter is a tuple: whose parts have no names at the call.
fn is_tuple(parameter: &str) -> bool {
    let pattern = parameter.trim_start_matches(['&', ' ']);
    if pattern.starts_with('(') {
        return true;
    }
    let Some((_, kind)) = parameter.split_once(':') else { return false };
    let kind = kind.trim().trim_start_matches('&').trim_start_matches("mut ").trim();
    kind.starts_with('(') && end_of_brackets(kind).is_some_and(|end| split_list(&kind[1..end]).len() > 1)
}

#[test]
fn no_parameter_is_a_tuple() {
    // Rows of tables are tuples there: keys and values of redb.
    const ROWS: &str = "engine/store/src/embedded/rows.rs";
    let mut wrong = Vec::new();
    let is_measured = |file: &str| {
        (file.starts_with("engine/") || file.starts_with("loadgen/"))
            && file.contains("/src/")
            && !file.contains("tests")
            && file != ROWS
    };
    let (mut count, sources) = (0, sources());
    for (file, text) in sources.iter().filter(|(file, _)| is_measured(file)) {
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (name, parameters) in signatures(&without_comments(product)) {
            count += 1;
            for parameter in parameters.iter().filter(|parameter| is_tuple(parameter)) {
                wrong.push(format!("{file}: {name}({parameter})"));
            }
        }
    }
    assert!(count > 5000, "too few functions found: {count}");
    assert!(wrong.is_empty(), "parameters that need names, or a struct:\n{}", wrong.join("\n"));
}

#[test]
fn tuples_in_parameters_are_found() {
    let code = "fn a((x, y): (u8, u8)) {}\nfn b<T: Fn(u8) -> u8>(&self, pair: &(u8, T), n: u8) {}\n\
                fn c(work: impl Fn((u8, u8)) -> u8, list: &[(u8, u8)], unit: ()) {}";
    let found: Vec<_> = signatures(code)
        .into_iter()
        .map(|(name, parameters)| (name, parameters.into_iter().filter(|it| is_tuple(it)).count()))
        .collect();
    assert_eq!(found, [("a", 1), ("b", 1), ("c", 0)]);
}
