//! Leases in the database: which of several processes does something, and since which change of
//! holder.

use super::super::StoreError;
use super::super::lease::{LeaseHolder, LeaseTurn};
use super::config::DatabaseAddress;
use super::connection::Connection;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Takes a lease that is over or renews one's own. Whether it is over is decided by the clock of
/// the server, so that the clocks of the processes do not matter.
const HOLD: &str = "UPDATE handle_leases SET \
     epoch = CASE WHEN holder = $2 THEN epoch ELSE GREATEST(epoch, $5) + 1 END, \
     holder = $2, host = $3, until = now() + $4::FLOAT8 * INTERVAL '1 millisecond' \
     WHERE name = $1 AND (holder = $2 OR until < now()) RETURNING epoch";
const LOOK: &str = "SELECT host, epoch FROM handle_leases WHERE name = $1";
/// It is free afterwards: the next process that takes it, this one too, gets a higher epoch.
const RELEASE: &str = "UPDATE handle_leases SET holder = 0, until = now() WHERE name = $1 AND holder = $2";

/// A lease, with a connection of its own: it is renewed also while all others are in use.
#[derive(Debug)]
pub(crate) struct PostgresLease {
    address: Arc<DatabaseAddress>,
    connection: Option<Connection>,
    name: &'static str,
    holder: LeaseHolder,
    length: Duration,
}

impl PostgresLease {
    pub(super) fn new(
        address: &DatabaseAddress,
        name: &'static str,
        holder: LeaseHolder,
        length: Duration,
    ) -> Self {
        // A lease whose renewal takes longer than a third of it is better tried again.
        let address = Arc::new(address.with_timeout(length / 3));
        Self { address, connection: None, name, holder, length }
    }

    /// Takes the lease if it is over, or renews it.
    pub(crate) fn hold(&mut self, epoch_above: u64) -> Result<LeaseTurn, StoreError> {
        // The lease begins after this moment.
        let until = Instant::now() + self.length;
        let (name, length_ms) = (self.name, self.length.as_secs_f64() * 1000.0);
        let LeaseHolder { id, host } = self.holder.clone();
        let (id, above) = (id.cast_signed(), epoch_above.cast_signed());
        let connection = self.connected()?;
        let statement = connection.statement(HOLD)?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&name, &id, &host, &length_ms, &above];
        let held =
            connection.run("hold a lease of", connection.client().query_opt(&statement, &parameters))?;
        if let Some(row) = held {
            return Ok(LeaseTurn::Held { epoch: row.get::<_, i64>(0).cast_unsigned(), until });
        }
        let statement = connection.statement(LOOK)?;
        let row = connection.run("read", connection.client().query_opt(&statement, &[&name]))?;
        let Some(row) = row else { return Err(StoreError::Damaged("a lease is missing")) };
        Ok(LeaseTurn::Elsewhere { host: row.get(0), epoch: row.get::<_, i64>(1).cast_unsigned() })
    }

    /// Ends the lease now, so that another process need not wait for its end.
    pub(crate) fn release(&mut self) -> Result<(), StoreError> {
        let (name, id) = (self.name, self.holder.id.cast_signed());
        let connection = self.connected()?;
        let statement = connection.statement(RELEASE)?;
        connection.run("release a lease of", connection.client().execute(&statement, &[&name, &id])).map(drop)
    }

    fn connected(&mut self) -> Result<&Connection, StoreError> {
        if self.connection.as_ref().is_some_and(Connection::is_lost) {
            self.connection = None;
        }
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(Connection::open(&self.address, "")?)),
        }
    }
}
