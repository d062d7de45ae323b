//! The global service as known before the first question, and configured services.
//!
//! The files of deployed clients are read unchanged: `bootstrap_handles` (JSON) and `root_info`
//! (binary) for the global service, `local_info.json` and `local_info` for prefixes with a service
//! of their own, `resolver_site` for a service that answers every public question. RFC 3651 section
//! 4.1.1.

use crate::service::{Kinds, SITES_MAX, ServiceSites, SharedSite, add_once, at_all_addresses};
use handle_proto::data::kind;
use handle_proto::data::site::SiteBuf;
use handle_proto::json::{Json, JsonError, JsonRecord, record_from_json, site_from_json};
use handle_proto::limit::SERVICE_NESTING_MAX;
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::list::Values;
use handle_proto::{DecodeError, Field, Handle, ValueBuf, fold};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// Most bytes of a bootstrap file.
pub const FILE_LEN_MAX: u64 = 16 << 20;

/// The global service.
#[derive(Clone, Debug)]
pub struct Root {
    /// Its sites.
    pub sites: Vec<SharedSite>,
    /// Records of the public keys that are trusted to sign values: those of `0.0/0.0` in the file.
    pub trusted_keys: Vec<Vec<u8>>,
    /// Time when the file was written, in milliseconds since 1970; unknown in the old format.
    pub updated_unix_ms: Option<u64>,
    /// The record whose service this is: the root, unless another was preferred.
    pub service: Vec<u8>,
}

impl Default for Root {
    fn default() -> Self {
        Self { sites: vec![], trusted_keys: vec![], updated_unix_ms: None, service: ROOT.to_vec() }
    }
}

/// The current global service. A renewal may replace it while lookups are under way.
#[derive(Debug, Default)]
pub struct KnownRoot(RwLock<Arc<Root>>);

impl KnownRoot {
    /// Starts with `root`.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self(RwLock::new(Arc::new(root)))
    }

    /// The current global service.
    #[must_use]
    pub fn get(&self) -> Arc<Root> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the global service.
    pub fn replace(&self, root: Root) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(root);
    }
}

/// Why a file cannot be read.
#[derive(Debug)]
pub enum FileError {
    /// It is not JSON.
    Syntax(String),
    /// A part of the JSON is invalid.
    Json(JsonError),
    /// A length or a count is invalid.
    Decode(DecodeError),
    /// The JSON has another structure.
    Shape(&'static str),
    /// The root record is missing, or names no usable site.
    NoSites,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write!(f, "not JSON: {error}"),
            Self::Json(error) => error.fmt(f),
            Self::Decode(error) => error.fmt(f),
            Self::Shape(what) => write!(f, "expected {what}"),
            Self::NoSites => f.write_str("the file names no site of the global service with a server"),
        }
    }
}

impl std::error::Error for FileError {}

impl From<JsonError> for FileError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

impl From<DecodeError> for FileError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

fn json(bytes: &[u8]) -> Result<Json, FileError> {
    serde_json::from_slice(bytes).map_err(|error| FileError::Syntax(error.to_string()))
}

/// Whether a file is JSON. The binary formats begin with a length, and files are shorter than 2
/// GiB.
fn is_json(bytes: &[u8]) -> bool {
    bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| matches!(byte, b'{' | b'['))
}

impl Root {
    /// A global service with these sites.
    #[must_use]
    pub fn of_sites(sites: impl IntoIterator<Item = SiteBuf>) -> Self {
        let mut found = ServiceSites::default();
        sites.into_iter().for_each(|site| found.add(site));
        Self { sites: found.sites, ..Self::default() }
    }

    /// Reads either format.
    ///
    /// # Errors
    /// When the file is invalid, or names no sites.
    pub fn read(bytes: &[u8]) -> Result<Self, FileError> {
        Self::read_preferring(bytes, ROOT)
    }

