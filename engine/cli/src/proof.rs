//! `hdl prove` and `hdl verify-proof`: whether a record is in a published set, with evidence that
//! anybody can check who has the public key of the publisher.

use crate::{ExitOutcome, output};
use anyhow::{Context as _, bail, ensure};
use handle_auth::{PublisherKey, PublisherSigner, open_key_file, pem};
use handle_daemon::clock::now_unix_ms;
use handle_proto::json::record_to_json;
use handle_proto::{Handle, Value, Values};
use handle_snapshot::proof::{PROOF_LEN_MAX, PathEnd, RecordProof};
use handle_snapshot::set::statement::{SignedStatement, StatementSigner, ahead_ms, newest_statement};
use handle_snapshot::set::{PublishedSet, SetTree};
use handle_snapshot::{LoadMode, NameRule, Sha256Sum};
use serde_json::json;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prove that a record is, or is not, in a published set.
///
/// The proof is a short text: the path from the record to the root of the set, and the signed
/// statement of the publisher about this root. It shows the public values of the record, and of
/// others nothing but digests. Making it reads the whole set.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl prove ./set 10.1045/july95-arms > proof
  hdl prove ./set 10.1045/july95-arms --json
  hdl prove ./set 10.1045/july95-arms --generation 1234

Exit codes: 0 proven to be there, 3 proven not to be there, 1 failed.")]
pub(crate) struct ProveArgs {
    /// Directory of the set, which must be signed.
    dir: PathBuf,
    /// The handle.
    handle: String,
    /// A kept generation of the set (`hdl control keep`); by default the published one.
    #[arg(long)]
    generation: Option<u64>,
    /// Print JSON, with the proof as a member.
    #[arg(long)]
    json: bool,
}

/// Verify a proof with the public key of the publisher.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl verify-proof proof --key publisher-public.bin
  hdl verify-proof proof --key publisher-public.bin --handle 10.1045/july95-arms --max-age 60 --json

