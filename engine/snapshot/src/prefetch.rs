//! Prefetch hints to the cache. They are safe for any offset.
#![expect(unsafe_code, reason = "prefetch instructions take a raw address")]

/// Bytes that one hint loads.
const LINE_LEN: usize = 64;

/// Starts loading the lines of `bytes`, and does not wait.
#[inline]
pub fn prefetch_all<const LEN: usize>(bytes: &[u8; LEN]) {
    for at in (0..LEN).step_by(LINE_LEN) {
        line(&bytes[at]);
    }
}

/// Starts loading the `len` bytes at `at`, as far as they are within `bytes`, and does not wait.
#[inline]
pub fn prefetch(bytes: &[u8], at: usize, len: usize) {
    let Some(bytes) = bytes.get(at..) else { return };
    let len = len.min(bytes.len());
    for at in (0..len).step_by(LINE_LEN) {
        line(&bytes[at]);
    }
}

/// Starts loading the line in which `value` begins, and does not wait.
#[inline]
pub fn prefetch_line<T>(value: &T) {
    line(value);
}

#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn line<T>(value: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction (SSE, which every x86-64 has) reads nothing that the program can see
    // and faults on no address. Besides, this address is that of a borrowed value.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) }
}

#[inline]
#[cfg(all(target_arch = "aarch64", not(miri)))]
fn line<T>(value: &T) {
    // SAFETY: the instruction writes no register or flag, reads nothing that the program can see,
    // and faults on no address. Besides, this address is that of a borrowed value.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) core::ptr::from_ref(value), options(nostack, preserves_flags, readonly));
    }
}

#[inline]
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn line<T>(_value: &T) {}

#[cfg(test)]
mod tests {
    #[test]
    fn any_range_is_fine() {
        let bytes = [0; 200];
        for at in [0, 63, 199, 200, 201, usize::MAX] {
            for len in [0, 1, 64, 500, usize::MAX] {
                super::prefetch(&bytes, at, len);
            }
        }
    }
}
