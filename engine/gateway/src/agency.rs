//! The registration agency of a prefix: `/doiRA/...`, in the format of doi.org.

pub mod config;
pub mod table;

use crate::peer::HttpPeer;
use crate::record::HttpQuestion;
use crate::reply::{BodyTag, CacheableBody, Freshness, GatewayResponse, RequestHeaders};
use crate::state::GatewayState;
use crate::target;
use handle_client::Question;
use handle_proto::ResponseCode;
use handle_proto::limit::HANDLE_LEN_MAX;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use table::AgencyTable;
use tokio::time::{Instant, timeout_at};

/// Maximum number of names in a request. Further ones are left out: clients ask for those of a
/// page.
const NAMES_MAX: usize = 100;

/// The answer to a request for the agencies of names, separated by commas; `None` if no agency is
/// known.
pub(crate) async fn answer(
    state: &GatewayState,
    peer: HttpPeer,
    request_headers: RequestHeaders<'_>,
    names: &str,
) -> Option<GatewayResponse> {
    let (settings, rules) = (state.settings.current_shared(), state.reading.rules.load_full());
    if rules.agencies.is_empty() {
        return None;
    }
    let mut answers = Vec::new();
    // For all names together: one client can ask for many that are far away.
    let deadline = Instant::now() + Duration::from_millis(settings.upstream.timeout_ms.into());
    for name in names.split(',').take(NAMES_MAX) {
        answers.push(agency_of(state, peer, &rules.agencies, name, deadline).await);
    }
    let bytes = serde_json::to_vec(&answers).unwrap_or_default().into();
    let freshness = Freshness::Seconds(settings.caching.negative_s);
    let body = CacheableBody {
        content_type: "application/json;charset=utf-8",
        bytes,
        freshness,
        tag: BodyTag::Bytes,
    };
    Some(body.respond(StatusCode::OK, request_headers, &settings))
}

/// The entry about one percent-encoded name: a prefix, or a handle that must exist. Other services
/// are waited for until `deadline`.
async fn agency_of(
    state: &GatewayState,
    peer: HttpPeer,
    agencies: &AgencyTable,
    name: &str,
    deadline: Instant,
) -> Value {
    let Ok(name) = target::decode(name) else {
        return json!({ "DOI": name, "status": "Invalid DOI" });
    };
    let name = name.trim();
    let (prefix, suffix) = name.split_once('/').map_or((name, None), |(prefix, rest)| (prefix, Some(rest)));
    if prefix.is_empty() || suffix.is_some_and(str::is_empty) || name.len() > HANDLE_LEN_MAX {
        return json!({ "DOI": name, "status": "Invalid DOI" });
    }
    let Some(agency) = agencies.of(prefix) else {
        return json!({ "DOI": name, "status": "Unknown prefix" });
    };
    if suffix.is_some() {
        let question = Question::all(name.as_bytes());
        let http_question = HttpQuestion::new(question, peer.address);
        let code = timeout_at(deadline, state.answer(&http_question, |answer| answer.code)).await;
        // A service that does not answer in time says nothing about the handle.
        if code == Ok(Ok(ResponseCode::HANDLE_NOT_FOUND)) {
            return json!({ "DOI": name, "status": "DOI does not exist" });
        }
    }
    json!({ "DOI": name, "RA": agency })
}
