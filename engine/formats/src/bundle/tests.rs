use super::*;
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};

const LIMITS: BundleLimits = BundleLimits { entries: 5, unpacked_bytes: 4096 };

fn site() -> Vec<u8> {
    let mut site = SiteBuilder::new();
    let address = handle_proto::data::site::Address::from(std::net::IpAddr::from([192, 0, 2, 1]));
    site.server(ServerBuilder { id: 1, address, public_key: key(), interfaces: vec![] });
    site.build().as_bytes().to_vec()
}

fn key() -> Vec<u8> {
    let counted = |field: &[u8]| [&u32::try_from(field.len()).unwrap().to_be_bytes(), field].concat();
    [counted(b"RSA_PUB_KEY"), vec![0, 0], counted(&[1, 0, 1]), counted(&[0x40; 128]), vec![0; 4]].concat()
}

fn contact() -> BundleContact {
    BundleContact {
        organization: "A \"quoted\" \\ name\nin two lines".to_owned(),
        email: "a@example.org".to_owned(),
        ..BundleContact::default()
    }
}

/// An archive with these entries, compressed.
fn packed(entries: &[(&str, &[u8])]) -> Vec<u8> {
    pack(entries, true).unwrap()
}

fn refused(bytes: &[u8]) -> BundleError {
    SiteBundle::read(bytes, LIMITS).unwrap_err()
}

#[test]
fn an_archive_reads_back_however_it_is_packed() {
    let (site, key) = (site(), key());
    let expected = SiteBundle {
        site: SiteBuf::from_bytes(site.clone()).unwrap(),
        administrator_key: key.clone(),
        contact: contact(),
    };
    let plain = archive(&site, &key, &contact()).unwrap();
    assert_eq!(SiteBundle::read(&plain, LIMITS).as_ref(), Ok(&expected));
    let text = contact().to_text();
    let entries = [(SITE, &site[..]), (ADMINISTRATOR_KEY, &key), (CONTACT, text.as_bytes())];
    let mirrors = [&entries[..], &[("repl_admin", b"300:0.NA/1"), ("replpub.bin", b"")]].concat();
    assert_eq!(SiteBundle::read(&packed(&mirrors), LIMITS), Ok(expected));
    let without = SiteBundle::read(&packed(&entries[..2]), LIMITS).unwrap();
    assert_eq!(without.contact, BundleContact::default());
    let both = without.contact.or(contact()).or(BundleContact { phone: "1".to_owned(), ..contact() });
    assert_eq!(both, BundleContact { phone: "1".to_owned(), ..contact() });
}

#[test]
fn every_truncation_and_every_changed_byte_is_refused_or_reads_the_same() {
    let bytes = archive(&site(), &key(), &contact()).unwrap();
    let whole = SiteBundle::read(&bytes, LIMITS).unwrap();
    for len in 0..bytes.len() {
        assert_eq!(refused(&bytes[..len]), BundleError::Archive, "cut to {len}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x41;
        // Times and attributes of entries mean nothing.
        if let Ok(read) = SiteBundle::read(&changed, LIMITS) {
            assert_eq!(read, whole, "byte {at}");
        }
    }
}

#[test]
fn what_is_missing_wrong_or_unknown_is_named() {
    let (site, key) = (site(), key());
    assert_eq!(refused(&packed(&[])), BundleError::Missing(SITE));
    assert_eq!(refused(&packed(&[(SITE, &site)])), BundleError::Missing(ADMINISTRATOR_KEY));
    assert_eq!(refused(&packed(&[(SITE, b"x"), (ADMINISTRATOR_KEY, &key)])), BundleError::Site);
    assert_eq!(refused(&packed(&[(SITE, &site), (ADMINISTRATOR_KEY, b"x")])), BundleError::Key);
    for name in ["../siteinfo.bin", "/etc/passwd", "siteinfo.bin/", "SITEINFO.BIN", "a\\b", ""] {
        assert_eq!(refused(&packed(&[(name, &site)])), BundleError::Name(name.to_owned()), "{name}");
    }
    let with = |contact| refused(&packed(&[(SITE, &site), (ADMINISTRATOR_KEY, &key), (CONTACT, contact)]));
    assert_eq!(with(b"\xff"), BundleError::ContactText);
    assert!(matches!(with(b"{\n a b }"), BundleError::Contact(DctError { line: 2, .. })));
    // Two names in the directory that are made equal afterwards.
    let mut twice = packed(&[(SITE, &site), ("siteinfo.bix", &site)]);
    let mut at = 0;
    while let Some(found) = twice[at..].windows(12).position(|window| window == b"siteinfo.bix") {
        at += found;
        twice[at + 11] = b'n';
    }
    assert_eq!(refused(&twice), BundleError::Repeated);
    let mut encrypted = packed(&[(SITE, &site)]);
    let directory = encrypted.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    encrypted[6] |= 1;
    encrypted[directory + 8] |= 1;
    assert_eq!(refused(&encrypted), BundleError::Encrypted);
}

#[test]
fn limits_hold_to_the_byte_whatever_the_archive_says() {
    let (site, key) = (site(), key());
    let filler = |len: usize| vec![0; len - site.len() - key.len()];
    let of_len = |len| {
        let filler = filler(len);
        packed(&[(SITE, &site), (ADMINISTRATOR_KEY, &key), ("repl_admin", &filler)])
    };
    assert!(SiteBundle::read(&of_len(LIMITS.unpacked_bytes), LIMITS).is_ok());
    assert_eq!(refused(&of_len(LIMITS.unpacked_bytes + 1)), BundleError::Unpacked);
    let bomb = of_len(64 << 20);
    assert!(bomb.len() < 70_000, "{}", bomb.len());
    assert_eq!(refused(&bomb), BundleError::Unpacked);
    // The same, with a length of 16 bytes in the headers.
    let mut lying = bomb;
    let len = u32::try_from(filler(64 << 20).len()).unwrap().to_le_bytes();
    while let Some(at) = lying.windows(4).position(|window| window == len) {
        lying[at..at + 4].copy_from_slice(&16_u32.to_le_bytes());
    }
    assert!(matches!(refused(&lying), BundleError::Unpacked | BundleError::Archive));
    let three = packed(&[(SITE, &site), (ADMINISTRATOR_KEY, &key), ("repl_admin", b"")]);
    let at_most = |entries| SiteBundle::read(&three, BundleLimits { entries, ..LIMITS });
    assert!(at_most(3).is_ok());
    assert_eq!(at_most(2), Err(BundleError::Entries));
}
