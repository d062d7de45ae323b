//! Values and their contents.

use crate::json;
use handle_proto::data::admin::names;
use handle_proto::data::site::InterfaceKind;
use handle_proto::data::{
    Admin, AdminPermissions, Data, KeyFile, PrivateKey, PrivateKeyBuf, PublicKey, Site, SiteBuf, Vlist, text,
};
use handle_proto::json::{
    private_key_from_jwk, private_key_to_jwk, public_key_from_jwk, public_key_to_jwk, site_from_json,
    site_to_json,
};
use handle_proto::value::type_matches;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::list::References;
use handle_proto::{Handle, HashOption, Permissions, Value, ValueBuf, Values};

/// A value encodes to the same bytes, and so do its data according to type. Printed as JSON it can
/// be read back, and loses only what JSON cannot represent.
pub fn value(bytes: &[u8]) {
    list(bytes);
    let (value, rest) = match Value::split(bytes) {
        Ok(split) => split,
        Err(error) => return assert!(error.at() <= bytes.len()),
    };
    let encoded = &bytes[..bytes.len() - rest.len()];
    assert_eq!(value.encoded_len(), encoded.len());
    let owned = ValueBuf::from(&value);
    assert_eq!(owned.as_bytes(), encoded);
    assert_eq!(owned.view(), value);
    assert_eq!(ValueBuf::from_bytes(bytes.to_vec()).is_ok(), rest.is_empty());
    let mut storage = Vec::new();
    assert_eq!(References::build(value.references.iter(), &mut storage), value.references);
    assert_eq!(value.references.iter().count(), value.references.len());
    assert_eq!(value.is_public(), value.permissions.has(Permissions::PUBLIC_READ));
    assert!(value.is_a(value.kind));
    assert_eq!(type_matches(value.kind, value.kind), !value.kind.is_empty());
    let (data, mut again) = (Data::decode(value.kind, value.data), Vec::new());
    data.encode(&mut again);
    match data {
        // Deployed servers ignore bytes after a key.
        Data::PublicKey(key) => assert_eq!(PublicKey::decode(&again), Ok(key)),
        _ => assert_eq!(again, value.data),
    }
    json::prints_and_reads(&value);
}

fn list(bytes: &[u8]) {
    let mut cursor = Cursor::new(bytes);
    let Ok(values) = Values::decode(&mut cursor) else { return };
    let mut encoded = Vec::new();
    values.encode(&mut encoded);
    assert!(bytes.starts_with(&encoded) && cursor.at() == encoded.len());
    assert_eq!(values.iter().count(), values.len());
    assert_eq!(Values::from_encoded(values.len(), values.as_bytes()), Ok(values));
}

/// A site record encodes to the same bytes, directly and from its parts. It assigns a handle to the
/// server that the hash selects. Printed as JSON it can be read back.
pub fn site(bytes: &[u8]) {
    let site = match Site::decode(bytes) {
        Ok(site) => site,
        Err(error) => return assert!(error.at() <= bytes.len()),
    };
    let mut encoded = Vec::new();
    site.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    let owned = SiteBuf::from_bytes(encoded).expect("decoded before");
    assert_eq!(owned.edit().build(), owned);
    assert_eq!(owned.view(), site);
    let servers: Vec<_> = site.servers.iter().collect();
    assert_eq!(servers.len(), site.servers.len());
    for handle in [&b"10.1045/july95-arms"[..], b"", bytes] {
        let handle = Handle(handle);
        let at = site.server_at(handle);
        let expected = match (servers.len(), HashOption::from_number(site.hash_option_number)) {
            (0, _) => None,
            (1, _) => Some(0),
            (count, option) => option.map(|option| handle.hash(option) as usize % count),
        };
        assert_eq!(at, expected);
        assert_eq!(site.server_for(handle), at.map(|at| servers[at]));
    }
    for attribute in site.attributes.iter() {
        if let Ok(name) = str::from_utf8(attribute.name) {
            assert!(site.attribute(name).is_some() && site.attribute_of(name, 0).is_some());
        }
    }
    assert_eq!(site_from_json(&site_to_json(&site)), Ok(without_json_losses(&owned)));
}

