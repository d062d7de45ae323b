//! Sessions: `/api/sessions`, and the scheme `Handle` on every other endpoint.

use crate::api::basic::basic;
use crate::api::body::ApiBody;
use crate::api::certificates;
use crate::api::request::{ApiRequest, BASIC, respond, unsupported};
use crate::api::scheme::{CredentialsError, HandleCredentials, HandleProof};
use crate::body_collection::read_body;
use crate::caller_sessions::{end, find, open, service};
use crate::callers::{CallerError, ServerSignature};
use crate::connections::request_body::RequestBody;
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, empty};
use crate::route::Route;
use crate::secret_guesses::SecretGuess;
use crate::sessions::{AuthenticateError, HttpSession, SessionId};
use crate::state::GatewayState;
use data_encoding::BASE64;
use handle_auth::challenge::answer_with_mac;
use handle_auth::random;
use handle_client::administration::{ClientIdentity, IdentityKey};
use handle_daemon::source_rates::RetryAfter;
use handle_local::callers::{CallerProof, CallerRefusal};
use handle_proto::ResponseCode;
use handle_proto::json::Json;
use handle_proto::wire::auth::SECRET_KEY;
use handle_proto::wire::list::Reference;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::{Map, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of the body of a request about a session.
const BODY_LEN_MAX: usize = 64 << 10;

/// Why a caller has no session with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInError {
    /// The credentials are incomplete or malformed.
    Credentials(CredentialsError),
    /// The proof is wrong, or the identity is unknown.
    NotVerified,
    /// The nonce has expired.
    Stale,
    /// There are too many sessions or requests.
    Busy,
    /// The source has sent too many wrong secret keys.
    TooManySecrets(RetryAfter),
    /// `handle-admin` did not answer.
    Unreachable,
}

impl SignInError {
    /// The text of deployed servers for this error.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Credentials(CredentialsError::Missing) => "Missing fields in authentication data",
            Self::Credentials(CredentialsError::Malformed) => "Error parsing Authorization: Handle",
            Self::NotVerified | Self::Stale => "Identity not verified",
            Self::Busy | Self::TooManySecrets(_) | Self::Unreachable => "Identity not verified at the moment",
        }
    }
}

impl From<CallerError> for SignInError {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::Refused(CallerRefusal::Stale) => Self::Stale,
            CallerError::Refused(CallerRefusal::Busy) => Self::Busy,
            CallerError::Refused(CallerRefusal::Unanswered) | CallerError::Unreachable => Self::Unreachable,
            CallerError::Refused(CallerRefusal::Wrong | CallerRefusal::Unsupported) => Self::NotVerified,
        }
    }
}

impl From<AuthenticateError> for SignInError {
    fn from(error: AuthenticateError) -> Self {
        match error {
            AuthenticateError::Full => Self::Busy,
            AuthenticateError::Changed => Self::Stale,
        }
    }
}

/// The credentials of the scheme `Handle` in a request over TLS. The outer `None` means another
/// scheme, the inner one malformed credentials.
pub fn credentials(request: &ApiRequest<'_>) -> Option<Option<HandleCredentials>> {
    let text = request.head.headers.get(header::AUTHORIZATION).filter(|_| request.peer.is_confidential)?;
    let text = text.to_str().ok()?;
    let is_handle = text.trim_start().get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("Handle"));
    is_handle.then(|| HandleCredentials::of_header(text))
}

/// Reads a proof, and counts it if it has SHA-1.
///
/// # Errors
/// When a field is missing or cannot be read, or its algorithm is not accepted.
pub fn read_proof(
    state: &GatewayState,
    credentials: &HandleCredentials,
) -> Result<HandleProof, CredentialsError> {
    let proof = credentials.proof(state.settings.current().sessions.old_digests())?;
    if proof.has_sha1 {
        state.counters.sha1_proofs.add();
    }
    Ok(proof)
}