    /// Reads either format, with the service of the record `preferred`, which the binary format
    /// lacks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_preferring(bytes: &[u8], preferred: &[u8]) -> Result<Self, FileError> {
        if is_json(bytes) { Self::from_json(&json(bytes)?, preferred) } else { Self::from_binary(bytes) }
    }

    /// Reads the JSON format, with the service of the record `preferred`, which usually is the
    /// root.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(json: &Json, preferred: &[u8]) -> Result<Self, FileError> {
        let updated_unix_ms = json.get("lastUpdate").and_then(Json::as_u64);
        let mut records = HashMap::new();
        for record in
            json.get("handles").and_then(Json::as_object).into_iter().flat_map(serde_json::Map::values)
        {
            let record = record_from_json(record)?;
            records.insert(fold::folded(&record.handle), record);
        }
        let sites = sites_of(&records, preferred);
        let trusted = records.get(TRUST_ROOT).map(|record| record.values.as_slice()).unwrap_or_default();
        let is_key = |value: &&ValueBuf| value.view().kind == kind::HS_PUBKEY;
        let trusted_keys = trusted.iter().filter(is_key).map(|value| value.view().data.to_vec()).collect();
        match sites.is_empty() {
            true => Err(FileError::NoSites),
            false => Ok(Self { sites, trusted_keys, updated_unix_ms, service: preferred.to_vec() }),
        }
    }

    /// Reads the old binary format: the values of the root record.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_binary(bytes: &[u8]) -> Result<Self, FileError> {
        let mut outer = Cursor::new(bytes);
        let mut cursor = Cursor::new(outer.string(Field::Values)?);
        let values = Values::decode(&mut cursor)?;
        let sites = ServiceSites::gather(values, Kinds::Service).sites;
        match sites.is_empty() {
            true => Err(FileError::NoSites),
            false => Ok(Self { sites, ..Self::default() }),
        }
    }
}

/// The sites of a record among `records`, and of the records that it refers to, each once and to a
/// bounded depth.
fn sites_of(records: &HashMap<Vec<u8>, JsonRecord>, handle: &[u8]) -> Vec<SharedSite> {
    let mut sites = Vec::new();
    let mut handles = vec![(fold::folded(handle), 0)];
    let mut next = 0;
    while let Some((handle, depth)) = handles.get(next).cloned() {
        next += 1;
        let Some(record) = records.get(&handle) else { continue };
        let found = ServiceSites::gather(record.values.iter().map(ValueBuf::view), Kinds::Service);
        found.sites.into_iter().for_each(|site| add_once(&mut sites, site));
        for service in found.services {
            let service = fold::folded(&service);
            let is_new = handles.iter().all(|(known, _)| *known != service);
            if is_new && depth < SERVICE_NESTING_MAX && handles.len() < SITES_MAX {
                handles.push((service, depth + 1));
            }
        }
    }
    sites
}

/// Configured services, by prefix.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    by_prefix: HashMap<Vec<u8>, Vec<SharedSite>>,
    every: Vec<SharedSite>,
    resolver: Vec<SharedSite>,
}

impl Overrides {
    /// Reads `local_info.json` or the binary `local_info`: prefixes and their sites.
    ///
    /// # Errors
    /// When the file is invalid.
    pub fn add_local_info(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        if is_json(bytes) { self.add_json(&json(bytes)?) } else { self.add_binary(bytes) }
    }

    fn add_json(&mut self, json: &Json) -> Result<(), FileError> {
        const SHAPE: FileError =
            FileError::Shape("a list of objects, each with a list of prefixes, nas, and a site");
        for entry in json.as_array().ok_or(SHAPE)? {
            let site = site_from_json(entry.get("site").ok_or(SHAPE)?)?;
            for prefix in entry.get("nas").and_then(Json::as_array).ok_or(SHAPE)? {
                self.add(prefix.as_str().ok_or(SHAPE)?.as_bytes(), site.clone());
            }
        }
        Ok(())
    }

    fn add_binary(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let mut outer = Cursor::new(bytes);
        let mut cursor = Cursor::new(outer.string(Field::Site)?);
        for _ in 0..cursor.u32(Field::Site)? {
            let prefixes_count = cursor.u32(Field::Handles)?;
            let mut prefixes = Vec::new();
            for _ in 0..prefixes_count {
                prefixes.push(cursor.string(Field::Handle)?);
            }
            let site = SiteBuf::from_bytes(cursor.string(Field::Site)?.to_vec())?;
            prefixes.into_iter().for_each(|prefix| self.add(prefix, site.clone()));
        }
        Ok(())
    }

