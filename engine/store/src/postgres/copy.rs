//! New rows by `COPY`, which costs the server a fraction of `INSERT`.

use super::super::StoreError;
use super::connection::Connection;
use std::pin::pin;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;

/// Rows from which copying is worth its statement.
pub(super) const COPY_ROWS_MIN: usize = 256;
/// Bytes of rows in one statement, which has to end before the server counts as gone.
const COPY_BYTES: usize = 16 << 20;

/// Copies rows, which the table must not have, in the order of their keys.
pub(super) fn copy_rows(
    connection: &Connection,
    name: &str,
    mut rows: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<(), StoreError> {
    // The index of the table grows at its end then, or at least in one direction.
    rows.sort_unstable();
    let mut rest = &rows[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest.iter().take_while(|(key, value)| {
            bytes += key.len() + value.len();
            bytes <= COPY_BYTES
        });
        // A longer row is copied by itself.
        let (part, further) = rest.split_at(count.count().max(1));
        copy_part(connection, name, part)?;
        rest = further;
    }
    Ok(())
}

fn copy_part(connection: &Connection, name: &str, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StoreError> {
    let statement = connection.statement(&format!("COPY {name} (key, value) FROM STDIN (FORMAT binary)"))?;
    connection.run("copy records to", async {
        let sink = connection.client().copy_in(&statement).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::BYTEA, Type::BYTEA]));
        for (key, value) in rows {
            writer.as_mut().write(&[key, value]).await?;
        }
        writer.finish().await.map(drop)
    })
}
