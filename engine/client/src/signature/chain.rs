//! The chain from a signature to a trusted key, certificate by certificate.

use super::claims::{Certificate, Claims, Digests};
use super::jws::Jws;
use super::{SignatureError, SignatureReport, ValueVerdict, is_same_key, needs_signature, value_digest};
use crate::{LookupAnswer, Question};
use handle_proto::data::kind;
use handle_proto::limit::CERTIFICATE_CHAIN_MAX;
use handle_proto::name::TRUST_ROOT;
use handle_proto::{Handle, ResponseCode, Value, fold};

/// Most certificates that are fetched for all signatures of one record: two chains of the greatest
/// length.
pub const CERTIFICATES_FETCHED_MAX: usize = 2 * CERTIFICATE_CHAIN_MAX;

/// Gets the answer to a question; `None` if there is none.
pub type Fetch<'a> = dyn FnMut(&Question) -> Option<LookupAnswer> + 'a;

/// Verifies records against trusted keys.
#[derive(Clone, Copy, Debug)]
pub struct Verifier<'a> {
    /// Records of the trusted keys: the configured ones of `0.0/0.0`.
    pub trusted_keys: &'a [Vec<u8>],
    /// Time now, Unix seconds.
    pub now_unix_s: u32,
}

impl Verifier<'_> {
    /// Verifies the values of a record. Certificates come from `fetch`, at most
    /// [`CERTIFICATES_FETCHED_MAX`] of them, because the author of the record chooses how many it
    /// asks for.
    pub fn verify(&self, answer: &LookupAnswer, fetch: &mut Fetch<'_>) -> SignatureReport {
        let values: Vec<Value<'_>> = answer.values().iter().collect();
        let needing = values.iter().filter(|value| needs_signature(&answer.handle, value));
        let mut report = SignatureReport {
            values: needing.map(|value| (value.index, ValueVerdict::Unsigned)).collect(),
            ..SignatureReport::default()
        };
        let (mut fetches_left, mut is_exhausted) = (CERTIFICATES_FETCHED_MAX, false);
        for value in values.iter().filter(|value| fold::eq(value.kind, kind::HS_SIGNATURE)) {
            let mut bounded = |question: &Question| match fetches_left.checked_sub(1) {
                Some(left) => {
                    fetches_left = left;
                    fetch(question)
                }
                None => {
                    is_exhausted = true;
                    None
                }
            };
            match self.digests(Handle(&answer.handle), value.data, &mut bounded) {
                Ok(digests) => compare(&mut report, &digests, &values),
                Err(_) if is_exhausted => {
                    report.refused.push((value.index, SignatureError::TooManyCertificates));
                }
                Err(error) => report.refused.push((value.index, error)),
            }
        }
        report
    }

    /// The digests of a signature, if its chain is valid.
    fn digests(
        &self,
        handle: Handle<'_>,
        data: &[u8],
        fetch: &mut Fetch<'_>,
    ) -> Result<Digests, SignatureError> {
        let jws = Jws::parse(data)?;
        let claims = Claims::read(jws.payload())?;
        if !Handle(claims.subject.as_bytes()).is_same(handle, false) {
            return Err(SignatureError::Subject);
        }
        let digests = Digests::read(jws.payload())?;
        self.follow(handle, jws, claims, fetch)?;
        Ok(digests)
    }

    /// Follows the chain: each link verifies with the key of the next, within its dates, and the
    /// next may sign for the handle; the last one is the self-signed one of the root, with a
    /// trusted key.
    fn follow(
        &self,
        handle: Handle<'_>,
        mut jws: Jws,
        mut claims: Claims,
        fetch: &mut Fetch<'_>,
    ) -> Result<(), SignatureError> {
        let mut links: std::collections::VecDeque<String> = claims.chain.iter().cloned().collect();
        let mut seen: Vec<String> = vec![];
        for _ in 0..CERTIFICATE_CHAIN_MAX {
            if !claims.counts_at(self.now_unix_s) {
                return Err(SignatureError::Dates);
            }
            let link = links.pop_front().unwrap_or_else(|| handle_of(&claims.issuer).to_owned());
            if seen.contains(&link) {
                return Err(SignatureError::Circle);
            }
            let (issuer_jws, issuer) = certificate(&link, &claims.issuer, fetch)?;
            seen.push(link);
            jws.verify(&issuer.key)?;
            if !issuer.permits(handle) {
                return Err(SignatureError::Permission(issuer.claims.subject));
            }
            if issuer.claims.issuer == issuer.claims.subject {
                return self.trusts(&issuer_jws, &issuer);
            }
            if links.is_empty() {
                links = issuer.claims.chain.iter().cloned().collect();
            }
            (jws, claims) = (issuer_jws, issuer.claims);
        }
        Err(SignatureError::TooLong)
    }

    /// Checks that a self-signed certificate is that of the root, with a trusted key.
    fn trusts(&self, jws: &Jws, last: &Certificate) -> Result<(), SignatureError> {
        jws.verify(&last.key)?;
        if !last.claims.counts_at(self.now_unix_s) {
            return Err(SignatureError::Dates);
        }
        let is_root = fold::eq(handle_of(&last.claims.subject).as_bytes(), TRUST_ROOT);
        let is_known = self.trusted_keys.iter().any(|known| is_same_key(known, &last.key_record));
        if is_root && is_known { Ok(()) } else { Err(SignatureError::Untrusted) }
    }
}

