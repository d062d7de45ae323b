//! Values given as arguments and as JSON.

use crate::{UsageError, key};
use anyhow::{Context as _, bail, ensure};
use handle_proto::data::DataFormat;
use handle_proto::json::{Json, data_from_text, entered_value_from_json, site_from_json};
use handle_proto::value::{Ttl, Value};
use handle_proto::{Permissions, ValueBuf, Values};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The values of a command.
#[derive(clap::Args, Debug)]
pub(super) struct ValueArgs {
    /// Values as INDEX:TYPE=DATA; INDEX:TYPE=@FILE reads the data from a file. A newline at the end
    /// of the file of an HS_SECKEY value is ignored.
    #[arg(value_name = "VALUE")]
    values: Vec<String>,
    /// JSON file with values, `-` for standard input: a record, a list of values, or one value.
    #[arg(long, value_name = "FILE")]
    json_values: Option<PathBuf>,
    /// Time to live of the values given as arguments, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = Ttl::DEFAULT.seconds, value_parser = clap::value_parser!(i32).range(0..))]
    ttl: i32,
    /// Permissions of the values given as arguments, four bits: administrators read, administrators
    /// write, everybody reads, everybody writes. Default: 1110, and 1100 for secrets.
    #[arg(long, value_name = "BITS")]
    permissions: Option<String>,
}

impl ValueArgs {
    pub(super) fn read(&self) -> anyhow::Result<Vec<ValueBuf>> {
        let mut values = match &self.json_values {
            Some(path) => from_json(path).with_context(|| format!("in {}", path.display()))?,
            None => Vec::new(),
        };
        for text in &self.values {
            values.push(self.parse(text)?);
        }
        Ok(values)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.values.is_empty() && self.json_values.is_none()
    }

    fn parse(&self, text: &str) -> anyhow::Result<ValueBuf> {
        let (index, kind, data) = split(text).map_err(UsageError)?;
        let bytes = match data.strip_prefix('@') {
            Some(path) => from_file(kind, Path::new(path))?,
            None => data_from_text(kind.as_bytes(), data)
                .map_err(|error| UsageError(format!("the value {index}:{kind}=...: {error}")))?,
        };
        let mut value = Value::new(index, kind.as_bytes(), &bytes);
        value.ttl = Ttl::relative(self.ttl);
        value.permissions = match &self.permissions {
            Some(bits) => permissions(bits)?,
            None if DataFormat::of(kind.as_bytes()) == DataFormat::SecretKey => Permissions(0x0c),
            None => Permissions::DEFAULT,
        };
        Ok((&value).into())
    }
}

/// Splits `INDEX:TYPE=DATA`. The error says what is missing, without the data, which may be secret.
fn split(text: &str) -> Result<(i32, &str, &str), String> {
    const FORM: &str = "expected INDEX:TYPE=DATA, as 1:URL=https://example.org/";
    // An index and a type alone, or words meant for another option.
    let (head, data) = text.split_once('=').ok_or_else(|| format!("{text:?} has no data: {FORM}"))?;
    let (index, kind) = head
        .split_once(':')
        .ok_or_else(|| format!("the index is missing: expected INDEX:{head}=..., as 1:{head}=..."))?;
    if kind.is_empty() {
        return Err(format!("the type is missing: {FORM}"));
    }
    let number =
        index.parse().map_err(|_| format!("invalid index {index:?}: expected a number, as 1:{kind}=..."))?;
    Ok((number, kind, data))
}

/// Values in wire form, in `storage`.
pub(super) fn encoded<'a>(values: &'a [ValueBuf], storage: &'a mut Vec<u8>) -> Values<'a> {
    Values::build(values.iter().map(ValueBuf::view), storage)
}

fn permissions(bits: &str) -> anyhow::Result<Permissions> {
    let is_bits = bits.len() == 4 && bits.bytes().all(|bit| matches!(bit, b'0' | b'1'));
    ensure!(is_bits, UsageError(format!("invalid permissions {bits:?}: expected four bits, as 1110")));
    Ok(Permissions(u8::from_str_radix(bits, 2)?))
}

