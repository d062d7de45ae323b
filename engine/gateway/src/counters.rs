//! Counters of requests, answers and connections.

use handle_daemon::metrics::EventCounter;

handle_daemon::event_counters! {
    /// Counters of this process.
    pub struct GatewayCounters of EventCounter, "handle_gateway_" {
        /// Requests to the JSON API.
        api_requests,
        /// Names in requests to `/api/resolve`.
        bulk_names,
        /// Lines in requests to `/api/batch`, and records of uploads.
        bulk_records,
        /// Messages of the handle protocol in bodies of `POST`.
        native_requests,
        /// Requests with a wrong secret key.
        secret_guesses,
        /// Requests with a secret key that were refused, because their source had sent too many
        /// wrong ones.
        secret_guesses_refused,
        /// Requests for administration pages.
        admin_requests,
        /// Requests for pages for applicants for a prefix.
        registration_requests,
        /// Forms of applicants refused: wrong, too many, or without capacity for them.
        registration_forms_refused,
        /// Requests to the proxy.
        proxy_requests,
        /// Answers with a status of 2xx.
        answers_2xx,
        /// Answers with a status of 3xx.
        answers_3xx,
        /// Answers with a status of 4xx.
        answers_4xx,
        /// Answers with a status of 5xx.
        answers_5xx,
        /// Questions to the Handle System, including those that its cache answered.
        upstream_questions,
        /// Questions to the Handle System without an answer.
        upstream_failures,
        /// Messages that were forwarded to `handle-admin`.
        forwarded,
        /// Messages that `handle-admin` did not answer.
        forward_failures,
        /// Changes that were answered before the mapped set had them (`admin.visible_ms`).
        changes_not_visible,
        /// Proofs of callers with SHA-1 (`sessions.sha1`), right or wrong.
        sha1_proofs,
        /// Connections whose client has shown a certificate.
        client_certificates,
        /// Connections whose client certificate has proven an identity.
        certificate_proofs,
        /// Requests with `clientCert` whose connection has no identity.
        certificate_refusals,
        /// Connections that were accepted.
        connections,
        /// Connections refused because their source has too many.
        connections_refused,
        /// Connections that ended with an error: malformed requests, timeouts, resets.
        connections_failed,
        /// Requests whose body was too long or too slow.
        bodies_refused,
        /// Requests that got status 429, because their source exceeded its rate.
        requests_limited,
        /// Orders of a certificate by ACME.
        certificate_orders,
        /// Orders of a certificate by ACME that failed.
        certificate_order_failures,
        /// Requests that hit a bug.
        bugs,
    }
}

/// What a request is for, as far as requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The JSON API, or a search.
    Api,
    /// A message of the handle protocol.
    Native,
    /// An administration page.
    Admin,
    /// A page for applicants for a prefix.
    Registration,
    /// Everything else.
    Proxy,
}

impl GatewayCounters {
    /// Counts a request that was not refused before it was routed.
    pub fn count_request(&self, kind: RequestKind) {
        match kind {
            RequestKind::Api => self.api_requests.add(),
            RequestKind::Native => self.native_requests.add(),
            RequestKind::Admin => self.admin_requests.add(),
            RequestKind::Registration => self.registration_requests.add(),
            RequestKind::Proxy => self.proxy_requests.add(),
        }
    }

    /// Counts an answer by the class of its status.
    pub fn count_answer(&self, status: u16) {
        match status {
            200..=299 => self.answers_2xx.add(),
            300..=399 => self.answers_3xx.add(),
            400..=499 => self.answers_4xx.add(),
            _ => self.answers_5xx.add(),
        }
    }
}
