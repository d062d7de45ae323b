//! The limit on secrets of a source, around the answers of the API.

use crate::api::request::ApiRequest;
use crate::api::sessions;
use crate::refusal::HttpRefusal;
use crate::reply::GatewayResponse;
use crate::route::Route;
use crate::secret_guesses::SecretGuess;
use crate::state::GatewayState;
use hyper::StatusCode;
use std::sync::Arc;

/// Has `answer` answer a request, unless its source has guessed too many secrets; a refusal tells
/// how to authenticate.
pub(super) async fn guarded(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    answer: impl Future<Output = GatewayResponse>,
) -> GatewayResponse {
    let headers = &request.head.headers;
    let guess =
        SecretGuess::of_headers(request.peer.address, headers).filter(|_| request.peer.is_confidential);
    if let Some(Err(retry_after)) = guess.as_ref().map(|guess| guess.check(state)) {
        let settings = state.settings.current();
        return HttpRefusal::TooManySecrets(retry_after).respond_json(&settings);
    }
    let mut response = answer.await;
    // Proofs of sessions are counted where they are verified.
    let is_counted = matches!(request.route, Route::Sessions | Route::ThisSession);
    if let Some(guess) = guess.filter(|_| response.status() == StatusCode::UNAUTHORIZED && !is_counted) {
        guess.count(state);
    }
    sessions::add_authentication_headers(state, request, &mut response).await;
    response
}
