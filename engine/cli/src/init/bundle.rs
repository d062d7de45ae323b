//! The archive for a prefix registry: site record, administrator's public key and contact, under
//! the file names that registries expect.

use anyhow::Context as _;
use handle_formats::dct::DctSettings;
use std::io::{Cursor, Write as _};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The contact of a service.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct BundleContact {
    /// The organisation that runs the service.
    #[arg(long, value_name = "TEXT", default_value = "")]
    organization: String,
    /// A contact person of the organisation.
    #[arg(long, value_name = "TEXT", default_value = "")]
    contact_name: String,
    /// Telephone number of the contact.
    #[arg(long, value_name = "TEXT", default_value = "")]
    contact_phone: String,
    /// E-mail address of the contact.
    #[arg(long, value_name = "TEXT", default_value = "")]
    contact_email: String,
}

impl BundleContact {
    /// Fills empty fields from a `contactdata.dct`.
    pub(super) fn or(mut self, known: &DctSettings) -> Self {
        for (name, field) in [
            ("org_name", &mut self.organization),
            ("contact_name", &mut self.contact_name),
            ("contact_phone", &mut self.contact_phone),
            ("contact_email", &mut self.contact_email),
        ] {
            if field.is_empty() {
                field.push_str(known.text(name).unwrap_or_default());
            }
        }
        self
    }

    /// Formats the fields as deployed software does.
    fn text(&self) -> String {
        let fields = [
            ("org_name", &self.organization),
            ("contact_name", &self.contact_name),
            ("contact_phone", &self.contact_phone),
            ("contact_email", &self.contact_email),
        ];
        let lines = fields.map(|(name, value)| format!("  {} = {}\n", quoted(name), quoted(value)));
        format!("{{\n{}}}\n", lines.concat())
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The archive.
pub(super) fn archive(
    site: &[u8],
    administrator_key: &[u8],
    contact: &BundleContact,
) -> anyhow::Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let contact = contact.text();
    for (name, bytes) in
        [("siteinfo.bin", site), ("admpub.bin", administrator_key), ("contactdata.dct", contact.as_bytes())]
    {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        archive.start_file(name, options).with_context(|| format!("cannot begin {name}"))?;
        archive.write_all(bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn the_archive_has_what_a_registry_looks_for() {
        let contact =
            BundleContact { organization: "A \"quoted\" \\ name".to_owned(), ..BundleContact::default() };
        let bytes = archive(b"site", b"key", &contact).unwrap();
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        for (name, expected) in
            [("siteinfo.bin", "site"), ("admpub.bin", "key"), ("contactdata.dct", &contact.text())]
        {
            let mut text = String::new();
            archive.by_name(name).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, expected, "{name}");
        }
        assert!(contact.text().contains(r#""org_name" = "A \"quoted\" \\ name""#));
        // What was written reads back, and options count before it.
        let known = DctSettings::parse(&contact.text()).unwrap();
        let options = BundleContact { contact_email: "a@example.org".to_owned(), ..BundleContact::default() };
        let both = options.or(&known);
        assert_eq!(
            (both.organization, both.contact_email),
            (contact.organization, "a@example.org".to_owned())
        );
    }
}
