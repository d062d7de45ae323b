//! Tests of site records: each field, every truncation, false lengths, round trips.

use super::super::site_build::{ServerBuilder, SiteBuilder};
use super::*;
use alloc::string::{String, ToString};
use alloc::vec;
use proptest::prelude::*;

/// Version 2.11, serial 7, primary, whole handle, `desc` = `x`; one server at 132.151.1.155 with a
/// key of three bytes: TCP both, UDP query, HTTP both.
const SITE: &[u8] = b"\0\x01\x02\x0b\0\x07\x80\x02\0\0\0\0\
    \0\0\0\x01\0\0\0\x04desc\0\0\0\x01x\
    \0\0\0\x01\
    \0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\x84\x97\x01\x9b\0\0\0\x03\x01\x02\x03\
    \0\0\0\x03\x03\x01\0\0\x0a\x51\x02\0\0\0\x0a\x51\x03\x02\0\0\x1f\x40";

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

fn servers(count: i32) -> SiteBuilder {
    let mut builder = SiteBuilder::new();
    for id in 0..count {
        let address = Address::from(IpAddr::from([192, 0, 2, 1]));
        builder.server(ServerBuilder { id, address, public_key: vec![], interfaces: vec![] });
    }
    builder
}

#[test]
fn reads_each_field() {
    let site = Site::decode(SITE).unwrap();
    assert_eq!((site.format_version, site.serial, site.protocol), (1, 7, Version::new(2, 11)));
    assert!(site.is_primary() && !site.flags.has(SiteFlags::MULTI_PRIMARY));
    assert_eq!(site.hash_option(), Some(HashOption::Handle));
    assert_eq!(site.hash_filter, b"");
    assert_eq!(site.attribute("desc"), Some(&b"x"[..]));
    assert_eq!(site.attribute("DESC"), None);
    let server = site.server_for(Handle(b"10/a")).unwrap();
    assert_eq!((server.id, server.address.to_string().as_str()), (1, "132.151.1.155"));
    assert_eq!(server.public_key, [1, 2, 3]);
    let tcp = Interface::new(InterfaceKind::BOTH, InterfaceProtocol::TCP, 2641);
    let udp = Interface::new(InterfaceKind::QUERY, InterfaceProtocol::UDP, 2641);
    let http = Interface::new(InterfaceKind::BOTH, InterfaceProtocol::HTTP, 8000);
    assert_eq!(server.interfaces.iter().collect::<Vec<_>>(), [tcp, udp, http]);
    assert_eq!(server.interface(InterfaceProtocol::UDP, InterfaceKind::QUERY), Some(udp));
    assert_eq!(server.interface(InterfaceProtocol::UDP, InterfaceKind::ADMIN), None);
    let mut again = Vec::new();
    site.encode(&mut again);
    assert_eq!(again, SITE);
    assert_eq!(SiteBuilder::from(&site).build().as_bytes(), SITE);
}

#[test]
fn refuses_every_truncation_and_trailing_bytes() {
    for len in 0..SITE.len() {
        let error = Site::decode(&SITE[..len]).unwrap_err();
        assert!(error.at() <= len, "cut to {len}: {error}");
    }
    let longer = [SITE, &[0]].concat();
    let at = u32::try_from(SITE.len()).unwrap();
    assert_eq!(Site::decode(&longer), Err(DecodeError::Trailing { field: Field::Site, at }));
}

#[test]
fn refuses_lengths_and_counts_that_lie() {
    // Offsets of: hash filter, attributes, name, value, servers, key, interfaces.
    for at in [8, 12, 16, 24, 29, 53, 60] {
        let truth = u32::from_be_bytes(SITE[at..at + 4].try_into().unwrap());
        for lie in [truth + 1, 0x0200_0000, 0x7fff_ffff, u32::MAX] {
            let mut data = SITE.to_vec();
            data[at..at + 4].copy_from_slice(&lie.to_be_bytes());
            assert!(Site::decode(&data).is_err(), "{lie} instead of {truth} at {at}");
        }
    }
}

