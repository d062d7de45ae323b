//! `hdl key rotate administrator`: a new key for an administrator, beside the old one for a time.
//!
//! Records and settings name an administrator by the index of its key, so the new key ends at the
//! index of the old one. Until then it has an index of its own, with the same rights in the record
//! of the administrator.

use crate::key::{KeyForm, decided, form, private_record};
use crate::resolve::outcome;
use crate::secret::{self, SecretArgument};
use crate::server::{ServerArgs, ServerClients};
use crate::{ExitOutcome, UsageError};
use anyhow::{Context as _, bail, ensure};
use handle_auth::file::create_secret_file;
use handle_auth::{PrivateKey, generate};
use handle_client::administration::{AdministrationAnswer, ClientIdentity, IdentityKey};
use handle_proto::data::{Admin, PrivateKeyBuf, kind};
use handle_proto::wire::admin::{HandleIndexes, HandleValues};
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{Handle, OpFlags, ResponseCode, Value, ValueBuf, Values, fold};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
pub(super) struct AdministratorArgs {
    /// File for the new private key, which is made unless it is there.
    private: PathBuf,
    /// Put the new key in the place of the old one.
    #[arg(long)]
    finish: bool,
    /// Length of the new key in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
    /// File with the passphrase of the new key.
    #[arg(long, value_name = "FILE", conflicts_with = "new_passphrase_env")]
    new_passphrase_file: Option<PathBuf>,
    /// Environment variable with the passphrase of the new key.
    #[arg(long, value_name = "NAME")]
    new_passphrase_env: Option<String>,
    /// Do not encrypt the new key.
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The administrator: the reference to its key, and its new key.
struct Rotation {
    index: i32,
    handle: Vec<u8>,
    key: PrivateKeyBuf,
    public: Vec<u8>,
}

pub(super) fn run(args: &AdministratorArgs) -> anyhow::Result<ExitOutcome> {
    let identity = args.server.identity.read()?;
    let identity = identity.context(UsageError("name the administrator: --auth INDEX:HANDLE".to_owned()))?;
    ensure!(
        identity.index > 0,
        UsageError("--auth needs the index of the key, as 300:10.1045/ADMIN".to_owned())
    );
    let passphrase = secret::read(args.new_passphrase_file.as_ref(), args.new_passphrase_env.as_deref())?;
    let key = new_key(args, passphrase.as_ref())?;
    let public = key.view().public().context("a key with its public half")?.to_bytes();
    let (index, handle) = (identity.index, identity.handle.clone());
    let rotation = Rotation { index, handle, key, public };
    let mut clients = args.server.clients()?;
    if args.finish { rotation.finish(args, &mut clients) } else { rotation.begin(args, &mut clients) }
}

/// The new key: that of an earlier command, or one that is made now.
fn new_key(args: &AdministratorArgs, passphrase: Option<&SecretArgument>) -> anyhow::Result<PrivateKeyBuf> {
    let passphrase = passphrase.map(|passphrase| passphrase.as_slice());
    if args.private.exists() {
        return private_record(&args.private, passphrase)
            .context("the new key (its options are --new-passphrase-file and --new-passphrase-env)");
    }
    let shown = args.private.display();
    ensure!(!args.finish, "{shown} is not there: `hdl key rotate administrator` without --finish makes it");
    decided(passphrase.is_some(), args.plain, "--new-passphrase-file FILE or --new-passphrase-env NAME")?;
    let key = generate::rsa(args.bits)?;
    create_secret_file(&args.private, &form::encode_private(&key.view(), KeyForm::Native, passphrase)?)?;
    Ok(key)
}

impl Rotation {
    /// Adds the new key at a free index, and the rights of the old one in this record.
    fn begin(
        &self,
        args: &AdministratorArgs,
        clients: &mut ServerClients<'_>,
    ) -> anyhow::Result<ExitOutcome> {
        let values = match self.record(clients)? {
            Ok(values) => values,
            Err(answer) => return Ok(self.refused(&answer)),
        };
        let old = values.iter().map(ValueBuf::view).find(|value| value.index == self.index);
        let old = old.with_context(|| format!("{} has no value {}", Handle(&self.handle), self.index))?;
        ensure!(
            fold::eq(old.kind, kind::HS_PUBKEY),
            "value {} is not a public key (HS_PUBKEY): change a secret with `hdl handle update`",
            self.index
        );
        ensure!(
            old.data != self.public,
            "{} is the key already: there is nothing to rotate",
            args.private.display()
        );
        let index = match self.place(&values) {
            Some(index) => index,
            None => {
                let added = self.added(&values, &old)?;
                let mut storage = Vec::new();
                let body = HandleValues {
                    handle: &self.handle,
                    values: Values::build(added.iter().map(ValueBuf::view), &mut storage),
                };
                let answer =
                    clients.of(&self.handle)?.ask(&Request::AddValue(body), OpFlags::PLAIN_REQUEST)?;
                if answer.code() != ResponseCode::SUCCESS {
                    return Ok(self.refused(&answer));
                }
                added[0].view().index
            }
        };
        let (handle, new) = (Handle(&self.handle), args.private.display());
        println!("{index}:{handle} has the key of {new}; {}:{handle} keeps its key; next:", self.index);
        println!(
            "  where settings name {}:{handle} (administrators of handle-admin), add {index}:{handle}, and reload",
            self.index
        );
        println!("  use the new key: --auth {index}:{handle} --key {new}");
        println!(
            "  hdl key rotate administrator {new} --finish, with the other options as now, when it works everywhere"
        );
        Ok(ExitOutcome::Good)
    }

