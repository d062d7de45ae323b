//! `hdl key rotate-server`: a new key for the server of a directory that `hdl init` made.
//!
//! The key, its public half, the site record and the archive for the registry have to agree. They
//! are several files, so the new key is durable before anything names it, each file is replaced at
//! once, and the private key comes last: a command that was interrupted is completed by the next
//! one, with the same key.

use super::{KeyForm, form};
use anyhow::{Context as _, bail};
use handle_auth::file::{create_secret_file, replace_secret_file};
use handle_auth::{generate, keyfile, open_key_file};
use handle_formats::bundle::{self, BundleLimits, SiteBundle};
use handle_proto::data::{PrivateKeyBuf, SiteBuf};
use handle_proto::json::{site_from_json, site_to_json};
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const PRIVATE: &str = "server-private.bin";
const PUBLIC: &str = "server-public.bin";
/// The new key until everything else names it.
const NEXT: &str = "server-private-next.bin";
/// The key before, which signs until the processes are restarted.
const OLD: &str = "server-private-old.bin";
const SITE: &str = "siteinfo.json";
const BUNDLE: &str = "sitebndl.zip";
/// An archive of `hdl init` has three short files.
const BUNDLE_LIMITS: BundleLimits = BundleLimits { entries: 16, unpacked_bytes: 4 << 20 };

#[derive(clap::Args, Debug)]
pub(super) struct RotateArgs {
    /// The directory that `hdl init` made.
    directory: PathBuf,
    /// Length of the new key in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
}

pub(super) fn run(args: &RotateArgs) -> anyhow::Result<()> {
    let path = |name: &str| args.directory.join(name);
    let site = read_site(&path(SITE))?;
    let old_public =
        fs::read(path(PUBLIC)).with_context(|| format!("cannot read {}", path(PUBLIC).display()))?;
    let key = next_key(&path(NEXT), args.bits)?;
    let public = key.view().public().context("an RSA key has its public half")?.to_bytes();

    let site = with_key(&site, &old_public, &public)
        .with_context(|| format!("{} and {}", path(SITE).display(), path(PUBLIC).display()))?;
    let json = format!("{}\n", serde_json::to_string_pretty(&site_to_json(&site.view()))?);
    replace(&path(SITE), json.as_bytes())?;
    let has_bundle = path(BUNDLE).exists();
    if has_bundle {
        let archive =
            fs::read(path(BUNDLE)).with_context(|| format!("cannot read {}", path(BUNDLE).display()))?;
        let before = SiteBundle::read(&archive, BUNDLE_LIMITS)?;
        replace(
            &path(BUNDLE),
            &bundle::archive(site.as_bytes(), &before.administrator_key, &before.contact)?,
        )?;
    }
    replace(
        &path(PUBLIC),
        &form::encode_public(&key.view().public().context("checked above")?, KeyForm::Native)?,
    )?;
    let old = fs::read(path(PRIVATE)).with_context(|| format!("cannot read {}", path(PRIVATE).display()))?;
    replace_secret_file(&path(OLD), &old)?;
    fs::rename(path(NEXT), path(PRIVATE))
        .with_context(|| format!("cannot replace {}", path(PRIVATE).display()))?;
    File::open(&args.directory)
        .and_then(|directory| directory.sync_all())
        .context("cannot sync the directory")?;

    let sent = path(if has_bundle { BUNDLE } else { SITE });
    println!("the server has a new key, and its site record the serial number {}; next:", site.view().serial);
    println!("  have the registry take the site record: send it {}", sent.display());
    println!("  restart handled, handle-admin and handle-gateway");
    println!("  delete {} when all is well", path(OLD).display());
    Ok(())
}

/// The key that an interrupted command has made, or a new one.
fn next_key(path: &Path, bits: u32) -> anyhow::Result<PrivateKeyBuf> {
    if path.exists() {
        return Ok(open_key_file(path, None)?);
    }
    let key = generate::rsa(bits)?;
    create_secret_file(path, &keyfile::plain(&key.view()))?;
    Ok(key)
}

fn read_site(path: &Path) -> anyhow::Result<SiteBuf> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json = serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))?;
    site_from_json(&json).with_context(|| format!("in {}", path.display()))
}

/// The site with the new key and a higher serial number. If it has the key already, it is as it is.
fn with_key(site: &SiteBuf, old: &[u8], new: &[u8]) -> anyhow::Result<SiteBuf> {
    let mut edited = site.edit();
    if edited.servers.iter().any(|server| server.public_key == new) {
        return Ok(edited.build());
    }
    let Some(server) = edited.servers.iter_mut().find(|server| server.public_key == old) else {
        bail!("no server of the site record has this public key");
    };
    server.public_key = new.to_vec();
    edited.serial = edited.serial.wrapping_add(1);
    Ok(edited.build())
}

/// Replaces a file at once, with the mode of the old one.
fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("cannot replace {}", path.display());
    let mode = fs::metadata(path).map_or(0o644, |metadata| metadata.permissions().mode() & 0o777);
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = File::create(&new).with_context(failed)?;
    file.set_permissions(Permissions::from_mode(mode)).with_context(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(failed)?;
    fs::rename(&new, path).with_context(failed)
}
