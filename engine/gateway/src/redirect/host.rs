//! Hosts of URLs in characters of other scripts, in the form that DNS has for them.
//!
//! A value may have `https://b\u{fc}cher.example/` or `https://b%C3%BCcher.example/`. Clients other
//! than browsers look such a host up as it is, so redirects have `xn--bcher-kva.example`. RFC 3986
//! section 3.2.2, RFC 3492.

use percent_encoding::percent_decode_str;

/// Characters that end a label, apart from the full stop. UTS 46.
const DOTS: [char; 3] = ['\u{3002}', '\u{ff0e}', '\u{ff61}'];
/// Maximum length of a label in DNS.
const LABEL_LEN_MAX: usize = 63;

/// The host of `authority`, which is percent-encoded, as DNS has it, with the rest of the
/// authority; `None` if it has only characters of ASCII, or is not a name.
pub(super) fn ascii_authority(authority: &str) -> Option<String> {
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
    let (host, port) = host.split_once(':').map_or((host, ""), |(host, port)| (host, port));
    let name = percent_decode_str(host).decode_utf8().ok().filter(|name| !name.is_ascii())?;
    let name = name.replace(DOTS, ".");
    let labels: Option<Vec<String>> = name.split('.').map(ascii_label).collect();
    let host = labels?.join(".");
    let at = if user.is_empty() { "" } else { "@" };
    let colon = if port.is_empty() { "" } else { ":" };
    Some([user, at, &host, colon, port].concat())
}

fn ascii_label(label: &str) -> Option<String> {
    let lower: Vec<char> = label.chars().flat_map(char::to_lowercase).collect();
    let is_name = |&c: &char| match c {
        'a'..='z' | '0'..='9' | '-' | '_' => true,
        // A character and its mark may be one other character, which only a table tells.
        '\u{300}'..='\u{36f}' => false,
        c => c.is_alphanumeric(),
    };
    if !lower.iter().all(is_name) {
        return None;
    }
    let label: String = match lower.iter().all(char::is_ascii) {
        true => lower.into_iter().collect(),
        false => format!("xn--{}", punycode(&lower)?),
    };
    (label.len() <= LABEL_LEN_MAX).then_some(label)
}

/// Punycode of a label. RFC 3492 section 6.3, with the parameters of its section 5.
fn punycode(label: &[char]) -> Option<String> {
    let (mut code, mut delta, mut bias) = (0x80_u32, 0_u32, 72_u32);
    let mut out: String = label.iter().filter(|c| c.is_ascii()).collect();
    let basic = u32::try_from(out.len()).ok()?;
    let (mut handled, count) = (basic, u32::try_from(label.len()).ok()?);
    if basic > 0 {
        out.push('-');
    }
    while handled < count {
        let next = label.iter().map(|&c| u32::from(c)).filter(|&c| c >= code).min()?;
        delta = delta.checked_add((next - code).checked_mul(handled + 1)?)?;
        code = next;
        for c in label.iter().map(|&c| u32::from(c)) {
            if c < code {
                delta = delta.checked_add(1)?;
            }
            if c != code {
                continue;
            }
            let (mut rest, mut at) = (delta, 36);
            loop {
                let threshold = if at <= bias { 1 } else { (at - bias).min(26) };
                if rest < threshold {
                    break;
                }
                out.push(digit(threshold + (rest - threshold) % (36 - threshold)));
                rest = (rest - threshold) / (36 - threshold);
                at += 36;
            }
            out.push(digit(rest));
            bias = adapted(delta, handled + 1, handled == basic);
            (delta, handled) = (0, handled + 1);
        }
        (delta, code) = (delta.checked_add(1)?, code + 1);
    }
    Some(out)
}

fn digit(number: u32) -> char {
    char::from_digit(number.saturating_sub(26), 10)
        .filter(|_| number >= 26)
        .unwrap_or_else(|| char::from(b'a' + u8::try_from(number).unwrap_or_default()))
}

fn adapted(delta: u32, count: u32, is_first: bool) -> u32 {
    let mut delta = delta / if is_first { 700 } else { 2 };
    delta += delta / count;
    let mut bias = 0;
    while delta > 35 * 26 / 2 {
        delta /= 35;
        bias += 36;
    }
    bias + 36 * delta / (delta + 38)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_the_form_of_dns() {
        // RFC 3492 section 7.1, and names of RFC 5890 and of the registries.
        for (label, expected) in [
            ("b\u{fc}cher", "xn--bcher-kva"),
            ("M\u{dc}NCHEN", "xn--mnchen-3ya"),
            ("\u{65e5}\u{672c}\u{8a9e}", "xn--wgv71a119e"),
            (
                "\u{4ed6}\u{4eec}\u{4e3a}\u{4ec0}\u{4e48}\u{4e0d}\u{8bf4}\u{4e2d}\u{6587}",
                "xn--ihqwcrb4cv8a8dqg056pqjye",
            ),
            ("Pro\u{10d}prost\u{11b}nemluv\u{ed}\u{10d}esky", "xn--proprostnemluvesky-uyb24dma41a"),
            ("\u{440}\u{444}", "xn--p1ai"),
            ("example", "example"),
        ] {
            assert_eq!(ascii_label(label).as_deref(), Some(expected), "{label}");
        }
        for other in ["a\u{300}b", "a b\u{e9}", "\u{e9}/", "\u{202e}\u{e9}", "\u{e9}%"] {
            assert_eq!(ascii_label(other), None, "{other:?}");
        }
        assert_eq!(ascii_label(&"\u{e9}".repeat(80)), None, "longer than DNS allows");
    }

    #[test]
    fn only_the_host_of_an_authority_changes() {
        for (authority, expected) in [
            ("b%C3%BCcher.example", Some("xn--bcher-kva.example")),
            ("u%C3%A9@B%C3%9Ccher.example:80", Some("u%C3%A9@xn--bcher-kva.example:80")),
            ("a%E3%80%82b%C3%BCcher", Some("a.xn--bcher-kva")),
            ("example.org", None),
            ("ex%61mple.org", None),
            ("a%FF", None),
            ("[::1]:80", None),
            ("%C3%BC%2Fevil", None),
            ("%C3%BC%40evil.example", None),
        ] {
            assert_eq!(ascii_authority(authority).as_deref(), expected, "{authority}");
        }
    }
}
