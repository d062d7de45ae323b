//! The order in which sorted rows are written, so that they fill the pages of a file.

/// Rows whose order is changed at a time: few enough that redb has their pages in memory until they
/// are full.
const PART_ROWS: usize = 4096;
/// Rows of a group. The first [`FIRST_ROWS`] of each group are written before all others of the
/// part.
const GROUP_ROWS: usize = 5;
/// See [`GROUP_ROWS`].
const FIRST_ROWS: usize = 3;

/// The positions of `rows_count` sorted new rows, in the order in which they fill pages.
///
/// redb divides a full page into halves. Rows that are written in their order never reach the first
/// half again, and all pages stay at 53 % of their length. So three of five rows are written first,
/// and the others then fill the pages that these have left: to 82 %, with rows of 245 bytes.
pub fn filling_order(rows_count: usize) -> impl Iterator<Item = usize> {
    let parts = (0..rows_count).step_by(PART_ROWS);
    parts.flat_map(move |start| {
        let part = start..(start + PART_ROWS).min(rows_count);
        let is_first = move |row: &usize| (row - start) % GROUP_ROWS < FIRST_ROWS;
        part.clone().filter(is_first).chain(part.filter(move |row| !is_first(row)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_written_once() {
        for count in [0, 1, 4, 5, 6, PART_ROWS - 1, PART_ROWS, PART_ROWS + 1, 3 * PART_ROWS + 7] {
            let mut order: Vec<usize> = filling_order(count).collect();
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }
}
