//! The contact in the archive for a prefix registry, as options.

use handle_formats::bundle::BundleContact;

/// The contact of a service.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ContactArgs {
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

impl ContactArgs {
    /// The contact; fields without an option are empty.
    pub(super) fn contact(&self) -> BundleContact {
        BundleContact {
            organization: self.organization.clone(),
            name: self.contact_name.clone(),
            phone: self.contact_phone.clone(),
            email: self.contact_email.clone(),
        }
    }
}
