//! The gateway of the demo: the same set over HTTP.

use super::records::CHANGED;
use super::{Args, ProgressPrinter, cores, load};
use crate::server_process::ServerProcess;
use anyhow::{Context as _, ensure};
use handle_cli::output;
use handle_loadgen::{LoadPattern, Protocol, RunReport, StreamTransport, Streams};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Connections of the load.
const CONNECTIONS: usize = 64;
/// Time for an answer that is shown.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a gateway over `set`, shows two of its answers, and measures its redirects.
pub(super) fn measure(printer: &ProgressPrinter, args: &Args, set: &Path) -> anyhow::Result<RunReport> {
    printer.step("start handle-gateway over the same set");
    let gateway = start(set)?;
    printer.line(&format!("process {} answers http://{}/", gateway.id(), gateway.address));
    if !args.json {
        show(gateway.address)?;
    }
    printer.step(&format!("load: redirects over HTTP/1.1 for {} s, every one verified", args.seconds));
    let streams = Streams { connections: CONNECTIONS, ..Streams::pooled(Protocol::Redirect) };
    let mut options = load::options(args, gateway.address, set, LoadPattern::Closed { window: CONNECTIONS })?;
    options.transport = StreamTransport::Stream(streams);
    let report = load::run(args, &options)?;
    load::show(printer, &report);
    gateway.stop()?;
    Ok(report)
}

fn start(set: &Path) -> anyhow::Result<ServerProcess> {
    let directory = set.parent().context("the set is in the directory of the demo")?;
    let config = directory.join("handle-gateway.toml");
    let text = "snapshot = \"set\"\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ncontrol = \"gateway.sock\"\nlog = \"warn\"\n";
    std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let core = cores()?.map(|(server, _)| server);
    ServerProcess::start_gateway(&config, core, directory.join("gateway.sock"))
}

/// Shows a redirect and a record, with the commands that do the same.
fn show(address: SocketAddr) -> anyhow::Result<()> {
    println!("$ curl -i http://{address}/{CHANGED}");
    let (head, _) = get(address, &format!("/{CHANGED}"))?;
    let shown = head.lines().enumerate().filter(|(number, line)| {
        let name = line.split(':').next().unwrap_or_default();
        *number == 0 || ["location", "cache-control"].iter().any(|it| name.eq_ignore_ascii_case(it))
    });
    shown.for_each(|(_, line)| output::lines(line));
    let path = format!("/api/handles/{CHANGED}?type=URL");
    println!("$ curl 'http://{address}{path}'");
    let (_, body) = get(address, &path)?;
    output::lines(&body);
    Ok(())
}

/// Head and body of an answer.
fn get(address: SocketAddr, path: &str) -> anyhow::Result<(String, String)> {
    let what = || format!("cannot get http://{address}{path}");
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).with_context(what)?;
    stream.set_read_timeout(Some(TIMEOUT)).with_context(what)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).with_context(what)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(what)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(what)?;
    ensure!(head.starts_with("HTTP/1.1 "), "{}: not an answer over HTTP", what());
    Ok((head.to_owned(), body.to_owned()))
}
