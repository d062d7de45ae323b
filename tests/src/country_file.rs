//! A file in the format of MaxMind with a few networks, in the version 2.0 of its specification.

use std::net::Ipv4Addr;

const TYPE_STRING: u8 = 2;
const TYPE_UINT16: u8 = 5;
const TYPE_UINT32: u8 = 6;
const TYPE_MAP: u8 = 7;

/// The bytes of a file with these networks of IPv4 and their countries.
///
/// # Panics
/// When a network has no bits, or lies within another one.
#[must_use]
pub fn country_file(networks: &[(Ipv4Addr, u8, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut nodes: Vec<[TreeRecord; 2]> = vec![[TreeRecord::Empty; 2]];
    for (address, len, country) in networks {
        let record = TreeRecord::Data(u32::try_from(data.len()).expect("a short file"));
        control(&mut data, TYPE_MAP, 1);
        text(&mut data, "country");
        control(&mut data, TYPE_MAP, 1);
        text(&mut data, "iso_code");
        text(&mut data, country);
        let mut at = 0;
        for bit_at in 0..*len {
            let bit = ((address.to_bits() >> (31 - bit_at)) & 1) as usize;
            if bit_at + 1 == *len {
                nodes[at][bit] = record;
                break;
            }
            at = match nodes[at][bit] {
                TreeRecord::Node(next) => next as usize,
                TreeRecord::Empty => {
                    nodes.push([TreeRecord::Empty; 2]);
                    let next = nodes.len() - 1;
                    nodes[at][bit] = TreeRecord::Node(u32::try_from(next).expect("a short file"));
                    next
                }
                TreeRecord::Data(_) => panic!("{address} lies within another network"),
            };
        }
    }
    let count = u32::try_from(nodes.len()).expect("a short file");
    let mut file = Vec::new();
    for record in nodes.into_iter().flatten() {
        let number = match record {
            TreeRecord::Empty => count,
            TreeRecord::Node(at) => at,
            TreeRecord::Data(at) => count + 16 + at,
        };
        file.extend(&number.to_be_bytes()[1..]);
    }
    file.extend([0; 16]);
    file.extend(&data);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    metadata(&mut file, count);
    file
}

/// Where a branch of the tree leads.
#[derive(Clone, Copy)]
enum TreeRecord {
    Empty,
    Node(u32),
    Data(u32),
}

fn metadata(file: &mut Vec<u8>, nodes_count: u32) {
    control(file, TYPE_MAP, 9);
    text(file, "node_count");
    control(file, TYPE_UINT32, 4);
    file.extend(nodes_count.to_be_bytes());
    for (name, number) in [
        ("record_size", 24),
        ("ip_version", 4),
        ("binary_format_major_version", 2),
        ("binary_format_minor_version", 0),
    ] {
        text(file, name);
        control(file, TYPE_UINT16, 2);
        file.extend(u16::to_be_bytes(number));
    }
    text(file, "database_type");
    text(file, "Test-Country");
    text(file, "languages");
    // An array of one entry: an extended type.
    file.extend([1, 4]);
    text(file, "en");
    text(file, "build_epoch");
    // A number of 64 bits: an extended type.
    file.extend([8, 2]);
    file.extend(1_700_000_000_u64.to_be_bytes());
    text(file, "description");
    control(file, TYPE_MAP, 1);
    text(file, "en");
    text(file, "Networks of a test");
}

fn control(out: &mut Vec<u8>, kind: u8, len: u8) {
    assert!(len < 29, "longer entries have another form");
    out.push((kind << 5) | len);
}

fn text(out: &mut Vec<u8>, text: &str) {
    control(out, TYPE_STRING, u8::try_from(text.len()).expect("a short text"));
    out.extend(text.as_bytes());
}
