//! Renewal of the records of the global service. RFC 3651 section 4.1.1.
//!
//! The known records are only replaced by records whose values are all signed, up to keys that are
//! already trusted; and of the new records only such values are used.

mod guard;

pub use guard::RenewalGuard;

use crate::bootstrap::{FileError, Root};
use crate::service::{Kinds, SITES_MAX, ServiceSites};
use crate::signature::{SignatureReport, Verifier, is_same_key};
use crate::{LookupAnswer, Question};
use handle_proto::data::kind;
use handle_proto::json::{Json, record_to_json};
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_proto::{Handle, ResponseCode, Value, fold};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

/// Why the known records stay.
#[derive(Debug)]
#[non_exhaustive]
pub enum RefreshError {
    /// No key is trusted, because the file of the global service has none for `0.0/0.0`.
    NoKeys,
    /// A record could not be fetched.
    NoRecord(Vec<u8>),
    /// A value of a record has no valid signature, or a signed trusted key is missing.
    Unverified(Vec<u8>, Box<SignatureReport>),
    /// The records name no sites.
    File(FileError),
    /// The renewal would need more questions than its limit.
    TooMany,
    /// The records are used, but could not be written to this file.
    Unwritten(PathBuf, io::Error),
}

impl fmt::Display for RefreshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKeys => {
                f.write_str("no key is trusted: the file of the global service has none for 0.0/0.0")
            }
            Self::NoRecord(handle) => write!(f, "cannot fetch the record {}", Handle(handle)),
            Self::Unverified(handle, report) => {
                write!(f, "not every value of {} is signed with a trusted key", Handle(handle))?;
                match (report.refused.first(), report.missing.first()) {
                    (Some((index, error)), _) => write!(f, "; the signature in value {index}: {error}"),
                    (None, Some(index)) => write!(f, "; value {index} is signed, but missing"),
                    (None, None) => Ok(()),
                }
            }
            Self::File(error) => error.fmt(f),
            Self::TooMany => {
                f.write_str("the signatures need more certificates than the limit of one renewal")
            }
            Self::Unwritten(path, error) => {
                write!(f, "the new records are used, but cannot be written to {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for RefreshError {}

/// The question for a record of the global service: certified, and from a primary site.
fn question(handle: &[u8]) -> Question {
    let mut question = Question::all(handle);
    (question.wants.certified, question.wants.authoritative) = (true, true);
    question
}

/// Fetches the root record, that of the trusted keys, and those of all services that the root
/// names, and verifies them with the keys of `root`. Returns the new bootstrap file, written at
/// `now_unix_ms`.
///
/// `fetch` gets the answers. Its questions require certification.
///
/// # Errors
/// When a record is missing or not completely signed; keep `root` then.
pub fn refresh(
    root: &Root,
    now_unix_ms: u64,
    fetch: &mut dyn FnMut(&Question) -> Option<LookupAnswer>,
) -> Result<Json, RefreshError> {
    if root.trusted_keys.is_empty() {
        return Err(RefreshError::NoKeys);
    }
    let now_unix_s = u32::try_from(now_unix_ms / 1000).unwrap_or(u32::MAX);
    let verifier = Verifier { trusted_keys: &root.trusted_keys, now_unix_s };
    let mut handles = vec![ROOT.to_vec(), TRUST_ROOT.to_vec()];
    let mut records = serde_json::Map::new();
    let mut next = 0;
    while let Some(handle) = handles.get(next).cloned() {
        next += 1;
        let answer = fetch(&question(&handle)).filter(|answer| answer.code == ResponseCode::SUCCESS);
        let answer = answer.ok_or_else(|| RefreshError::NoRecord(handle.clone()))?;
        let report = verifier.verify(&answer, fetch);
        // A signature may outlive a value that it lists, but not a trusted key: an attacker who
        // withholds one would remove it for good.
        let is_enough = report.is_good()
            && (report.missing.is_empty() || handle != TRUST_ROOT || has_all(&root.trusted_keys, &answer));
        if !is_enough {
            return Err(RefreshError::Unverified(handle, Box::new(report)));
        }
        let verified = || answer.values().iter().filter(|value| report.is_verified(value.index));
        for service in ServiceSites::gather(verified(), Kinds::Service).services {
            if handles.len() < SITES_MAX && !handles.iter().any(|known| fold::eq(known, &service)) {
                handles.push(service);
            }
        }
        let is_kept =
            |value: &Value<'_>| report.is_verified(value.index) || fold::eq(value.kind, kind::HS_SIGNATURE);
        let kept = answer.values().iter().filter(is_kept);
        let name = String::from_utf8_lossy(&handle).into_owned();
        records.insert(name, record_to_json(&handle, kept));
    }
    let file = json!({ "lastUpdate": now_unix_ms, "handles": records });
    let renewed = Root::from_json(&file, &root.service).map_err(RefreshError::File)?;
    if renewed.trusted_keys.is_empty() {
        return Err(RefreshError::NoRecord(TRUST_ROOT.to_vec()));
    }
    Ok(file)
}

/// Whether all these keys are in the record.
fn has_all(keys: &[Vec<u8>], answer: &LookupAnswer) -> bool {
    keys.iter().all(|key| {
        let mut values = answer.values().iter();
        values.any(|value| value.kind == kind::HS_PUBKEY && is_same_key(value.data, key))
    })
}

/// The same as a state machine for callers that cannot block: it names the next question, as long
/// as there is one.
#[derive(Debug)]
pub struct Refresh {
    root: Arc<Root>,
    now_unix_ms: u64,
    answers: Vec<(Question, Option<LookupAnswer>)>,
    outcome: Option<Result<Json, RefreshError>>,
}

/// Most questions of one renewal: records of the global service, and certificates of their signers.
const QUESTIONS_MAX: usize = 256;

impl Refresh {
    /// Starts to fetch the records of `root`.
    #[must_use]
    pub const fn new(root: Arc<Root>, now_unix_ms: u64) -> Self {
        Self { root, now_unix_ms, answers: vec![], outcome: None }
    }

    /// The next question; `None` when there is an outcome.
    pub fn poll_question(&mut self) -> Option<Question> {
        if self.outcome.is_some() {
            return None;
        }
        // It starts over each time with all answers so far. There are few questions, and their
        // order is the same.
        let mut next = None;
        let outcome = refresh(&self.root, self.now_unix_ms, &mut |question| match self
            .answers
            .iter()
            .find(|(known, _)| known == question)
        {
            Some((_, answer)) => answer.clone(),
            None => {
                next.get_or_insert_with(|| question.clone());
                None
            }
        });
        match next {
            Some(question) if self.answers.len() < QUESTIONS_MAX => return Some(question),
            Some(_) => self.outcome = Some(Err(RefreshError::TooMany)),
            None => self.outcome = Some(outcome),
        }
        None
    }

    /// Handles the answer to a question; `None` if there is none.
    pub fn handle_answer(&mut self, question: Question, answer: Option<LookupAnswer>) {
        self.answers.push((question, answer));
    }

    /// Takes the outcome, once: the new file.
    pub const fn take_outcome(&mut self) -> Option<Result<Json, RefreshError>> {
        self.outcome.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::{CERTIFICATES_FETCHED_MAX, Claims, signature};
    use crate::testing::{ISSUER, private_key, public_record, signed_root, site_at};
    use handle_proto::json::record_from_json;
    use handle_proto::{Permissions, ValueBuf};
    use std::collections::HashMap;

    const NOW_MS: u64 = 1_700_000_000_000;
    fn value(index: i32, kind: &[u8], data: &[u8]) -> ValueBuf {
        ValueBuf::from(&Value::new(index, kind, data))
    }

    fn records() -> HashMap<Vec<u8>, Vec<ValueBuf>> {
        let records = signed_root(&site_at(1));
        records.into_iter().map(|(handle, values)| (handle.as_bytes().to_vec(), values)).collect()
    }

    fn known(keys: &[&str]) -> Root {
        let trusted_keys = keys.iter().map(|id| public_record(id)).collect();
        Root { trusted_keys, ..Root::of_sites([site_at(9)]) }
    }

    fn refreshed(root: &Root, records: &HashMap<Vec<u8>, Vec<ValueBuf>>) -> Result<Json, RefreshError> {
        refresh(root, NOW_MS, &mut |question| {
            let values = records.get(&question.handle)?;
            let views = values.iter().map(ValueBuf::view);
            Some(LookupAnswer::new(question.handle.clone(), ResponseCode::SUCCESS, views).selected(question))
        })
    }

    #[test]
    fn signed_records_replace_known_ones() {
        let file = refreshed(&known(&["mirror", "server"]), &records()).unwrap();
        let root = Root::read(file.to_string().as_bytes()).unwrap();
        assert_eq!(root.sites.len(), 2, "the root's, and that of the service");
        assert_eq!(root.trusted_keys, [public_record("server")]);
        assert_eq!(root.updated_unix_ms, Some(NOW_MS));
    }

    #[test]
    fn step_by_step_refresh_gives_the_same_result() {
        for keys in [&["mirror", "server"][..], &["mirror"]] {
            let (root, records) = (known(keys), records());
            let mut refreshing = Refresh::new(Arc::new(root.clone()), NOW_MS);
            let mut questions_count = 0;
            while let Some(question) = refreshing.poll_question() {
                questions_count += 1;
                let answer = records.get(&question.handle).map(|values| {
                    let views = values.iter().map(ValueBuf::view);
                    LookupAnswer::new(question.handle.clone(), ResponseCode::SUCCESS, views)
                        .selected(&question)
                });
                refreshing.handle_answer(question, answer);
            }
            let text = |outcome: Result<Json, RefreshError>| outcome.map_err(|error| error.to_string());
            assert_eq!(text(refreshing.take_outcome().unwrap()), text(refreshed(&root, &records)));
            assert!((1..=8).contains(&questions_count), "{questions_count}");
        }
    }

    #[test]
    fn the_signatures_of_one_record_have_a_bounded_number_of_questions_asked() {
        let mut records = records();
        let claims = |number: usize| Claims {
            issuer: ISSUER.to_owned(),
            subject: "0.NA/0.NA".to_owned(),
            chain: vec![format!("10.MANY/{number}")],
            ..Claims::default()
        };
        let many = (0..QUESTIONS_MAX).map(|number| {
            let signed = signature(&claims(number), [], &private_key("server")).unwrap();
            value(1000 + i32::try_from(number).unwrap(), kind::HS_SIGNATURE, signed.as_bytes())
        });
        records.get_mut(ROOT).unwrap().splice(0..0, many);
        let mut refreshing = Refresh::new(Arc::new(known(&["server"])), NOW_MS);
        let mut questions_count = 0;
        while let Some(question) = refreshing.poll_question() {
            questions_count += 1;
            let answer = records.get(&question.handle).map(|values| {
                LookupAnswer::new(
                    question.handle.clone(),
                    ResponseCode::SUCCESS,
                    values.iter().map(ValueBuf::view),
                )
            });
            refreshing.handle_answer(question, answer);
        }
        // One for the record, and as many certificates as the signatures of one record may need.
        assert_eq!(questions_count, 1 + CERTIFICATES_FETCHED_MAX);
        assert!(refreshing.take_outcome().unwrap().is_err());
    }

    #[test]
    fn a_value_that_was_removed_and_is_still_listed_is_left_out_unless_it_is_a_trusted_key() {
        let root = known(&["server"]);
        for (handle, values) in records() {
            for value in values.iter().map(ValueBuf::view) {
                let mut removed = records();
                removed.get_mut(&handle).unwrap().retain(|other| other.view().index != value.index);
                let outcome = refreshed(&root, &removed);
                // Without a certificate, a signature or a key there is no proof; without its sites
                // a record is useless.
                let is_needed = [kind::HS_CERT, kind::HS_SIGNATURE, kind::HS_PUBKEY].contains(&value.kind);
                let what = format!("{} without {}", Handle(&handle), value.index);
                match (is_needed, outcome) {
                    (true, outcome) => assert!(outcome.is_err(), "{what}"),
                    (false, Ok(file)) => {
                        let name = str::from_utf8(&handle).unwrap();
                        let record = record_from_json(&file["handles"][name]).unwrap();
                        assert!(record.values.iter().all(|kept| kept.view().index != value.index), "{what}");
                    }
                    (false, Err(error)) => panic!("{what}: {error}"),
                }
            }
        }
    }

    #[test]
    fn unsigned_or_changed_records_do_not_replace_known_ones() {
        let error = |root: &Root, records: &HashMap<Vec<u8>, Vec<ValueBuf>>| {
            refreshed(root, records).unwrap_err().to_string()
        };
        assert!(error(&known(&[]), &records()).contains("no key is trusted"));
        assert!(error(&known(&["mirror"]), &records()).contains("not trusted"));
        let root = known(&["server"]);
        for handle in [ROOT, TRUST_ROOT, b"0.GHR/1"] {
            let mut missing = records();
            missing.remove(handle);
            let text = error(&root, &missing);
            assert!(
                text.contains("cannot fetch") || text.contains("missing") || text.contains("certificate"),
                "{text}"
            );
            let site = site_at(66);
            let forged = Value::new(7, kind::HS_SITE, site.as_bytes());
            let hidden = Value { permissions: Permissions::ADMIN_READ, ..forged };
            for forged in [forged, hidden, Value { index: 1, ..forged }, Value { index: 1, ..hidden }] {
                let mut changed = records();
                changed.get_mut(handle).unwrap().push(ValueBuf::from(&forged));
                let text = error(&root, &changed);
                assert!(text.contains(&format!("not every value of {}", Handle(handle))), "{text}");
            }
        }
    }
}
