//! What the process that serves the pages does for them.

use crate::registration::Registrations;
use handle_client::administration::{Administrator, AskError, ClientIdentity};
use handle_daemon::metrics::EventCounter;
use handle_daemon::source_rates::RetryAfter;
use handle_proto::wire::admin::StorePosition;
use handle_proto::{ResponseCode, ValueBuf};
use hyper::StatusCode;
use std::net::IpAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The process that serves the pages. Whatever it does for a client counts in the limits on the
/// address `source` of the client.
pub trait ConsoleHost {
    /// The body of a request that has not been read.
    type Body;
    /// Stands for the memory of a body that has been read, for as long as it is kept.
    type Reservation: Send + 'static;

    /// Reads a body of at most `len_max` bytes.
    ///
    /// # Errors
    /// The status for a body that is too long, too slow or broken, or for which there is no
    /// capacity.
    fn read_body(
        &self,
        source: IpAddr,
        body: Self::Body,
        len_max: usize,
    ) -> impl Future<Output = Result<(Zeroizing<Vec<u8>>, Self::Reservation), StatusCode>>;

    /// Runs `work`, which may wait for a disk, on a thread that may.
    ///
    /// # Errors
    /// When too much work is waiting.
    fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, ServiceFailure>>;

    /// Runs `work` with a client of `handle-admin` that has this identity.
    ///
    /// # Errors
    /// When too many requests wait, or the service does not answer.
    fn ask<T: Send + 'static>(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        work: impl FnOnce(&mut Administrator) -> Result<T, AskError> + Send + 'static,
    ) -> impl Future<Output = Result<T, ServiceFailure>>;

    /// The names of all handles whose prefix has the record `record`, in ascending order, and the
    /// code of the answer.
    ///
    /// # Errors
    /// When too many requests wait, or the service does not answer.
    fn list(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        record: Vec<u8>,
    ) -> impl Future<Output = Result<(ResponseCode, Vec<String>), ServiceFailure>>;

    /// Creates records, or replaces them, as `mode` says.
    fn put_records(
        &self,
        source: IpAddr,
        identity: &Arc<ClientIdentity>,
        records: Vec<UploadRecord>,
        mode: UploadMode,
    ) -> impl Future<Output = UploadOutcome>;

    /// Completes when readers see the change of `handle`, or after the time that an answer may wait
    /// for that. `position` is a state of the store that includes the change.
    fn until_visible(
        &self,
        source: IpAddr,
        handle: &[u8],
        position: Option<StorePosition>,
    ) -> impl Future<Output = ()>;

    /// Opens a session without an identity, whose nonce a client can sign; `None` if the service
    /// does not answer.
    fn open_session(&self, source: IpAddr) -> impl Future<Output = Option<SignInSession>>;

    /// The identity of the session whose id has this text; `None` without session or identity.
    fn find_session(&self, id: &str) -> Option<Arc<ClientIdentity>>;

    /// Signs in, and returns the text of the id of a new session.
    ///
    /// # Errors
    /// When the proof is wrong, or cannot be verified.
    fn sign_in(
        &self,
        source: IpAddr,
        proof: SignInProof<'_>,
    ) -> impl Future<Output = Result<String, SignInRefusal>>;

    /// Ends the session whose id has this text.
    fn sign_out(&self, id: &str);

    /// The requests for prefixes; `None` without registration.
    fn registrations(&self) -> Option<&Registrations>;

    /// Counts forms of applicants that are refused.
    fn refused_forms(&self) -> &EventCounter;
}

/// Why the service did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceFailure {
    /// As many requests as allowed wait for it.
    Busy,
    /// The request failed.
    Failed,
}

/// A session without an identity.
#[derive(Clone)]
pub struct SignInSession {
    /// The text of its id, which is a secret of the client.
    pub id: String,
    /// The nonce to sign.
    pub nonce: Vec<u8>,
}

/// What a sign-in form has.
pub enum SignInProof<'f> {
    /// A secret key.
    Secret {
        /// The identity as `index:handle`.
        identity: &'f str,
        /// The secret.
        secret: Zeroizing<Vec<u8>>,
    },
    /// The signature that a browser has made: names and values of the fields of a proof, as in the
    /// scheme `Handle` of the JSON API.
    Signature(Vec<(&'f str, &'f str)>),
}

/// Why a user is not signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInRefusal {
    /// The proof is wrong, incomplete or too old, or the identity is unknown.
    NotVerified,
    /// The source has sent too many wrong secret keys.
    TooManySecrets(RetryAfter),
    /// The service did not answer, or is overloaded.
    Unreachable,
    /// The identity is proven, but there are as many sessions as allowed.
    Full,
}

/// One record of an upload.
#[derive(Debug, PartialEq, Eq)]
pub struct UploadRecord {
    /// The name.
    pub handle: String,
    /// The values, or why they cannot be read.
    pub values: Result<Vec<ValueBuf>, String>,
}

/// What an upload does with records that exist.
#[derive(Clone, Copy, Debug)]
pub struct UploadMode {
    /// Whether they are replaced.
    pub overwrites: bool,
    /// Whether a record may lose its last administrator.
    pub allows_orphans: bool,
}

/// What has come of an upload.
#[derive(Debug)]
pub struct UploadOutcome {
    /// The records, each with its code and text; `None` if no answer about it has arrived.
    pub records: Vec<(String, Option<(ResponseCode, String)>)>,
    /// Why answers are missing.
    pub missing: UploadFailure,
}

/// Why there are no answers about some records of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadFailure {
    /// The service refused to take more of them.
    Refused(ResponseCode, String),
    /// The service did not answer.
    Unanswered(ServiceFailure),
}
