//! Content codings: which one a client prefers, and the encoded body. RFC 9110 section 12.5.3.

use flate2::Compression;
use flate2::write::GzEncoder;
use handle_daemon::settings;
use std::cell::RefCell;
use std::io::Write as _;

settings! {
    /// Compression of answers for clients that accept it: zstd, br or gzip.
    pub struct CompressionConfig {
        /// Set this when a proxy in front compresses, or processor time is short: `false`
        /// compresses nothing.
        live enabled: bool = true;
    } constants {
        /// Shorter bodies are not compressed: with its head, such an answer fits in one packet
        /// anyway.
        least_bytes: usize = 1024;
        /// Longer bodies are not compressed, because a worker answers no other request meanwhile.
        most_bytes: usize = 256 << 10;
    }
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// gzip, RFC 1952.
    Gzip,
    /// Brotli, RFC 7932.
    Brotli,
    /// Zstandard, RFC 8878.
    Zstd,
}

/// Levels at which the three codings take about the same time.
const BROTLI_QUALITY: i32 = 4;
const BROTLI_WINDOW_BITS: i32 = 20;
const ZSTD_LEVEL: i32 = 3;

impl ContentCoding {
    /// All codings. Of those that a client prefers equally, the first is used.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// The name of the coding in `Content-Encoding`.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// The coding that a client prefers whose headers `Accept-Encoding` have these values; `None`
    /// for an unencoded body.
    #[must_use]
    pub fn choose<'v>(lists: impl Iterator<Item = &'v str>) -> Option<Self> {
        let (mut weights, mut any, mut identity) = ([None; Self::ALL.len()], None, None);
        for (name, weight) in lists.flat_map(|list| list.split(',')).filter_map(weighted) {
            let is_named = |coding: Self| {
                name.eq_ignore_ascii_case(coding.token())
                    || coding == Self::Gzip && name.eq_ignore_ascii_case("x-gzip")
            };
            match Self::ALL.into_iter().position(is_named) {
                Some(at) => weights[at] = Some(weight),
                None if name == "*" => any = Some(weight),
                None if name.eq_ignore_ascii_case("identity") => identity = Some(weight),
                None => {}
            }
        }
        let weights = weights.map(|weight| weight.or(any).unwrap_or(0));
        let most = weights.into_iter().max().filter(|&most| most > 0 && most >= identity.unwrap_or(0))?;
        Self::ALL.into_iter().zip(weights).find(|(_, weight)| *weight == most).map(|(coding, _)| coding)
    }

    /// The encoded body; `None` if it cannot be encoded, or would be longer.
    #[must_use]
    pub fn encode(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let encoded = match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
                encoder.write_all(bytes).ok()?;
                encoder.finish().ok()?
            }
            Self::Brotli => {
                let parameters = brotli::enc::BrotliEncoderParams {
                    quality: BROTLI_QUALITY,
                    lgwin: BROTLI_WINDOW_BITS,
                    size_hint: bytes.len(),
                    ..Default::default()
                };
                let mut encoded = Vec::with_capacity(bytes.len() / 2);
                brotli::BrotliCompress(&mut &*bytes, &mut encoded, &parameters).ok()?;
                encoded
            }
            Self::Zstd => zstd_encoded(bytes)?,
        };
        (encoded.len() < bytes.len()).then_some(encoded)
    }
}

/// Encodes with a compressor that this thread keeps, because setting up its tables is slow.
fn zstd_encoded(bytes: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    }
    COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        compressor.as_mut()?.compress(bytes).ok()
    })
}

/// An entry of a list, with its weight in thousandths. Malformed weights count as 0.
fn weighted(entry: &str) -> Option<(&str, u16)> {
    let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
    let weight = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| crate::accept::thousandths(value))
    });
    let name = name.trim();
    (!name.is_empty()).then_some((name, weight.unwrap_or(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn the_coding_is_the_one_that_the_client_prefers() {
        use ContentCoding::{Brotli, Gzip, Zstd};
        for (accepted, coding) in [
            (&[][..], None),
            (&[""], None),
            (&["gzip"], Some(Gzip)),
            (&["X-GZIP"], Some(Gzip)),
            (&["gzip, deflate, br, zstd"], Some(Zstd)),
            (&["gzip, deflate, br"], Some(Brotli)),
            (&["gzip, br;q=0.9"], Some(Gzip)),
            (&["gzip;q=0.5, br;q=0.501", "zstd;q=0.4"], Some(Brotli)),
            (&["gzip;q=0"], None),
            (&["gzip; q=0.000"], None),
            (&["*"], Some(Zstd)),
            (&["*, zstd;q=0"], Some(Brotli)),
            (&["*;q=0, gzip"], Some(Gzip)),
            (&["identity"], None),
            (&["identity;q=1, gzip;q=0.5"], None),
            (&["identity;q=0.5, gzip"], Some(Gzip)),
            (&["gzip;q=nonsense"], None),
            (&["deflate, compress"], None),
        ] {
            assert_eq!(ContentCoding::choose(accepted.iter().copied()), coding, "{accepted:?}");
        }
    }

    #[test]
    fn encoded_bodies_decode_to_what_they_were() {
        let body = "{\"responseCode\":1,\"handle\":\"10.1/a\"}".repeat(100).into_bytes();
        for coding in ContentCoding::ALL {
            let encoded = coding.encode(&body).unwrap();
            assert!(encoded.len() < body.len() / 4, "{coding:?}: {}", encoded.len());
            let mut decoded = Vec::new();
            match coding {
                ContentCoding::Gzip => {
                    flate2::read::GzDecoder::new(&*encoded).read_to_end(&mut decoded).unwrap();
                }
                ContentCoding::Brotli => {
                    brotli::BrotliDecompress(&mut &*encoded, &mut decoded).unwrap();
                }
                ContentCoding::Zstd => decoded = zstd::bulk::decompress(&encoded, body.len()).unwrap(),
            }
            assert_eq!(decoded, body, "{coding:?}");
            assert_eq!(coding.encode(b"x"), None, "a body that would be longer");
        }
    }
}