    /// Configures `site` for handles under `prefix`, given as the prefix record `0.NA/x`; `*` is
    /// every prefix.
    pub fn add(&mut self, prefix: &[u8], site: SiteBuf) {
        let sites = match prefix {
            b"*" => &mut self.every,
            prefix => self.by_prefix.entry(fold::folded(prefix)).or_default(),
        };
        at_all_addresses(site).into_iter().for_each(|site| add_once(sites, site));
    }

    /// Configures `site` as a shared resolver for all public questions.
    pub fn set_resolver(&mut self, site: SiteBuf) {
        self.resolver = at_all_addresses(site);
    }

    /// Reads the site of a resolver: JSON, or the bytes of a site record.
    ///
    /// # Errors
    /// When the file is invalid.
    pub fn read_resolver(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.set_resolver(read_site(bytes)?);
        Ok(())
    }

    /// Reads `local_nas`: prefixes, one a line, whose records the resolver has completely.
    pub fn add_local_prefixes(&mut self, text: &str) {
        for prefix in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            for site in self.resolver.clone() {
                self.add(prefix.as_bytes(), (*site).clone());
            }
        }
    }

    /// The configured sites for `handle`, if there are any. Those of the root count for all handles
    /// of the global service.
    #[must_use]
    pub fn sites_for(&self, handle: Handle<'_>, is_public: bool) -> Option<&[SharedSite]> {
        let of_root = || is_global(handle).then(|| self.by_prefix.get(ROOT)).flatten();
        let by_prefix = self.by_prefix.get(&handle.prefix_record()).or_else(of_root).map(Vec::as_slice);
        let every = (!self.every.is_empty()).then_some(self.every.as_slice());
        let resolver = (is_public && !self.resolver.is_empty()).then_some(self.resolver.as_slice());
        by_prefix.or(every).or(resolver)
    }
}

/// Writes a file of the global service atomically.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, file: &Json) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Every user may read it, because nothing in it is secret.
    let permissions = std::fs::Permissions::from_mode(0o644);
    let mut written = tempfile::Builder::new().permissions(permissions).tempfile_in(directory)?;
    written.write_all(format!("{file:#}\n").as_bytes())?;
    written.as_file().sync_all()?;
    written.persist(path)?;
    Ok(())
}

/// Reads a site: JSON, or the bytes of a site record.
///
/// # Errors
/// When the bytes are invalid.
pub fn read_site(bytes: &[u8]) -> Result<SiteBuf, FileError> {
    if is_json(bytes) { Ok(site_from_json(&json(bytes)?)?) } else { Ok(SiteBuf::from_bytes(bytes.to_vec())?) }
}