    /// Puts the new key in the place of the old one, and removes it from its own index.
    fn finish(
        &self,
        args: &AdministratorArgs,
        clients: &mut ServerClients<'_>,
    ) -> anyhow::Result<ExitOutcome> {
        let mut record = self.record(clients)?;
        if matches!(&record, Err(answer) if is_unproven(answer.code())) {
            // An earlier command has put the new key there.
            self.identify(clients)?;
            record = self.record(clients)?;
        }
        let values = match record {
            Ok(values) => values,
            Err(answer) => return Ok(self.refused(&answer)),
        };
        let old = values.iter().map(ValueBuf::view).find(|value| value.index == self.index);
        let old = old.with_context(|| format!("{} has no value {}", Handle(&self.handle), self.index))?;
        if old.data != self.public {
            ensure!(
                self.place(&values).is_some(),
                "the record does not have the new key: `hdl key rotate administrator` without --finish adds it"
            );
            let new = Value { data: &self.public, ..old };
            let mut storage = Vec::new();
            let body = HandleValues { handle: &self.handle, values: Values::build([new], &mut storage) };
            let answer =
                clients.of(&self.handle)?.ask(&Request::ModifyValue(body), OpFlags::PLAIN_REQUEST)?;
            if answer.code() != ResponseCode::SUCCESS {
                return Ok(self.refused(&answer));
            }
        }
        // The old key counts no more, since now or since an earlier command.
        self.identify(clients)?;
        let removed = self.removed(&values);
        if !removed.is_empty() {
            let mut storage = Vec::new();
            let indexes = Indexes::build(removed.iter().copied(), &mut storage);
            let request = Request::RemoveValue(HandleIndexes { handle: &self.handle, indexes });
            let answer = clients.of(&self.handle)?.ask(&request, OpFlags::PLAIN_REQUEST)?;
            if answer.code() != ResponseCode::SUCCESS {
                return Ok(self.refused(&answer));
            }
        }
        println!(
            "{}:{} has the new key, and the old one is no longer accepted; next:",
            self.index,
            Handle(&self.handle)
        );
        let new = args.private.display();
        println!("  use the new key: --auth {}:{} --key {new}", self.index, Handle(&self.handle));
        if let Some(index) = self.place(&values) {
            println!("  where settings name {index}:{}, leave it out", Handle(&self.handle));
        }
        Ok(ExitOutcome::Good)
    }