/// Reads data from a file: keys in any form, secrets without the newline at their end, sites also
/// as JSON, all other data as it is.
pub(crate) fn from_file(kind: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let format = DataFormat::of(kind.as_bytes());
    match format {
        DataFormat::PublicKey => return key::public_record(path),
        DataFormat::SecretKey => return Ok(handle_auth::open_text_secret(path)?.to_vec()),
        _ => {}
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if format == DataFormat::Site && bytes.trim_ascii_start().starts_with(b"{") {
        let json = serde_json::from_slice(&bytes).with_context(|| format!("in {}", path.display()))?;
        return Ok(site_from_json(&json)
            .with_context(|| format!("in {}", path.display()))?
            .as_bytes()
            .to_vec());
    }
    Ok(bytes)
}

fn from_json(path: &Path) -> anyhow::Result<Vec<ValueBuf>> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(path)?;
    }
    let json: Json = serde_json::from_str(&text)?;
    let values = match &json {
        Json::Array(values) => values.as_slice(),
        Json::Object(record) => match record.get("values") {
            Some(Json::Array(values)) => values,
            Some(_) => bail!("`values` is not a list"),
            None => std::slice::from_ref(&json),
        },
        _ => bail!("expected a record, a list of values, or a value"),
    };
    values
        .iter()
        .enumerate()
        .map(|(at, value)| entered_value_from_json(value).with_context(|| format!("value {at}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::data::{Admin, Vlist};

    fn args(values: &[&str]) -> ValueArgs {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        ValueArgs { values, json_values: None, ttl: 60, permissions: None }
    }

    #[test]
    fn values_have_an_index_a_type_and_data() {
        let values =
            args(&["1:URL=https://example.org/?a=b:c", "301:HS_SECKEY=secret", "2:DESC="]).read().unwrap();
        let [url, secret, empty] = &values[..] else { panic!("three values") };
        assert_eq!((url.view().index, url.view().kind), (1, &b"URL"[..]));
        assert_eq!(
            (url.view().data, url.view().ttl),
            (&b"https://example.org/?a=b:c"[..], Ttl::relative(60))
        );
        assert_eq!((url.view().permissions.0, secret.view().permissions.0), (0x0e, 0x0c));
        assert!(empty.view().data.is_empty());
        for (text, why) in [
            ("URL=x", "the index is missing"),
            ("1:URL", "has no data"),
            ("x:URL=x", "invalid index"),
            ("1:HS_ADMIN=300", "HS_ADMIN"),
            ("1:HS_ADMIN=0111111100113:300:10/a", "HS_ADMIN"),
            ("1:DESC=@/nowhere", "/nowhere"),
        ] {
            let error = format!("{:#}", args(&[text]).read().map(drop).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn administrators_and_groups_have_a_short_form() {
        for (text, bits) in
            [("300:10/a:b", 0x07f3), ("111111111111:300:10/a:b", 0x0fff), ("000000000001:300:10/a:b", 1)]
        {
            let data = data_from_text(b"hs_admin", text).unwrap();
            let admin = Admin::decode(&data).unwrap();
            assert_eq!(
                (admin.permissions.0, admin.reference.to_string().as_str()),
                (bits, "300:10/a:b"),
                "{text}"
            );
        }
        let data = data_from_text(b"HS_VLIST", "300:10/a; 301:10/b;").unwrap();
        let members: Vec<_> =
            Vlist::decode(&data).unwrap().0.iter().map(|member| member.to_string()).collect();
        assert_eq!(members, ["300:10/a", "301:10/b"]);
    }

    #[test]
    fn sites_come_from_files_in_both_forms() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site");
        let text = r#" {"serialNumber":7,"servers":[]}"#;
        let record = site_from_json(&serde_json::from_str(text).unwrap()).unwrap().into_bytes();
        for kind in ["HS_SITE", "HS_SITE.6", "hs_site.prefix", "HS_NA_DELEGATE"] {
            for file in [text.as_bytes(), &record] {
                std::fs::write(&path, file).unwrap();
                assert_eq!(from_file(kind, &path).unwrap(), record, "{kind}");
            }
        }
        std::fs::write(&path, text).unwrap();
        assert_eq!(from_file("URL", &path).unwrap(), text.as_bytes(), "no site");
        std::fs::write(&path, r#"{"serialNumber":"seven"}"#).unwrap();
        let error = format!("{:#}", from_file("HS_SITE", &path).unwrap_err());
        assert!(error.contains("serialNumber"), "{error}");
    }

    #[test]
    fn json_is_a_record_a_list_or_a_value() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("values.json");
        let value = r#"{"index":1,"type":"URL","data":"x"}"#;
        for (text, count) in [
            (value.to_owned(), 1),
            (format!("[{value},{value}]"), 2),
            (format!(r#"{{"handle":"10/a","values":[{value}]}}"#), 1),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(from_json(&path).unwrap().len(), count, "{text}");
        }
        for text in ["7", r#"{"values":7}"#, r#"[{"index":1}]"#, ""] {
            std::fs::write(&path, text).unwrap();
            assert!(from_json(&path).is_err(), "{text}");
        }
    }
}
