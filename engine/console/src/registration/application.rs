//! What an applicant sends: a form with a `sitebndl.zip`, checked.

use super::config::RegistrationConfig;
use super::request::{ApplicantDetails, RegistrationRequest, RequestOrigin, is_prefix};
use crate::pages::is_mail_address;
use handle_auth::PublicKey;
use handle_formats::bundle::{BundleContact, BundleError, SiteBundle};
use handle_proto::data::Site;
use handle_proto::data::site::InterfaceKind;
use handle_proto::printable::is_unprintable;
use http_body_util::{BodyDataStream, Full};
use hyper::body::Bytes;
use multer::{Constraints, Multipart, SizeLimit, parse_boundary};
use std::fmt;

/// The field with the archive.
pub const BUNDLE: &str = "bundle";
/// All fields of the form.
pub const FIELDS: [&str; 7] = ["prefix", "organization", "name", "phone", "email", "note", BUNDLE];

/// A form, as it was typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationForm {
    /// The fields of text.
    pub details: ApplicantDetails,
    /// The archive; empty without one.
    pub bundle: Vec<u8>,
}

/// Why a form is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplicationError {
    /// The body is not a form of this page.
    Form,
    /// A field is too long, or the archive.
    Long(String),
    /// A field has control characters, or others that do not show.
    Characters(&'static str),
    /// There is no archive.
    NoBundle,
    /// The archive is refused.
    Bundle(BundleError),
    /// The site record cannot be used.
    Site(SiteFault),
    /// The key of the administrator cannot be used.
    Key,
    /// The proposed prefix is not a prefix.
    Prefix,
    /// There is no valid e-mail address.
    Email,
}

/// Why a site record cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteFault {
    /// It has no servers.
    NoServers,
    /// A server has no address.
    NoAddress,
    /// The key of a server is missing, of an unknown kind, or too weak.
    ServerKey,
    /// No interface answers queries, or one has no valid port.
    Interfaces,
    /// It is not that of a primary site.
    NotPrimary,
}

impl fmt::Display for SiteFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoServers => "the site record has no servers",
            Self::NoAddress => "a server in the site record has no address",
            Self::ServerKey => "a server in the site record has no key, or one that cannot be used",
            Self::Interfaces => {
                "a server in the site record has no interface for queries, or an invalid port"
            }
            Self::NotPrimary => "the site record is not that of a primary site",
        })
    }
}

/// Checks that clients can use a site.
///
/// # Errors
/// What is wrong with it.
pub fn check_site(site: &Site<'_>) -> Result<(), SiteFault> {
    if !site.is_primary() {
        return Err(SiteFault::NotPrimary);
    }
    if site.servers.iter().next().is_none() {
        return Err(SiteFault::NoServers);
    }
    for server in site.servers.iter() {
        if server.address.is_unspecified() {
            return Err(SiteFault::NoAddress);
        }
        if PublicKey::from_record(server.public_key).is_err() {
            return Err(SiteFault::ServerKey);
        }
        let mut interfaces = server.interfaces.iter();
        let has_ports = interfaces.all(|interface| interface.port().is_some_and(|port| port > 0));
        let answers = server.interfaces.iter().any(|interface| interface.kind.has(InterfaceKind::QUERY));
        if !(has_ports && answers) {
            return Err(SiteFault::Interfaces);
        }
    }
    Ok(())
}