/// Lets `handle-admin` verify a proof over `nonce`. A wrong secret key is counted here, whatever
/// the form in which it came.
///
/// # Errors
/// When the proof is wrong or cannot be verified, or its source has sent too many wrong ones.
pub async fn verify_proof(
    state: &GatewayState,
    address: IpAddr,
    nonce: &[u8],
    proof: HandleProof,
) -> Result<Arc<ClientIdentity>, SignInError> {
    let guess = (proof.auth_type == SECRET_KEY).then(|| SecretGuess::of(address, &proof.handle));
    if let Some(guess) = &guess {
        guess.check(state).map_err(SignInError::TooManySecrets)?;
    }
    let verified = verify_uncounted(state, address, nonce, proof).await;
    if let (Err(SignInError::NotVerified), Some(guess)) = (&verified, guess) {
        guess.count(state);
    }
    verified
}

/// As [`verify_proof`], for a request whose secret key is checked and counted with its answer.
pub(super) async fn verify_uncounted(
    state: &GatewayState,
    address: IpAddr,
    nonce: &[u8],
    proof: HandleProof,
) -> Result<Arc<ClientIdentity>, SignInError> {
    let (Some(service), Some(admin)) = (service(state), &state.writing.admin) else {
        return Err(SignInError::Unreachable);
    };
    let (service, nonce) = (Arc::clone(service), nonce.to_vec());
    let verified = admin.perform(address, async move {
        let proof = CallerProof {
            nonce: &nonce,
            client_nonce: &proof.client_nonce,
            auth_type: proof.auth_type,
            identity: Reference { handle: &proof.handle, index: proof.index },
            signed_response: &proof.signed_response,
            source: address,
        };
        service.verify(&proof).await
    });
    match verified.await {
        Ok(Ok(identity)) => Ok(Arc::new(identity)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(SignInError::Busy),
    }
}

/// Makes a proof with the secret of an identity. `handle-admin` does not receive the secret.
#[must_use]
pub fn proof_with_secret(identity: &ClientIdentity, nonce: &[u8]) -> Option<HandleProof> {
    let IdentityKey::Secret(secret) = &identity.key else { return None };
    let client_nonce = random::<16>().to_vec();
    let signed_response = answer_with_mac(&[nonce, &client_nonce], secret);
    let (handle, index) = (identity.handle.clone(), identity.index);
    let has_sha1 = false;
    Some(HandleProof { handle, index, auth_type: SECRET_KEY, client_nonce, signed_response, has_sha1 })
}

/// Verifies a proof, and gives the session the identity and another nonce. A session that has an
/// identity keeps it.
async fn sign_in(
    state: &GatewayState,
    address: IpAddr,
    session: &HttpSession,
    proof: HandleProof,
) -> Result<HttpSession, SignInError> {
    if let Some(known) = &session.identity
        && (known.handle != proof.handle || (proof.index != 0 && known.index != proof.index))
    {
        return Err(SignInError::NotVerified);
    }
    let verified = verify_proof(state, address, &session.nonce, proof).await;
    let next = match service(state) {
        Some(service) => service.nonce().await.ok_or(SignInError::Unreachable)?,
        None => return Err(SignInError::Unreachable),
    };
    let identity = match verified {
        Ok(identity) => identity,
        Err(error) => {
            if error == SignInError::Stale {
                state.writing.sessions.renew(session.id, next);
            }
            return Err(error);
        }
    };
    let settings = state.settings.current_shared();
    let (limits, now) = (&settings.sessions, Instant::now());
    match state.writing.sessions.authenticate(session, next, Arc::clone(&identity), limits, now) {
        Ok(displaced) => displaced.into_iter().for_each(|identity| end(state, Some(identity))),
        Err(error) => {
            end(state, Some(identity));
            return Err(error.into());
        }
    }
    if let Some(before) = &session.identity {
        end(state, Some(Arc::clone(before)));
    }
    Ok(HttpSession { id: session.id, nonce: next, identity: Some(identity) })
}

/// The caller of a request with credentials of this scheme.
///
/// # Errors
/// The response that refuses the credentials.
pub async fn caller(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    credentials: Option<HandleCredentials>,
) -> Result<Option<Arc<ClientIdentity>>, GatewayResponse> {
    let Some(credentials) = credentials else {
        let error = SignInError::Credentials(CredentialsError::Malformed);
        return Err(refused(state, request, error.text()));
    };
    let Some(session) = credentials.session().and_then(|id| find(state, id)) else {
        return Err(refused(state, request, NO_SESSION));
    };
    if !credentials.is_proof() {
        return Ok(session.identity);
    }
    let signed = match read_proof(state, &credentials) {
        Ok(proof) => sign_in(state, request.peer.address, &session, proof).await,
        Err(error) => Err(SignInError::Credentials(error)),
    };
    match signed {
        Ok(session) => Ok(session.identity),
        Err(SignInError::TooManySecrets(retry_after)) => Err(too_many(state, retry_after)),
        Err(error) => {
            let mut response = refused(state, request, error.text());
            let session = find(state, session.id).unwrap_or(session);
            add(&mut response, &challenge_text(&session, Some(error), None));
            Err(response)
        }
    }
}

fn too_many(state: &GatewayState, retry_after: RetryAfter) -> GatewayResponse {
    let settings = state.settings.current();
    HttpRefusal::TooManySecrets(retry_after).respond_json(&settings)
}

/// The message for a session that has ended or never was.
const NO_SESSION: &str = "Unknown or ended session";

/// The refusal of credentials, without the challenge that goes with it.
fn refused(state: &GatewayState, request: &ApiRequest<'_>, message: &str) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::AUTHENTICATION_FAILED, Some(message), None);
    respond(state, request, StatusCode::UNAUTHORIZED, body)
}

fn no_session(state: &GatewayState, request: &ApiRequest<'_>, status: StatusCode) -> GatewayResponse {
    respond(state, request, status, ApiBody::failure(ResponseCode::SESSION_TIMEOUT, Some(NO_SESSION), None))
}

/// Adds the challenge of another session to the refusal of a caller.
pub async fn add_challenge(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    response: &mut GatewayResponse,
    error: SignInError,
) {
    if let Some(session) = open(state, request.peer.address).await {
        add(response, &challenge_text(&session, Some(error), None));
    }
}

fn add(response: &mut GatewayResponse, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().append(header::WWW_AUTHENTICATE, value);
    }
}

