//! Captures in the pcapng format, as written by Wireshark and dumpcap: blocks, each of a device
//! with its own kind and clock.

use super::CaptureRest;
use super::cursor::FileCursor;

/// The start of a file in this format: the type of the block that begins a section.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The second word of such a block, which shows the byte order of the section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const SECTION: u32 = u32::from_be_bytes(MAGIC);
const DEVICE: u32 = 1;
/// A packet block as written before 2010.
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;
/// Options of a device: ticks of its clock, and seconds to be added.
const TICKS: u16 = 9;
const OFFSET: u16 = 14;
/// Bytes of a block besides its body: type and length before it, and the length again after it.
const FRAME_LEN: u32 = 12;

/// The device of a packet.
#[derive(Clone, Copy, Debug)]
struct Device {
    link: u32,
    /// Clock ticks per second.
    ticks_per_s: u64,
    offset_s: i64,
}

impl Device {
    /// `None` if it is invalid, or its clock is too fine for 64 bits.
    fn read(mut body: FileCursor<'_>) -> Option<Self> {
        let mut device = Self { link: u32::from(body.half()?), ticks_per_s: 1_000_000, offset_s: 0 };
        body.bytes(6)?;
        while let (Some(code), Some(len)) = (body.half(), body.half()) {
            let mut option = FileCursor { rest: body.padded(u32::from(len))?, ..body };
            match code {
                0 => break,
                TICKS => {
                    let resolution = *option.bytes(1)?.first()?;
                    let exponent = u32::from(resolution & 0x7f);
                    let is_binary = resolution & 0x80 != 0;
                    let ticks =
                        if is_binary { 1u64.checked_shl(exponent) } else { 10u64.checked_pow(exponent) };
                    device.ticks_per_s = ticks?;
                }
                OFFSET => device.offset_s = option.long()?.cast_signed(),
                _ => {}
            }
        }
        Some(device)
    }

    /// Nanoseconds since 1970.
    fn at_ns(&self, ticks: u64) -> Option<i64> {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_s);
        i64::try_from(ns).ok()?.checked_add(self.offset_s.checked_mul(1_000_000_000)?)
    }
}

/// The next block: its type, and its body. A section header sets the byte order.
fn block<'b>(blocks: &mut FileCursor<'b>) -> Option<(u32, FileCursor<'b>)> {
    if blocks.rest.starts_with(&MAGIC) {
        let order = *blocks.rest.get(8..)?.first_chunk()?;
        blocks.is_big = u32::from_be_bytes(order) == BYTE_ORDER;
        if !blocks.is_big && u32::from_le_bytes(order) != BYTE_ORDER {
            return None;
        }
    }
    let (kind, len) = (blocks.word()?, blocks.word()?);
    let body = blocks.bytes_of(len.checked_sub(FRAME_LEN)?)?;
    (blocks.word()? == len).then_some((kind, FileCursor { rest: body, ..*blocks }))
}

/// Passes each packet with a time to `each`: nanoseconds since 1970, the kind of its device, and
/// its bytes. Counts packets without a time or with an unknown device as skipped.
///
/// A capture that ends within a block, or has an invalid one, is read up to there.
///
/// # Errors
///
/// If the header is not valid.
pub(super) fn packets<'b>(
    bytes: &'b [u8],
    mut each: impl FnMut(i64, u32, &'b [u8]),
) -> Result<CaptureRest, &'static str> {
    let mut blocks = FileCursor { rest: bytes, is_big: false };
    let mut head = blocks;
    if !matches!(block(&mut head), Some((SECTION, _))) {
        return Err("it ends within the file header");
    }
    let (mut devices, mut skipped) = (Vec::new(), 0);
    loop {
        let is_end = blocks.rest.is_empty();
        let Some((kind, body)) = block(&mut blocks) else {
            return Ok(CaptureRest { skipped, is_cut: !is_end });
        };
        match kind {
            // Each section has its own devices.
            SECTION => devices.clear(),
            DEVICE => devices.push(Device::read(body)),
            PACKET => {
                let Some((number, ticks, packet)) = packet(body) else {
                    return Ok(CaptureRest { skipped, is_cut: true });
                };
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                let device = devices.get(number).copied().flatten();
                let timed = device.and_then(|device: Device| Some((device.at_ns(ticks)?, device.link)));
                match timed {
                    Some((at_ns, link)) => each(at_ns, link, packet),
                    None => skipped += 1,
                }
            }
            OLD_PACKET | SIMPLE_PACKET => skipped += 1,
            _ => {}
        }
    }
}

