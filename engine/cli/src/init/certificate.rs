//! A self-signed certificate for the gateway, so that a new service has TLS.

use crate::key;
use anyhow::Context as _;
use handle_auth::file::create_secret_file;
use handle_daemon::clock::now_unix_ms;
use jiff::{Timestamp, ToSpan as _, civil::Date, tz::TimeZone};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use std::net::IpAddr;
use std::path::Path;

/// The files, relative to the configuration of the gateway.
pub(super) const CERTIFICATE_FILE: &str = "certificate.pem";
pub(super) const KEY_FILE: &str = "certificate-key.pem";
/// Names of this host, for clients that run on it.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Years for which the certificate is valid. It is meant to be replaced long before.
const YEARS: i16 = 10;

/// What to do with the certificate.
pub(super) const ADVICE: [&str; 2] = [
    "the certificate is self-signed, so browsers warn: replace both files by those of an authority,",
    "or let the gateway order one (`tls.acme.domains` in handle-gateway.toml in place of the files)",
];

/// Writes a new key and its certificate for `addresses` and for this host.
pub(super) fn create(directory: &Path, addresses: &[IpAddr]) -> anyhow::Result<()> {
    let now = Timestamp::from_millisecond(now_unix_ms().cast_signed()).unwrap_or(Timestamp::MAX);
    let today = now.to_zoned(TimeZone::UTC).date();
    let (certificate, key) = self_signed(addresses, today).context("cannot make a certificate")?;
    create_secret_file(&directory.join(KEY_FILE), key.as_bytes())?;
    key::create(&directory.join(CERTIFICATE_FILE), certificate.as_bytes())
}

/// A certificate and its key, as PEM.
fn self_signed(addresses: &[IpAddr], today: Date) -> anyhow::Result<(String, String)> {
    let given = addresses.iter().filter(|address| !address.is_unspecified()).map(IpAddr::to_string);
    let mut names: Vec<String> = given.chain(OWN_NAMES.map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    let mut parameters = CertificateParams::new(names)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, "handle-gateway");
    parameters.distinguished_name = subject;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Clocks of clients may be behind.
    let [first, last] = [today.saturating_sub(1.day()), today.saturating_add(YEARS.years())];
    let [first, last] = [first, last]
        .map(|day| (i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs()));
    parameters.not_before = date_time_ymd(first.0, first.1, first.2);
    parameters.not_after = date_time_ymd(last.0, last.1, last.2);
    let key = KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}