Exit codes: 0 the record is there, 3 it is not there, 1 the proof proves nothing.")]
pub(crate) struct VerifyArgs {
    /// The proof; `-` is standard input.
    proof: PathBuf,
    /// Public key file of the publisher, native or PEM.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The handle that the proof has to be about.
    #[arg(long)]
    handle: Option<String>,
    /// Most seconds since the publisher made its statement.
    #[arg(long, value_name = "SECONDS")]
    max_age: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Makes a proof.
pub(crate) fn prove(args: &ProveArgs) -> anyhow::Result<ExitOutcome> {
    let set = match args.generation {
        Some(generation) => PublishedSet::open_generation(&args.dir, LoadMode::Map, generation)?,
        None => PublishedSet::open(&args.dir, LoadMode::Map)?,
    };
    let Some(signed) = newest_statement(&args.dir, set.manifest()) else {
        bail!(
            "{}: the set is not signed, so nothing can be proven from it; publish it with a key \
             (`publish.key_file` of handle-admin, or hdl snapshot publish --key)",
            args.dir.display()
        );
    };
    if signed.statement.names.is_none() {
        bail!(
            "{}: the set was published before format 2, whose statements say how names become keys, so \
             nothing can be proven from it; publish it again (handle-admin does so with the next change)",
            args.dir.display()
        );
    }
    let path = SetTree::of(&set)?.path(args.handle.as_bytes())?;
    let proof = RecordProof { path, signed };
    if args.json {
        let mut json = described(&proof);
        json["proof"] = proof.encode().into();
        output::line(format_args!("{json}"));
    } else {
        output::lines(proof.encode().trim_end());
    }
    Ok(outcome(&proof))
}

const fn outcome(proof: &RecordProof) -> ExitOutcome {
    if proof.path.is_present() { ExitOutcome::Good } else { ExitOutcome::NotFound }
}

/// Verifies a proof.
pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitOutcome> {
    let verified = check(args);
    if let (true, Err(error)) = (args.json, &verified) {
        output::error_as_json(&format!("{error:#}"));
    }
    let proof = verified?;
    if args.json {
        output::line(format_args!("{}", described(&proof)));
        return Ok(outcome(&proof));
    }
    let SignedStatement { statement, .. } = &proof.signed;
    let time = output::unix_time(i64::try_from(statement.signed_unix_ms / 1000).unwrap_or(0));
    let shown = format!("generation {} as of {time}", statement.generation);
    let handle = Handle(&proof.path.key);
    match &proof.path.end {
        PathEnd::Present { public_count, public, private } => {
            let more = if private.0 == [0; 32] { "" } else { ", and others that are not public" };
            let count = output::counted(*public_count as u64, "public value", "public values");
            output::line(format_args!("{handle} is in {shown}, with {count}{more}"));
            let values = Values::from_encoded(*public_count, public)?;
            output::lines(output::values(values.iter().collect::<Vec<Value<'_>>>()));
        }
        PathEnd::Absent | PathEnd::Other { .. } => {
            output::line(format_args!("{handle} is not in {shown}"));
        }
    }
    Ok(outcome(&proof))
}

fn check(args: &VerifyArgs) -> anyhow::Result<RecordProof> {
    let key = public_key(&args.key)?;
    let proof = read(&args.proof)?;
    let has_made = |signed: &SignedStatement| {
        let SignedStatement { statement, signature } = signed;
        key.has_signed(&statement.signer.0, statement.encode().as_bytes(), signature)
    };
    proof.verify(has_made).with_context(|| format!("{} proves nothing", args.proof.display()))?;
    if let Some(handle) = &args.handle {
        let is_about = proof.is_about(handle.as_bytes());
        ensure!(is_about, "the proof is about {}, not about {handle}", Handle(&proof.path.key));
    }
    if let Some(max_age) = args.max_age {
        let (signed, now) = (proof.signed.statement.signed_unix_ms, now_unix_ms());
        let ahead_s = ahead_ms(signed, now) / 1000;
        ensure!(
            ahead_s == 0,
            "the statement of the publisher is {ahead_s} s ahead of the clock of this machine"
        );
        let age_s = now.saturating_sub(signed) / 1000;
        ensure!(age_s <= max_age, "the statement of the publisher is {age_s} s old, allowed are {max_age} s");
    }
    Ok(proof)
}

fn read(path: &Path) -> anyhow::Result<RecordProof> {
    let mut bytes = Vec::new();
    let limit = PROOF_LEN_MAX as u64 + 1;
    let shown = path.display();
    if path == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes)?;
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
        file.take(limit).read_to_end(&mut bytes).with_context(|| format!("cannot read {shown}"))?;
    }
    RecordProof::parse(&bytes).with_context(|| format!("cannot use {shown}"))
}

fn public_key(path: &Path) -> anyhow::Result<PublisherKey> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    let record = if pem::is_pem(&bytes) { pem::decode_public_key(&bytes) } else { Ok(bytes) };
    let record = record.with_context(|| format!("{shown} is not a public key"))?;
    PublisherKey::from_record(&record).with_context(|| format!("{shown} is not a public key"))
}

/// What a proof says.
fn described(proof: &RecordProof) -> serde_json::Value {
    let statement = &proof.signed.statement;
    let key = proof.path.key.as_slice();
    let record = match &proof.path.end {
        PathEnd::Present { public_count, public, .. } => {
            Values::from_encoded(*public_count, public).ok().map(|values| record_to_json(key, values.iter()))
        }
        PathEnd::Absent | PathEnd::Other { .. } => None,
    };
    json!({
        "handle": Handle(key).to_string(),
        "names": statement.names.map(NameRule::word),
        "is_present": proof.path.is_present(),
        "epoch": statement.epoch,
        "generation": statement.generation,
        "created_unix_ms": statement.created_unix_ms,
        "signed_unix_ms": statement.signed_unix_ms,
        "root": statement.root.to_string(),
        "signer": statement.signer.to_string(),
        "record": record,
    })
}

/// The key of a publisher, from a file that only its owner may read.
#[derive(Debug)]
struct FileSigner(PublisherSigner);

impl StatementSigner for FileSigner {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum(self.0.name())
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.0.sign(message).map_err(|error| error.to_string())
    }
}

/// Reads the key that signs published sets.
pub(crate) fn signer(path: &Path, passphrase: Option<&[u8]>) -> anyhow::Result<Arc<dyn StatementSigner>> {
    let record = open_key_file(path, passphrase)?;
    let signer = PublisherSigner::new(&record.view());
    let signer = signer.with_context(|| format!("cannot sign with {}", path.display()))?;
    Ok(Arc::new(FileSigner(signer)))
}
