//! Resolvers of DNS that answer from their caches.

use crate::side_by_side::dns::{NameServer, Program, ServerSlot, recursive_query};
use anyhow::{Context as _, ensure};
use handle_benches::dns::is_success;
use handle_benches::flood::{Flood, Shape};
use handle_benches::records::BenchRandom;
use handle_benches::requests::Requests;
use std::net::SocketAddr;
use std::time::Duration;

/// Outstanding queries while a cache is filled.
const FILL_WINDOW: usize = 64;
/// Time after which a query that fills a cache is lost.
const FILL_TIMEOUT: Duration = Duration::from_secs(3);

/// The resolvers. Both ask one server about every name and validate nothing.
pub(crate) const PROGRAMS: [&Program; 2] = [
    &Program {
        name: "Unbound",
        command: "unbound",
        package: "unbound",
        args: &["-d", "-c"],
        config: unbound_config,
    },
    &Program {
        name: "Knot Resolver",
        command: "kresd",
        package: "knot-resolver",
        args: &["-n", "-c"],
        config: kresd_config,
    },
];

fn unbound_config(slot: &ServerSlot<'_>) -> String {
    let (directory, port, upstream) = (slot.directory.display(), slot.address.port(), slot.upstream);
    format!(
        "server:\n  num-threads: 1\n  interface: 127.0.0.1@{port}\n  do-ip6: no\n  do-daemonize: no\n  \
         username: \"\"\n  chroot: \"\"\n  directory: \"{directory}\"\n  pidfile: \"{directory}/pid\"\n  \
         use-syslog: no\n  logfile: \"{directory}/log\"\n  module-config: \"iterator\"\n  \
         do-not-query-localhost: no\n  access-control: 127.0.0.0/8 allow\n  minimal-responses: yes\n  \
         so-rcvbuf: 4m\n  outgoing-range: 1024\n  num-queries-per-thread: 512\n  \
         msg-cache-size: 1g\n  rrset-cache-size: 2g\n\
         remote-control:\n  control-enable: no\n\
         forward-zone:\n  name: \".\"\n  forward-addr: {}@{}\n",
        upstream.ip(),
        upstream.port()
    )
}

fn kresd_config(slot: &ServerSlot<'_>) -> String {
    let (port, upstream) = (slot.address.port(), slot.upstream);
    format!(
        "net.ipv6 = false\nnet.listen('127.0.0.1', {port}, {{ kind = 'dns' }})\n\
         modules.unload('ta_update')\nmodules.unload('ta_signal_query')\nmodules.unload('priming')\n\
         modules.unload('detect_time_skew')\nmodules.unload('detect_time_jump')\n\
         trust_anchors.remove('.')\ncache.size = 2 * GB\n\
         policy.add(policy.all(policy.STUB('{}@{}')))\n",
        upstream.ip(),
        upstream.port()
    )
}

/// Starts `program` on `core`, and has it ask `upstream` about each of `names` names.
pub(crate) fn start(
    program: &'static Program,
    names: u64,
    upstream: SocketAddr,
    core: usize,
) -> anyhow::Result<NameServer> {
    let directory = tempfile::tempdir()?;
    let server = NameServer::start(program, directory, core, Some(upstream), &recursive_query(0, 1))
        .with_context(|| {
            format!("{}: cannot start; install it, or leave the resolvers out with --no-dns", program.name)
        })?;
    eprintln!("{}: filling its cache with {names} names", program.name);
    let all = Requests::from_datagrams(
        (0..names).zip((0..=u16::MAX).cycle()).map(|(n, id)| recursive_query(n, id)),
    );
    let mut flood = Flood::open(&all, Shape::single(FILL_WINDOW), is_success)?.patient(FILL_TIMEOUT);
    let totals = flood.run_for_answers(server.address, names)?;
    ensure!(totals.wrong == 0, "{}: {} of {} answers are wrong", program.name, totals.wrong, totals.answers);
    eprintln!("{}: {:.0} names/s", program.name, totals.rate());
    Ok(server)
}

/// Makes `count` queries for random names.
pub(crate) fn queries(names: u64, count: usize) -> Requests {
    let mut random = BenchRandom(2);
    let ids = (0..=u16::MAX).cycle().take(count);
    Requests::from_datagrams(ids.map(|id| recursive_query(random.below(names), id)))
}