    /// All values of the record, or the refusal.
    fn record(
        &self,
        clients: &mut ServerClients<'_>,
    ) -> anyhow::Result<Result<Vec<ValueBuf>, AdministrationAnswer>> {
        let query = Query { handle: &self.handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE).without(OpFlags::PUBLIC_ONLY);
        let answer = clients.of(&self.handle)?.ask(&Request::Resolution(query), flags)?;
        if let Response::Answer(found) = answer.reply().response {
            return Ok(Ok(found.values.iter().map(|value| ValueBuf::from(&value)).collect()));
        }
        Ok(Err(answer))
    }

    /// Authenticates with the new key at the index of the old one.
    fn identify(&self, clients: &mut ServerClients<'_>) -> anyhow::Result<()> {
        let key = IdentityKey::Private(Box::new(PrivateKey::new_or_legacy(&self.key.view())?));
        clients.identify(Some(Arc::new(ClientIdentity {
            handle: self.handle.clone(),
            index: self.index,
            key,
        })));
        Ok(())
    }

    /// The index at which the new key is besides that of the old one.
    fn place(&self, values: &[ValueBuf]) -> Option<i32> {
        let is_new = |value: &Value<'_>| {
            value.index != self.index && fold::eq(value.kind, kind::HS_PUBKEY) && value.data == self.public
        };
        values.iter().map(ValueBuf::view).find(is_new).map(|value| value.index)
    }

    /// The value of the new key, and the rights of the old one for it.
    fn added(&self, values: &[ValueBuf], old: &Value<'_>) -> anyhow::Result<Vec<ValueBuf>> {
        let mut taken: Vec<i32> = values.iter().map(|value| value.view().index).collect();
        let mut free = |from: i32| {
            let index = (from..i32::MAX).find(|index| !taken.contains(index));
            taken.extend(index);
            index.context("no index is free")
        };
        let index = free(self.index.saturating_add(1))?;
        let mut added = vec![ValueBuf::from(&Value { index, data: &self.public, ..*old })];
        for value in values.iter().map(ValueBuf::view).filter(|value| self.is_right_of(value, self.index)) {
            let Ok(admin) = Admin::decode(value.data) else { bail!("value {} does not decode", value.index) };
            let mut data = Vec::new();
            Admin::new(admin.permissions, &self.handle, index).encode(&mut data);
            let value = Value { index: free(value.index.saturating_add(1))?, data: &data, ..value };
            added.push(ValueBuf::from(&value));
        }
        Ok(added)
    }

    /// The indexes of what the first step has added.
    fn removed(&self, values: &[ValueBuf]) -> Vec<i32> {
        let Some(place) = self.place(values) else { return Vec::new() };
        let is_added = |value: &Value<'_>| value.index == place || self.is_right_of(value, place);
        values.iter().map(ValueBuf::view).filter(is_added).map(|value| value.index).collect()
    }

    /// Whether `value` gives rights to the key at `index` of this record.
    fn is_right_of(&self, value: &Value<'_>, index: i32) -> bool {
        fold::eq(value.kind, kind::HS_ADMIN)
            && Admin::decode(value.data).is_ok_and(|admin| {
                admin.reference.index == index && fold::eq(admin.reference.handle, &self.handle)
            })
    }

    /// Prints a refusal, and returns its exit code.
    fn refused(&self, answer: &AdministrationAnswer) -> ExitOutcome {
        let (code, text) = (answer.code(), answer.text());
        eprintln!("hdl: {}: the server answered {} {code}: {text}", Handle(&self.handle), code.0);
        outcome(code)
    }
}

/// Whether an answer says that an identity is not proven.
fn is_unproven(code: ResponseCode) -> bool {
    (ResponseCode::AUTHENTICATION_NEEDED.0..=ResponseCode::AUTHENTICATION_NEEDED.0 + 4).contains(&code.0)
}