/// The handle of an identity such as `300:0.NA/10`; the whole text if it has no index.
fn handle_of(identity: &str) -> &str {
    split(identity).map_or(identity, |(_, handle)| handle)
}

fn split(identity: &str) -> Option<(i32, &str)> {
    let (index, handle) = identity.split_once(':')?;
    Some((index.parse().ok()?, handle))
}

/// The certificate of `subject` that a link leads to: the value that it names, or the newest one of
/// a handle.
fn certificate(
    link: &str,
    subject: &str,
    fetch: &mut Fetch<'_>,
) -> Result<(Jws, Certificate), SignatureError> {
    let missing = || SignatureError::NoCertificate(subject.to_owned());
    let question = match split(link) {
        Some((index, handle)) => Question { indexes: vec![index], ..Question::all(handle) },
        None => Question::of_types(link, &[kind::HS_CERT]),
    };
    let answer =
        fetch(&question).filter(|answer| answer.code == ResponseCode::SUCCESS).ok_or_else(missing)?;
    let mut newest: Option<(Jws, Certificate)> = None;
    for value in answer.values() {
        if !fold::eq(value.kind, kind::HS_CERT) || split(link).is_some_and(|(index, _)| index != value.index)
        {
            continue;
        }
        let Ok(jws) = Jws::parse(value.data) else { continue };
        let Ok(found) = Certificate::read(jws.payload()) else { continue };
        let is_newer = newest.as_ref().is_none_or(|(_, known)| known.claims.issued < found.claims.issued);
        if is_same_identity(&found.claims.subject, subject) && is_newer {
            newest = Some((jws, found));
        }
    }
    newest.ok_or_else(missing)
}

fn is_same_identity(one: &str, other: &str) -> bool {
    match (split(one), split(other)) {
        (Some((a, one)), Some((b, other))) => {
            a == b && Handle(one.as_bytes()).is_same(Handle(other.as_bytes()), false)
        }
        _ => one == other,
    }
}

/// Records the result of a valid signature for the values.
fn compare(report: &mut SignatureReport, digests: &Digests, values: &[Value<'_>]) {
    for (index, listed) in &digests.by_index {
        let of_index: Vec<_> = values.iter().filter(|value| value.index == *index).collect();
        let verdict = match of_index.as_slice() {
            [] => {
                report.missing.push(*index);
                continue;
            }
            [value] if value_digest(digests.digest, value) == *listed => ValueVerdict::Verified,
            // Of several values with one index, only one can be the signed one.
            _ => ValueVerdict::BadDigest,
        };
        for (_, known) in report.values.iter_mut().filter(|(known, _)| known == index) {
            *known = (*known).max(verdict);
        }
    }
}