/// Whether the global service is responsible for `handle`: the name begins with `0.` or `0/`, or is
/// that of a prefix.
pub(crate) fn is_global(handle: Handle<'_>) -> bool {
    handle.is_global() || handle.0.starts_with(b"0/") || handle.slash_at().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::site_at;
    use handle_proto::Value;
    use handle_proto::json::record_to_json;
    use handle_proto::wire::put;
    use serde_json::json;

    fn document() -> Json {
        let (one, two) = (site_at(1), site_at(2));
        let root = [Value::new(1, b"HS_SITE", one.as_bytes()), Value::new(2, b"HS_SERV", b"0.GHR/a")];
        // Circles end.
        let service = [Value::new(1, b"HS_SITE", two.as_bytes()), Value::new(2, b"HS_SERV", b"0.na/0.na")];
        let keys = [Value::new(300, b"HS_PUBKEY", b"key"), Value::new(100, b"HS_ADMIN", b"")];
        json!({
            "lastUpdate": 1_700_000_000_000_u64,
            "handles": {
                "0.NA/0.NA": record_to_json(ROOT, root),
                "0.GHR/A": record_to_json(b"0.GHR/A", service),
                "0.0/0.0": record_to_json(TRUST_ROOT, keys),
            },
        })
    }

    #[test]
    fn the_json_form_has_sites_services_and_keys() {
        let root = Root::read(document().to_string().as_bytes()).unwrap();
        let sites: Vec<_> = root.sites.iter().map(|site| (**site).clone().into_bytes()).collect();
        assert_eq!(sites, [site_at(1).into_bytes(), site_at(2).into_bytes()]);
        assert_eq!(root.trusted_keys, [b"key"]);
        assert_eq!(root.updated_unix_ms, Some(1_700_000_000_000));
        let one = Root::from_json(&document(), b"0.ghr/a").unwrap();
        assert_eq!(one.sites.len(), 2, "with the root, which it names");
    }

    #[test]
    fn the_binary_form_has_the_values_of_the_root_record() {
        let site = site_at(3);
        let mut inner = vec![];
        put::count(&mut inner, 1);
        Value::new(1, b"HS_SITE", site.as_bytes()).encode(&mut inner);
        let mut bytes = vec![];
        put::string(&mut bytes, &inner);
        assert_eq!((*Root::read(&bytes).unwrap().sites[0]).as_bytes(), site.as_bytes());
        for len in 0..bytes.len() {
            assert!(Root::read(&bytes[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn a_file_without_sites_is_refused() {
        for text in ["{}", r#"{"handles": {}}"#, r#"{"handles": 3}"#] {
            assert!(matches!(Root::read(text.as_bytes()), Err(FileError::NoSites)), "{text}");
        }
        assert!(matches!(Root::read(b"{"), Err(FileError::Syntax(_))));
        let error = Root::read(br#"{"handles": {"0.NA/0.NA": {}}}"#).unwrap_err();
        assert!(error.to_string().contains("handle"), "{error}");
    }

    #[test]
    fn services_of_prefixes_precede_the_resolver() {
        let site = |number| handle_proto::json::site_to_json(&site_at(number).view());
        let mut overrides = Overrides::default();
        overrides.read_resolver(site(9).to_string().as_bytes()).unwrap();
        let file = json!([{"nas": ["0.NA/10.a", "0.NA/0.NA"], "site": site(1)}]);
        overrides.add_local_info(file.to_string().as_bytes()).unwrap();
        let serial_of_site = |handle: &str, is_public| {
            let sites = overrides.sites_for(Handle(handle.as_bytes()), is_public)?;
            Some(sites[0].view().servers.iter().next()?.address.0[15])
        };
        assert_eq!(serial_of_site("10.A/x", true), Some(1));
        for global in ["0.NA/10.b", "10.b", "0.SERV/x", "0.type/url", "0/x"] {
            assert_eq!(serial_of_site(global, false), Some(1), "{global}, of the root");
        }
        assert_eq!(serial_of_site("00.NA/x", false), None);
        assert_eq!(serial_of_site("10.b/x", true), Some(9));
        assert_eq!(serial_of_site("10.b/x", false), None);
        let mut inner = vec![];
        put::u32(&mut inner, 1);
        put::u32(&mut inner, 1);
        put::string(&mut inner, b"*");
        put::string(&mut inner, site_at(7).as_bytes());
        let mut bytes = vec![];
        put::string(&mut bytes, &inner);
        overrides.add_local_info(&bytes).unwrap();
        assert_eq!(overrides.sites_for(Handle(b"10.z/x"), false).unwrap().len(), 1);
        for len in 0..bytes.len() {
            assert!(Overrides::default().add_local_info(&bytes[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn malformed_prefixes_are_refused() {
        let site = handle_proto::json::site_to_json(&site_at(1).view());
        for file in [
            json!({}),
            json!([3]),
            json!([{"nas": ["0.NA/10.a"]}]),
            json!([{"site": site}]),
            json!([{"nas": "0.NA/10.a", "site": site}]),
            json!([{"nas": [10], "site": site}]),
        ] {
            let error = Overrides::default().add_local_info(file.to_string().as_bytes()).unwrap_err();
            assert!(error.to_string().contains("a list of prefixes"), "{file}: {error}");
        }
        Overrides::default().add_local_info(b"[]").unwrap();
    }

    #[test]
    fn lines_name_prefixes_that_the_resolver_has() {
        let mut overrides = Overrides::default();
        overrides.read_resolver(site_at(4).as_bytes()).unwrap();
        overrides.add_local_prefixes("0.NA/10.q\n\n  0.NA/10.r \n");
        for handle in ["10.Q/x", "10.r/y"] {
            assert!(overrides.sites_for(Handle(handle.as_bytes()), false).is_some(), "{handle}");
        }
        assert!(overrides.sites_for(Handle(b"10.s/x"), false).is_none());
    }
}
