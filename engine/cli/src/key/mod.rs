//! `hdl key`: generates, converts, shows and rotates keys.

mod form;
mod rotate;

use crate::secret::{self, PassphraseArgs};
use crate::{ExitOutcome, UsageError, output};
use anyhow::{Context as _, bail, ensure};
use form::{KeyFile, KeyForm};
use handle_auth::generate;
use handle_proto::data::{PrivateKeyBuf, PublicKey};
use handle_proto::json::public_key_to_jwk;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The server key of `handle-admin`, or of both processes, in a directory of `hdl init`.
pub(crate) const SERVER_KEY_FILE: &str = "server-private.bin";
/// The copy of `handled`, if it is another account: only its owner may read a file with a key.
pub(crate) const HANDLED_KEY_FILE: &str = "server-private-handled.bin";

/// Generate, convert, show and rotate keys.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Generate an RSA key pair: a private file that only its owner may read, and a public file.
    #[command(after_help = "Examples:
  hdl key generate admin-private.bin admin-public.bin --passphrase-file passphrase
  hdl key generate server-private.bin server-public.bin --plain    for a server, which starts unattended")]
    Generate(GenerateArgs),
    /// Convert a key to another form (native, PEM or JWK), encrypted or not.
    #[command(after_help = "Examples:
  hdl key convert admin-private.bin admin.pem --passphrase-file old --new-passphrase-file new
  hdl key convert admin.pem admin-private.bin --to native --plain
  hdl key convert pubkey.bin pubkey.jwk --to jwk")]
    Convert(ConvertArgs),
    /// Show the contents of a key file, without its secrets.
    #[command(after_help = "Examples:
  hdl key show admin-public.bin
  hdl key show admin-private.bin --passphrase-env PASSPHRASE --json")]
    Show(ShowArgs),
    /// Replace the key of the server, of an administrator or of the publisher by a new one.
    ///
    /// Each takes two commands. The first one makes the new key, and the old one stays valid; the
    /// second one, with --finish, puts the new key in its place.
    Rotate(rotate::RotateArgs),
}

#[derive(clap::Args, Debug)]
struct GenerateArgs {
    /// New file for the private key.
    private: PathBuf,
    /// New file for the public key.
    public: PathBuf,
    /// Length in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
    /// Form of both files.
    #[arg(long = "to", value_enum, default_value_t = KeyForm::Native)]
    form: KeyForm,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// Do not encrypt the private key.
    #[arg(long)]
    plain: bool,
    /// Print JSON, with the public key as JWK.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct ConvertArgs {
    /// The key file, in any form.
    input: PathBuf,
    /// New file for the result.
    output: PathBuf,
    /// Form of the result. Default: native, or PEM if the key is native.
    #[arg(long = "to", value_enum)]
    form: Option<KeyForm>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// File with the passphrase of the result.
    #[arg(long, value_name = "FILE", conflicts_with = "new_passphrase_env")]
    new_passphrase_file: Option<PathBuf>,
    /// Environment variable with the passphrase of the result.
    #[arg(long, value_name = "NAME")]
    new_passphrase_env: Option<String>,
    /// Do not encrypt the result if it is a private key.
    #[arg(long)]
    plain: bool,
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// The key file, in any form.
    file: PathBuf,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// Print JSON, with the public key as JWK.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Generate(args) => generate(args)?,
        Command::Convert(args) => convert(args)?,
        Command::Show(args) => show(args)?,
        Command::Rotate(args) => return rotate::run(args),
    }
    Ok(ExitOutcome::Good)
}

fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let passphrase = args.passphrase.read()?;
    decided(passphrase.is_some(), args.plain, "--passphrase-file FILE or --passphrase-env NAME")?;
    for path in [&args.private, &args.public] {
        ensure!(
            !path.exists(),
            "{} already exists: choose another file, as keys are never overwritten",
            path.display()
        );
    }
    let key = generate::rsa(args.bits)?;
    let public = key.view().public().context("an RSA key has its public half")?;
    let private = form::encode_private(&key.view(), args.form, passphrase.as_deref().map(Vec::as_slice))?;
    handle_auth::file::create_secret_file(&args.private, &private)?;
    create(&args.public, &form::encode_public(&public, args.form)?)?;
    if args.json {
        let described =
            json!({ "algorithm": public.algorithm(), "bits": public.bits(), "form": args.form.name() });
        output::print_json(&with_public(described, &public));
        return Ok(());
    }
    println!(
        "{} of {} bits in {} and {}",
        public.algorithm(),
        public.bits(),
        args.private.display(),
        args.public.display()
    );
    println!("fingerprint {}", fingerprint(&public));
    Ok(())
}

