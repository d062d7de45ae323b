//! Signatures of requests, as S3 defines them (AWS Signature Version 4).

use super::{BucketRequest, KEY_ID, SECRET};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::request::Parts;
use sha2::{Digest as _, Sha256};

/// Whether the request is signed with the secret of the tests.
pub(super) fn is_valid(head: &Parts, request: &BucketRequest) -> bool {
    check(head, request).is_some()
}

/// `Some` if the signature is right.
fn check(head: &Parts, request: &BucketRequest) -> Option<()> {
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let authorization = header("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let part = |name: &str| {
        let mut parts = authorization.split(',').map(str::trim);
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    };
    let (key_id, scope) = part("Credential")?.split_once('/')?;
    let [day, region, service, "aws4_request"] = scope.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    let names = part("SignedHeaders")?;
    let signed = names.split(';').map(|name| Some(format!("{name}:{}\n", header(name)?.trim())));
    let signed: String = signed.collect::<Option<_>>()?;
    let mut query: Vec<String> =
        request.query.split('&').filter(|pair| !pair.is_empty()).map(assigned).collect();
    query.sort();
    let canonical = [
        request.method.as_str(),
        &request.path,
        &query.join("&"),
        &signed,
        names,
        header("x-amz-content-sha256")?,
    ]
    .join("\n");
    let digest = HEXLOWER.encode(&Sha256::digest(canonical));
    let text = ["AWS4-HMAC-SHA256", header("x-amz-date")?, scope, &digest].join("\n");
    let key = [day, region, service, "aws4_request"]
        .into_iter()
        .try_fold(format!("AWS4{SECRET}").into_bytes(), |key, text| mac(&key, text))?;
    let signature = HEXLOWER.encode(&mac(&key, &text)?);
    (key_id == KEY_ID && part("Signature")? == signature).then_some(())
}

/// A pair of a query, with the sign of equality that a name alone lacks.
fn assigned(pair: &str) -> String {
    if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") }
}

fn mac(key: &[u8], text: &str) -> Option<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(text.as_bytes());
    Some(mac.finalize().into_bytes().to_vec())
}
