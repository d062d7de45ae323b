//! The commands that `hdl init` prints at its end: from the new directory to the first handle. A
//! test runs them as they are printed.

use super::new_service::{administrator, key_handle, secret_identity};
use super::production::SystemdUnits;
use super::{Args, certificate, config};
use handle_daemon::privileges::is_root;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Characters that a shell takes as they are.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&byte)
}

/// A path as a word of a shell.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    match text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

pub(super) fn show(args: &Args, prefix: &str, address: IpAddr, units: &SystemdUnits) {
    let path = |name: &str| word(&args.directory.join(name));
    if args.production.systemd.is_some() {
        println!("units for systemd:");
        units.files.iter().for_each(|file| println!("  {}", file.display()));
    }
    let gives = is_root() && !args.production.has_owner();
    if gives {
        println!("the three processes run as an account that owns the directory:");
        println!("  useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin handled");
        println!("  chown -R handled:handled {}", word(&args.directory));
    }
    if args.production.systemd.is_some() {
        println!("start all three, now and at each boot:");
        println!("  systemctl daemon-reload");
        println!("  systemctl enable --now handle-admin handled handle-gateway");
    } else {
        println!("start all three, each as a unit (--systemd writes them) or in a terminal of its own:");
        // They refuse to run as root, and the directory is that of this account.
        let user = if gives { " --user handled".to_owned() } else { args.production.user_option() };
        for program in ["handle-admin", "handled", "handle-gateway"] {
            println!("  {program} --config {}{user}", path(&format!("{program}.toml")));
        }
    }
    if args.production.metrics_port().is_some() {
        println!("metrics of all three for Prometheus, with alerts: {}", path("prometheus.yml"));
    }
    println!();
    let gateway = SocketAddr::new(address, args.gateway_port.unwrap_or(config::GATEWAY_PORT));
    let server = SocketAddr::new(address, args.admin_port);
    println!("the first handle, with the key:");
    println!("  hdl handle create {prefix}/first 1:URL=https://example.org/ \\");
    println!("      100:HS_ADMIN={} --server {server} \\", administrator(prefix));
    println!("      --server-key {} \\", path("server-public.bin"));
    println!(
        "      --auth {} --key {}{}",
        administrator(prefix),
        path("admin-private.bin"),
        args.passphrase.shown()
    );
    println!("the same over HTTP, which shows what is resolved:");
    println!("  curl http://{gateway}/api/handles/{prefix}/first");
    println!();
    match &args.secret_file {
        Some(file) => with_secret(args, prefix, gateway, file),
        None => println!(
            "for curl, pyhandle and other clients with passwords, make a secret: docs/administration.md"
        ),
    }
    println!("administration pages: https://{gateway}/admin/");
    certificate::ADVICE.iter().for_each(|line| println!("{line}"));
}

/// The same with the secret, over HTTPS.
fn with_secret(args: &Args, prefix: &str, gateway: SocketAddr, file: &Path) {
    let certificate = word(&args.directory.join(certificate::CERTIFICATE_FILE));
    let who = secret_identity(prefix).replace(':', "%3A");
    // The record gets both identities as administrators, by the group of the prefix.
    let group = format!("0.NA/{prefix}");
    let (url, handle) = (serde_json::json!("https://example.org/"), key_handle(prefix));
    println!("another handle with the secret of {}, in which the colon is %3A:", secret_identity(prefix));
    println!("  curl --cacert {certificate} --user \"{who}:$(cat {})\" \\", word(file));
    println!("      -X PUT -H 'Content-Type: application/json' \\");
    println!(
        "      -d '{{\"values\":[{{\"index\":1,\"type\":\"URL\",\"data\":{url}}},\
         {{\"index\":100,\"type\":\"HS_ADMIN\",\"data\":{{\"format\":\"admin\",\"value\":\
         {{\"handle\":\"{group}\",\"index\":200,\"permissions\":\"011111110011\"}}}}}}]}}' \\"
    );
    println!("      https://{gateway}/api/handles/{prefix}/second");
    println!("for pyhandle, as JSON in a file of credentials ({handle} has both keys):");
    println!(
        "  {{\"client\":\"rest\",\"handle_server_url\":\"https://{gateway}\",\"username\":\"{}\",\"password\":\"...\",\
         \"prefix\":\"{prefix}\",\"handleowner\":\"200:{group}\",\"HTTPS_verify\":\"{certificate}\"}}",
        secret_identity(prefix)
    );
    println!();
}
