//! The archive that a new service sends to the registry of its prefix: `sitebndl.zip`.
//!
//! It has the site record, the public key of the administrator, and a contact:
//!
//! | entry | contents |
//! |---|---|
//! | `siteinfo.bin` | the data of an HS_SITE value |
//! | `admpub.bin` | the data of an HS_PUBKEY value |
//! | `contactdata.dct` | the contact, as [settings](crate::dct); it may be missing |
//! | `repl_admin`, `replpub.bin` | of mirrors; ignored |
//!
//! An archive comes from strangers. Reading it takes bounded time and memory, and nothing is
//! written to files.

use crate::dct::{DctError, DctSettings};
use handle_proto::data::{PublicKey, SiteBuf};
use std::fmt;
use std::io::{Cursor, Read as _, Write as _};
use zip::read::ZipArchive;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const SITE: &str = "siteinfo.bin";
const ADMINISTRATOR_KEY: &str = "admpub.bin";
const CONTACT: &str = "contactdata.dct";
/// Entries with other names are refused.
const NAMES: [&str; 5] = [SITE, ADMINISTRATOR_KEY, CONTACT, "repl_admin", "replpub.bin"];

/// The contact of a service. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleContact {
    /// The organisation that runs the service.
    pub organization: String,
    /// A person of the organisation.
    pub name: String,
    /// Telephone number.
    pub phone: String,
    /// E-mail address.
    pub email: String,
}

/// The contents of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteBundle {
    /// The site record of the service.
    pub site: SiteBuf,
    /// The public key of its administrator, as the data of an HS_PUBKEY value.
    pub administrator_key: Vec<u8>,
    /// The contact.
    pub contact: BundleContact,
}

/// Bounds of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleLimits {
    /// Maximum number of entries.
    pub entries: usize,
    /// Maximum number of bytes of all entries together, unpacked.
    pub unpacked_bytes: usize,
}

/// Why an archive is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BundleError {
    /// The file is no ZIP archive, is incomplete, or uses something that no bundle needs.
    Archive,
    /// It has more entries than allowed.
    Entries,
    /// Its entries are longer than allowed.
    Unpacked,
    /// An entry is encrypted.
    Encrypted,
    /// An entry has a name that no bundle has.
    Name(String),
    /// Two entries have one name.
    Repeated,
    /// An entry is missing.
    Missing(&'static str),
    /// `siteinfo.bin` is not a site record.
    Site,
    /// `admpub.bin` is not a public key.
    Key,
    /// `contactdata.dct` is not UTF-8.
    ContactText,
    /// `contactdata.dct` is malformed.
    Contact(DctError),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive => f.write_str("the file is not a ZIP archive, or is incomplete"),
            Self::Entries => f.write_str("the archive has too many entries"),
            Self::Unpacked => f.write_str("the entries of the archive are too long"),
            Self::Encrypted => f.write_str("the archive is encrypted"),
            Self::Name(name) => write!(f, "the archive has an entry {name:?}, which no site bundle has"),
            Self::Repeated => f.write_str("the archive has two entries of one name"),
            Self::Missing(name) => write!(f, "the archive has no {name}"),
            Self::Site => write!(f, "{SITE} is not a site record"),
            Self::Key => write!(f, "{ADMINISTRATOR_KEY} is not a public key"),
            Self::ContactText => write!(f, "{CONTACT} is not UTF-8"),
            Self::Contact(error) => write!(f, "{CONTACT}: {error}"),
        }
    }
}

impl std::error::Error for BundleError {}

impl BundleContact {
    /// The names of the fields in `contactdata.dct`, with the fields.
    fn fields(&self) -> [(&'static str, &String); 4] {
        [
            ("org_name", &self.organization),
            ("contact_name", &self.name),
            ("contact_phone", &self.phone),
            ("contact_email", &self.email),
        ]
    }

    /// The contact in a `contactdata.dct`.
    #[must_use]
    pub fn of_settings(settings: &DctSettings) -> Self {
        let text = |name| settings.text(name).unwrap_or_default().to_owned();
        Self {
            organization: text("org_name"),
            name: text("contact_name"),
            phone: text("contact_phone"),
            email: text("contact_email"),
        }
    }

    /// This contact, with the fields of `other` where it has none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let either = |own: String, other: String| if own.is_empty() { other } else { own };
        Self {
            organization: either(self.organization, other.organization),
            name: either(self.name, other.name),
            phone: either(self.phone, other.phone),
            email: either(self.email, other.email),
        }
    }