fn challenge_text(
    session: &HttpSession,
    error: Option<SignInError>,
    server: Option<&ServerSignature>,
) -> String {
    let nonce = BASE64.encode(&session.nonce);
    let mut text = format!("Handle sessionId=\"{}\", nonce=\"{nonce}\"", session.id.secret_text());
    if let Some(error) = error {
        text.push_str(&format!(", error=\"{}\"", error.text()));
    }
    if let Some(ServerSignature { algorithm, signature }) = server {
        let signature = BASE64.encode(signature);
        text.push_str(&format!(", serverAlg=\"{algorithm}\", serverSignature=\"{signature}\""));
    }
    text
}

/// Adds `WWW-Authenticate`: the schemes to a refusal without them, and the signature of the server
/// if a caller without an identity requests it.
pub async fn add_authentication_headers(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    response: &mut GatewayResponse,
) {
    if !request.peer.is_confidential {
        return;
    }
    let sent_credentials = credentials(request);
    let found =
        sent_credentials.iter().flatten().find_map(HandleCredentials::session).and_then(|id| find(state, id));
    let is_refused = response.status() == StatusCode::UNAUTHORIZED
        && !response.headers().contains_key(header::WWW_AUTHENTICATE);
    let unauthenticated = match found {
        // `handle-admin` no longer knows the session.
        Some(HttpSession { id, identity: Some(_), .. }) if is_refused => {
            end(state, state.writing.sessions.end(id));
            None
        }
        found => found.filter(|session| session.identity.is_none()),
    };
    let client_nonce = sent_credentials
        .iter()
        .flatten()
        .filter(|credentials| !credentials.is_proof())
        .find_map(HandleCredentials::client_nonce);
    if is_refused {
        let had_certificate = certificates::end(request, response).await;
        let basic = basic_identity(request);
        let has_none = !request.head.headers.contains_key(header::AUTHORIZATION);
        // Like deployed servers, offers `Basic` only to clients that use it or no scheme.
        if has_none || basic.is_some() || service(state).is_none() {
            response.headers_mut().append(header::WWW_AUTHENTICATE, BASIC);
        }
        let is_wrong = had_certificate || basic.flatten().is_some();
        let error = is_wrong.then_some(SignInError::NotVerified);
        let session = match unauthenticated {
            Some(session) => Some(session),
            None => open(state, request.peer.address).await,
        };
        if let Some(session) = session {
            let server = prove_server(state, request, &session, client_nonce.as_deref()).await;
            add(response, &challenge_text(&session, error, server.as_ref()));
        }
    } else if let (Some(session), Some(client_nonce)) = (unauthenticated, client_nonce)
        && let Some(server) = prove_server(state, request, &session, Some(&client_nonce)).await
        && !response.headers().contains_key(header::WWW_AUTHENTICATE)
    {
        add(response, &challenge_text(&session, None, Some(&server)));
    }
}

