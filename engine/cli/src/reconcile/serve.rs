//! `hdl reconcile --serve`: answers the `hdl reconcile` of another machine about the records here.

use super::compare::WantedValues;
use super::protocol::{self, ITEMS_MAX, PeerHello, PeerReply, PeerRequest, REPLY_LEN, VERSION};
use super::table::ReconcileTable;
use anyhow::{Context as _, bail, ensure};
use handle_snapshot::comparison::ComparisonTree;
use handle_snapshot::map::MappedFile;
use handle_snapshot::{RecordSet, hash_key};
use std::io::{BufRead, Write};

/// Answers requests until the end of `from`.
///
/// # Errors
/// When a record is damaged, or the other side sends something else than requests. It has been
/// told.
pub(super) fn serve(
    table: &ReconcileTable,
    from: &mut impl BufRead,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let homed = table.homed()?.map(|homed| homed.iter().map(protocol::hex).collect());
    let hello = PeerHello {
        hdl_reconcile: VERSION,
        folds: table.folds()?,
        records_count: table.count(),
        has_names_only: table.has_names_only(),
        homed,
    };
    protocol::write(out, &hello)?;
    let served = answer_all(table, from, out);
    if let Err(error) = &served {
        // The other side may be gone.
        let _ = protocol::write(out, &PeerReply::Failed(format!("{error:#}")));
    }
    served
}

fn answer_all(table: &ReconcileTable, from: &mut impl BufRead, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(first) = protocol::read(from)? else { return Ok(()) };
    let PeerRequest::Begin { nonce, scope, bits } = first else { bail!("the tree was not requested first") };
    let tree = ComparisonTree::of(table.layers(), protocol::rules(&nonce, &scope, bits)?, &|_| ())
        .context("cannot read the records (check them with: hdl snapshot verify)")?;
    let (root, records_count) = (tree.root().to_string(), tree.records_count());
    protocol::write(out, &PeerReply::Begun { root, records_count })?;
    let records = table.records()?;
    while let Some(request) = protocol::read(from)? {
        protocol::write(out, &answer(&tree, &records, &request)?)?;
    }
    Ok(())
}

fn answer(
    tree: &ComparisonTree<'_, MappedFile>,
    records: &RecordSet<'_, MappedFile>,
    request: &PeerRequest,
) -> anyhow::Result<PeerReply> {
    Ok(match request {
        PeerRequest::Begin { .. } => bail!("the tree was requested twice"),
        PeerRequest::Nodes(positions) => {
            ensure!(positions.len() <= ITEMS_MAX, "too many places");
            let node = |&at| tree.node(at).map(|node| node.to_string()).context("no such place");
            PeerReply::Nodes(positions.iter().map(node).collect::<anyhow::Result<_>>()?)
        }
        PeerRequest::Buckets(buckets) => PeerReply::Buckets(collect(buckets, |&bucket| {
            let bucket = protocol::bucket(&tree.bucket(bucket)?);
            let len = bucket.iter().map(|(key, digest)| key.len() + digest.len()).sum();
            Ok((bucket, len))
        })?),
        PeerRequest::Records(keys) => PeerReply::Records(collect(keys, |key| {
            let key = protocol::unhex(key)?;
            let found = records.find(hash_key(records.seed(), &key), &key)?;
            let values = found.map(|record| WantedValues::of(&record)).transpose()?;
            let values = values.map(|values| (values.count, protocol::hex(&values.encoded)));
            let len = values.as_ref().map_or(0, |(_, values)| values.len());
            Ok((values, len))
        })?),
    })
}

/// Makes the items of a reply and adds their lengths, until it is long enough.
fn collect<R, T>(
    requested: &[R],
    mut make: impl FnMut(&R) -> anyhow::Result<(T, usize)>,
) -> anyhow::Result<Vec<T>> {
    ensure!(requested.len() <= ITEMS_MAX, "too many items");
    let (mut items, mut total) = (Vec::new(), 0);
    for one in requested {
        let (item, len) = make(one)?;
        items.push(item);
        total += len;
        if total >= REPLY_LEN {
            break;
        }
    }
    Ok(items)
}