    /// The fields as deployed software writes them.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines = self.fields().map(|(name, value)| format!("  {} = {}\n", quoted(name), quoted(value)));
        format!("{{\n{}}}\n", lines.concat())
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The archive with a site record, the public key of an administrator, and a contact. The bytes of
/// the record and key are not checked.
///
/// # Errors
/// When an entry is too long for an archive.
pub fn archive(site: &[u8], administrator_key: &[u8], contact: &BundleContact) -> std::io::Result<Vec<u8>> {
    let contact = contact.to_text();
    pack(&[(SITE, site), (ADMINISTRATOR_KEY, administrator_key), (CONTACT, contact.as_bytes())], false)
}

/// An archive with these entries, compressed or not. Neither names nor contents are checked.
///
/// # Errors
/// When an entry is too long for an archive.
pub fn pack(entries: &[(&str, &[u8])], is_compressed: bool) -> std::io::Result<Vec<u8>> {
    let method = if is_compressed { CompressionMethod::Deflated } else { CompressionMethod::Stored };
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        archive.start_file(*name, SimpleFileOptions::default().compression_method(method))?;
        archive.write_all(bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}

impl SiteBundle {
    /// Reads an archive.
    ///
    /// # Errors
    /// When it is malformed, exceeds `limits`, or lacks an entry.
    pub fn read(bytes: &[u8], limits: BundleLimits) -> Result<Self, BundleError> {
        let [mut site, mut key, mut contact] = [const { None }; 3];
        for (name, contents) in entries(bytes, limits)? {
            match name {
                SITE => site = Some(contents),
                ADMINISTRATOR_KEY => key = Some(contents),
                CONTACT => contact = Some(contents),
                _ => {}
            }
        }
        let site = site.ok_or(BundleError::Missing(SITE))?;
        let site = SiteBuf::from_bytes(site).map_err(|_| BundleError::Site)?;
        let key = key.ok_or(BundleError::Missing(ADMINISTRATOR_KEY))?;
        // Encoded again, because bytes after the key are ignored.
        let administrator_key = PublicKey::decode(&key).map_err(|_| BundleError::Key)?.to_bytes();
        let contact = match contact {
            Some(bytes) => {
                let text = String::from_utf8(bytes).map_err(|_| BundleError::ContactText)?;
                BundleContact::of_settings(&DctSettings::parse(&text).map_err(BundleError::Contact)?)
            }
            None => BundleContact::default(),
        };
        Ok(Self { site, administrator_key, contact })
    }
}

/// The entries of an archive, unpacked.
fn entries(bytes: &[u8], limits: BundleLimits) -> Result<Vec<(&'static str, Vec<u8>)>, BundleError> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| BundleError::Archive)?;
    if archive.has_duplicate_names() {
        return Err(BundleError::Repeated);
    }
    if archive.len() > limits.entries {
        return Err(BundleError::Entries);
    }
    // Entries that share bytes are a way to pack much into little.
    if archive.has_overlapping_entries().map_err(|_| BundleError::Archive)? {
        return Err(BundleError::Archive);
    }
    let mut left = limits.unpacked_bytes;
    let mut entries = Vec::new();
    for at in 0..archive.len() {
        let entry = archive.by_index(at).map_err(|error| match error {
            ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) => BundleError::Encrypted,
            _ => BundleError::Archive,
        })?;
        let name = NAMES.into_iter().find(|name| name.as_bytes() == entry.name_raw());
        let name =
            name.ok_or_else(|| BundleError::Name(String::from_utf8_lossy(entry.name_raw()).into_owned()))?;
        // The length in the archive is not trusted. One byte more shows that there is more.
        let mut contents = Vec::new();
        let read = entry.take(left as u64 + 1).read_to_end(&mut contents);
        if contents.len() > left {
            return Err(BundleError::Unpacked);
        }
        // Also a wrong checksum.
        read.map_err(|_| BundleError::Archive)?;
        left -= contents.len();
        entries.push((name, contents));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