#[test]
fn ipv4_stands_behind_twelve_zero_bytes_and_is_never_written_mapped() {
    let plain = address("192.0.2.1");
    assert_eq!(plain.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
    assert_eq!(address("::ffff:192.0.2.1"), plain);
    assert_eq!(address("::1").to_string(), "0.0.0.1");
    assert_eq!(address("2001:db8:0:0:8:0:0:2").to_string(), "2001:db8::8:0:0:2");
    assert_eq!(address("2001:db8:0:1:1:1:1:1").to_string(), "2001:db8:0:1:1:1:1:1");
    let mut mapped = plain;
    mapped.0[10..12].copy_from_slice(&[0xff, 0xff]);
    assert!(mapped.ip().is_ipv6());
    assert_eq!(mapped.to_string(), "::ffff:c000:201");
    assert!(address("0.0.0.0").is_unspecified() && address("::").is_unspecified());
}

#[test]
fn the_hash_chooses_by_position() {
    let mut builder = servers(3);
    builder.hash_option_number = 0;
    let site = builder.build();
    // Vector: the prefix hash of 12345 is 1845997957.
    assert_eq!(site.view().server_at(Handle(b"12345/abc")), Some(1_845_997_957 % 3));
    assert_eq!(site.view().server_for(Handle(b"12345/abc")).unwrap().id, 1_845_997_957 % 3);
    builder.hash_option_number = 3;
    assert_eq!(builder.build().view().server_at(Handle(b"12345/abc")), None);
    builder.servers.truncate(1);
    assert_eq!(builder.build().view().server_at(Handle(b"12345/abc")), Some(0));
    builder.servers.clear();
    assert_eq!(builder.build().view().server_at(Handle(b"12345/abc")), None);
}

#[test]
fn the_numbered_attribute_wins() {
    let mut builder = servers(2);
    builder.attribute("domain", "all.example").attribute("domain.1", "one.example").attribute("domain.x", "");
    let site = builder.build();
    let view = site.view();
    assert_eq!(view.attribute_of("domain", 0), Some(&b"all.example"[..]));
    assert_eq!(view.attribute_of("domain", 1), Some(&b"one.example"[..]));
    assert_eq!(view.attribute_of("domain", 11), Some(&b"all.example"[..]));
    assert_eq!(view.attribute_of("path", 1), None);
}

#[test]
fn protocols_have_names() {
    for number in 0..4 {
        let protocol = InterfaceProtocol(number);
        let name = String::from(protocol.name().unwrap()).to_ascii_lowercase();
        assert_eq!(InterfaceProtocol::from_name(&name), Some(protocol));
    }
    assert_eq!(InterfaceProtocol(9).name(), None);
    assert_eq!(InterfaceProtocol::from_name("GOPHER"), None);
}

fn any_server() -> impl Strategy<Value = ServerBuilder> {
    let interface = any::<(u8, u8, u32)>().prop_map(|(kind, protocol, port_number)| Interface {
        kind: InterfaceKind(kind),
        protocol: InterfaceProtocol(protocol),
        port_number,
    });
    let fields = (any::<i32>(), any::<[u8; 16]>(), any::<Vec<u8>>(), prop::collection::vec(interface, 0..4));
    fields.prop_map(|(id, address, public_key, interfaces)| ServerBuilder {
        id,
        address: Address(address),
        public_key,
        interfaces,
    })
}

proptest! {
    #[test]
    fn round_trips(
        head: (i16, u8, u8, i16, u8, u8),
        hash_filter: Vec<u8>,
        attributes: Vec<(Vec<u8>, Vec<u8>)>,
        servers in prop::collection::vec(any_server(), 0..4),
    ) {
        let (format_version, major, minor, serial, flags, hash_option_number) = head;
        let builder = SiteBuilder {
            format_version,
            protocol: Version::new(major, minor),
            serial,
            flags: SiteFlags(flags),
            hash_option_number,
            hash_filter,
            attributes,
            servers,
        };
        let site = builder.build();
        prop_assert_eq!(site.edit(), builder);
        let mut again = Vec::new();
        site.view().encode(&mut again);
        prop_assert_eq!(again, site.as_bytes());
    }

    #[test]
    fn changed_bytes_never_panic(at in 0..SITE.len(), byte: u8) {
        let mut data = SITE.to_vec();
        data[at] = byte;
        if let Ok(site) = Site::decode(&data) {
            let mut again = Vec::new();
            site.encode(&mut again);
            prop_assert_eq!(again, data);
        }
    }
}
