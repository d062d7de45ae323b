//! `hdl key rotate server`: a new key for the server of a directory that `hdl init` made.
//!
//! The key, its public half, the site record and the archive for the registry have to agree. The
//! first step makes new files beside them, for the registry; the second one puts them in place. The
//! new key is durable before anything names it, each file is replaced at once, and the private key
//! comes last: a command that was interrupted is completed by the next one, with the same key.

use super::files::{NEXT, OLD, beside, take_place, write_like};
use crate::key::{HANDLED_KEY_FILE, KeyForm, SERVER_KEY_FILE, form};
use anyhow::{Context as _, bail, ensure};
use handle_auth::file::open_secret_file;
use handle_auth::{generate, keyfile, open_key_file};
use handle_formats::bundle::{self, BundleLimits, SiteBundle};
use handle_proto::data::SiteBuf;
use handle_proto::json::{site_from_json, site_to_json};
use std::fs;
use std::path::{Path, PathBuf};

const PUBLIC: &str = "server-public.bin";
const SITE: &str = "siteinfo.json";
const BUNDLE: &str = "sitebndl.zip";
/// An archive of `hdl init` has three short files.
const BUNDLE_LIMITS: BundleLimits = BundleLimits { entries: 16, unpacked_bytes: 4 << 20 };

#[derive(clap::Args, Debug)]
pub(super) struct ServerArgs {
    /// The directory that `hdl init` made.
    directory: PathBuf,
    /// Put the new key in place.
    #[arg(long)]
    finish: bool,
    /// Length of the new key in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
}

/// What the files will have.
struct Changes {
    /// Public files with their content, in the order in which they are replaced: the site record
    /// first.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The serial number of the site record.
    serial: i16,
    /// Whether an earlier command has put the site record in place.
    is_in_place: bool,
}

pub(super) fn run(args: &ServerArgs) -> anyhow::Result<()> {
    let (directory, shown) = (&args.directory, args.directory.display());
    let private = directory.join(SERVER_KEY_FILE);
    let next = beside(&private, NEXT);
    ensure!(
        !args.finish || next.exists(),
        "{} is not there: `hdl key rotate server {shown}` makes it; after --finish, nothing is left to do",
        next.display()
    );
    let old = open_secret_file(&private)?;
    if !next.exists() {
        let key = generate::rsa(args.bits)?;
        write_like(&next, &private, &keyfile::plain(&key.view()))?;
    }
    let changes = changes(directory, &next)?;
    let serial = changes.serial;
    if !args.finish {
        for (path, content) in &changes.files {
            write_like(&beside(path, NEXT), path, content)?;
        }
        println!(
            "a new key, and a site record with the serial number {serial}; the server keeps its key; next:"
        );
        println!("  have the registry take the site record: send it {}", sent(directory).display());
        println!("  hdl key rotate server {shown} --finish    when it has");
        return Ok(());
    }
    let (site, record) = &changes.files[0];
    ensure!(
        changes.is_in_place || fs::read(beside(site, NEXT)).is_ok_and(|made| made == *record),
        "{} has changed since {} was made: run `hdl key rotate server {shown}` again, and send {} to the registry",
        site.display(),
        beside(site, NEXT).display(),
        sent(directory).display()
    );
    for (path, content) in &changes.files {
        write_like(path, path, content)?;
    }
    let copy = directory.join(HANDLED_KEY_FILE);
    if copy.exists() {
        write_like(&copy, &copy, &open_secret_file(&next)?)?;
    }
    write_like(&beside(&private, OLD), &private, &old)?;
    for (path, _) in &changes.files {
        // One that is not there was removed before.
        let _ = fs::remove_file(beside(path, NEXT));
    }
    take_place(&next, &private)?;
    println!("the server has a new key, and its site record the serial number {serial}; next:");
    println!("  restart handled, handle-admin and handle-gateway (hdl control restart)");
    println!("  delete {} when all is well", beside(&private, OLD).display());
    Ok(())
}

/// What the registry is sent: the archive, if there is one.
fn sent(directory: &Path) -> PathBuf {
    let bundle = directory.join(BUNDLE);
    beside(&if bundle.exists() { bundle } else { site_file(directory) }, NEXT)
}

/// The site record, which is replaced where a link of `hdl init` says that it is.
fn site_file(directory: &Path) -> PathBuf {
    let path = directory.join(SITE);
    path.read_link().map_or(path, |target| directory.join(target))
}

/// What the files of `directory` will have with the key in `next`.
fn changes(directory: &Path, next: &Path) -> anyhow::Result<Changes> {
    let [bundle, public] = [BUNDLE, PUBLIC].map(|name| directory.join(name));
    let site = site_file(directory);
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let key = open_key_file(next, None)?;
    let key = key.view().public().context("an RSA key has its public half")?;
    let before = read_site(&site)?;
    let changed = with_key(&before, &read(&public)?, &key.to_bytes())
        .with_context(|| format!("{} and {}", site.display(), public.display()))?;
    let is_in_place = changed.is_none();
    let record = changed.unwrap_or(before);
    let json = format!("{}\n", serde_json::to_string_pretty(&site_to_json(&record.view()))?);
    let mut files = vec![(site, json.into_bytes())];
    if bundle.exists() {
        let before = SiteBundle::read(&read(&bundle)?, BUNDLE_LIMITS)
            .with_context(|| format!("in {}", bundle.display()))?;
        let archive = bundle::archive(record.as_bytes(), &before.administrator_key, &before.contact)?;
        files.push((bundle, archive));
    }
    files.push((public, form::encode_public(&key, KeyForm::Native)?));
    Ok(Changes { files, serial: record.view().serial, is_in_place })
}

fn read_site(path: &Path) -> anyhow::Result<SiteBuf> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json = serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))?;
    site_from_json(&json).with_context(|| format!("in {}", path.display()))
}

/// The site with the new key and a higher serial number; `None` if it has the key already.
fn with_key(site: &SiteBuf, old: &[u8], new: &[u8]) -> anyhow::Result<Option<SiteBuf>> {
    let mut edited = site.edit();
    if edited.servers.iter().any(|server| server.public_key == new) {
        return Ok(None);
    }
    let Some(server) = edited.servers.iter_mut().find(|server| server.public_key == old) else {
        bail!("no server of the site record has this public key");
    };
    server.public_key = new.to_vec();
    edited.serial = edited.serial.wrapping_add(1);
    Ok(Some(edited.build()))
}
