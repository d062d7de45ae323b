//! The rules of the proxy, which are made from the settings at the start and at a reload.

use crate::agency::table::AgencyTable;
use crate::config::Config;
use crate::country::CountryDatabase;
use crate::identifiers::IdentifierRules;
use crate::input::InputRules;
use crate::redirect::RedirectRules;
use std::sync::Arc;

/// The rules in force.
#[derive(Debug)]
pub struct ProxyRules {
    /// How handles are written in requests.
    pub input: InputRules,
    /// The same with an encoding before the handle, if `proxy.charset_modifier` is set.
    pub encoded_input: Option<InputRules>,
    /// Limits on redirects.
    pub redirect: RedirectRules,
    /// The countries of clients.
    pub countries: Option<Arc<CountryDatabase>>,
    /// Agencies by prefix.
    pub agencies: Arc<AgencyTable>,
    /// Identifiers that are not handles.
    pub identifiers: Arc<IdentifierRules>,
}

impl ProxyRules {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let countries = config.country_database.as_deref().map(CountryDatabase::open).transpose()?;
        let agencies = Arc::new(AgencyTable::open(&config.agencies)?);
        let identifiers = Arc::new(IdentifierRules::open(&config.target)?);
        Ok(Self::of(config, countries.map(Arc::new), agencies, identifiers))
    }

    /// The rules after a reload. If a file cannot be read or is damaged, its previous content stays
    /// in force, and the error is returned beside the rules.
    #[must_use]
    pub fn reopened(&self, config: &Config) -> (Self, Vec<String>) {
        let mut errors = Vec::new();
        let countries = match config.country_database.as_deref().map(CountryDatabase::open) {
            Some(Ok(countries)) => Some(Arc::new(countries)),
            Some(Err(error)) => {
                errors.push(error.to_string());
                self.countries.clone()
            }
            None => None,
        };
        let agencies = match AgencyTable::open(&config.agencies) {
            Ok(agencies) => Arc::new(agencies),
            Err(error) => {
                errors.push(error.to_string());
                Arc::clone(&self.agencies)
            }
        };
        let identifiers = match IdentifierRules::open(&config.target) {
            Ok(identifiers) => Arc::new(identifiers),
            Err(error) => {
                errors.push(format!("`target` has {error:#}"));
                Arc::clone(&self.identifiers)
            }
        };
        (Self::of(config, countries, agencies, identifiers), errors)
    }

    fn of(
        config: &Config,
        countries: Option<Arc<CountryDatabase>>,
        agencies: Arc<AgencyTable>,
        identifiers: Arc<IdentifierRules>,
    ) -> Self {
        let proxy = &config.proxy;
        let hosts = [&proxy.hosts[..], &proxy.reference_hosts].concat();
        let rules = |modifier| InputRules::new(&[], modifier, &[]).with_hosts_only(&hosts);
        Self {
            input: rules(false),
            encoded_input: proxy.charset_modifier.then(|| rules(true)),
            redirect: RedirectRules {
                schemes: proxy.schemes.clone(),
                aliases_max: proxy.aliases,
                ..RedirectRules::default()
            },
            countries,
            agencies,
            identifiers,
        }
    }
}