/// Returns the site without the parts that its JSON cannot represent.
fn without_json_losses(site: &SiteBuf) -> SiteBuf {
    let lossy = |bytes: &mut Vec<u8>| *bytes = String::from_utf8_lossy(bytes).into_owned().into_bytes();
    let mut site = site.edit();
    site.flags = site.flags.known();
    lossy(&mut site.hash_filter);
    for (name, value) in &mut site.attributes {
        lossy(name);
        lossy(value);
    }
    for server in &mut site.servers {
        // Mapped IPv4 addresses are read as IPv4, as in deployed software.
        server.address = server.address.ip().into();
        server.public_key = match PublicKey::decode(&server.public_key) {
            Ok(key @ (PublicKey::Rsa { .. } | PublicKey::Dsa { .. })) => key.to_bytes(),
            _ => std::mem::take(&mut server.public_key),
        };
        server.interfaces.iter_mut().for_each(|interface| interface.kind.0 &= InterfaceKind::BOTH.0);
    }
    site.build()
}

/// An administrator and a group encode to the same bytes, name exactly their members, and print as
/// JSON that can be read back.
pub fn admin_vlist(bytes: &[u8]) {
    let mut encoded = Vec::new();
    match Admin::decode(bytes) {
        Ok(admin) => {
            admin.encode(&mut encoded);
            assert_eq!(encoded, bytes);
            let handle = Handle(admin.reference.handle);
            assert!(admin.names(handle, admin.reference.index));
            let is_any = admin.reference.index == 0;
            assert_eq!(admin.names(handle, admin.reference.index.wrapping_add(1)), is_any);
            let shown = admin.permissions.to_string();
            assert_eq!(AdminPermissions::parse(&shown), Some(admin.permissions.known()));
        }
        Err(error) => assert!(error.at() <= bytes.len()),
    }
    encoded.clear();
    match Vlist::decode(bytes) {
        Ok(vlist) => {
            vlist.encode(&mut encoded);
            assert_eq!(encoded, bytes);
            for reference in vlist.0 {
                assert!(names(&reference, Handle(reference.handle), reference.index));
                assert!(vlist.names(Handle(reference.handle), reference.index));
            }
            assert!(!vlist.names(Handle(bytes), 1), "names a handle longer than any entry");
        }
        Err(error) => assert!(error.at() <= bytes.len()),
    }
    assert!(text(bytes).is_none_or(|text| !text.contains('\0')));
    for kind in [&b"HS_ADMIN"[..], b"HS_VLIST"] {
        json::prints_and_reads(&Value::new(1, kind, bytes));
    }
}

/// Keys that decode encode to a stable form with the same numbers, and can be read back from their
/// JSON; key files encode to the same bytes.
pub fn key(bytes: &[u8]) {
    match PublicKey::decode(bytes) {
        Ok(key) => {
            let encoded = key.to_bytes();
            assert_eq!(PublicKey::decode(&encoded), Ok(key));
            assert!(key.bits() <= bytes.len() * 8 && !key.algorithm().is_empty());
            if let Some(jwk) = public_key_to_jwk(&key) {
                assert_eq!(public_key_from_jwk(&jwk), Ok(encoded));
            }
        }
        Err(error) => assert!(error.at() <= bytes.len()),
    }
    match PrivateKey::decode(bytes) {
        Ok(key) => {
            let encoded = key.to_bytes();
            assert_eq!(PrivateKey::decode(&encoded), Ok(key));
            let owned = PrivateKeyBuf::from_bytes(bytes.to_vec()).expect("decoded before");
            assert_eq!((owned.view(), owned.as_bytes()), (key, bytes));
            if let Some(public) = key.public() {
                assert_eq!(PublicKey::decode(&public.to_bytes()), Ok(public));
            }
            let jwk = serde_json::from_str(&private_key_to_jwk(&key)).expect("JSON was printed");
            let read = private_key_from_jwk(&jwk).expect("the printed key can be read");
            assert_eq!(read.as_bytes(), &encoded[..]);
        }
        Err(error) => assert!(error.at() <= bytes.len()),
    }
    match KeyFile::decode(bytes) {
        Ok(file) => {
            assert_eq!(&file.to_bytes()[..], bytes);
            assert_eq!(file.scheme().0.to_be_bytes(), bytes[..4]);
        }
        Err(error) => assert!(error.at() <= bytes.len()),
    }
    json::prints_and_reads(&Value::new(1, b"HS_PUBKEY", bytes));
}
