//! Keys as JSON Web Keys. RSA is that of RFC 7518 section 6.3; `DSA` is an extension of deployed
//! software.

use super::read::{self, Object, Result};
use super::{Json, JsonError, object};
use crate::data::key::{Number, PrivateKey, PrivateKeyBuf, PublicKey};
use alloc::string::String;
use alloc::vec::Vec;
use data_encoding::BASE64URL_NOPAD;
use zeroize::Zeroizing;

/// The JWK of a public key; `None` for a Diffie-Hellman key, which has no JWK.
#[must_use]
pub fn public_key_to_jwk(key: &PublicKey<'_>) -> Option<Json> {
    let number = |number: Number<'_>| Json::String(BASE64URL_NOPAD.encode(digits(number)));
    match *key {
        PublicKey::Rsa { e, n } => Some(object([("kty", "RSA".into()), ("n", number(n)), ("e", number(e))])),
        PublicKey::Dsa { q, p, g, y } => Some(object([
            ("kty", "DSA".into()),
            ("y", number(y)),
            ("p", number(p)),
            ("q", number(q)),
            ("g", number(g)),
        ])),
        PublicKey::Dh { .. } => None,
    }
}

/// Converts a JWK to a key record. Private members are ignored.
///
/// # Errors
/// When the algorithm is not RSA or DSA, or a number is missing or not base64url.
pub fn public_key_from_jwk(jwk: &Json) -> Result<Vec<u8>> {
    let jwk = read::object(jwk)?;
    let number = |name| number(jwk, name);
    match kty(jwk)? {
        KeyType::Rsa => {
            let (n, e) = (number("n")?, number("e")?);
            Ok(PublicKey::Rsa { e: Number::new(&e), n: Number::new(&n) }.to_bytes())
        }
        KeyType::Dsa => {
            let (y, p, q, g) = (number("y")?, number("p")?, number("q")?, number("g")?);
            let [y, p, q, g] = [&y, &p, &q, &g].map(|bytes| Number::new(bytes));
            Ok(PublicKey::Dsa { q, p, g, y }.to_bytes())
        }
    }
}

/// The text of the JWK of a private key, cleared when it is dropped.
#[must_use]
pub fn private_key_to_jwk(key: &PrivateKey<'_>) -> Zeroizing<String> {
    let (kty, members): (_, &[(&str, Number<'_>)]) = match *key {
        PrivateKey::Dsa { x, p, q, g } => ("DSA", &[("x", x), ("p", p), ("q", q), ("g", g)]),
        PrivateKey::Rsa { n, d } => ("RSA", &[("n", n), ("d", d)]),
        PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi } => {
            ("RSA", &[("n", n), ("e", e), ("d", d), ("p", p), ("q", q), ("dp", dp), ("dq", dq), ("qi", qi)])
        }
    };
    // Allocated at once, because growing would leave copies behind that are not cleared.
    let digits_len = |number| BASE64URL_NOPAD.encode_len(digits(number).len());
    let len = members.iter().map(|&(name, number)| name.len() + digits_len(number) + 6).sum::<usize>();
    let mut text = Zeroizing::new(String::with_capacity(len + r#"{"kty":"RSA"}"#.len()));
    text.push_str(r#"{"kty":""#);
    text.push_str(kty);
    for &(name, number) in members {
        text.push_str(r#"",""#);
        text.push_str(name);
        text.push_str(r#"":""#);
        BASE64URL_NOPAD.encode_append(digits(number), &mut text);
    }
    text.push_str(r#""}"#);
    text
}

/// Converts the JWK of a private key. The caller clears the JSON tree.
///
/// # Errors
/// When the algorithm is not RSA or DSA, or a number is missing or not base64url.
pub fn private_key_from_jwk(jwk: &Json) -> Result<PrivateKeyBuf> {
    let jwk = read::object(jwk)?;
    let number = |name| number(jwk, name);
    match kty(jwk)? {
        KeyType::Dsa => {
            let numbers = [number("x")?, number("p")?, number("q")?, number("g")?];
            let [x, p, q, g] = numbers.each_ref().map(|bytes| Number::new(bytes));
            Ok((&PrivateKey::Dsa { x, p, q, g }).into())
        }
        KeyType::Rsa if !jwk.contains_key("p") => {
            let numbers = [number("n")?, number("d")?];
            let [n, d] = numbers.each_ref().map(|bytes| Number::new(bytes));
            Ok((&PrivateKey::Rsa { n, d }).into())
        }
        KeyType::Rsa => {
            let (front, primes) = ([number("n")?, number("e")?, number("d")?], [number("p")?, number("q")?]);
            let rest = [number("dp")?, number("dq")?, number("qi")?];
            let [n, e, d] = front.each_ref().map(|bytes| Number::new(bytes));
            let [p, q] = primes.each_ref().map(|bytes| Number::new(bytes));
            let [dp, dq, qi] = rest.each_ref().map(|bytes| Number::new(bytes));
            Ok((&PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi }).into())
        }
    }
}

/// The bytes of a number; zero has one byte. RFC 7518 section 2, `Base64urlUInt`.
fn digits(number: Number<'_>) -> &[u8] {
    if number.as_bytes().is_empty() { &[0] } else { number.as_bytes() }
}

enum KeyType {
    Rsa,
    Dsa,
}

fn kty(jwk: &Object) -> Result<KeyType> {
    read::required(jwk, "kty", |kty| match read::string(kty)? {
        "RSA" => Ok(KeyType::Rsa),
        "DSA" => Ok(KeyType::Dsa),
        _ => Err(JsonError::new("neither RSA nor DSA")),
    })
}

fn number(jwk: &Object, name: &str) -> Result<Zeroizing<Vec<u8>>> {
    read::required(jwk, name, |json| {
        let digits = read::string(json)?.trim_end_matches('=');
        let bytes = BASE64URL_NOPAD.decode(digits.as_bytes()).map_err(|_| JsonError::new("not base64url"))?;
        if bytes.is_empty() { Err(JsonError::new("no number")) } else { Ok(Zeroizing::new(bytes)) }
    })
}
