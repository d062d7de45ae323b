//! The JSON of the formats of data, and the text that people enter for them.

use super::read::Result;
use super::{Json, Reading, admin, key, site};
use crate::data::{Data, DataFormat, SiteBuf};
use alloc::string::String;
use alloc::vec::Vec;

/// How data of one format are written as JSON, and read from JSON or text.
#[derive(Debug)]
pub(super) struct JsonForm {
    /// What the data are.
    pub(super) format: DataFormat,
    /// The name in the member `format`.
    pub(super) name: &'static str,
    /// The JSON of data; `None` if they could not be read back.
    pub(super) write: fn(&Data<'_>) -> Option<Json>,
    /// Reads JSON.
    pub(super) read: fn(&Json, Reading) -> Result<Vec<u8>>,
    /// Reads what people write in place of JSON.
    pub(super) read_text: fn(&str) -> Option<Vec<u8>>,
    /// What is expected of text.
    pub(super) expected: &'static str,
}

/// A row for each format with members. Data of the others are text or bytes.
static JSON_FORMS: [JsonForm; 4] = [
    JsonForm {
        format: DataFormat::Admin,
        name: "admin",
        write: |data| if let Data::Admin(admin) = data { admin::to_json(admin) } else { None },
        read: admin::from_json,
        read_text: admin::from_text,
        expected: "not an administrator: expected {\"handle\":...,\"index\":...,\"permissions\":...}, or BITS:INDEX:HANDLE",
    },
    JsonForm {
        format: DataFormat::Vlist,
        name: "vlist",
        write: |data| if let Data::Vlist(vlist) = data { admin::vlist_to_json(*vlist) } else { None },
        read: |json, _| admin::vlist_from_json(json),
        read_text: admin::vlist_from_text,
        expected: "not a list of values: expected [{\"handle\":...,\"index\":...}], or INDEX:HANDLE;INDEX:HANDLE",
    },
    JsonForm {
        format: DataFormat::Site,
        name: "site",
        write: |data| if let Data::Site(site) = data { Some(site::site_to_json(site)) } else { None },
        read: |json, _| site::site_from_json(json).map(SiteBuf::into_bytes),
        read_text: |_| None,
        expected: "not a site: expected its JSON, or the format base64",
    },
    JsonForm {
        format: DataFormat::PublicKey,
        name: "key",
        write: |data| if let Data::PublicKey(key) = data { key::public_key_to_jwk(key) } else { None },
        read: |json, _| key::public_key_from_jwk(json),
        read_text: |_| None,
        expected: "not a public key: expected a JWK, or the format base64",
    },
];

impl JsonForm {
    /// The form of the data of type `kind`; `None` for types whose data may be any text.
    pub(super) fn of(kind: &[u8]) -> Option<&'static Self> {
        let format = DataFormat::of(kind);
        JSON_FORMS.iter().find(|form| form.format == format)
    }

    /// The form with that name, in any ASCII case.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        JSON_FORMS.iter().find(|form| form.name.eq_ignore_ascii_case(name))
    }

    /// The names of all forms, for an error.
    pub(super) fn names() -> String {
        let mut text = String::new();
        for (at, form) in JSON_FORMS.iter().enumerate() {
            text.push_str(if at + 1 == JSON_FORMS.len() { " and " } else { ", " });
            text.push_str(form.name);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PREDEFINED_TYPES;

    #[test]
    fn every_type_with_a_form_refuses_other_text_and_says_what_is_expected() {
        let mut formats = Vec::new();
        for row in PREDEFINED_TYPES {
            let Some(form) = JsonForm::of(row.name) else { continue };
            assert_eq!(form.format, row.format);
            assert_eq!((form.read_text)("neither"), None, "{row:?}");
            let error = super::super::data_from_text(row.name, "neither").unwrap_err();
            assert_eq!(error.what(), form.expected, "{row:?}");
            formats.push(form.format);
        }
        assert!(JSON_FORMS.iter().all(|form| formats.contains(&form.format)), "a form without a type");
        assert_eq!(JsonForm::names(), ", admin, vlist, site and key");
    }
}
