//! Which layers to merge, so that each layer is a given factor longer than all newer ones together.
//!
//! So layers grow by at least a factor from the newest to the oldest, and there are few of them. A
//! byte is written again when its layer is merged. That happens once while it is new, and from then
//! on only when the result is longer than its layer was by the factor `1 + 1/ratio`: with lengths
//! between *u* and *n*, a byte is written at most `2 + log(n/u) / log(1 + 1/ratio)` times, and a
//! set has at most `2 + log(n/u) / log(1 + ratio)` layers.

/// How many of the newest layers to merge into one of at most `len_max` bytes; `None` when none are
/// due.
///
/// `lens` are their lengths, newest first.
pub(crate) fn due(lens: &[u64], ratio: u64, len_max: u64) -> Option<usize> {
    let mut newer_len = 0_u64;
    let mut due = None;
    for (nth, &len) in lens.iter().enumerate() {
        let merged_len = newer_len.saturating_add(len);
        if nth > 0 && newer_len.saturating_mul(ratio) > len && merged_len <= len_max {
            due = Some(nth + 1);
        }
        newer_len = merged_len;
    }
    due
}

/// How many of the newest layers a change of `len` bytes takes the place of, so that it is written
/// with them in one layer of at most `len_max` bytes.
pub(crate) fn absorbed(lens: &[u64], len: u64, len_max: u64) -> usize {
    let mut all_len = len;
    lens.iter()
        .take_while(|&&len| {
            all_len = all_len.saturating_add(len);
            all_len <= len_max
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that one layer is written with and that what it was made of had, and how often these
    /// were written before.
    #[derive(Clone, Debug)]
    struct TierLayer {
        len: u64,
        /// The most often that a byte in it was written.
        written: u32,
    }

    fn merged(layers: impl Iterator<Item = TierLayer>) -> TierLayer {
        layers.fold(TierLayer { len: 0, written: 0 }, |all, one| TierLayer {
            len: all.len + one.len,
            written: all.written.max(one.written + 1),
        })
    }

    /// The bounds that the module promises, for layers of `unit` bytes at least.
    fn bounds(unit: u64, all: u64, ratio: u64) -> (f64, f64) {
        let growth = (all as f64 / unit as f64).max(1.0).ln();
        let ratio = ratio as f64;
        (2.0 + growth / (1.0 + 1.0 / ratio).ln(), 2.0 + growth / (1.0 + ratio).ln())
    }

    proptest! {
        #[test]
        fn rewrites_and_layers_are_bounded(
            base in 1..100_000_u64,
            deltas in prop::collection::vec(1..500_u64, 1..400),
            ratio in 1..5_u64,
        ) {
            let mut layers = vec![TierLayer { len: base, written: 0 }];
            let mut all = base;
            for delta in deltas {
                layers.insert(0, TierLayer { len: delta, written: 1 });
                all += delta;
                let lens: Vec<u64> = layers.iter().map(|layer| layer.len).collect();
                if let Some(count) = due(&lens, ratio, u64::MAX) {
                    let one = merged(layers.drain(..count));
                    layers.insert(0, one);
                }
                let lens: Vec<u64> = layers.iter().map(|layer| layer.len).collect();
                prop_assert_eq!(due(&lens, ratio, u64::MAX), None, "one merge is enough");
                let (written_max, layers_max) = bounds(1, all, ratio);
                prop_assert!((layers.len() as f64) <= layers_max, "{} layers", layers.len());
                let written = layers.iter().map(|layer| layer.written).max().unwrap_or(0);
                prop_assert!(f64::from(written) <= written_max, "written {written} times, {written_max}");
            }
        }
    }

    #[test]
    fn ten_thousand_changes_above_ten_million_records() {
        // As measured: 2.6 GB of records, changes of 250 bytes in layers of 64 KiB, the default
        // ratio.
        let mut layers = vec![2_600_000_000_u64];
        let (mut added, mut written, mut most) = (0_u64, 0_u64, 0);
        for _ in 0..4_000 {
            layers.insert(0, 65_536);
            added += 65_536;
            written += 65_536;
            if let Some(count) = due(&layers, 2, u64::MAX) {
                let one = layers.drain(..count).sum();
                written += one;
                layers.insert(0, one);
            }
            most = most.max(layers.len());
        }
        assert!(most <= 10, "{most} layers");
        assert!(written <= 12 * added, "{} times", written as f64 / added as f64);
    }

    #[test]
    fn due_at_its_edges() {
        assert_eq!(due(&[], 2, u64::MAX), None);
        assert_eq!(due(&[7], 2, u64::MAX), None);
        assert_eq!(due(&[5, 10], 2, u64::MAX), None, "twice as long is long enough");
        assert_eq!(due(&[5, 9], 2, u64::MAX), Some(2));
        assert_eq!(due(&[5, 9], 2, 13), None, "too long together");
        assert_eq!(due(&[5, 9, 27], 2, u64::MAX), Some(3), "14 above 27");
        assert_eq!(due(&[5, 9, 27], 2, 40), Some(2), "the longest that is allowed");
        assert_eq!(due(&[u64::MAX, 1], 16, u64::MAX), Some(2), "no overflow");
    }

    #[test]
    fn absorbed_at_its_edges() {
        assert_eq!(absorbed(&[], 1, 10), 0);
        assert_eq!(absorbed(&[4, 5, 1], 1, 10), 2);
        assert_eq!(absorbed(&[4, 5, 1], 1, 9), 1);
        assert_eq!(absorbed(&[1], 10, 10), 0);
        assert_eq!(absorbed(&[u64::MAX], 1, u64::MAX), 1);
    }
}