/// The signature of the server over the nonces of session and caller.
async fn prove_server(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    session: &HttpSession,
    client_nonce: Option<&[u8]>,
) -> Option<ServerSignature> {
    let (service, admin) = (Arc::clone(service(state)?), state.writing.admin.as_ref()?);
    let (nonce, client_nonce) = (session.nonce, client_nonce?.to_vec());
    let source = request.peer.address;
    let signed = admin.perform(source, async move { service.sign(&nonce, &client_nonce, source).await });
    signed.await.ok()?.ok()
}

/// Answers a request about sessions, over TLS.
pub async fn answer(state: &GatewayState, request: &ApiRequest<'_>, body: RequestBody) -> GatewayResponse {
    if service(state).is_none() {
        return unsupported(state, request, "This gateway has no sessions");
    }
    let is_this = request.route == Route::ThisSession;
    match *request.head.method {
        Method::POST if !is_this => create(state, request, body).await,
        Method::GET | Method::HEAD if is_this => show(state, request).await,
        Method::PUT if is_this => authenticate(state, request, body).await,
        Method::DELETE if is_this => match session_in_header(request).and_then(|id| find(state, id)) {
            Some(session) => {
                end(state, state.writing.sessions.end(session.id));
                empty(StatusCode::NO_CONTENT)
            }
            None => no_session(state, request, StatusCode::FORBIDDEN),
        },
        _ => super::unknown(state, request),
    }
}

fn session_in_header(request: &ApiRequest<'_>) -> Option<SessionId> {
    credentials(request).flatten().and_then(|credentials| credentials.session())
}

async fn read_json(state: &GatewayState, source: IpAddr, body: RequestBody) -> Json {
    // At most 64 KB each, for the little that is kept of them.
    let read = read_body(state, source, body, BODY_LEN_MAX).await;
    read.ok().and_then(|(bytes, _reservation)| serde_json::from_slice(&bytes).ok()).unwrap_or(Json::Null)
}

fn basic_identity(request: &ApiRequest<'_>) -> Option<Option<ClientIdentity>> {
    let text = request.head.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let is_basic = text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("Basic "));
    is_basic.then(|| basic(text))
}

async fn create(state: &GatewayState, request: &ApiRequest<'_>, body: RequestBody) -> GatewayResponse {
    let json = read_json(state, request.peer.address, body).await;
    let Some(mut session) = open(state, request.peer.address).await else {
        return unsupported(state, request, "The administration service did not answer");
    };
    let mut error = None;
    if let Some(identity) = basic_identity(request) {
        let proof = identity.and_then(|identity| proof_with_secret(&identity, &session.nonce));
        let signed = match proof {
            Some(proof) => sign_in(state, request.peer.address, &session, proof).await,
            None => Err(SignInError::NotVerified),
        };
        match signed {
            Ok(signed) => session = signed,
            Err(SignInError::TooManySecrets(retry_after)) => return too_many(state, retry_after),
            Err(refused) => error = Some(refused),
        }
    }
    let of_header = credentials(request).flatten().and_then(|credentials| credentials.client_nonce());
    let client_nonce = of_header.or_else(|| HandleCredentials::of_json(&json).client_nonce());
    let server = prove_server(state, request, &session, client_nonce.as_deref()).await;
    let mut response =
        respond(state, request, StatusCode::CREATED, session_body(&session, error, server.as_ref()));
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/api/sessions/this"));
    response
}

