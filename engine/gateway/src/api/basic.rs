//! Credentials of the scheme `Basic`.

use crate::api::scheme::identity;
use data_encoding::BASE64;
use handle_client::administration::{ClientIdentity, IdentityKey};
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// The identity and secret of `Basic` credentials. The name is `index:handle`, percent-encoded with
/// its colon; an index of 0, or none, stands for any key of the handle.
pub fn basic(credentials: &str) -> Option<ClientIdentity> {
    let (scheme, encoded) = credentials.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("Basic") {
        return None;
    }
    let decoded = Zeroizing::new(BASE64.decode(encoded.trim().as_bytes()).ok()?);
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    let name = std::str::from_utf8(&decoded[..colon]).ok()?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    let (index, handle) = identity(&name)?;
    let secret = Zeroizing::new(decoded[colon + 1..].to_vec());
    Some(ClientIdentity { handle: handle.as_bytes().to_vec(), index, key: IdentityKey::Secret(secret) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_deployed_clients_write_them() {
        let of = |text: &str| {
            let identity = basic(&format!("Basic {}", BASE64.encode(text.as_bytes())))?;
            let IdentityKey::Secret(secret) = &identity.key else { panic!("a secret") };
            Some((identity.index, String::from_utf8(identity.handle.clone()).ok()?, secret.to_vec()))
        };
        let found =
            |index, handle: &str, secret: &str| Some((index, handle.to_owned(), secret.as_bytes().to_vec()));
        assert_eq!(of("301%3A0.NA/TST:open: sesame"), found(301, "0.NA/TST", "open: sesame"));
        assert_eq!(of("301%3A20.500%2FADMIN:x"), found(301, "20.500/ADMIN", "x"));
        assert_eq!(of("0.NA/TST:x"), found(0, "0.NA/TST", "x"));
        assert_eq!(of("0%3A0.NA/TST:x"), found(0, "0.NA/TST", "x"));
        assert_eq!(of("301:0.NA/TST:x"), found(0, "301", "0.NA/TST:x"), "a raw colon ends the name");
        assert_eq!(of("nocolon"), None);
        assert_eq!(of(":secret"), None);
        for bad in ["Basic ***", "Bearer abc", "Basic", "", "Handle sessionId=\"x\""] {
            assert!(basic(bad).is_none(), "{bad}");
        }
    }
}
