//! The settings of redirects and pages.

use crate::redirect::{ALIASES_MAX, SCHEMES};
use handle_client::reference::HOSTS;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;

settings! {
    /// Redirects, and how handles are written in requests.
    pub struct ProxyConfig {
        /// Set this when records have URLs of other schemes, or some must not be redirected to:
        /// schemes of redirects. Other targets are shown as part of the record.
        live schemes: Vec<String> = SCHEMES.map(str::to_owned).to_vec(), SCHEME_RULE;
        /// Set this when URLs of this gateway in answers must not depend on the host that a client
        /// names: their start, as `https://hdl.example.org/`. Without this and `hosts`, pages show
        /// that host, and redirects to this gateway have only a path.
        live base_url: Option<String> = None, BASE_URL_RULE;
        /// Set this when the gateway has names of its own: these, with ports other than 80 and 443.
        /// Their URLs are references to handles. If a request names another host and `base_url` is
        /// not set, URLs begin with the first one.
        live hosts: Vec<String> = Vec::new(), HOST_RULE;
        /// Set this when records name other proxies than the known ones: those whose URLs are
        /// references to handles.
        live reference_hosts: Vec<String> = HOSTS.map(str::to_owned).to_vec(), HOST_RULE;
        /// Set this when clients write an encoding before a handle, as in `jis@cnri.test/...`: it
        /// is not part of the handle. A prefix of the set with an `@` takes precedence.
        live charset_modifier: bool = false;
    } constants {
        /// Maximum number of aliases that are followed for a request, as in the resolver.
        aliases: usize = ALIASES_MAX;
    }
}

settings! {
    /// Pages for people.
    pub struct PagesConfig {
        /// Set this when pages should carry the name of your service.
        live service_name: String = "Handles".to_owned(), NAME_RULE;
        /// Set this when readers of pages should know whom to tell about errors: an e-mail address
        /// or a text. The contact in the namespace of a prefix takes precedence.
        live contact: Option<String> = None;
        /// Set this when you have a page of help: the URL to which `/help.html` redirects.
        live help_url: Option<String> = None, HELP_RULE;
    }
}

/// Schemes that execute the content of a record.
const UNSAFE_SCHEMES: [&str; 5] = ["javascript", "data", "vbscript", "blob", "filesystem"];
/// Maximum number of entries of a list.
const LIST_MAX: usize = 256;

const SCHEME_RULE: SettingRule<Vec<String>> = SettingRule {
    words: "in small letters, at most 256; none that run scripts",
    check: |schemes| {
        let is_scheme = |scheme: &String| {
            let is_mark =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
            scheme.starts_with(|c: char| c.is_ascii_lowercase()) && scheme.bytes().all(is_mark)
        };
        if schemes.len() > LIST_MAX {
            return Err(format!("has {} entries: it may have {LIST_MAX}", schemes.len()));
        }
        match schemes.iter().find(|scheme| !is_scheme(scheme) || UNSAFE_SCHEMES.contains(&scheme.as_str())) {
            Some(scheme) => {
                Err(format!("has {scheme:?}: not a scheme in small letters, or one that runs scripts"))
            }
            None => Ok(()),
        }
    },
};

const HOST_RULE: SettingRule<Vec<String>> = SettingRule {
    words: "names, at most 256",
    check: |hosts| {
        if hosts.len() > LIST_MAX {
            return Err(format!("has {} entries: it may have {LIST_MAX}", hosts.len()));
        }
        match hosts.iter().find(|host| !is_host(host)) {
            Some(host) => Err(format!("has {host:?}: not the name of a host")),
            None => Ok(()),
        }
    },
};

const BASE_URL_RULE: SettingRule<Option<String>> = SettingRule {
    words: "`http` or `https`, with a slash at its end",
    check: |url| match url.as_deref().is_none_or(is_base_url) {
        true => Ok(()),
        false => Err(format!(
            "is {:?}: write a URL as https://hdl.example.org/",
            url.as_deref().unwrap_or_default()
        )),
    },
};

const HELP_RULE: SettingRule<Option<String>> = SettingRule {
    words: "`http` or `https`",
    check: |url| match url.as_deref().is_none_or(is_web_url) {
        true => Ok(()),
        false => Err(format!(
            "is {:?}: write a URL as https://example.org/help",
            url.as_deref().unwrap_or_default()
        )),
    },
};

const NAME_RULE: SettingRule<String> = SettingRule {
    words: "1 to 100 characters",
    check: |name| match (1..=100).contains(&name.chars().count()) && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(format!("is {name:?}: it must have 1 to 100 characters")),
    },
};

/// Whether a text is the name or address of a host, perhaps with a port.
pub(super) fn is_host(host: &str) -> bool {
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(is_of_host)
}

/// Whether a text is a URL of the web, in printable ASCII.
pub(crate) fn is_web_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    host.is_some_and(is_host)
        && url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte))
}

fn is_base_url(url: &str) -> bool {
    is_web_url(url) && url.ends_with('/') && !url.contains(['?', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn settings_that_would_lead_elsewhere_are_refused() {
        let proxy = |text: &str| {
            toml::from_str::<ProxyConfig>(text).unwrap().check().map_err(|error| error.to_string())
        };
        for good in [
            "",
            "schemes = []",
            "schemes = ['https', 'web+x']",
            "base_url = 'https://hdl.example.org/'",
            "base_url = 'http://[2001:db8::1]:8000/proxy/'",
            "hosts = ['hdl.example.org', 'localhost:8000']",
        ] {
            assert_eq!(proxy(good), Ok(()), "{good}");
        }
        for bad in [
            "schemes = ['HTTP']",
            "schemes = ['javascript']",
            "schemes = ['']",
            "base_url = 'https://hdl.example.org'",
            "base_url = 'https:///x/'",
            "base_url = '//hdl.example.org/'",
            "base_url = 'https://a\"/'",
            "hosts = ['https://hdl.example.org']",
            "reference_hosts = ['']",
        ] {
            let (key, refused) = (bad.split(' ').next().unwrap(), proxy(bad).unwrap_err());
            assert!(refused.contains(key), "{bad}: {refused}");
        }
        let pages = |text: &str| toml::from_str::<PagesConfig>(text).unwrap().check().is_ok();
        assert!(pages("help_url = 'https://example.org/help'") && pages("service_name = 'Ä'"));
        assert!(!pages("help_url = 'javascript:x'") && !pages("service_name = ''"));
    }
}
