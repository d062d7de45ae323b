//! Fields that the contents of several kinds have.

use handle_proto::error::Field;
use handle_proto::wire::cursor::Cursor;
use std::net::{IpAddr, Ipv6Addr};

/// Appends an address as 16 bytes; one of IPv4 in its mapped form.
pub(crate) fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    out.extend_from_slice(&address.octets());
}

/// The next address.
pub(crate) fn address(cursor: &mut Cursor<'_>) -> Option<IpAddr> {
    let octets = cursor.array::<16>(Field::Answer).ok()?;
    Some(IpAddr::V6(Ipv6Addr::from(*octets)).to_canonical())
}
