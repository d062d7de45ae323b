//! The smallest part of a case that still has the effect of the whole.

/// Maximum number of attempts: each one breaks the server.
const ATTEMPTS_MAX: usize = 600;

/// Removes datagrams and bytes, and clears bytes, as long as the rest still breaks the server
/// according to `breaks`. `breaks` also returns whether the server recovered; if not, that was the
/// last attempt.
///
/// # Errors
///
/// Errors of `breaks`.
pub(super) fn minimise<E>(
    mut case: Vec<Vec<u8>>,
    mut breaks: impl FnMut(&[Vec<u8>]) -> Result<(bool, bool), E>,
) -> Result<(Vec<Vec<u8>>, bool), E> {
    let (mut attempts, mut is_back) = (0, true);
    let mut attempt = |case: &mut Vec<Vec<u8>>, smaller: Vec<Vec<u8>>| -> Result<Option<bool>, E> {
        if attempts == ATTEMPTS_MAX || !is_back {
            return Ok(None);
        }
        attempts += 1;
        let (still, back) = breaks(&smaller)?;
        is_back = back;
        if still {
            *case = smaller;
        }
        Ok(Some(still))
    };
    let mut at = 0;
    while at < case.len() && case.len() > 1 {
        let mut smaller = case.clone();
        smaller.remove(at);
        match attempt(&mut case, smaller)? {
            None => return Ok((case, is_back)),
            Some(true) => {}
            Some(false) => at += 1,
        }
    }
    for number in 0..case.len() {
        // Removes pieces from half of the bytes down to single ones, from the end, because the
        // needed bytes tend to be at the start.
        let mut piece = (case[number].len() / 2).max(1);
        loop {
            let mut end = case[number].len();
            while end > 0 {
                let start = end.saturating_sub(piece);
                let mut smaller = case.clone();
                smaller[number].drain(start..end);
                if attempt(&mut case, smaller)?.is_none() {
                    return Ok((case, is_back));
                }
                end = start;
            }
            if piece == 1 {
                break;
            }
            piece /= 2;
        }
        for at in 0..case[number].len() {
            if case[number][at] == 0 {
                continue;
            }
            let mut clearer = case.clone();
            clearer[number][at] = 0;
            if attempt(&mut case, clearer)?.is_none() {
                return Ok((case, is_back));
            }
        }
    }
    Ok((case, is_back))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal(case: &[&[u8]], breaks: impl Fn(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
        let case = case.iter().map(|datagram| datagram.to_vec()).collect();
        minimise(case, |case| Ok::<_, ()>((breaks(case), true))).unwrap().0
    }

    #[test]
    fn minimisation_keeps_only_needed_bytes() {
        let has = |case: &[Vec<u8>], byte: u8| case.iter().any(|datagram| datagram.contains(&byte));
        assert_eq!(minimal(&[b"aaaa", b"aaXa", b"aaaa"], |case| has(case, b'X')), [b"X"]);
        assert_eq!(minimal(&[b"aXa", b"aYa"], |case| has(case, b'X') && has(case, b'Y')), [b"X", b"Y"]);
        let at_7 = |case: &[Vec<u8>]| case[0].get(7).is_some_and(|byte| *byte == 0xff);
        assert_eq!(minimal(&[&[1, 2, 3, 4, 5, 6, 7, 0xff, 9, 9, 9]], at_7), [[0, 0, 0, 0, 0, 0, 0, 0xff]]);
        assert_eq!(minimal(&[b"anything"], |_| true), [b""]);
    }

    #[test]
    fn attempts_are_bounded_and_end_with_the_server() {
        let mut attempts = 0;
        let case = vec![vec![7; 4000]];
        let never = |_: &[Vec<u8>]| {
            attempts += 1;
            Ok::<_, ()>((false, true))
        };
        assert_eq!(minimise(case.clone(), never), Ok((case.clone(), true)));
        assert_eq!(attempts, ATTEMPTS_MAX);
        let (left, is_back) = minimise(case, |_| Ok::<_, ()>((true, false))).unwrap();
        assert_eq!((left[0].len(), is_back), (2000, false));
    }
}
