//! The table of the predefined types. RFC 3651 section 3.2.
//!
//! A row says what the data of a type are. From it come the name in [`kind`], how data are decoded
//! and shown, their JSON and the text that people enter for them, the files that `hdl` reads, the
//! pages of the gateway, and the row of `docs/conformance.md`.

use super::is_a;
use crate::fold;

/// What the data of a value are. Each format is a variant of [`Data`](super::Data).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataFormat {
    /// An administrator, with permissions.
    Admin,
    /// A list of references.
    Vlist,
    /// A site of a service.
    Site,
    /// A public key.
    PublicKey,
    /// A secret.
    SecretKey,
    /// The handle of a record with site records.
    Service,
    /// The handle that another one stands for.
    Alias,
    /// The XML of a namespace.
    Namespace,
    /// Bytes without a meaning for the protocol; usually text.
    Opaque,
}

/// A predefined type. Its sub-types, as `HS_SITE.6` of `HS_SITE`, have the same format.
#[derive(Clone, Copy, Debug)]
pub struct PredefinedType {
    /// The name.
    pub name: &'static [u8],
    /// What a value of the type says.
    pub about: &'static str,
    /// What its data are.
    pub format: DataFormat,
    /// Where the type is defined.
    pub origin: &'static str,
    /// Whether a record `0.TYPE/NAME` explains it, to which pages link.
    pub is_explained: bool,
    /// Whether forms for new values offer it.
    pub is_offered: bool,
}

macro_rules! predefined_types {
    ($(
        $(#[doc = $about:literal])+
        $constant:ident = $name:literal, $format:ident, $origin:literal,
            explained: $is_explained:literal, offered: $is_offered:literal;
    )+) => {
        /// The names of the predefined types.
        pub mod kind {
            $($(#[doc = $about])+ pub const $constant: &[u8] = $name;)+
        }

        /// The predefined types. Those whose names begin with `HS_` come first.
        pub const PREDEFINED_TYPES: &[PredefinedType] = &[$(PredefinedType {
            name: kind::$constant,
            about: concat!($($about),+).trim_ascii(),
            format: DataFormat::$format,
            origin: $origin,
            is_explained: $is_explained,
            is_offered: $is_offered,
        }),+];
    };
}

predefined_types! {
    /// Administrator of a handle.
    HS_ADMIN = b"HS_ADMIN", Admin, "RFC 3651 section 3.2.1", explained: true, offered: true;
    /// Site record.
    HS_SITE = b"HS_SITE", Site, "RFC 3651 section 3.2.2", explained: true, offered: false;
    /// Site record with IPv6 addresses, which old clients ignore.
    HS_SITE_6 = b"HS_SITE.6", Site, "as deployed", explained: true, offered: false;
    /// Site record of the service that has the records of derived prefixes.
    HS_SITE_PREFIX = b"HS_SITE.PREFIX", Site, "as deployed", explained: true, offered: false;
    /// Legacy name of HS_SITE.PREFIX.
    HS_NA_DELEGATE = b"HS_NA_DELEGATE", Site, "RFC 3651 section 3.2.3", explained: false, offered: false;
    /// Group of administrators.
    HS_VLIST = b"HS_VLIST", Vlist, "RFC 3651 section 3.2.7", explained: false, offered: false;
    /// Public key of an administrator.
    HS_PUBKEY = b"HS_PUBKEY", PublicKey, "as deployed", explained: true, offered: false;
    /// Secret of an administrator.
    HS_SECKEY = b"HS_SECKEY", SecretKey, "as deployed", explained: false, offered: false;
    /// Handle of a record with the site records of a prefix.
    HS_SERV = b"HS_SERV", Service, "RFC 3651 section 3.2.4", explained: false, offered: false;
    /// Handle of a record with the site records of the service for derived prefixes.
    HS_SERV_PREFIX = b"HS_SERV.PREFIX", Service, "as deployed", explained: false, offered: false;
    /// Alias: the handle that this one stands for.
    HS_ALIAS = b"HS_ALIAS", Alias, "RFC 3651 section 3.2.5", explained: true, offered: true;
    /// Description of a prefix, in XML.
    HS_NAMESPACE = b"HS_NAMESPACE", Namespace, "as deployed", explained: true, offered: false;
    /// Signature over values, as a JWS.
    HS_SIGNATURE = b"HS_SIGNATURE", Opaque, "as deployed", explained: false, offered: false;
    /// Certificate for signatures, as a JWS.
    HS_CERT = b"HS_CERT", Opaque, "as deployed", explained: false, offered: false;
    /// Defined in the RFC, but not deployed.
    HS_PRIMARY = b"HS_PRIMARY", Opaque, "RFC 3651 section 3.2.6", explained: false, offered: false;
    /// Uniform resource locator.
    URL = b"URL", Opaque, "as deployed", explained: true, offered: true;
    /// Mail address.
    EMAIL = b"EMAIL", Opaque, "as deployed", explained: true, offered: true;
    /// Description.
    DESC = b"DESC", Opaque, "as deployed", explained: false, offered: true;
    /// Uniform resource name.
    URN = b"URN", Opaque, "as deployed", explained: true, offered: false;
    /// Host name.
    INET_HOST = b"INET_HOST", Opaque, "as deployed", explained: false, offered: false;
    /// Checksum of what the handle names.
    CHECKSUM = b"CHECKSUM", Opaque, "as deployed", explained: false, offered: false;
    /// Locations to choose from, in XML.
    LOCATIONS = b"10320/loc", Opaque, "as deployed", explained: false, offered: true;
}

impl PredefinedType {
    /// The type with that name, in any ASCII case, or that of which it is a sub-type.
    #[must_use]
    pub fn find(kind: &[u8]) -> Option<&'static Self> {
        PREDEFINED_TYPES.iter().find(|predefined| is_a(kind, predefined.name))
    }
}

impl DataFormat {
    /// What the data of a value of type `kind` are.
    #[must_use]
    pub fn of(kind: &[u8]) -> Self {
        // Most values have another type, which the first byte or two of it show.
        if !fold::starts_with(kind, b"HS_") {
            return Self::Opaque;
        }
        PredefinedType::find(kind).map_or(Self::Opaque, |predefined| predefined.format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_types_that_begin_with_hs_have_a_format_and_they_come_first() {
        let is_hs = |row: &PredefinedType| row.name.starts_with(b"HS_");
        assert!(PREDEFINED_TYPES.iter().is_sorted_by_key(|row| !is_hs(row)));
        for row in PREDEFINED_TYPES {
            assert!(is_hs(row) || row.format == DataFormat::Opaque, "{row:?}");
            assert_eq!(DataFormat::of(row.name), row.format, "{row:?}: a type that it is a sub-type of");
            assert!(row.about.ends_with('.'), "{row:?}");
        }
    }

    #[test]
    fn types_are_found_in_any_case_and_with_their_sub_types() {
        for (kind, name) in [
            (&b"hs_site.prefix"[..], Some(kind::HS_SITE)),
            (b"HS_SITE.6", Some(kind::HS_SITE)),
            (b"email", Some(kind::EMAIL)),
            (b"URL.x", Some(kind::URL)),
            (b"URLS", None),
            (b"HS_", None),
            (b"", None),
        ] {
            assert_eq!(PredefinedType::find(kind).map(|found| found.name), name, "{kind:?}");
        }
    }
}