impl ApplicationForm {
    /// Reads a body of the media type `multipart/form-data`.
    ///
    /// # Errors
    /// When it is malformed, or a field is unknown, repeated or too long.
    pub async fn read(
        content_type: &str,
        body: Vec<u8>,
        limits: &RegistrationConfig,
    ) -> Result<Self, ApplicationError> {
        let boundary = parse_boundary(content_type).map_err(|_| ApplicationError::Form)?;
        let sizes = SizeLimit::new()
            .per_field(limits.field_bytes as u64)
            .for_field(BUNDLE, limits.bundle_bytes as u64);
        let constraints = Constraints::new().allowed_fields(FIELDS.to_vec()).size_limit(sizes);
        let body = BodyDataStream::new(Full::new(Bytes::from(body)));
        let mut multipart = Multipart::with_constraints(body, boundary, constraints);
        let (mut form, mut seen) = (Self::default(), Vec::new());
        while let Some(field) = multipart.next_field().await.map_err(refused)? {
            let name = field.name().unwrap_or_default().to_owned();
            if seen.contains(&name) {
                return Err(ApplicationError::Form);
            }
            let bytes = field.bytes().await.map_err(refused)?;
            if name == BUNDLE {
                form.bundle = bytes.to_vec();
            } else if let Some(text) = form.text_mut(&name) {
                *text = std::str::from_utf8(&bytes).map_err(|_| ApplicationError::Form)?.trim().to_owned();
            }
            seen.push(name);
        }
        form.details.note = form.details.note.replace("\r\n", "\n");
        Ok(form)
    }

    fn text_mut(&mut self, name: &str) -> Option<&mut String> {
        let details = &mut self.details;
        match name {
            "prefix" => Some(&mut details.prefix),
            "organization" => Some(&mut details.organization),
            "name" => Some(&mut details.name),
            "phone" => Some(&mut details.phone),
            "email" => Some(&mut details.email),
            "note" => Some(&mut details.note),
            _ => None,
        }
    }

    /// Checks everything, and makes a request of it. Blocks while the archive is unpacked.
    ///
    /// Empty fields of the contact come from the archive.
    ///
    /// # Errors
    /// What the applicant has to change.
    pub fn check(
        &self,
        origin: RequestOrigin,
        limits: &RegistrationConfig,
    ) -> Result<RegistrationRequest, ApplicationError> {
        if self.bundle.is_empty() {
            return Err(ApplicationError::NoBundle);
        }
        let details = self.details.clone();
        if !details.prefix.is_empty() && !is_prefix(&details.prefix) {
            return Err(ApplicationError::Prefix);
        }
        let bundle = SiteBundle::read(&self.bundle, limits.bundle_limits());
        let bundle = bundle.map_err(ApplicationError::Bundle)?;
        check_site(&bundle.site.view()).map_err(ApplicationError::Site)?;
        if PublicKey::from_record(&bundle.administrator_key).is_err() {
            return Err(ApplicationError::Key);
        }
        let typed = BundleContact {
            organization: details.organization,
            name: details.name,
            phone: details.phone,
            email: details.email,
        };
        let contact = typed.or(bundle.contact);
        let fields = [
            ("organization", &contact.organization),
            ("name", &contact.name),
            ("phone", &contact.phone),
            ("email", &contact.email),
            ("note", &details.note),
        ];
        for (name, text) in fields {
            if text.len() > limits.field_bytes {
                return Err(ApplicationError::Long(name.to_owned()));
            }
            if text.contains(|c| is_unprintable(c) && !(c == '\n' && name == "note")) {
                return Err(ApplicationError::Characters(name));
            }
        }
        let email = contact.email.trim().to_owned();
        if !is_mail_address(&email) {
            return Err(ApplicationError::Email);
        }
        let request = RegistrationRequest::new(origin, bundle.site.into_bytes(), bundle.administrator_key);
        let BundleContact { organization, name, phone, .. } = contact;
        let ApplicantDetails { prefix, note, .. } = details;
        let details = ApplicantDetails { prefix, organization, name, phone, email, note };
        Ok(RegistrationRequest { details, ..request })
    }
}

fn refused(error: multer::Error) -> ApplicationError {
    match error {
        multer::Error::FieldSizeExceeded { field_name, .. } => {
            ApplicationError::Long(field_name.unwrap_or_default())
        }
        _ => ApplicationError::Form,
    }
}

#[cfg(test)]
mod tests;
