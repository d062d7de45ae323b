//! The records of another machine, as its `hdl reconcile --serve` answers about them.

use super::compare::WantedValues;
use super::location::RemoteLocation;
use super::protocol::{self, ITEMS_MAX, PeerHello, PeerReply, PeerRequest, VERSION};
use anyhow::{Context as _, bail, ensure};
use handle_snapshot::Sha256Sum;
use handle_snapshot::comparison::{BucketRecord, ComparisonRules};
use handle_snapshot::writer::HomedPrefixes;
use std::io::{BufReader, BufWriter};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A connection to the other machine.
pub(super) struct ReconcilePeer {
    shown: String,
    child: Child,
    requests: BufWriter<ChildStdin>,
    replies: BufReader<ChildStdout>,
    hello: PeerHello,
    /// Number of requests so far.
    requests_count: u64,
}

impl ReconcilePeer {
    /// Starts `hdl` on the other machine.
    pub(super) fn connect(location: &RemoteLocation, ssh: &str, remote_hdl: &str) -> anyhow::Result<Self> {
        let mut command = location.command(ssh, remote_hdl);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        let (requests, replies) = (child.stdin.take(), child.stdout.take());
        let requests = BufWriter::new(requests.context("no standard input")?);
        let mut replies = BufReader::with_capacity(1 << 20, replies.context("no standard output")?);
        let shown = location.shown();
        let first = protocol::read::<PeerHello>(&mut replies);
        let hello = match first {
            Ok(Some(hello)) => hello,
            Ok(None) => bail!("{shown}: {}", ended(&mut child)),
            Err(error) => {
                return Err(error.context(format!("{shown}: the remote hdl does not support reconcile")));
            }
        };
        ensure!(
            hello.hdl_reconcile == VERSION,
            "{shown}: the remote hdl has version {} of the messages, this one {VERSION}",
            hello.hdl_reconcile
        );
        Ok(Self { shown, child, requests, replies, hello, requests_count: 0 })
    }

    /// Its name in messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) const fn hello(&self) -> &PeerHello {
        &self.hello
    }

    /// The homed prefixes of the other side; `None` if it is not known which are.
    pub(super) fn homed(&self) -> anyhow::Result<Option<HomedPrefixes>> {
        let Some(prefixes) = &self.hello.homed else { return Ok(None) };
        let mut homed = HomedPrefixes::default();
        for prefix in prefixes {
            ensure!(homed.add(&protocol::unhex(prefix)?), "{}: a homed prefix is too long", self.shown);
        }
        Ok(Some(homed))
    }

    pub(super) const fn requests_count(&self) -> u64 {
        self.requests_count
    }

    fn send(&mut self, request: &PeerRequest) -> anyhow::Result<()> {
        self.requests_count += 1;
        let sent = protocol::write(&mut self.requests, request);
        sent.with_context(|| format!("{}: the connection is closed", self.shown))
    }

    fn receive(&mut self) -> anyhow::Result<PeerReply> {
        match protocol::read(&mut self.replies).with_context(|| self.shown.clone())? {
            Some(PeerReply::Failed(why)) => bail!("{}: {why}", self.shown),
            Some(reply) => Ok(reply),
            None => bail!("{}: {}", self.shown, ended(&mut self.child)),
        }
    }

    /// Has the other side make its tree. [`begun`](Self::begun) waits for it.
    pub(super) fn begin(&mut self, rules: &ComparisonRules) -> anyhow::Result<()> {
        self.send(&protocol::begin(rules))
    }

    /// The root of the tree of the other side, and the number of its records.
    pub(super) fn begun(&mut self) -> anyhow::Result<(Sha256Sum, u64)> {
        match self.receive()? {
            PeerReply::Begun { root, records_count } => Ok((protocol::digest(&root)?, records_count)),
            _ => Err(self.confused()),
        }
    }

    /// The nodes at these positions.
    pub(super) fn nodes(&mut self, locations: &[usize]) -> anyhow::Result<Vec<Sha256Sum>> {
        let mut nodes = Vec::with_capacity(locations.len());
        while nodes.len() < locations.len() {
            let wanted = locations[nodes.len()..].iter().copied().take(ITEMS_MAX).collect();
            self.send(&PeerRequest::Nodes(wanted))?;
            let PeerReply::Nodes(more) = self.receive()? else { return Err(self.confused()) };
            self.check_count(more.len(), locations.len() - nodes.len())?;
            for node in more {
                nodes.push(protocol::digest(&node)?);
            }
        }
        Ok(nodes)
    }

    /// The records of the first of these buckets, at least of one.
    pub(super) fn buckets(&mut self, buckets: &[u32]) -> anyhow::Result<Vec<Vec<BucketRecord>>> {
        self.send(&PeerRequest::Buckets(buckets.iter().copied().take(ITEMS_MAX).collect()))?;
        let PeerReply::Buckets(found) = self.receive()? else { return Err(self.confused()) };
        self.check_count(found.len(), buckets.len())?;
        let record = |(key, digest): (String, String)| {
            Ok(BucketRecord { key: protocol::unhex(&key)?, digest: protocol::digest(&digest)? })
        };
        found.into_iter().map(|bucket| bucket.into_iter().map(record).collect()).collect()
    }

    /// The values of the records with these keys.
    pub(super) fn records(&mut self, keys: &[Vec<u8>]) -> anyhow::Result<Vec<Option<WantedValues>>> {
        let mut records = Vec::with_capacity(keys.len());
        while records.len() < keys.len() {
            let wanted = keys[records.len()..].iter().take(ITEMS_MAX).map(|key| protocol::hex(key)).collect();
            self.send(&PeerRequest::Records(wanted))?;
            let PeerReply::Records(more) = self.receive()? else { return Err(self.confused()) };
            self.check_count(more.len(), keys.len() - records.len())?;
            for record in more {
                let values = record.map(|(count, values)| {
                    anyhow::Ok(WantedValues { count, encoded: protocol::unhex(&values)? })
                });
                records.push(values.transpose()?);
            }
        }
        Ok(records)
    }

    fn check_count(&self, found: usize, wanted: usize) -> anyhow::Result<()> {
        if found == 0 || found > wanted { Err(self.confused()) } else { Ok(()) }
    }

    fn confused(&self) -> anyhow::Error {
        anyhow::anyhow!("{}: unexpected reply from the remote hdl", self.shown)
    }
}

impl Drop for ReconcilePeer {
    fn drop(&mut self) {
        // It ends when its standard input does; if it does not, as behind a broken connection, it
        // is not waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The message about a process that has ended.
fn ended(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => format!(
            "the connection ended ({status}); check that hdl is installed there and may read the records"
        ),
        Err(error) => format!("the connection ended: {error}"),
    }
}