/// The number of its device, its time on the clock of that device, and its bytes.
fn packet(mut body: FileCursor<'_>) -> Option<(u32, u64, &[u8])> {
    let number = body.word()?;
    let ticks = u64::from(body.word()?) << 32 | u64::from(body.word()?);
    let len = body.word()?;
    // The original length.
    body.word()?;
    Some((number, ticks, body.bytes_of(len)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn block(is_big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let word = |word: u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
        let len = u32::try_from(12 + body.len() + padding.len()).unwrap();
        [&word(kind)[..], &word(len), body, &padding, &word(len)].concat()
    }

    fn half(is_big: bool, half: u16) -> [u8; 2] {
        if is_big { half.to_be_bytes() } else { half.to_le_bytes() }
    }

    fn section(is_big: bool) -> Vec<u8> {
        let magic = 0x1a2b_3c4d_u32;
        let magic = if is_big { magic.to_be_bytes() } else { magic.to_le_bytes() };
        block(is_big, 0x0a0d_0d0a, &[&magic[..], &half(is_big, 1), &half(is_big, 0), &[0xff; 8]].concat())
    }

    fn device(is_big: bool, link: u16, resolution: u8) -> Vec<u8> {
        let option = [&half(is_big, 9)[..], &half(is_big, 1), &[resolution, 0, 0, 0], &[0; 4]].concat();
        block(is_big, 1, &[&half(is_big, link)[..], &[0; 6], &option].concat())
    }

    fn packet(is_big: bool, device: u32, ticks: u64, bytes: &[u8]) -> Vec<u8> {
        let word = |word: u64| {
            let word = u32::try_from(word & 0xffff_ffff).unwrap();
            if is_big { word.to_be_bytes() } else { word.to_le_bytes() }
        };
        let len = word(bytes.len() as u64);
        let head = [word(u64::from(device)), word(ticks >> 32), word(ticks), len, len].concat();
        block(is_big, 6, &[&head, bytes].concat())
    }

    /// Packets of one device, a millisecond apart.
    pub(crate) fn capture_of(link: u16, packets: &[Vec<u8>]) -> Vec<u8> {
        let timed = (0..).zip(packets);
        let blocks = timed.map(|(i, bytes)| packet(false, 0, 1_700_000_000_000_000 + 1000 * i, bytes));
        [section(false), device(false, link, 6), blocks.collect::<Vec<_>>().concat()].concat()
    }

    /// One packet of each of three devices, with the same second on different clocks, in two
    /// sections.
    fn capture(is_big: bool) -> Vec<u8> {
        const S: u64 = 1_700_000_000;
        [
            section(is_big),
            device(is_big, 1, 6),
            device(is_big, 101, 9),
            packet(is_big, 0, S * 1_000_000, b"first"),
            packet(is_big, 1, S * 1_000_000_000 + 7, b"second"),
            // Of no device, and without a time.
            packet(is_big, 2, 5, b"nobody's"),
            block(is_big, 3, &[0, 0, 0, 4, 1, 2, 3, 4]),
            block(is_big, 2, &[0; 20]),
            section(is_big),
            device(is_big, 113, 0x80 | 10),
            packet(is_big, 0, S << 10 | 512, b"third"),
        ]
        .concat()
    }

    fn read(bytes: &[u8]) -> (Vec<(i64, u32, Vec<u8>)>, u64) {
        let mut found = Vec::new();
        let rest = packets(bytes, |at_ns, link, packet| found.push((at_ns, link, packet.to_vec()))).unwrap();
        (found, rest.skipped)
    }

    #[test]
    fn devices_have_their_own_kinds_and_clocks() {
        for is_big in [false, true] {
            let (found, skipped) = read(&capture(is_big));
            const NS: i64 = 1_700_000_000_000_000_000;
            let expected = [
                (NS, 1, b"first".to_vec()),
                (NS + 7, 101, b"second".to_vec()),
                (NS + 500_000_000, 113, b"third".to_vec()),
            ];
            assert_eq!((&found[..], skipped), (&expected[..], 3), "big {is_big}");
        }
    }

    #[test]
    fn a_capture_is_read_as_far_as_it_goes() {
        let whole = capture(false);
        let counts: Vec<_> =
            (section(false).len()..=whole.len()).map(|len| read(&whole[..len]).0.len()).collect();
        assert!(counts.is_sorted() && counts.last() == Some(&3), "{counts:?}");
        assert!(packets(&whole[..10], |_, _, _| ()).is_err());
        // A clock that no number tells, and a time beyond all years.
        for (resolution, ticks) in [(60, 1), (0x80 | 100, 1), (0, u64::MAX)] {
            let bytes =
                [section(false), device(false, 1, resolution), packet(false, 0, ticks, b"x")].concat();
            assert_eq!(read(&bytes), (Vec::new(), 1), "{resolution}");
        }
    }
}
