//! What a client prefers: the headers `Accept` and `Accept-Language`. RFC 9110 section 12.5.

/// Most entries of a header that are read.
const ENTRIES_MAX: usize = 64;

/// The media types that a client accepts, in its order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptTypes(Vec<String>);

impl AcceptTypes {
    /// Parses the value of the header. Types with quality 0 and what is not a type do not count.
    #[must_use]
    pub fn parse(header: &str) -> Self {
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_type = |name: &str| {
            name.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
        };
        Self(by_quality(header).filter(|name| is_type(name)).collect())
    }

    /// The types, in lower case and without parameters.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether the preferred type is one for machines, as `application/json`, and not one that
    /// browsers show.
    #[must_use]
    pub fn prefers_machine_type(&self) -> bool {
        let Some((kind, subtype)) = self.0.first().and_then(|preferred| preferred.split_once('/')) else {
            return false;
        };
        let is_shown = match kind {
            "*" | "image" | "audio" | "video" => true,
            "text" => matches!(subtype, "*" | "html" | "plain"),
            "application" => subtype == "xhtml+xml",
            _ => false,
        };
        !is_shown && subtype != "*"
    }
}

/// The entries of a header in their order of preference, in lower case and without parameters.
/// Those with quality 0 do not count.
pub(crate) fn by_quality(header: &str) -> impl Iterator<Item = String> {
    let mut entries: Vec<(String, u16)> = header.split(',').take(ENTRIES_MAX).filter_map(weighted).collect();
    entries.sort_by_key(|(_, quality)| std::cmp::Reverse(*quality));
    entries.into_iter().map(|(name, _)| name)
}

/// An entry with its quality in thousandths.
fn weighted(entry: &str) -> Option<(String, u16)> {
    let mut parts = entry.split(';').map(str::trim);
    let name = parts.next()?.to_ascii_lowercase();
    let quality = parts.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
    let quality = quality.map_or(1000, thousandths);
    (quality > 0).then_some((name, quality))
}

/// A quality of at most three decimals, such as `0.25`. Anything else counts as 0.
pub(crate) fn thousandths(text: &str) -> u16 {
    let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_number = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "1" if is_number => 1000,
        "0" if is_number => format!("{decimals:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}
