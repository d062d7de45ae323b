//! The records of the global service, asked for anew. RFC 3651 section 4.1.1.
//!
//! Nothing takes the place of what is known but records whose values are all signed, up to the keys that are
//! trusted already; and of these records only the values that are.

use crate::bootstrap::{FileError, Root};
use crate::service::{Found, Kinds, SITES_MAX};
use crate::signature::{Report, Verifier};
use crate::{Answer, Question};
use handle_proto::data::kind;
use handle_proto::json::{Json, record_to_json};
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_proto::{Handle, ResponseCode, Value, fold};
use serde_json::json;
use std::fmt;

/// Why what is known stays as it is.
#[derive(Debug)]
#[non_exhaustive]
pub enum RefreshError {
    /// There is no key to trust: the file of the global service has none for `0.0/0.0`.
    NoKeys,
    /// A record did not come.
    NoRecord(Vec<u8>),
    /// A value of a record is not signed as it should be.
    Unverified(Vec<u8>, Box<Report>),
    /// The records name no sites.
    File(FileError),
}

impl fmt::Display for RefreshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKeys => {
                f.write_str("no key is trusted: the file of the global service has none for 0.0/0.0")
            }
            Self::NoRecord(handle) => write!(f, "the record {} did not come", Handle(handle)),
            Self::Unverified(handle, report) => {
                write!(f, "not every value of {} is signed by somebody who is trusted", Handle(handle))?;
                match report.refused.first() {
                    Some((index, error)) => write!(f, "; the signature in value {index}: {error}"),
                    None => Ok(()),
                }
            }
            Self::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RefreshError {}

/// The question for a record of the global service: certified, and of a primary site.
fn question(handle: &[u8]) -> Question {
    let mut question = Question::all(handle);
    (question.wants.certified, question.wants.authoritative) = (true, true);
    question
}

/// Gets the root record, that of the trusted keys, and those of all services that the root names, and verifies
/// them with the keys of `root`: the new bootstrap file, written at `now_unix_ms`.
///
/// `fetch` gets the answers; what it is asked for here is to be certified.
///
/// # Errors
/// When a record is missing or not wholly signed; `root` is to be kept then.
pub fn refresh(
    root: &Root,
    now_unix_ms: u64,
    fetch: &mut dyn FnMut(&Question) -> Option<Answer>,
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
        if !report.is_good() {
            return Err(RefreshError::Unverified(handle, Box::new(report)));
        }
        let verified = || answer.values().iter().filter(|value| report.is_verified(value.index));
        for service in Found::gather(verified(), Kinds::Service).services {
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
    Root::from_json(&file, ROOT).map_err(RefreshError::File)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::{Claims, Permission, Permitted, certificate, signature};
    use crate::testing::{private_key, public_record, site_at};
    use handle_proto::data::PublicKey;
    use handle_proto::{Permissions, ValueBuf};
    use std::collections::HashMap;

    const NOW_MS: u64 = 1_700_000_000_000;
    const ISSUER: &str = "300:0.0/0.0";

    fn value(index: i32, kind: &[u8], data: &[u8]) -> ValueBuf {
        ValueBuf::from(&Value::new(index, kind, data))
    }

    fn claims(subject: &[u8]) -> Claims {
        let (issuer, subject) = (ISSUER.to_owned(), String::from_utf8(subject.to_vec()).unwrap());
        Claims { issuer, subject, chain: vec!["400:0.0/0.0".to_owned()], ..Claims::default() }
    }

    /// A root of one site and one service, all signed with the key `server`, which the certificate 400 vouches for.
    fn records() -> HashMap<Vec<u8>, Vec<ValueBuf>> {
        let (key, record) = (private_key("server"), public_record("server"));
        let everything = [Permission { permitted: Permitted::Everything, handle: String::new() }];
        let own = Claims { chain: vec![], ..claims(ISSUER.as_bytes()) };
        let cert = certificate(&own, &PublicKey::decode(&record).unwrap(), &everything, &key).unwrap();
        let mut records = HashMap::from([
            (
                ROOT.to_vec(),
                vec![
                    value(1, kind::HS_SITE, site_at(1).as_bytes()),
                    value(2, kind::HS_SERV, b"0.GHR/1"),
                    value(3, b"10320/sig.sig", b"of an older kind"),
                ],
            ),
            (
                TRUST_ROOT.to_vec(),
                vec![value(300, kind::HS_PUBKEY, &record), value(400, kind::HS_CERT, cert.as_bytes())],
            ),
            (
                b"0.GHR/1".to_vec(),
                vec![value(1, kind::HS_SITE, site_at(2).as_bytes()), value(2, kind::HS_SERV, b"0.na/0.na")],
            ),
        ]);
        for (handle, values) in &mut records {
            let signed = signature(&claims(handle), values.iter().map(ValueBuf::view), &key).unwrap();
            values.push(value(900, kind::HS_SIGNATURE, signed.as_bytes()));
        }
        records
    }

    fn known(keys: &[&str]) -> Root {
        let trusted_keys = keys.iter().map(|id| public_record(id)).collect();
        Root { trusted_keys, ..Root::of_sites([site_at(9)]) }
    }

    fn refreshed(root: &Root, records: &HashMap<Vec<u8>, Vec<ValueBuf>>) -> Result<Json, RefreshError> {
        refresh(root, NOW_MS, &mut |question| {
            let values = records.get(&question.handle)?;
            let views = values.iter().map(ValueBuf::view);
            Some(Answer::new(question.handle.clone(), ResponseCode::SUCCESS, views).selected(question))
        })
    }

    #[test]
    fn signed_records_take_the_place_of_what_was_known() {
        let file = refreshed(&known(&["mirror", "server"]), &records()).unwrap();
        let root = Root::read(file.to_string().as_bytes()).unwrap();
        assert_eq!(root.sites.len(), 2, "the root's, and that of the service");
        assert_eq!(root.trusted_keys, [public_record("server")]);
        assert_eq!(root.updated_unix_ms, Some(NOW_MS));
    }

    #[test]
    fn nothing_else_does() {
        let error = |root: &Root, records: &HashMap<Vec<u8>, Vec<ValueBuf>>| {
            refreshed(root, records).unwrap_err().to_string()
        };
        assert!(error(&known(&[]), &records()).contains("no key is trusted"));
        assert!(error(&known(&["mirror"]), &records()).contains("not trusted"));
        let root = known(&["server"]);
        for handle in [ROOT, TRUST_ROOT, b"0.GHR/1"] {
            let mut missing = records();
            missing.remove(handle);
            let said = error(&root, &missing);
            assert!(said.contains("did not come") || said.contains("certificate"), "{said}");
            let site = site_at(66);
            let forged = Value::new(7, kind::HS_SITE, site.as_bytes());
            let hidden = Value { permissions: Permissions::ADMIN_READ, ..forged };
            for forged in [forged, hidden, Value { index: 1, ..forged }, Value { index: 1, ..hidden }] {
                let mut changed = records();
                changed.get_mut(handle).unwrap().push(ValueBuf::from(&forged));
                let said = error(&root, &changed);
                assert!(said.contains(&format!("not every value of {}", Handle(handle))), "{said}");
            }
        }
    }
}
