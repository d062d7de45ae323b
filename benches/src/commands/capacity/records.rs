//! Short records: a handle of 16 bytes with one URL of 29 bytes.

/// The prefix of all handles.
pub(super) const PREFIX: &[u8] = b"21.T11148";
const DIGITS: u32 = 6;
const NAMES_COUNT: u64 = 36u64.pow(DIGITS);
const URL_START: &[u8] = b"https://data.example.eu";

/// The handle and the URL of a record, in buffers that the next one reuses.
#[derive(Default)]
pub(super) struct ShortRecord {
    pub(super) handle: Vec<u8>,
    pub(super) url: Vec<u8>,
}

impl ShortRecord {
    /// Makes record `n`. All records differ, and neighbours look unlike.
    pub(super) fn make(&mut self, n: u64) {
        let mut rest = n.wrapping_mul(1_000_000_007) % NAMES_COUNT;
        let mut digits = [0; DIGITS as usize];
        for digit in &mut digits {
            *digit = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[usize::try_from(rest % 36).unwrap_or_default()];
            rest /= 36;
        }
        self.handle.clear();
        for part in [PREFIX, b"/", &digits] {
            self.handle.extend_from_slice(part);
        }
        self.url.clear();
        for part in [URL_START, &digits] {
            self.url.extend_from_slice(part);
        }
    }
}
