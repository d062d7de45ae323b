//! `hdl key rotate publisher`: a new key with which `handle-admin` signs sets.
//!
//! Readers accept both keys between the steps, under two names that do not change: the first file
//! has the key in use, and the second one the other key.

use super::files::{NEXT, OLD, beside, take_place, write_like};
use crate::key::{KeyFile, form, private_record};
use crate::secret::PassphraseArgs;
use anyhow::{Context as _, bail, ensure};
use handle_auth::file::open_secret_file;
use handle_auth::{generate, public_record_of};
use std::fs;
use std::path::{Path, PathBuf};

/// The end of the name of the file with the public key that is not in use.
const OTHER: &str = "-other";

#[derive(clap::Args, Debug)]
pub(super) struct PublisherArgs {
    /// The file with the private key, which `publish.key_file` of handle-admin names.
    private: PathBuf,
    /// The file with its public key, which `publishers.keys` of readers names.
    public: PathBuf,
    /// Put the new key in place.
    #[arg(long)]
    finish: bool,
    /// Length of the new key in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

pub(super) fn run(args: &PublisherArgs) -> anyhow::Result<()> {
    let passphrase = args.passphrase.read()?;
    let passphrase = passphrase.as_deref().map(Vec::as_slice);
    let (private, public) = (&args.private, &args.public);
    let (next, other) = (beside(private, NEXT), beside(public, OTHER));
    ensure!(
        !args.finish || next.exists(),
        "{} is not there: `hdl key rotate publisher` without --finish makes it; after --finish, nothing is left to do",
        next.display()
    );
    let KeyFile::Private { form: private_form, key: old, encrypted } = form::read(private, passphrase)?
    else {
        bail!("{} is a public key: name the private key file first", private.display())
    };
    let KeyFile::Public { form: public_form, record } = form::read(public, None)? else {
        bail!("{} is a private key: name the public key file second", public.display())
    };
    if !next.exists() {
        let key = generate::rsa(args.bits)?;
        let secret = passphrase.filter(|_| encrypted);
        write_like(&next, private, &form::encode_private(&key.view(), private_form, secret)?)?;
    }
    let new = private_record(&next, passphrase)?;
    let new_public = new.view().public().context("an RSA key has its public half")?;
    let is_in_place = record == new_public.to_bytes();
    ensure!(
        is_in_place || public_record_of(&old.view()).is_none_or(|old| old == record),
        "{} is not the public key of {}",
        public.display(),
        private.display()
    );
    let new_public = form::encode_public(&new_public, public_form)?;
    if args.finish {
        if !is_in_place {
            put_in_place(public, &other, &new_public)?;
        }
        let old = open_secret_file(private)?;
        write_like(&beside(private, OLD), private, &old)?;
        take_place(&next, private)?;
        show_finish(args, &other);
    } else {
        // The other file has the old key then, which readers need still.
        ensure!(!is_in_place, "a command with --finish was interrupted: repeat it");
        write_like(&other, public, &new_public)?;
        show_begin(args, &other);
    }
    Ok(())
}

/// Puts the new public key in the place of the old one, which the other file then has.
///
/// The old key is in one of the files at any time, so that readers that start meanwhile accept the
/// set that it has signed.
fn put_in_place(public: &Path, other: &Path, new: &[u8]) -> anyhow::Result<()> {
    let old = fs::read(public).with_context(|| format!("cannot read {}", public.display()))?;
    ensure!(
        fs::read(other).is_ok_and(|made| made == new || made == old),
        "{} does not have the new key: `hdl key rotate publisher` without --finish writes it, for readers",
        other.display()
    );
    write_like(other, public, &old)?;
    write_like(public, public, new)
}

/// Prints what follows the first step.
fn show_begin(args: &PublisherArgs, other: &Path) {
    let (private, public, other) = (args.private.display(), args.public.display(), other.display());
    println!("{other} is the public key of a new key; {private} still signs; next:");
    println!("  have every reader accept both keys, in its settings, and restart it (hdl control restart):");
    println!("    publishers.keys = [{:?}, {:?}]", public.to_string(), other.to_string());
    println!(
        "  hdl key rotate publisher {private} {public}{} --finish    when all do",
        args.passphrase.shown()
    );
}

/// Prints what follows the second step.
fn show_finish(args: &PublisherArgs, other: &Path) {
    let (private, public, other) = (args.private.display(), args.public.display(), other.display());
    println!("{private} is the new key, and {public} its public key; next:");
    println!("  restart handle-admin (hdl control restart): it signs with the new key");
    println!("  copy {public} and {other} to readers on other machines");
    println!("  when all serve a set that the new key has signed: leave {other} out of publishers.keys,");
    println!("  and delete it and {}", beside(&args.private, OLD).display());
}
