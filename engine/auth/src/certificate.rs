//! Certificates of callers: the identity in the subject, and the public key.
//!
//! Issuer, signature, dates and extensions have no meaning here: the identity has this key if its
//! record says so, and only then. So certificates are self-signed as a rule, and may be of any
//! version of X.509.

use crate::pem::public_key_of;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::Reference;
use pkcs8::ObjectIdentifier;
use pkcs8::der::asn1::AnyRef;
use pkcs8::der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged as _};
use pkcs8::spki::SubjectPublicKeyInfoRef;
use std::fmt;

/// The attribute `UID` of a subject. RFC 4519 section 2.39.
const UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.1");
/// The attribute `CN`. RFC 4519 section 2.3.
const CN: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// The tag of the version, which certificates of version 1 do not have.
const VERSION: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };

/// What a certificate says about a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerCertificate<'a> {
    /// The identity, from the attribute `UID` of the subject, or from `CN` if there is no `UID`.
    pub identity: Reference<'a>,
    /// The public key, as a key record.
    pub key: Vec<u8>,
}

/// Why a certificate does not say who a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// It is not a certificate of X.509.
    Malformed,
    /// Its key is of a kind that no record has.
    Key,
    /// The subject has neither `UID` nor `CN`, has several of them, or none that is an identity.
    Identity,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "it is not a certificate",
            Self::Key => "its key is neither an RSA nor a DSA key",
            Self::Identity => "its subject has no identity (UID=index:handle, or CN)",
        })
    }
}

impl std::error::Error for CertificateError {}

impl<'a> CallerCertificate<'a> {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// When it does not have a key and an identity.
    pub fn parse(der: &'a [u8]) -> Result<Self, CertificateError> {
        let (subject, key) = subject_and_key(der).map_err(|_| CertificateError::Malformed)?;
        let text = match attribute(subject, UID)? {
            Some(text) => text,
            None => attribute(subject, CN)?.ok_or(CertificateError::Identity)?,
        };
        let identity = Reference::parse(text).filter(|identity| identity.handle.len() <= HANDLE_LEN_MAX);
        let identity = identity.ok_or(CertificateError::Identity)?;
        Ok(Self { identity, key: public_key_of(&key).map_err(|_| CertificateError::Key)? })
    }
}

/// The subject and the public key of a certificate. RFC 5280 section 4.1.
fn subject_and_key(der: &[u8]) -> pkcs8::der::Result<(AnyRef<'_>, SubjectPublicKeyInfoRef<'_>)> {
    let certificate = AnyRef::from_der(der)?.sequence(|reader| {
        let signed: AnyRef<'_> = reader.decode()?;
        // The algorithm and the signature.
        let _: [AnyRef<'_>; 2] = [reader.decode()?, reader.decode()?];
        Ok::<_, pkcs8::der::Error>(signed)
    });
    certificate?.sequence(|reader| {
        if Tag::peek(reader)? == VERSION {
            let _: AnyRef<'_> = reader.decode()?;
        }
        // The serial number, algorithm, issuer and validity.
        for _ in 0..4 {
            let _: AnyRef<'_> = reader.decode()?;
        }
        let (subject, key) = (reader.decode()?, reader.decode()?);
        while !reader.is_finished() {
            let _: AnyRef<'_> = reader.decode()?;
        }
        Ok((subject, key))
    })
}

/// The text of the attribute `kind` of a name; `None` if there is none.
fn attribute<'a>(name: AnyRef<'a>, kind: ObjectIdentifier) -> Result<Option<&'a str>, CertificateError> {
    let found = name.sequence(|reader| {
        let mut found = Vec::new();
        while !reader.is_finished() {
            let set: AnyRef<'a> = reader.decode()?;
            set.tag().assert_eq(Tag::Set)?;
            let mut attributes = SliceReader::new(set.value())?;
            while !attributes.is_finished() {
                let attribute: AnyRef<'a> = attributes.decode()?;
                let (of, value) = attribute
                    .sequence(|reader| Ok::<_, pkcs8::der::Error>((reader.decode()?, reader.decode()?)))?;
                if kind == of {
                    found.push(value);
                }
            }
        }
        Ok::<Vec<AnyRef<'a>>, pkcs8::der::Error>(found)
    });
    match found.map_err(|_| CertificateError::Malformed)?[..] {
        [] => Ok(None),
        [value] => text(value).ok_or(CertificateError::Identity).map(Some),
        // It would depend on the reader which of them counts.
        _ => Err(CertificateError::Identity),
    }
}

/// The text of a value in a form that is UTF-8.
fn text(value: AnyRef<'_>) -> Option<&str> {
    let text = std::str::from_utf8(value.value()).ok()?;
    match value.tag() {
        Tag::Utf8String => Some(text),
        Tag::PrintableString | Tag::Ia5String => text.is_ascii().then_some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