/// Requires an explicit choice of whether a private key is encrypted.
pub(crate) fn decided(has_passphrase: bool, plain: bool, how: &str) -> anyhow::Result<()> {
    match (has_passphrase, plain) {
        (true, true) => bail!(UsageError("--plain cannot be used with a passphrase".to_owned())),
        (false, false) => {
            bail!(UsageError(format!("choose whether the private key is encrypted: {how}, or --plain")))
        }
        _ => Ok(()),
    }
}

fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let passphrase = args.passphrase.read()?;
    let file = form::read(&args.input, passphrase.as_deref().map(Vec::as_slice))?;
    let to = args.form.unwrap_or(if file.form() == KeyForm::Native { KeyForm::Pem } else { KeyForm::Native });
    match &file {
        KeyFile::Public { record, .. } => {
            create(&args.output, &form::encode_public(&PublicKey::decode(record)?, to)?)
        }
        KeyFile::Private { key, .. } => {
            let new = secret::read(args.new_passphrase_file.as_ref(), args.new_passphrase_env.as_deref())?;
            decided(new.is_some(), args.plain, "--new-passphrase-file FILE or --new-passphrase-env NAME")?;
            let bytes = form::encode_private(&key.view(), to, new.as_deref().map(Vec::as_slice))?;
            Ok(handle_auth::file::create_secret_file(&args.output, &bytes)?)
        }
    }
}

/// Adds the facts about a public key to the description of a key.
fn with_public(mut described: Json, public: &PublicKey<'_>) -> Json {
    described["fingerprint"] = fingerprint(public).into();
    described["publicKey"] = public_key_to_jwk(public).unwrap_or_default();
    described
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let passphrase = args.passphrase.read()?;
    let file = form::read(&args.file, passphrase.as_deref().map(Vec::as_slice))?;
    let (kind, encrypted, record) = match &file {
        KeyFile::Public { record, .. } => ("public", false, Some(record.clone())),
        KeyFile::Private { key, encrypted, .. } => {
            ("private", *encrypted, handle_auth::public_record_of(&key.view()))
        }
    };
    let public = record.as_deref().map(PublicKey::decode).transpose()?;
    let (algorithm, bits) = file.size()?;
    if args.json {
        let mut json = json!({
            "kind": kind, "algorithm": algorithm, "bits": bits, "form": file.form().name(), "encrypted": encrypted,
        });
        if let Some(public) = &public {
            json = with_public(json, public);
        }
        output::print_json(&json);
        return Ok(());
    }
    let kept = if encrypted { ", encrypted" } else { "" };
    println!("{algorithm} {kind} key of {bits} bits, {}{kept}", file.form().name());
    match &public {
        Some(public) => println!("fingerprint {}", fingerprint(public)),
        None => println!("no fingerprint: the file does not contain the public key"),
    }
    Ok(())
}

/// SHA-256 of the native public key, which is the same for all forms of a key.
fn fingerprint(key: &PublicKey<'_>) -> String {
    format!("SHA256:{}", output::hex(&Sha256::digest(key.to_bytes())))
}

/// Writes a new file that everybody may read.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the private key from a file of any form.
pub(crate) fn private_record(path: &Path, passphrase: Option<&[u8]>) -> anyhow::Result<PrivateKeyBuf> {
    match form::read(path, passphrase)? {
        KeyFile::Private { key, .. } => Ok(key),
        KeyFile::Public { .. } => {
            bail!("{} is a public key: name the private key file that was generated with it", path.display())
        }
    }
}

/// Reads the record of the public key from a file of any form.
pub(crate) fn public_record(path: &Path) -> anyhow::Result<Vec<u8>> {
    match form::read(path, None)? {
        KeyFile::Public { record, .. } => Ok(record),
        KeyFile::Private { .. } => bail!("{} is a private key: name the public key file", path.display()),
    }
}