async fn show(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    if credentials(request).flatten().is_some_and(|sent| sent.means_certificate()) {
        return match certificates::caller(state, request).await {
            Ok(identity) => respond(state, request, StatusCode::OK, identity_body(&identity)),
            Err(refused) => refused,
        };
    }
    let Some(sent_credentials) = credentials(request).flatten().filter(HandleCredentials::names_session)
    else {
        return respond(state, request, StatusCode::OK, ApiBody::of(&json!({ "authenticated": false })));
    };
    let Some(session) = sent_credentials.session().and_then(|id| find(state, id)) else {
        return no_session(state, request, StatusCode::FORBIDDEN);
    };
    let server = prove_server(state, request, &session, sent_credentials.client_nonce().as_deref()).await;
    respond(state, request, StatusCode::OK, session_body(&session, None, server.as_ref()))
}

async fn authenticate(state: &GatewayState, request: &ApiRequest<'_>, body: RequestBody) -> GatewayResponse {
    let of_header = credentials(request).flatten();
    let json = read_json(state, request.peer.address, body).await;
    let sent_credentials = of_header.unwrap_or_else(|| HandleCredentials::of_json(&json));
    let Some(session) = sent_credentials.session().and_then(|id| find(state, id)) else {
        return no_session(state, request, StatusCode::UNAUTHORIZED);
    };
    let proof = match basic_identity(request) {
        Some(identity) => {
            let proof = identity.and_then(|identity| proof_with_secret(&identity, &session.nonce));
            Some(proof.ok_or(SignInError::NotVerified))
        }
        None => sent_credentials
            .is_proof()
            .then(|| read_proof(state, &sent_credentials).map_err(SignInError::Credentials)),
    };
    let signed = match proof {
        None => Ok(session.clone()),
        Some(Err(error)) => Err(error),
        Some(Ok(proof)) => sign_in(state, request.peer.address, &session, proof).await,
    };
    match signed {
        Ok(session) => respond(state, request, StatusCode::OK, session_body(&session, None, None)),
        Err(SignInError::TooManySecrets(retry_after)) => too_many(state, retry_after),
        Err(error) => {
            let session = find(state, session.id).unwrap_or(session);
            let body = session_body(&session, Some(error), None);
            let mut response = respond(state, request, StatusCode::UNAUTHORIZED, body);
            add(&mut response, &challenge_text(&session, Some(error), None));
            response
        }
    }
}

fn identity_body(identity: &ClientIdentity) -> ApiBody {
    let mut body = Map::new();
    add_identity(identity, &mut body);
    ApiBody::of(&body.into())
}

fn add_identity(identity: &ClientIdentity, body: &mut Map<String, Json>) {
    body.insert("authenticated".to_owned(), true.into());
    let handle = String::from_utf8_lossy(&identity.handle);
    body.insert("id".to_owned(), format!("{}:{handle}", identity.index).into());
}

fn session_body(
    session: &HttpSession,
    error: Option<SignInError>,
    server: Option<&ServerSignature>,
) -> ApiBody {
    let mut body = Map::new();
    body.insert("sessionId".to_owned(), session.id.secret_text().into());
    body.insert("nonce".to_owned(), BASE64.encode(&session.nonce).into());
    if let Some(ServerSignature { algorithm, signature }) = server {
        body.insert("serverAlg".to_owned(), algorithm.as_str().into());
        body.insert("serverSignature".to_owned(), BASE64.encode(signature).into());
    }
    if let Some(identity) = &session.identity {
        add_identity(identity, &mut body);
    }
    if let Some(error) = error {
        body.insert("error".to_owned(), error.text().into());
    }
    ApiBody::of(&body.into())
}
